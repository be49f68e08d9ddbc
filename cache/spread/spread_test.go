package spread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// fake is an upstream in memory, and the caches before it.
type fake struct {
	objects []*layout.Object
	data    map[string][]byte
	caches  map[string]*side
	side    // the origin itself
}

// side is one server: what it does to an answer, and what it was asked.
type side struct {
	of   *fake
	do   func(ctx context.Context, a *fetch.Answer) error // nil: it is honest
	asks atomic.Int64
	mu   sync.Mutex
	gave map[string]bool // shares of objects
}

func newFake(sizes ...int64) *fake {
	f := &fake{data: map[string][]byte{}, caches: map[string]*side{}}
	f.of = f
	for i, size := range sizes {
		name := fmt.Sprintf("shard-%02d", i)
		f.objects = append(f.objects, &layout.Object{Name: name, Size: size, Version: `"1"`})
		f.data[name] = origintest.Data(int(min(size, 1<<20)), byte(i))
	}
	return f
}

func (s *side) Get(ctx context.Context, o *layout.Object, off, n int64) (*fetch.Answer, error) {
	s.asks.Add(1)
	data := s.of.data[o.Name]
	part := make([]byte, n)
	for i := 0; i < len(part); { // the data again and again
		i += copy(part[i:], data[(off+int64(i))%int64(len(data)):])
	}
	a := &fetch.Answer{Version: o.Version, Response: &http.Response{
		StatusCode: http.StatusPartialContent, Status: "206", ContentLength: n, Body: io.NopCloser(bytes.NewReader(part)),
		Header: http.Header{"Content-Range": {fmt.Sprintf("bytes %d-%d/%d", off, off+n-1, o.Size)}},
	}}
	if s.do != nil {
		if err := s.do(ctx, a); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gave == nil {
		s.gave = map[string]bool{}
	}
	s.gave[fmt.Sprint(o.Name, off/share)] = true
	return a, nil
}

func (f *fake) List(context.Context) (*cache.Listing, error) {
	return cache.RemoteListing(f.objects), nil
}

func (f *fake) Through(endpoint string) (fetch.Getter, error) {
	if !strings.HasPrefix(endpoint, "http") {
		return nil, errors.New("no address")
	}
	if f.caches[endpoint] == nil {
		f.caches[endpoint] = &side{of: f}
	}
	return f.caches[endpoint], nil
}

func (f *fake) String() string { return "fake" }
func (f *fake) Close() error   { return nil }

var two = []string{"http://a", "http://b"}

// open gives an origin behind two caches that has listed.
func open(t *testing.T, f *fake) *Spread {
	t.Helper()
	o, err := Open(f, two, fetch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o
}

// readAll reads every object and compares.
func readAll(t *testing.T, o *Spread, f *fake) {
	t.Helper()
	for _, obj := range f.objects {
		var off int64
		data := f.data[obj.Name]
		err := o.Fetch(t.Context(), obj, 0, obj.Size, func(p []byte) error {
			for len(p) > 0 {
				want := data[off%int64(len(data)):]
				want = want[:min(len(p), len(want))]
				if !bytes.HasPrefix(p, want) {
					return fmt.Errorf("%s has other bytes from %d on", obj.Name, off)
				}
				p, off = p[len(want):], off+int64(len(want))
			}
			return nil
		})
		if err != nil || off != obj.Size {
			t.Fatalf("%s: %d of %d bytes, %v", obj.Name, off, obj.Size, err)
		}
	}
}

// TestEachShareHasOneCache has two nodes read everything: each cache gave its part to both, and the origin nothing.
func TestEachShareHasOneCache(t *testing.T) {
	f := newFake(2*share+5, share, 10, 0, 11, 12, 13)
	for range 2 {
		o := open(t, f)
		for _, s := range f.caches { // what the listing asked for does not count
			s.gave = nil
		}
		readAll(t, o, f)
	}
	a, b := f.caches["http://a"].gave, f.caches["http://b"].gave
	for part := range a {
		if b[part] {
			t.Errorf("both caches gave %s", part)
		}
	}
	if len(a) == 0 || len(b) == 0 || f.asks.Load() > 0 {
		t.Errorf("%d and %d shares of the caches, %d requests to the origin", len(a), len(b), f.asks.Load())
	}
}

// TestOneCacheMoreMovesLittle compares the order of 16 caches with that of 17.
func TestOneCacheMoreMovesLittle(t *testing.T) {
	names := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("http://cache-%d", i))
		}
		return list
	}
	few, err := Open(newFake(), names(16), fetch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	more, err := Open(newFake(), names(17), fetch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	moved, load := 0, map[string]int{}
	const all = 4000
	for i := range all {
		name := fmt.Sprintf("train/%05d.bin", i)
		was, is := few.order(name, 0)[0].name, more.order(name, 0)[0].name
		load[was]++
		if was != is {
			moved++
			if is != "http://cache-16" {
				t.Fatalf("%s moved from %s to %s", name, was, is)
			}
		}
	}
	if moved < all/34 || moved > all/10 {
		t.Errorf("%d of %d moved, want about %d", moved, all, all/17)
	}
	for name, n := range load {
		if n < all/32 || n > all/8 {
			t.Errorf("%s has %d of %d", name, n, all)
		}
	}
}

// TestBadCaches has a cache do something to its answers. All bytes are right, and it is counted.
func TestBadCaches(t *testing.T) {
	header := func(name, value string) func(context.Context, *fetch.Answer) error {
		return func(_ context.Context, a *fetch.Answer) error { a.Header.Set(name, value); return nil }
	}
	for name, c := range map[string]struct {
		do    func(ctx context.Context, a *fetch.Answer) error
		wrong bool
	}{
		"gone":    {do: func(context.Context, *fetch.Answer) error { return syscall.ECONNREFUSED }},
		"denies":  {do: func(context.Context, *fetch.Answer) error { return fs.ErrPermission }},
		"missing": {do: func(context.Context, *fetch.Answer) error { return fmt.Errorf("404: %w", fs.ErrNotExist) }},
		"hangs":   {do: func(ctx context.Context, _ *fetch.Answer) error { <-ctx.Done(); return ctx.Err() }},
		"short": {do: func(_ context.Context, a *fetch.Answer) error {
			a.Body = io.NopCloser(io.LimitReader(a.Body, a.ContentLength/2))
			return nil
		}},
		"stalls":        {do: func(ctx context.Context, a *fetch.Answer) error { a.Body = hang{ctx}; return nil }},
		"other version": {wrong: true, do: func(_ context.Context, a *fetch.Answer) error { a.Version = `"2"`; return nil }},
		"other range":   {wrong: true, do: header("Content-Range", "bytes 7-16/100")},
		"other length":  {wrong: true, do: func(_ context.Context, a *fetch.Answer) error { a.ContentLength--; return nil }},
		"encoded":       {wrong: true, do: header("Content-Encoding", "gzip")},
		"whole": {wrong: true, do: func(_ context.Context, a *fetch.Answer) error {
			a.StatusCode, a.ContentLength = http.StatusOK, -1
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(500_000, 400_000, 300_000, 200_000, 100_000, 50_000)
				for _, at := range two {
					_, _ = f.Through(at)
				}
				f.caches["http://a"].do = c.do
				o := open(t, f)
				readAll(t, o, f)
				e := o.Stats().Endpoints
				if (e[0].Wrong > 0) != c.wrong || (e[0].Failed > 0) == c.wrong {
					t.Errorf("%+v", e[0])
				}
				if e[1].Wrong+e[1].Failed+e[2].Wrong+e[2].Failed > 0 || o.Client.Stats().Failed > 0 {
					t.Errorf("others are blamed: %+v", e)
				}
				f.caches["http://a"].do = nil // it is well again
				time.Sleep(2 * mostOut)
				before := f.caches["http://a"].asks.Load()
				readAll(t, o, f)
				if f.caches["http://a"].asks.Load() == before {
					t.Error("it is not asked again")
				}
				if left := o.Notes(); len(left) > 0 {
					t.Errorf("passed over still: %q", left)
				}
			})
		})
	}
}

