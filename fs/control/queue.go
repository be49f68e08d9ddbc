package control

import (
	"context"
	"sync"

	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

// announcements is a queue of them, bounded for each user. Users with some take turns.
type announcements struct {
	room *shares.Shares
	some chan struct{} // has a token while there may be one

	mu    sync.Mutex // guards the fields below
	turns []uint32   // users with some, the next one first
	of    map[uint32][]announcement
}

func newAnnouncements(limit int64) *announcements {
	return &announcements{room: shares.New(limit, limit/2, 1), some: make(chan struct{}, 1), of: map[uint32][]announcement{}}
}

// add queues an announcement of a user, and reports whether there was room.
func (q *announcements) add(uid uint32, a announcement) bool {
	if !q.room.Reserve(uid, 1) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.of[uid]) == 0 {
		q.turns = append(q.turns, uid)
	}
	q.of[uid] = append(q.of[uid], a)
	q.wake()
	return true
}

func (q *announcements) wake() {
	select {
	case q.some <- struct{}{}:
	default: // it is awake
	}
}

// next waits for an announcement.
func (q *announcements) next(ctx context.Context) (announcement, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.some:
		}
		if a := q.pop(); a != nil {
			return a, nil
		}
	}
}

func (q *announcements) pop() announcement {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turns) == 0 {
		return nil
	}
	uid := q.turns[0]
	q.turns = q.turns[1:]
	a := q.of[uid][0]
	if q.of[uid] = q.of[uid][1:]; len(q.of[uid]) > 0 {
		q.turns = append(q.turns, uid)
	} else {
		delete(q.of, uid)
	}
	if len(q.turns) > 0 {
		q.wake()
	}
	q.room.Book(uid, -1)
	return a
}
