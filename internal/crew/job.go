package crew

import (
	"context"
	"sync"
	"sync/atomic"
)

// job is n steps that any worker may take, in any order.
type job struct {
	ctx      context.Context
	n        int64
	step     func(w *Worker, i int64) error
	taken    atomic.Int64 // steps handed out
	owed     atomic.Int64 // workers and copies that still owe an end, and one for the caller that recruits
	finished chan struct{}
	mu       sync.Mutex
	err      error // the first; guarded by mu
}

func (j *job) work(w *Worker) {
	w.job = j
	if w.over {
		j.fail(ErrClosed)
	}
	for j.ctx.Err() == nil && j.failed() == nil {
		i := j.taken.Add(1) - 1
		if i >= j.n {
			break
		}
		j.fail(j.step(w, i))
		w.done.Add(1)
	}
	j.end()
}

func (j *job) fail(err error) {
	if err == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = err
	}
}

func (j *job) failed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

func (j *job) end() {
	if j.owed.Add(-1) == 0 {
		close(j.finished)
	}
}
