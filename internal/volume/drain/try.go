package drain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// The kinds of failures of one checkpoint. Each error names a remedy in a sentence.
var (
	ErrForeign = errors.New("somebody else's")      // objects under the name, or the place
	ErrLost    = errors.New("it was removed here")  // before it was remote
	ErrSilent  = errors.New("the store is silent")  // for the patience of Once
	errAgain   = errors.New("to be looked at anew") // the journal was wrong
)

// mostLies is how many impossible answers a server may give.
const mostLies = 3

// lasting tells errors that stay for now, however often one asks.
func lasting(err error) bool {
	for _, stays := range []error{
		fs.ErrPermission, fs.ErrInvalid, fs.ErrNotExist, fs.ErrExist, errors.ErrUnsupported, checkpoint.ErrDamaged,
		s3origin.ErrNoUpload, s3origin.ErrParts, ErrForeign, ErrLost, errAgain,
	} {
		if errors.Is(err, stays) {
			return true
		}
	}
	return false
}

// localError is an error of this machine's files.
type localError struct{ error }

func (e localError) Unwrap() error { return e.error }

// try calls attempt until it succeeds or fails for good. A store that is gone is asked ever less often, and never given up, but for
// [Drain.Once]. An attempt calls alive when something moves, and is ended where nothing does for long.
func (d *Drain) try(ctx context.Context, attempt func(ctx context.Context, alive func()) error) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = d.opt.retryFirst, d.opt.retryMost
	lies := 0
	began := time.Now()
	for {
		d.counts.requests.Add(1)
		err := d.watched(ctx, attempt)
		var local localError
		switch {
		case err == nil:
			d.worked()
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case lasting(err), errors.As(err, &local):
			d.worked() // it has answered
			return err
		case errors.Is(err, fetch.ErrLie):
			if lies++; lies == mostLies {
				return err
			}
		}
		d.counts.retries.Add(1)
		silent := d.troubled(err, began)
		if d.opt.Patience > 0 && silent > d.opt.Patience {
			return fmt.Errorf("%w: nothing worked for %s: %w", ErrSilent, silent.Round(time.Second), err)
		}
		next := wait.NextBackOff()
		if d.opt.Patience > 0 {
			next = min(next, d.opt.Patience-silent+time.Millisecond)
		}
		if err := pause.For(ctx, next); err != nil {
			return context.Cause(ctx)
		}
	}
}

// watched runs an attempt under a stall timer.
func (d *Drain) watched(ctx context.Context, attempt func(ctx context.Context, alive func()) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(d.opt.stall, func() { cancel(fetch.ErrStalled) })
	defer timer.Stop()
	err := attempt(ctx, func() { timer.Reset(d.opt.stall) })
	if err != nil && errors.Is(context.Cause(ctx), fetch.ErrStalled) {
		return fmt.Errorf("the store does not go on: %w", fetch.ErrStalled)
	}
	return err
}

// troubled notes why a request will be made again, and gives for how long none has worked.
func (d *Drain) troubled(err error, began time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.trouble == nil {
		d.since = time.Now()
		d.log.Warn("the drain tries again, because a request failed", "error", err)
	}
	d.trouble = err
	since := d.since
	if began.After(since) {
		since = began
	}
	return time.Since(since)
}

// worked notes that the store has answered.
func (d *Drain) worked() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trouble = nil
}

// mostWork is how long a server may work on one request without a word. AWS takes minutes to complete a large upload.
const mostWork = 15 * time.Minute

// slowest is how long so many bytes may be on their way in one request of which nobody sees the progress.
func slowest(bytes int64) time.Duration { return time.Duration(bytes) * time.Second / (256 << 10) }

// keepAlive calls alive for a request whose answer may take so long, until stop is called.
func (d *Drain) keepAlive(alive func(), most time.Duration) (stop func()) {
	every := time.NewTicker(d.opt.stall / 4)
	end, over := time.Now().Add(most), make(chan struct{})
	var once sync.Once
	go func() { // ends with stop
		defer every.Stop()
		for {
			select {
			case <-over:
				return
			case <-every.C:
				if time.Now().Before(end) {
					alive()
				}
			}
		}
	}()
	return func() { once.Do(func() { close(over) }) }
}
