package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// script is an origin that does to each request what the test says.
type script struct {
	data []byte
	do   func(request int64, body []byte) (io.Reader, error)

	requests, under, most atomic.Int64
}

func (s *script) Get(ctx context.Context, o *layout.Object, off, n int64) (*Answer, error) {
	number := s.requests.Add(1)
	under := s.under.Add(1)
	for most := s.most.Load(); under > most && !s.most.CompareAndSwap(most, under); most = s.most.Load() {
	}
	r, err := s.do(number, s.data[off:off+n])
	if err != nil {
		s.under.Add(-1)
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		if h, ok := r.(*hang); ok {
			h.end(ctx.Err())
		}
	})
	return answerOf(o, off, n, &scripted{Reader: r, s: s, stop: stop}), nil
}

// answerOf is what an honest server says of a range.
func answerOf(o *layout.Object, off, n int64, body io.ReadCloser) *Answer {
	return &Answer{Version: o.Version, Response: &http.Response{
		StatusCode: http.StatusPartialContent, Status: "206 Partial Content", ContentLength: n, Body: body,
		Header: http.Header{"Content-Range": {fmt.Sprintf("bytes %d-%d/%d", off, off+n-1, o.Size)}},
	}}
}

type scripted struct {
	io.Reader
	s    *script
	stop func() bool
	once sync.Once
}

func (b *scripted) Close() error {
	b.once.Do(func() { b.stop(); b.s.under.Add(-1) })
	return nil
}

// hang is a body that brings nothing until its request is ended.
type hang struct {
	once sync.Once
	over chan struct{}
	err  error
}

func newHang() *hang { return &hang{over: make(chan struct{})} }

func (h *hang) end(err error) { h.once.Do(func() { h.err = err; close(h.over) }) }

func (h *hang) Read([]byte) (int, error) {
	<-h.over
	return 0, h.err
}

func whole(_ int64, body []byte) (io.Reader, error) { return bytes.NewReader(body), nil }

func randomBytes(n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(p) // never fails
	return p
}

func object(s *script) *layout.Object { return &layout.Object{Name: "shard", Size: int64(len(s.data))} }

func read(t *testing.T, c *Client, o *layout.Object, off, n int64) ([]byte, error) {
	t.Helper()
	var out []byte
	err := c.Fetch(t.Context(), o, off, n, func(p []byte) error { out = append(out, p...); return nil })
	return out, err
}

