package spread

import (
	"context"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/layout"
)

// Get implements [fetch.Getter]. It asks one cache after the other, and then the origin, whose error counts. Where an answer takes far
// longer than as a rule, the next server is asked beside, and the first answer counts.
func (o *Spread) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	g := &race{answers: make(chan answer), decided: make(chan struct{})}
	defer close(g.decided)
	for _, s := range o.order(obj.Name, off/share) {
		if s.usable(obj.Name) {
			g.left = append(g.left, s)
		}
	}
	g.left = append(g.left, o.origin)
	ask := func(ctx context.Context, s *server) (*fetch.Answer, error) { return s.get(ctx, obj, off, n) }
	return g.run(ctx, ask)
}

// race is requests for the same bytes to one server after the other. Only late ones run beside others.
type race struct {
	left    []*server  // to be asked
	under   []*request // that have not answered
	answers chan answer
	decided chan struct{} // closed when no answer is wanted any more
}

type request struct {
	to     *server
	cancel context.CancelFunc
	late   time.Duration // after which another server was asked; 0 for none
}

type answer struct {
	*fetch.Answer
	of  *request
	err error
}

// run gives the first answer. The error is that of the server that was to be asked last.
func (g *race) run(ctx context.Context, ask func(context.Context, *server) (*fetch.Answer, error)) (*fetch.Answer, error) {
	late := time.NewTimer(0)
	defer late.Stop()
	last, failed := g.left[len(g.left)-1], error(nil)
	for next := true; ; {
		var soon time.Duration
		if next && len(g.left) > 0 {
			soon = g.start(ctx, ask)
			late.Stop()
			if len(g.left) > 0 {
				late.Reset(soon)
			}
		}
		select {
		case a := <-g.answers:
			if a.err == nil || ctx.Err() != nil {
				return g.settle(a)
			}
			a.of.cancel()
			g.under = slices.DeleteFunc(g.under, func(r *request) bool { return r == a.of })
			if a.of.to == last {
				failed = a.err
			}
			if next = true; len(g.under)+len(g.left) == 0 {
				return nil, failed
			}
		case <-late.C:
			newest := g.under[len(g.under)-1]
			newest.late, next = newest.to.soon(), true
		}
	}
}

// start asks the next server, and gives how long it may take. The request's goroutine ends with the answer.
func (g *race) start(ctx context.Context, ask func(context.Context, *server) (*fetch.Answer, error)) time.Duration {
	r := &request{to: g.left[0]}
	g.left = g.left[1:]
	ctx, r.cancel = context.WithCancel(ctx)
	g.under = append(g.under, r)
	go func() {
		a, err := ask(ctx, r.to)
		select {
		case g.answers <- answer{a, r, err}:
		case <-g.decided:
			if err == nil {
				_ = a.Body.Close() // another one was first
			}
			r.cancel()
		}
	}()
	return r.to.soon()
}

// settle ends all other requests.
func (g *race) settle(a answer) (*fetch.Answer, error) {
	for _, r := range g.under {
		if r == a.of {
			continue
		}
		r.cancel()
		if r.late > 0 && a.err == nil {
			r.to.wasLate(r.late)
		}
	}
	if a.err != nil {
		a.of.cancel()
		return nil, a.err
	}
	b := a.Body.(*body)
	end := b.close
	b.close = func() { end(); a.of.cancel() }
	return a.Answer, nil
}
