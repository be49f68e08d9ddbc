package writer

import (
	"context"
	"sync"
	"time"
)

// rate bounds the bytes a second that go to storage, over all workers. The zero rate is no bound.
type rate struct {
	perSecond int64

	mu   sync.Mutex // guards the fields below
	free time.Time  // when the next bytes may go
}

// burst is how much time that nobody used may be made up for.
const burst = 100 * time.Millisecond

// wait waits until n more bytes may go.
func (r *rate) wait(ctx context.Context, n int64) error {
	if r.perSecond == 0 {
		return nil
	}
	r.mu.Lock()
	now := time.Now()
	if earliest := now.Add(-burst); r.free.Before(earliest) {
		r.free = earliest
	}
	pause := r.free.Sub(now)
	r.free = r.free.Add(time.Duration(float64(n) / float64(r.perSecond) * float64(time.Second)))
	r.mu.Unlock()
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
