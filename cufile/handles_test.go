package cufile

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shelf lends files of a folder, and counts.
type shelf struct {
	t      *testing.T
	dir    string
	files  []*backing
	fail   atomic.Bool
	opened atomic.Int64
	now    atomic.Int64 // open
	peak   atomic.Int64
}

var errShelf = errors.New("the shelf is closed")

func newShelf(t *testing.T, n int) *shelf {
	t.Helper()
	s := &shelf{t: t, dir: t.TempDir()}
	for i := range n {
		s.files = append(s.files, &backing{id: uint64(i + 1), fd: -1, lender: s, object: uint64(i), at: int64(i)})
		if err := os.WriteFile(s.path(uint64(i)), []byte{byte(i)}, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *shelf) path(object uint64) string {
	return filepath.Join(s.dir, strconv.FormatUint(object, 10))
}

func (s *shelf) open(_ context.Context, files []*backing) ([]*backing, error) {
	for i, b := range files {
		if s.fail.Load() && i > 0 { // after the first
			return nil, errShelf
		}
		fd, err := openFile(s.path(b.object))
		if err != nil {
			return nil, err
		}
		if err := b.adopt(fd); err != nil {
			return nil, err
		}
		s.opened.Add(1)
		s.peak.Store(max(s.peak.Load(), s.now.Add(1))) // openers take turns
	}
	return nil, nil
}

func (s *shelf) release(_ context.Context, files []*backing) { s.now.Add(-int64(len(files))) }

func letNothing(context.Context, []*backing) error { return nil }

func (s *shelf) check(b *backing) {
	var p [1]byte
	if _, err := unix.Pread(b.fd, p[:], 0); err != nil || p[0] != byte(b.object) {
		s.t.Errorf("object %d: read %d, %v", b.object, p[0], err)
	}
}

func TestHandlesKeepWhatWasUsedLast(t *testing.T) {
	s := newShelf(t, 4)
	h := newHandles(2, letNothing)
	use := func(i int) {
		t.Helper()
		if err := h.take(t.Context(), s.files[i:i+1]); err != nil {
			t.Fatal(err)
		}
		s.check(s.files[i])
		h.give(s.files[i : i+1])
	}
	for i, step := range []struct {
		use    int
		opened int64
	}{{0, 1}, {1, 2}, {0, 2}, {2, 3}, {0, 3}, {1, 4}, {2, 5}} {
		use(step.use)
		if s.opened.Load() != step.opened {
			t.Errorf("step %d: %d were opened, want %d", i, s.opened.Load(), step.opened)
		}
	}
	h.drop(s.files)
	if s.files[2].fd != -1 || s.files[1].fd != -1 || h.order.Len() != 0 {
		t.Error("files are open after drop")
	}
}

func TestHandlesStayBoundedUnderManyUsers(t *testing.T) {
	const limit = 10
	s := newShelf(t, 40)
	h := newHandles(limit, letNothing)
	var wg sync.WaitGroup
	for user := range 12 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(user)))
			for range 300 {
				var files []*backing
				for range 1 + random.IntN(h.share()) {
					if b := s.files[random.IntN(len(s.files))]; !slices.Contains(files, b) {
						files = append(files, b)
					}
				}
				if err := h.take(t.Context(), files); err != nil {
					t.Error(err)
					return
				}
				for _, b := range files {
					s.check(b)
				}
				h.give(files)
			}
		})
	}
	wg.Wait()
	if s.peak.Load() > limit {
		t.Errorf("%d were open at once, at most %d may be", s.peak.Load(), limit)
	}
	if h.pinned != 0 || int64(h.order.Len()) != s.now.Load() {
		t.Errorf("%d pinned, %d in the order, %d open", h.pinned, h.order.Len(), s.now.Load())
	}
	h.drop(s.files)
}