// hang is a body that brings nothing.
type hang struct{ ctx context.Context }

func (h hang) Read([]byte) (int, error) { <-h.ctx.Done(); return 0, h.ctx.Err() }
func (h hang) Close() error             { return nil }

// TestOtherVersions has a cache that gives every object another version: it is named and left out when the source is listed.
func TestOtherVersions(t *testing.T) {
	var sizes []int64
	for i := range 40 {
		sizes = append(sizes, int64(1000+i))
	}
	f := newFake(sizes...)
	_, _ = f.Through("http://b")
	f.caches["http://b"].do = func(_ context.Context, a *fetch.Answer) error { a.Version = `"md5-2"`; return nil }
	o := open(t, f)
	notes := o.Notes()
	if len(notes) != 1 || !strings.Contains(notes[0], "http://b is passed over: it answered for 10 objects with other versions") {
		t.Errorf("%q", notes)
	}
	asked := f.caches["http://b"].asks.Load()
	readAll(t, o, f)
	if asked != mostOther || f.caches["http://b"].asks.Load() != asked || f.asks.Load() > 0 {
		t.Errorf("%d requests to list, %d after it, %d to the origin", asked, f.caches["http://b"].asks.Load(), f.asks.Load())
	}
}

// TestAHungCacheDelaysNoMount has one cache of two hang from the beginning: the listing names it soon, and reads do not wait for it.
func TestAHungCacheDelaysNoMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sizes []int64
		for i := range 40 {
			sizes = append(sizes, int64(1000+i))
		}
		f := newFake(sizes...)
		_, _ = f.Through("http://b")
		hangs := func(ctx context.Context, _ *fetch.Answer) error { <-ctx.Done(); return ctx.Err() }
		f.caches["http://b"].do = hangs
		began := time.Now()
		o := open(t, f)
		if took := time.Since(began); took > firstTime {
			t.Errorf("the listing took %v", took)
		}
		if notes := o.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "http://b is passed over: it did not answer in time: 3s") {
			t.Errorf("%q", notes)
		}
		began = time.Now()
		readAll(t, o, f)
		if took := time.Since(began); took > 5*firstTime { // it is tried again, each time later
			t.Errorf("40 objects took %v", took)
		}
		f.caches["http://b"].do = nil
		time.Sleep(2 * mostOut)
		readAll(t, o, f)
		f.caches["http://b"].do = func(ctx context.Context, _ *fetch.Answer) error { // it is busy, and known to be there
			select {
			case <-time.After(2 * firstTime):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		failed := o.Stats().Endpoints[1].Failed
		readAll(t, o, f)
		if now := o.Stats().Endpoints[1].Failed; now != failed {
			t.Errorf("a busy cache is passed over %d times", now-failed)
		}
	})
}

