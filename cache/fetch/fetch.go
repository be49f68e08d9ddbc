package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/layout"
)

// ErrUnreachable says that the origin did not give the bytes within [Options.Patience]. The object may be as it was.
var ErrUnreachable = errors.New("the origin cannot be reached")

// ErrShort says that a body ended before its time. Another attempt follows.
var ErrShort = errors.New("the body ended early")

// ErrStalled says that an attempt brought nothing for too long. Another one follows.
var ErrStalled = errors.New("no byte came for too long")

// ErrSlow says that an attempt brought too few bytes for its time. Another one follows.
var ErrSlow = errors.New("too few bytes came")

// Getter makes one attempt at a range of an object.
type Getter interface {
	// Get asks for the n bytes of o from off on, which lie inside the object, of the listed version and as they are
	// stored. The client compares the answer with the request. Errors that wrap cache.ErrChanged, fs.ErrPermission,
	// fs.ErrInvalid or fs.ErrNotExist are final, all others worth another attempt. ctx ends the body as well.
	Get(ctx context.Context, o *layout.Object, off, n int64) (*Answer, error)
}

// Options bound a Client's work. Each field documents its zero value.
type Options struct {
	Connections int           // requests under way at once, 0 means 16
	Patience    time.Duration // how long the next MiB of a range may take, or its rest; 0 means 2 minutes. Below 16 s it is for less than a MiB
	Stall       time.Duration // how long an attempt may bring nothing, or too little for that, 0 means 15 s, or a quarter of Patience where that is less
	Wait        time.Duration // how long an origin that never answered may be one that cannot, such as a name that nobody has
	Retrying    func(error)   // is told now and then why attempts are made again, nil for nobody
	Dark        func(error)   // is told that a range was given up while no range brought a byte for twice Patience, or ever; nil for nobody
	Listing     int64         // bytes of memory that a listing may take, 0 means 1 GiB
	NoHedging   bool          // never send a second request for a slow first one
	Share       int64         // bytes: no request crosses a multiple of it; 0 means that any may
	Trace       *trace.Tracer // has a span for each request, nil for none
	Guard       *Guard        // of the addresses that are dialled, nil for none
}

// Client fetches ranges. It is safe for concurrent use.
type Client struct {
	getter Getter
	opt    Options
	turns  *turns
	notice notice
	first  FirstByte
	stats  counters
	last   atomic.Int64 // when a byte came, ns since 1970; 0 for never
}

// Patience is how long a remote place may bring nothing, where the options do not say.
const Patience = 2 * time.Minute

// New makes a client of an origin.
func New(g Getter, opt Options) *Client {
	opt.Connections = cmp.Or(max(opt.Connections, 0), 16)
	opt.Patience = cmp.Or(max(opt.Patience, 0), Patience)
	opt.Stall = cmp.Or(max(opt.Stall, 0), min(15*time.Second, opt.Patience/4))
	opt.Listing = cmp.Or(max(opt.Listing, 0), 1<<30)
	c := &Client{getter: g, opt: opt}
	c.turns = newTurns(opt.Connections, opt.Stall, c.trial)
	return c
}

// mostHeader bounds an answer before its body, bytes.
const mostHeader = 64 << 10

// Transport makes a transport for requests of ranges. HTTPS_PROXY and its relatives are honoured.
func (c *Client) Transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true // a range of an object is a range of its bytes as stored
	t.MaxIdleConnsPerHost = c.opt.Connections
	t.MaxResponseHeaderBytes = mostHeader
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true) // HTTP/2 would put all ranges on one connection
	return t
}

// Connections is how many requests may be under way at once.
func (c *Client) Connections() int { return c.opt.Connections }

// Stall is how long an attempt may bring nothing.
func (c *Client) Stall() time.Duration { return c.opt.Stall }

// Answered says that the origin is known to be there: one that cannot be reached from now on may come back.
func (c *Client) Answered() { c.notice.answer() }

// blockSize is how much of a body is read and handed on at a time.
const blockSize = 256 << 10