func TestHandlesWaitForRoomAndCanBeGivenUp(t *testing.T) {
	s := newShelf(t, 3)
	h := newHandles(2, letNothing)
	if err := h.take(t.Context(), s.files[:2]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := h.take(ctx, s.files[2:]); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("take without room: %v, want a deadline", err)
	}
	s.check(s.files[0])
	time.AfterFunc(20*time.Millisecond, func() { h.give(s.files[:1]) })
	if err := h.take(t.Context(), s.files[2:]); err != nil {
		t.Fatal(err)
	}
	if s.files[0].fd != -1 {
		t.Error("the file that was given up is still open")
	}
	s.check(s.files[1])
	s.check(s.files[2])
	h.give(s.files[1:])
	h.drop(s.files)
}

func TestHandlesAfterAFailure(t *testing.T) {
	s := newShelf(t, 4)
	stuck := errors.New("cuFile keeps it")
	var keep atomic.Bool
	h := newHandles(4, func(context.Context, []*backing) error {
		if keep.Load() {
			return stuck
		}
		return nil
	})
	s.fail.Store(true)
	if err := h.take(t.Context(), s.files); !errors.Is(err, errShelf) {
		t.Fatalf("%v, want the lender's error", err)
	}
	if s.now.Load() != 0 || h.pinned != 0 || h.order.Len() != 0 {
		t.Errorf("%d open, %d pinned, %d in the order after a failure", s.now.Load(), h.pinned, h.order.Len())
	}
	keep.Store(true) // the device is not asked for files that it never saw
	if err := h.take(t.Context(), s.files); !errors.Is(err, errShelf) {
		t.Fatalf("%v, want the lender's error", err)
	}
	if s.now.Load() != 0 || h.pinned != 0 || h.order.Len() != 0 {
		t.Errorf("%d open, %d pinned, %d in the order after a failure", s.now.Load(), h.pinned, h.order.Len())
	}
	keep.Store(false)
	s.fail.Store(false)
	h.limit = 2
	if err := h.take(t.Context(), s.files[:2]); err != nil {
		t.Fatal(err)
	}
	h.give(s.files[:2])
	keep.Store(true) // a handle that cannot be had back keeps its file open
	if err := h.take(t.Context(), s.files[2:]); !errors.Is(err, stuck) {
		t.Fatalf("%v, want what kept the files", err)
	}
	s.check(s.files[0])
	keep.Store(false)
	if err := h.take(t.Context(), s.files[2:]); err != nil {
		t.Fatal(err)
	}
	h.give(s.files[2:])
	h.drop(s.files)
}

// What was opened ahead is closed and given back where it cannot be kept; what is kept stays open.
func TestHandlesOfferWhatCannotBeKept(t *testing.T) {
	s := newShelf(t, 6)
	stuck := errors.New("cuFile keeps it")
	h := newHandles(2, func(context.Context, []*backing) error { return stuck })
	offer := func(ctx context.Context, files []*backing) error {
		if _, err := s.open(ctx, files); err != nil {
			t.Fatal(err)
		}
		return h.offer(ctx, files)
	}
	h.turn <- struct{}{} // somebody opens files meanwhile
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := offer(over, s.files[:2]); !errors.Is(err, context.Canceled) || s.now.Load() != 0 {
		t.Fatalf("%v with %d open, want that it was cancelled and nothing is", err, s.now.Load())
	}
	<-h.turn
	if err := offer(t.Context(), s.files[:3]); err != nil || s.now.Load() != 2 { // for the third there is no room
		t.Fatalf("%v with %d open, want 2", err, s.now.Load())
	}
	if err := offer(t.Context(), s.files[3:5]); !errors.Is(err, stuck) {
		t.Fatalf("%v, want what kept the files", err)
	}
	s.files[5].left = true // its File was closed
	if err := offer(t.Context(), s.files[5:]); !errors.Is(err, stuck) {
		t.Fatalf("%v, want what kept the files", err)
	}
	for _, b := range s.files {
		if (b.element != nil) != (b.fd >= 0) {
			t.Errorf("object %d: in the order %t, descriptor %d", b.object, b.element != nil, b.fd)
		}
	}
	if int(s.now.Load()) != h.order.Len() {
		t.Errorf("%d are open, %d in the order", s.now.Load(), h.order.Len())
	}
	h.drop(s.files)
}