// TestACacheThatHangsLaterIsLeft has caches hang that have answered before: a read asks the next server soon, and others do not wait again.
func TestACacheThatHangsLaterIsLeft(t *testing.T) {
	for name, hung := range map[string][]string{"one": {"http://b"}, "both": two} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sizes []int64
				for i := range 60 {
					sizes = append(sizes, int64(1000+i))
				}
				f := newFake(sizes...)
				o := open(t, f)
				readAll(t, o, f)
				for _, at := range hung {
					f.caches[at].do = func(ctx context.Context, _ *fetch.Answer) error { <-ctx.Done(); return ctx.Err() }
				}
				began, origin := time.Now(), f.asks.Load()
				readAll(t, o, f)
				if took, most := time.Since(began), time.Duration(5*len(hung))*firstTime; took < firstTime || took > most { // they are tried again, each time later
					t.Errorf("60 objects took %v, want at most %v", took, most)
				}
				if asked := f.asks.Load() > origin; asked != (len(hung) == 2) {
					t.Errorf("the origin was asked: %v", asked)
				}
				e := o.Stats().Endpoints
				if notes := o.Notes(); e[1].Late == 0 || e[1].Failed > 0 || len(notes) == 0 || !strings.Contains(notes[len(notes)-1], "http://b is passed over: an answer took longer than 3s") {
					t.Errorf("%q, %+v", notes, e)
				}
				if e[2].Late+e[2].Failed > 0 || (e[0].Late > 0) != (len(hung) == 2) {
					t.Errorf("others are blamed: %+v", e)
				}
				for _, at := range hung {
					f.caches[at].do = nil
				}
				time.Sleep(2 * mostOut)
				before := f.caches["http://b"].asks.Load()
				readAll(t, o, f)
				if f.caches["http://b"].asks.Load() == before || len(o.Notes()) > 0 {
					t.Errorf("it is not asked again: %q", o.Notes())
				}
			})
		})
	}
}

// TestTheFirstAnswerCounts has a cache answer after the next server was asked, and before that answers, or after that has failed.
func TestTheFirstAnswerCounts(t *testing.T) {
	for name, c := range map[string]func(ctx context.Context, _ *fetch.Answer) error{
		"the next one hangs": func(ctx context.Context, _ *fetch.Answer) error { <-ctx.Done(); return ctx.Err() },
		"the next one fails": func(context.Context, *fetch.Answer) error { return syscall.ECONNREFUSED },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39)
				o := open(t, f)
				for range 3 {
					readAll(t, o, f)
				}
				f.do = c
				for _, at := range two {
					f.caches[at].do = func(ctx context.Context, _ *fetch.Answer) error {
						select {
						case <-time.After(7 * time.Second): // the other cache is asked after 3 s, and the origin after 6 s
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					}
				}
				began := time.Now()
				p := make([]byte, 10)
				if _, err := o.ReadAt(t.Context(), f.objects[0], p, 0); err != nil || !bytes.Equal(p, f.data["shard-00"]) || time.Since(began) != 7*time.Second {
					t.Errorf("%q after %v: %v", p, time.Since(began), err)
				}
				if e := o.Stats().Endpoints; e[0].Late+e[1].Late != 1 || e[0].Failed+e[1].Failed > 0 {
					t.Errorf("caches are blamed: %+v", e)
				}
			})
		})
	}
}

// TestAllCachesGone leaves the origin, whose errors count.
func TestAllCachesGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(100_000)
		for _, at := range two {
			_, _ = f.Through(at)
			f.caches[at].do = func(context.Context, *fetch.Answer) error { return syscall.ECONNREFUSED }
		}
		o := open(t, f)
		readAll(t, o, f)
		f.do = func(context.Context, *fetch.Answer) error { return fmt.Errorf("replaced: %w", cache.ErrChanged) }
		if _, err := o.ReadAt(t.Context(), f.objects[0], make([]byte, 10), 0); !errors.Is(err, cache.ErrChanged) {
			t.Errorf("%v, want that it changed", err)
		}
	})
}

func TestWrongCaches(t *testing.T) {
	for _, list := range [][]string{{"cache-0"}, {"http://a", "http://a"}} {
		if _, err := Open(newFake(), list, fetch.Options{}); err == nil {
			t.Errorf("%q is taken", list)
		}
	}
}