// Fetch gets the n bytes of o from off on and hands them to sink, in order and each once. The slice is sink's until it
// returns; an error of sink ends the fetch. The range must lie inside the object.
func (c *Client) Fetch(ctx context.Context, o *layout.Object, off, n int64, sink func(p []byte) error) error {
	if off < 0 || n < 0 || off > o.Size-n {
		return fmt.Errorf("fetch %q: bytes %d to %d are asked for, the object has %d", o.Name, off, off+n, o.Size)
	}
	buf := make([]byte, min(n, blockSize))
	t := newTries(c.opt.Patience)
	for n > 0 {
		t.attempt++
		want := n
		if share := c.opt.Share; share > 0 {
			want = min(n, share-off%share)
		}
		got, err := c.attempt(ctx, ask{object: o, off: off, n: want, attempt: t.attempt, until: t.since.Add(c.opt.Patience)}, buf, sink)
		off, n = off+got, n-got
		t.brought(got)
		if err == nil {
			continue
		}
		if errors.Is(err, ErrStalled) && cache.InterestOf(ctx)() == cache.Nobody {
			return fmt.Errorf("fetch %q at %d: %w: %w", o.Name, off, cache.ErrUnwanted, err)
		}
		if err := c.again(ctx, t, err); err != nil {
			if errors.Is(err, ErrUnreachable) {
				c.stats.failed.Add(1)
			}
			err = fmt.Errorf("fetch %q at %d: %w", o.Name, off, err)
			if c.opt.Dark != nil && errors.Is(err, ErrUnreachable) && time.Since(time.Unix(0, c.last.Load())) >= 2*c.opt.Patience {
				c.opt.Dark(err)
			}
			return err
		}
		c.stats.retried(err)
	}
	return nil
}

// sinkError is an error of the sink, which no further attempt mends.
type sinkError struct{ error }

func (e sinkError) Unwrap() error { return e.error }

// final tells errors that stay however often one tries.
func final(err error) bool {
	var sink sinkError
	for _, stays := range []error{cache.ErrChanged, fs.ErrPermission, fs.ErrInvalid, fs.ErrNotExist} {
		if errors.Is(err, stays) {
			return true
		}
	}
	return errors.As(err, &sink)
}

// attempt makes one request and hands on the bytes that come: got of them, and an error if some are missing.
func (c *Client) attempt(ctx context.Context, a ask, buf []byte, sink func([]byte) error) (got int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	turn, err := c.turn(ctx, a, cancel)
	if err != nil {
		return 0, err
	}
	defer func() {
		c.turns.release(turn, errors.Is(err, ErrStalled) || errors.Is(err, ErrSlow), got >= min(a.n, enough))
	}()
	r, err := c.open(ctx, a)
	if err != nil {
		return 0, err
	}
	r.turn = turn
	defer func() { r.close(err) }()
	if r.blind {
		buf = make([]byte, a.n)
	}
	for got < a.n {
		p := buf[:min(int64(len(buf)), a.n-got)]
		m, err := r.next(p, got+int64(len(p)) == a.n)
		if m > 0 {
			c.stats.bytes.Add(int64(m))
			c.last.Store(time.Now().UnixNano())
			turn.pause() // the sink may take its time
			if err := sink(p[:m]); err != nil {
				return got, sinkError{err}
			}
			turn.resume()
			got += int64(m)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return got, fmt.Errorf("%w: after %d of %d bytes", ErrShort, got, a.n)
		default:
			return got, err
		}
	}
	return a.n, nil
}

// turn waits for the turn of a request. One for a suspect waits no longer than its patience, and not at all if nobody does.
func (c *Client) turn(ctx context.Context, a ask, yield context.CancelCauseFunc) (*turn, error) {
	if !c.turns.suspected(a.object) {
		return c.turns.take(ctx, a.object, yield)
	}
	if cache.InterestOf(ctx)() == cache.Nobody {
		return nil, ErrStalled
	}
	ctx, cancel := context.WithDeadlineCause(ctx, a.until, ErrStalled)
	defer cancel()
	return c.turns.take(ctx, a.object, yield)
}

// ReadAt fills p from off under the rules of [layout.Origin].
func (c *Client) ReadAt(ctx context.Context, o *layout.Object, p []byte, off int64) (int, error) {
	if off < 0 || off >= o.Size {
		return 0, io.EOF
	}
	n := 0
	err := c.Fetch(ctx, o, off, min(int64(len(p)), o.Size-off), func(b []byte) error {
		n += copy(p[n:], b)
		return nil
	})
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}
