package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/layout"
)

// ask is a question to the origin: bytes of an object.
type ask struct {
	object  *layout.Object
	off, n  int64
	attempt int64     // from 1
	hedge   bool      // it is the second request of an attempt
	until   time.Time // when patience is over
}

// request is an attempt under way. Its stall timer runs from one byte to the next, and in each such time enough bytes for
// the pace must come. Nothing else ends a request that waits for them.
type request struct {
	body   io.ReadCloser
	blind  bool // the server does not say how many bytes the body has
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
	least  int64 // bytes that must come in each stall

	turn *turn // of the attempt

	waited time.Duration // since the last look at how many came
	came   int64         // since then

	span *trace.Span
	got  int64 // bytes
	err  error // why there are not more

	tell func(error) // of the answer, nil where nobody wants to know
}

// start makes a request and returns once the origin has answered.
func (c *Client) start(ctx context.Context, a ask) (*request, error) {
	c.stats.requests.Add(1)
	r := &request{stall: c.opt.Stall, least: c.least()}
	ctx, r.span = c.opt.Trace.Request(ctx, "request")
	r.span.Text("object", a.object.Name).Int("offset", a.off).Int("bytes", a.n).Int("attempt", a.attempt).Bool("hedge", a.hedge)
	ctx, cancel := context.WithCancelCause(ctx)
	r.ctx, r.cancel = ctx, cancel
	r.timer = time.AfterFunc(r.stall, func() { cancel(ErrStalled) }) // while a race may give r another cancel
	began := time.Now()
	answer, err := c.getter.Get(r.ctx, a.object, a.off, a.n)
	if err == nil {
		if err = check(a, answer); err != nil {
			_ = answer.Body.Close() // it is another range
		}
	}
	if err != nil {
		r.timer.Stop()
		err = r.why(err)
		r.cancel(nil)
		r.span.End(class(err))
		return nil, err
	}
	c.notice.answer()
	c.first.Observe(time.Since(began))
	c.stats.latency.observe(time.Since(began))
	r.body, r.blind, r.tell = answer.Body, answer.ContentLength < 0, answer.Ended
	return r, nil
}

// least is how many bytes must come in each stall.
func (c *Client) least() int64 {
	return int64(float64(paceIn(c.opt.Patience)) * min(1, c.opt.Stall.Seconds()/c.opt.Patience.Seconds()))
}

// why gives ErrStalled in place of the library's error, where the stall timer ended the request.
func (r *request) why(err error) error {
	if cause := context.Cause(r.ctx); errors.Is(cause, ErrStalled) {
		return cause
	}
	return err
}

func (r *request) readFull(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		r.timer.Reset(r.stall)
		var m int
		began := time.Now()
		m, err = r.body.Read(p[n:])
		n += m
		if r.turn != nil {
			r.turn.brought(m)
		}
		if slow := r.paced(time.Since(began), m); err == nil {
			err = slow
		}
	}
	r.timer.Stop() // the sink may take its time
	r.got += int64(n)
	if err != nil {
		err = r.why(err)
		if n < len(p) {
			r.err = err
		}
	}
	return n, err
}

// paced counts n bytes that took a while, and ends a request whose bytes come too slowly.
func (r *request) paced(took time.Duration, n int) error {
	if r.waited, r.came = r.waited+took, r.came+int64(n); r.waited < r.stall {
		return nil
	}
	came := r.came
	r.waited, r.came = 0, 0
	if came < r.least {
		return fmt.Errorf("%w: %d bytes in %v", ErrSlow, came, r.stall)
	}
	return nil
}

// close ends the request. err is why it did not bring all bytes.
func (r *request) close(err error) {
	if r.tell != nil {
		if sink := (sinkError{}); errors.As(err, &sink) {
			err = nil // the bytes had come
		}
		r.tell(err)
	}
	r.timer.Stop()
	r.cancel(nil)
	r.span.Int("bytes_received", r.got).End(class(r.err))
	_ = r.body.Close() // all wanted bytes are read, or have failed already
}

// open makes a request, and a second one when the first takes far longer to answer than they do as a rule. The first
// answer wins, and the other request is ended.
func (c *Client) open(ctx context.Context, a ask) (*request, error) {
	patience, ok := c.first.Slow()
	if !ok || c.opt.NoHedging {
		return c.start(ctx, a)
	}
	g := &race{answers: make(chan answer), decided: make(chan struct{})}
	defer close(g.decided)
	g.run(ctx, func(ctx context.Context) (*request, error) { return c.start(ctx, a) })
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-g.answers:
		return g.settle(a)
	case <-timer.C:
	}
	if turn, ok := c.turns.spare(a.object); ok {
		c.stats.hedged.Add(1)
		second := a
		second.hedge = true
		g.run(ctx, func(ctx context.Context) (*request, error) {
			defer c.turns.release(turn, false, false) // the winner has the turn of the first
			return c.start(ctx, second)
		})
	}
	return g.settle(<-g.answers)
}

// race is one or two requests for the same bytes.
type race struct {
	answers chan answer
	decided chan struct{} // closed when no answer is wanted any more
	cancels []context.CancelFunc
}

type answer struct {
	r      *request
	err    error
	number int
}

// run starts a request. Its goroutine ends with the answer, for which the stall timer sees to it.
func (g *race) run(ctx context.Context, start func(context.Context) (*request, error)) {
	ctx, cancel := context.WithCancel(ctx)
	number := len(g.cancels)
	g.cancels = append(g.cancels, cancel)
	go func() {
		r, err := start(ctx)
		select {
		case g.answers <- answer{r, err, number}:
		case <-g.decided:
			if r != nil {
				r.close(nil)
			}
		}
	}()
}

// settle settles the race with an answer, or with the next one where this one is an error that the other may not meet.
func (g *race) settle(a answer) (*request, error) {
	if a.err != nil && !final(a.err) && len(g.cancels) == 2 {
		g.cancels[a.number]()
		a = <-g.answers
	}
	for i, cancel := range g.cancels {
		if i != a.number || a.err != nil {
			cancel()
		}
	}
	if a.err != nil {
		return nil, a.err
	}
	end, cancel := a.r.cancel, g.cancels[a.number]
	a.r.cancel = func(cause error) { end(cause); cancel() }
	return a.r, nil
}

// class is the word that a span has for an error.
func class(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, cache.ErrChanged):
		return "changed"
	case errors.Is(err, fs.ErrPermission):
		return "denied"
	case errors.Is(err, fs.ErrNotExist):
		return "missing"
	case errors.Is(err, ErrStalled), errors.Is(err, ErrSlow):
		return "stalled"
	case errors.Is(err, ErrShort), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "short"
	}
	return "failed"
}