func TestSplitOpensEachFileOnce(t *testing.T) {
	s := newShelf(t, 7)
	plain := &backing{inline: true}
	var pieces []piece
	random := rand.New(rand.NewPCG(5, 6))
	for i := range 200 {
		b := plain
		if i%10 != 0 {
			b = s.files[random.IntN(len(s.files))]
		}
		pieces = append(pieces, piece{b, 0, int64(i), 1})
	}
	if groups := split(slices.Clone(pieces), 7); len(groups) != 1 || !slices.Equal(groups[0].pieces, pieces) || len(groups[0].files) != 7 {
		t.Errorf("%d groups, want one, in the order of the pieces", len(groups))
	}
	groups := split(slices.Clone(pieces), 3)
	seen, to := map[*backing]bool{}, map[int64]bool{}
	for _, g := range groups {
		if len(g.files) > 3 {
			t.Errorf("%d files in a group of at most 3", len(g.files))
		}
		for _, b := range g.files {
			if seen[b] {
				t.Errorf("object %d is in two groups", b.object)
			}
			seen[b] = true
		}
		for _, p := range g.pieces {
			if p.file != plain && !slices.Contains(g.files, p.file) {
				t.Errorf("a piece of object %d is not in its group", p.file.object)
			}
			to[p.to] = true
		}
	}
	if len(groups) != 3 || len(to) != 200 {
		t.Errorf("%d groups with %d pieces, want 3 with 200", len(groups), len(to))
	}
}

// shelfSource is a file whose bytes lie in the files of a shelf, one byte in each.
type shelfSource struct{ *shelf }

func (s shelfSource) runs(context.Context, int64, int64) ([]run, error) {
	var list []run
	for i := range s.files {
		list = append(list, run{int64(i), 1, uint64(i), 0, 1, 1})
	}
	return list, nil
}
func (s shelfSource) backing(r *run) *backing { return s.files[r.object] }
func (s shelfSource) leave() []*backing       { return s.files }
func (s shelfSource) size() int64             { return int64(len(s.files)) }
func (s shelfSource) close() error            { return nil }

func TestReadOfMoreFilesThanMayBeOpen(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		const n = 100
		s := newShelf(t, n)
		o.Descriptors = 6
		r := newReader(t, o)
		if r.maps != nil {
			r.maps.mostFiles = 8
		}
		f := &File{r: r, name: "shelf", source: shelfSource{s}}
		defer func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if r.handles.order.Len() != 0 {
				t.Errorf("%d files are open after Close", r.handles.order.Len())
			}
		}()
		for range 2 {
			v, err := f.Read(t.Context(), 0, n)
			if err != nil {
				t.Fatal(err)
			}
			if v.Moved().Total() != n {
				t.Errorf("moved %+v, want %d bytes", v.Moved(), n)
			}
			for i, b := range content(t, v) {
				if b != byte(i) {
					t.Fatalf("byte %d is %d by %s", i, b, v.Choice().Path)
				}
			}
		}
		offsets := []int64{99, 3, 50, 3, 0, 77, 12, 98, 5, 61, 60}
		v, err := f.Gather(t.Context(), offsets, 1)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range content(t, v) {
			if int64(b) != offsets[i] {
				t.Errorf("span %d brought %d, want %d", i, b, offsets[i])
			}
		}
		if err := f.Plain(t.Context(), 0, n); err != nil {
			t.Error(err)
		}
		if peak := s.peak.Load(); peak > 6 {
			t.Errorf("%d files were open at once, at most 6 may be", peak)
		}
		if r.maps != nil && len(r.maps.files) > r.maps.mostFiles {
			t.Errorf("%d files are mapped, at most %d should be", len(r.maps.files), r.maps.mostFiles)
		}
	})
}
