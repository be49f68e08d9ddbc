package fs

import (
	"context"
	"sync"
)

// jobQueue queues prefetch jobs, bounded for each user. Users with jobs take turns.
type jobQueue struct {
	room *shares
	some chan struct{} // has a token while there may be a job

	mu    sync.Mutex // guards the fields below
	turns []uint32   // users with jobs, the next one first
	of    map[uint32][]prefetchJob
}

func newJobQueue(limit int64) *jobQueue {
	return &jobQueue{room: newShares(limit, limit/2, 1), some: make(chan struct{}, 1), of: map[uint32][]prefetchJob{}}
}

// add queues a job of a user, and reports whether there was room.
func (q *jobQueue) add(uid uint32, job prefetchJob) bool {
	if !q.room.reserve(uid, 1) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.of[uid]) == 0 {
		q.turns = append(q.turns, uid)
	}
	q.of[uid] = append(q.of[uid], job)
	q.wake()
	return true
}

func (q *jobQueue) wake() {
	select {
	case q.some <- struct{}{}:
	default: // it is awake
	}
}

// next waits for a job.
func (q *jobQueue) next(ctx context.Context) (prefetchJob, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.some:
		}
		if job := q.pop(); job != nil {
			return job, nil
		}
	}
}

func (q *jobQueue) pop() prefetchJob {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turns) == 0 {
		return nil
	}
	uid := q.turns[0]
	q.turns = q.turns[1:]
	job := q.of[uid][0]
	if q.of[uid] = q.of[uid][1:]; len(q.of[uid]) > 0 {
		q.turns = append(q.turns, uid)
	} else {
		delete(q.of, uid)
	}
	if len(q.turns) > 0 {
		q.wake()
	}
	q.room.book(uid, -1)
	return job
}
