package drain

import (
	"context"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// Auto is the rate that follows other programs' writes to the disk; Unlimited is none. Both are for [Options.Rate].
const (
	Auto      = 0
	Unlimited = -1
)

// pace bounds the bytes a second that all requests read and send.
type pace struct {
	rate func() int64 // bytes a second; 0 or less: no bound

	mu     sync.Mutex // guards the fields below
	next   time.Time  // when the next bytes may go
	active int        // requests that send
}

// perRequest is the rate from which on one more request is worth it. Servers end connections that bring nothing for some seconds.
const perRequest = 8 << 20

// enter waits until one more request may send. leave ends it.
func (p *pace) enter(ctx context.Context) (leave func(), err error) {
	for !p.entered() {
		if err := pause.For(ctx, pause.Look); err != nil {
			return nil, err
		}
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.active--
	}, nil
}

func (p *pace) entered() bool {
	rate := p.rate()
	p.mu.Lock()
	defer p.mu.Unlock()
	if rate > 0 && p.active > 0 && int64(p.active) >= rate/perRequest {
		return false
	}
	p.active++
	return true
}

// take waits until n bytes may go, and calls alive meanwhile.
func (p *pace) take(ctx context.Context, n int64, alive func()) error {
	rate := p.rate()
	if rate <= 0 {
		return ctx.Err()
	}
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	p.mu.Unlock()
	for wait > 0 {
		step := min(wait, time.Second)
		if err := pause.For(ctx, step); err != nil {
			return err
		}
		wait -= step
		alive()
	}
	return ctx.Err()
}