// inFakeTime runs a subtest whose time passes as soon as all of its goroutines wait for it.
func inFakeTime(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// TestFaultsThatPass has every request but the last of a few fail in some way. All bytes come, each once.
func TestFaultsThatPass(t *testing.T) {
	errReset := errors.New("connection reset by peer")
	for name, do := range map[string]func(int64, []byte) (io.Reader, error){
		"refused": func(int64, []byte) (io.Reader, error) { return nil, errReset },
		"short": func(_ int64, body []byte) (io.Reader, error) {
			return bytes.NewReader(body[:min(len(body)-1, 300_000)]), nil
		},
		"reset": func(_ int64, body []byte) (io.Reader, error) {
			return io.MultiReader(bytes.NewReader(body[:min(len(body)-1, 10)]), &failing{errReset}), nil
		},
		"stall": func(int64, []byte) (io.Reader, error) { return newHang(), nil },
		"empty": func(int64, []byte) (io.Reader, error) { return bytes.NewReader(nil), nil },
	} {
		inFakeTime(t, name, func(t *testing.T) {
			s := &script{data: randomBytes(1 << 20)}
			s.do = func(number int64, body []byte) (io.Reader, error) {
				if number <= 3 {
					return do(number, body)
				}
				return whole(number, body)
			}
			c := New(s, Options{Stall: 50 * time.Millisecond})
			got, err := read(t, c, object(s), 100, 1<<20-200)
			if err != nil || !bytes.Equal(got, s.data[100:1<<20-100]) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
			st := c.Stats()
			if st.Retries != 3 || st.Requests != 4 || st.Bytes != int64(len(got)) {
				t.Errorf("stats %+v, want 3 retries of 4 requests", st)
			}
			if (name == "stall") != (st.Stalls == 3) {
				t.Errorf("%d stalls", st.Stalls)
			}
			if s.under.Load() != 0 {
				t.Errorf("%d bodies are still open", s.under.Load())
			}
		})
	}
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

// TestFaultsThatStay wants one request, and the error as it is.
func TestFaultsThatStay(t *testing.T) {
	for _, stays := range []error{
		fmt.Errorf("replaced: %w", cache.ErrChanged), fmt.Errorf("denied: %w", fs.ErrPermission), fmt.Errorf("no ranges: %w", fs.ErrInvalid),
	} {
		s := &script{data: randomBytes(10), do: func(int64, []byte) (io.Reader, error) { return nil, stays }}
		c := New(s, Options{})
		if _, err := read(t, c, object(s), 0, 10); !errors.Is(err, stays) || errors.Is(err, ErrUnreachable) {
			t.Errorf("%v, want %v", err, stays)
		}
		if n := s.requests.Load(); n != 1 {
			t.Errorf("%d requests for what stays", n)
		}
	}
}

// TestPatienceEnds has an origin that never answers well.
func TestPatienceEnds(t *testing.T) {
	down := errors.New("503 slow down")
	s := &script{data: randomBytes(10), do: func(int64, []byte) (io.Reader, error) { return nil, down }}
	c := New(s, Options{Patience: 200 * time.Millisecond, Stall: time.Minute})
	_, err := read(t, c, object(s), 0, 10)
	if !errors.Is(err, ErrUnreachable) || !errors.Is(err, down) {
		t.Errorf("%v, want ErrUnreachable because of %v", err, down)
	}
	if errors.Is(err, cache.ErrChanged) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an origin that cannot be reached is taken for one that has lost the object: %v", err)
	}
	if st := c.Stats(); st.Failed != 1 || st.Requests < 2 {
		t.Errorf("stats %+v", st)
	}
}

// TestHangingUpIsNoEnd has an origin that hangs up, which net/http calls EOF. A reader would take that for the end.
func TestHangingUpIsNoEnd(t *testing.T) {
	hangUp := fmt.Errorf("Get: %w", io.EOF)
	s := &script{data: randomBytes(10), do: func(int64, []byte) (io.Reader, error) { return nil, hangUp }}
	c := New(s, Options{Patience: 200 * time.Millisecond, Stall: time.Minute})
	if n, err := c.ReadAt(t.Context(), object(s), make([]byte, 10), 0); !errors.Is(err, ErrUnreachable) || errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v; want ErrUnreachable, which is no EOF", n, err)
	}
}

func TestSinkErrorEndsTheFetch(t *testing.T) {
	full := errors.New("disk full")
	s := &script{data: randomBytes(1 << 20), do: whole}
	c := New(s, Options{})
	err := c.Fetch(t.Context(), object(s), 0, 1<<20, func([]byte) error { return full })
	if !errors.Is(err, full) || s.requests.Load() != 1 {
		t.Errorf("%v after %d requests", err, s.requests.Load())
	}
}

// TestContextEndsAStalledFetch must not wait for the stall timer, nor for the next attempt.
func TestContextEndsAStalledFetch(t *testing.T) {
	for name, do := range map[string]func(int64, []byte) (io.Reader, error){
		"body":    func(int64, []byte) (io.Reader, error) { return newHang(), nil },
		"refused": func(int64, []byte) (io.Reader, error) { return nil, errors.New("refused") },
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{data: randomBytes(10), do: do}
			c := New(s, Options{Stall: time.Hour, Patience: time.Hour})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error)
			go func() { done <- c.Fetch(ctx, object(s), 0, 10, func([]byte) error { return nil }) }()
			for s.requests.Load() == 0 {
				time.Sleep(time.Millisecond)
			}
			cancel()
			select {
			case err := <-done:
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the fetch goes on after its context")
			}
		})
	}
}

// TestConnectionsAreBounded fetches from many goroutines.
func TestConnectionsAreBounded(t *testing.T) {
	s := &script{data: randomBytes(1 << 20), do: whole}
	c := New(s, Options{Connections: 3, NoHedging: true})
	var wg sync.WaitGroup
	for g := range 20 {
		wg.Go(func() {
			off := int64(g * 1000)
			got, err := read(t, c, object(s), off, 50_000)
			if err != nil || !bytes.Equal(got, s.data[off:off+50_000]) {
				t.Error("other bytes", err)
			}
		})
	}
	wg.Wait()
	if most := s.most.Load(); most > 3 {
		t.Errorf("%d requests at once, 3 are allowed", most)
	}
}

