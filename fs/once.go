package fs

import (
	"context"
	"sync/atomic"
)

// once lets one caller at a time run a function until it has succeeded. Unlike with [sync.Once], waiting callers honour
// their contexts, and after a failure the next caller tries again. The zero value is ready.
type once struct {
	done atomic.Bool
	turn atomic.Pointer[chan struct{}]
}

func (o *once) do(ctx context.Context, f func(context.Context) error) error {
	if o.done.Load() {
		return nil
	}
	turn := o.queue()
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if o.done.Load() {
		return nil
	}
	if err := f(ctx); err != nil {
		return err
	}
	o.done.Store(true)
	return nil
}

func (o *once) queue() chan struct{} {
	if q := o.turn.Load(); q != nil {
		return *q
	}
	q := make(chan struct{}, 1)
	o.turn.CompareAndSwap(nil, &q)
	return *o.turn.Load()
}
