package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// paceIn is how many bytes of a range must come within a patience: a MiB, the most that the kernel asks for at once, but
// never more than 64 KiB a second.
func paceIn(patience time.Duration) int64 {
	return max(1, min(1<<20, int64(patience.Seconds()*(64<<10))))
}

// tries spaces attempts, and gives up after so long without progress.
type tries struct {
	patience time.Duration
	since    time.Time
	got      int64 // bytes since then
	wait     *backoff.ExponentialBackOff
	attempt  int64 // that is made, from 1
}

func newTries(patience time.Duration) *tries {
	t := &tries{patience: patience, wait: backoff.NewExponentialBackOff()}
	t.wait.InitialInterval, t.wait.MaxInterval = 100*time.Millisecond, 10*time.Second
	t.progress()
	return t
}

func (t *tries) progress() {
	t.since, t.got = time.Now(), 0
	t.wait.Reset()
}

// brought counts the bytes of an attempt. A few bytes are worth the next attempt soon, and no new patience.
func (t *tries) brought(n int64) {
	if n > 0 {
		t.wait.Reset()
	}
	if t.got += n; t.got >= paceIn(t.patience) {
		t.progress()
	}
}

// again waits until it is time for another attempt after err, or says that there shall be none.
func (c *Client) again(ctx context.Context, t *tries, err error) error {
	patience := t.patience
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case final(err):
		return err
	case !c.notice.answered() && cannotAnswer(err):
		patience = c.opt.Wait
	}
	waited := time.Since(t.since)
	if waited >= patience {
		if errors.Is(err, io.EOF) { // how a server hangs up; readers would take it for the object's end
			err = errors.New(err.Error())
		}
		if patience < t.patience {
			return fmt.Errorf("%w: %w: check its address, or mount with a longer --wait, such as 10m, if it comes later", ErrUnreachable, err)
		}
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	} else if waited >= soon || asked(err) > soon {
		c.notice.say(c.opt.Retrying, err)
	}
	if errors.Is(err, errYielded) { // its next turn is late enough
		return nil
	}
	return pause.For(ctx, max(t.wait.NextBackOff(), min(asked(err), patience-waited)))
}

// cannotAnswer tells errors that mean that no server is there, or none that is trusted. An origin that has answered
// before may do so again: it is started anew, or moved. One that never did is misspelt, as a rule.
func cannotAnswer(err error) bool {
	var name *net.DNSError
	var address *net.AddrError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.Is(err, syscall.ECONNREFUSED) || (errors.As(err, &name) && name.IsNotFound) || errors.As(err, &address) ||
		errors.As(err, &certificate) || errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch)
}

// Lasting tells statuses that stay however often one asks.
func Lasting(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusMisdirectedRequest, http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return true
	}
	return status/100 == 3 || status/100 == 4
}

const (
	soon     = 250 * time.Millisecond // after which a failure is no hiccup any more
	silence  = 800 * time.Millisecond // of a server at the listing, which somebody waits for
	quietFor = 10 * time.Second       // after it was said why attempts are made again
)

// ErrSilent says that a server gives no answer, while the client waits for it.
var ErrSilent = errors.New("the server has not answered yet")

// notice tells the user who waits why it takes so long, but not each time.
type notice struct {
	mu   sync.Mutex // guards the fields below, and the calls of tell
	last time.Time
	came bool
}

// answer notes that the origin has answered.
func (s *notice) answer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.came = true
}

func (s *notice) answered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.came
}

func (s *notice) say(tell func(error), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tell == nil || time.Since(s.last) < quietFor {
		return
	}
	s.last = time.Now()
	tell(err)
}

// Retry calls attempt until it succeeds, fails for good, or patience is over. It is for requests of another kind than a
// range. attempt calls alive when something comes; its context ends when nothing does for too long.
func (c *Client) Retry(ctx context.Context, attempt func(ctx context.Context, alive func()) error) error {
	t := newTries(c.opt.Patience)
	for {
		t.attempt++
		ctx, span := c.opt.Trace.Request(ctx, "list")
		span.Int("attempt", t.attempt)
		err := c.watched(ctx, func(ctx context.Context, alive func()) error {
			return attempt(ctx, func() { alive(); t.progress() })
		})
		span.End(class(err))
		if err == nil || final(err) {
			c.notice.answer()
			return err
		}
		if err := c.again(ctx, t, err); err != nil {
			return err
		}
	}
}

// watched runs attempt under a stall timer.
func (c *Client) watched(ctx context.Context, attempt func(ctx context.Context, alive func()) error) error {
	r := &request{stall: c.opt.Stall}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	r.timer = time.AfterFunc(r.stall, func() { r.cancel(ErrStalled) })
	defer r.timer.Stop()
	silent := time.AfterFunc(silence, func() { c.notice.say(c.opt.Retrying, ErrSilent) })
	defer silent.Stop()
	if err := attempt(r.ctx, func() { silent.Reset(silence); r.timer.Reset(r.stall) }); err != nil {
		return r.why(err)
	}
	return nil
}
