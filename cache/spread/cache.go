package spread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/layout"
)

const (
	leastOut  = time.Second      // that a cache is passed over after a failure, doubled by each further one
	mostOut   = time.Minute      // at most
	lackOut   = time.Minute      // for an object that it lacks, or has another version of
	otherOut  = 10 * time.Minute // for a cache whose versions are others
	mostOther = 10               // objects of another version, one after the other, that say so
	mostLacks = 10_000           // objects that are remembered as lacking
	firstTime = 3 * time.Second  // for the first answer of a cache: somebody waits for the mount meanwhile
)

// errLate says that a cache did not answer in time.
var errLate = errors.New("it did not answer in time")

// server is a cache, or the origin, and its history.
type server struct {
	name   string
	getter fetch.Getter
	limit  time.Duration // for an answer; 0 for none
	first  fetch.FirstByte

	mu     sync.Mutex // guards the fields below
	came   bool       // an answer, ever
	stats  status.Endpoint
	out    time.Time // until when it is passed over
	failed int       // times in a row, late ones among them
	other  map[string]bool
	lacks  map[string]time.Time // until when it is passed over for an object
}

// usable tells whether the server may be asked for an object now.
func (s *server) usable(object string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if until, lacks := s.lacks[object]; lacks {
		if now.Before(until) {
			return false
		}
		delete(s.lacks, object)
	}
	return !now.Before(s.out)
}

// get makes a request, whose answer is as asked or an error.
func (s *server) get(ctx context.Context, o *layout.Object, off, n int64) (*fetch.Answer, error) {
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	limit := s.patience()
	timer := time.AfterFunc(limit, func() { cancel(fmt.Errorf("%w: %v", errLate, limit)) })
	if limit == 0 {
		timer.Stop()
	}
	s.count(func(e *status.Endpoint) { e.Requests++ })
	began := time.Now()
	a, err := s.getter.Get(ctx, o, off, n)
	late := !timer.Stop() && limit > 0
	if err == nil {
		if err = a.Check(o, off, n); err != nil {
			_ = a.Body.Close() // it is not the answer to the request
		}
	}
	if late && outer.Err() == nil {
		if err == nil {
			_ = a.Body.Close() // its context has ended
		}
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel(nil)
		if outer.Err() == nil { // else nobody waited for it
			s.judge(o.Name, err)
		}
		return nil, err
	}
	s.first.Observe(time.Since(began))
	s.mu.Lock()
	s.came = true
	s.mu.Unlock()
	a.Body = &body{a.Body, s, func() { cancel(nil) }}
	a.Ended = func(err error) {
		if outer.Err() == nil || errors.Is(err, fetch.ErrStalled) {
			s.judge(o.Name, err)
		}
	}
	return a, nil
}

// patience is how long an answer may take. A cache that never answered is more likely gone than busy.
func (s *server) patience() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.came {
		return s.limit
	}
	return min(s.limit, firstTime)
}

// soon is how long an answer may take before another server is asked beside: longer than answers of this one take as a rule.
func (s *server) soon() time.Duration {
	limit := s.patience()
	if usual, known := s.first.Slow(); known {
		return min(limit, max(usual, firstTime))
	}
	return max(limit/2, min(limit, firstTime))
}

// wasLate passes the server over after another one had to answer for it. It may be busy: that is no failure.
func (s *server) wasLate(waited time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Late++
	s.passOver(fmt.Sprintf("an answer took longer than %v, and another server gave the bytes", waited))
}

// passOver leaves the server out for a while, each time for longer. It needs mu.
func (s *server) passOver(why string) {
	s.out, s.stats.Out = time.Now().Add(min(mostOut, leastOut<<min(s.failed, 10))), why
	s.failed++
}

// body counts the bytes that come.
type body struct {
	io.ReadCloser
	of    *server
	close func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.of.count(func(e *status.Endpoint) { e.Bytes += int64(n) })
	return n, err
}

func (b *body) Close() error {
	defer b.close()
	return b.ReadCloser.Close()
}

func (s *server) count(add func(*status.Endpoint)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.stats)
}

// judge learns from the end of a request for an object.
func (s *server) judge(object string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.failed, s.other, s.stats.Out = 0, nil, ""
	case errors.Is(err, cache.ErrChanged):
		s.stats.Wrong++
		s.lack(object)
		if s.other == nil {
			s.other = map[string]bool{}
		}
		if s.other[object] = true; len(s.other) >= mostOther {
			s.other, s.out = nil, time.Now().Add(otherOut)
			s.stats.Out = fmt.Sprintf("it answered for %d objects with other versions than the source lists", mostOther)
		}
	case errors.Is(err, fs.ErrNotExist):
		s.stats.Failed++
		s.lack(object)
	default:
		if errors.Is(err, fetch.ErrLie) || errors.Is(err, fs.ErrInvalid) {
			s.stats.Wrong++
		} else {
			s.stats.Failed++
		}
		s.passOver(fmt.Sprintf("%.300v", err))
	}
}

// lack remembers that an object is not to be had here.
func (s *server) lack(object string) {
	if s.lacks == nil || len(s.lacks) >= mostLacks {
		s.lacks = map[string]time.Time{}
	}
	s.lacks[object] = time.Now().Add(lackOut)
}

// said is the server's state, for the status.
func (s *server) said() status.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.stats
	e.Name = s.name
	if time.Now().After(s.out) {
		e.Out = ""
	}
	return e
}