// TestSlowAnswersAreHedged lets an answer not come, once the client knows how fast they are as a rule.
func TestSlowAnswersAreHedged(t *testing.T) {
	for name, late := range map[string]int64{"second answers": 1, "none answers": 2} {
		t.Run(name, func(t *testing.T) {
			s := &script{data: randomBytes(10)}
			var left atomic.Int64 // requests that are to be late
			both := make(chan struct{})
			s.do = func(_ int64, body []byte) (io.Reader, error) {
				if n := left.Add(-1); n < 0 {
					return whole(0, body)
				} else if n == 0 {
					close(both) // the last of them
				}
				<-both
				return nil, errors.New("too late")
			}
			if late == 1 { // the late one waits for the end of the test, and not only for its like
				wait := make(chan struct{})
				defer close(wait)
				s.do = func(_ int64, body []byte) (io.Reader, error) {
					if left.Add(-1) < 0 {
						return whole(0, body)
					}
					<-wait
					return nil, errors.New("too late")
				}
			}
			c := New(s, Options{Stall: time.Hour})
			for range 40 {
				if _, err := read(t, c, object(s), 0, 10); err != nil {
					t.Fatal(err)
				}
			}
			left.Store(late)
			got, err := read(t, c, object(s), 0, 10)
			if err != nil || !bytes.Equal(got, s.data) {
				t.Error(err)
			}
			if st := c.Stats(); st.Hedges < 1 {
				t.Error("no second request was sent")
			}
		})
	}
}

// late answers after the stall timer has ended the request, and looks at no context.
type late struct{ data []byte }

func (l late) Get(_ context.Context, o *layout.Object, off, n int64) (*Answer, error) {
	time.Sleep(20 * time.Millisecond)
	return answerOf(o, off, n, io.NopCloser(bytes.NewReader(l.data[off:off+n]))), nil
}

// TestAnswersAfterTheirTime has an answer come when its request was given up: the race detector sees whether the two meet.
func TestAnswersAfterTheirTime(t *testing.T) {
	s := &script{data: randomBytes(10)}
	c := New(late{s.data}, Options{Stall: time.Millisecond})
	for range 100 { // so that it knows what is slow
		c.first.Observe(time.Second)
	}
	r, err := c.open(t.Context(), ask{object: object(s), n: 10})
	if err != nil {
		t.Fatal(err)
	}
	r.close(nil)
}

func TestReadAtFollowsReaderAt(t *testing.T) {
	s := &script{data: randomBytes(100), do: whole}
	c, o := New(s, Options{}), object(s)
	for _, r := range []struct {
		off  int64
		n    int
		want int
		err  error
	}{{0, 100, 100, nil}, {0, 101, 100, io.EOF}, {99, 1, 1, nil}, {99, 2, 1, io.EOF}, {100, 1, 0, io.EOF}, {1000, 1, 0, io.EOF}, {5, 0, 0, nil}} {
		p := make([]byte, r.n)
		n, err := c.ReadAt(t.Context(), o, p, r.off)
		if n != r.want || !errors.Is(err, r.err) || (n > 0 && !bytes.Equal(p[:n], s.data[r.off:r.off+int64(n)])) {
			t.Errorf("ReadAt(%d bytes, %d) = %d, %v; want %d, %v", r.n, r.off, n, err, r.want, r.err)
		}
	}
	if err := c.Fetch(t.Context(), o, 50, 51, func([]byte) error { return nil }); err == nil {
		t.Error("a range beyond the object is fetched")
	}
}

func TestLatencyBuckets(t *testing.T) {
	var h histogram
	for _, d := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, 9 * time.Second, time.Hour} {
		h.observe(d)
	}
	want := map[int]int64{0: 2, 1: 1, latencyBuckets: 2}
	for i := range h.counts {
		if got := h.counts[i].Load(); got != want[i] {
			t.Errorf("bucket %d has %d, want %d", i, got, want[i])
		}
	}
}

// TestRetryEndsWhatStalls has a listing that hangs once.
func TestRetryEndsWhatStalls(t *testing.T) {
	c := New(&script{}, Options{Patience: time.Hour, Stall: 50 * time.Millisecond})
	tries := 0
	err := c.Retry(t.Context(), func(ctx context.Context, alive func()) error {
		if tries++; tries == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		alive()
		return nil
	})
	if err != nil || tries != 2 {
		t.Errorf("%v after %d attempts, want success after 2", err, tries)
	}
	if c := New(&script{}, Options{Patience: time.Minute}); c.opt.Stall != 15*time.Second {
		t.Errorf("the stall is %v", c.opt.Stall)
	}
	if c := New(&script{}, Options{Patience: time.Second}); c.opt.Stall != 250*time.Millisecond {
		t.Errorf("the stall is %v, which is too much of the patience", c.opt.Stall)
	}
}
