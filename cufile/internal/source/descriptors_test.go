package source

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

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// shelf lends files of a folder, and counts.
type shelf struct {
	t      *testing.T
	dir    string
	files  []*Backing
	fail   atomic.Bool
	most   int64 // that it lends at once, 0 for any number
	opened atomic.Int64
	now    atomic.Int64 // open
	peak   atomic.Int64
}

var errShelf = errors.New("the shelf is closed")

func newShelf(t *testing.T, n int) *shelf {
	t.Helper()
	s := &shelf{t: t, dir: t.TempDir()}
	for i := range n {
		s.files = append(s.files, &Backing{ID: uint64(i + 1), FD: -1, Lender: s, Object: uint64(i), at: int64(i)})
		if err := os.WriteFile(s.path(uint64(i)), []byte{byte(i)}, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *shelf) path(object uint64) string {
	return filepath.Join(s.dir, strconv.FormatUint(object, 10))
}

func (s *shelf) Open(_ context.Context, files []*Backing) ([]*Backing, error) {
	if s.most > 0 && s.now.Load()+int64(len(files)) > s.most {
		return nil, ErrCrowded
	}
	for i, b := range files {
		if s.fail.Load() && i > 0 { // after the first
			return nil, errShelf
		}
		fd, err := OpenFile(s.path(b.Object))
		if err != nil {
			return nil, err
		}
		if err := b.Adopt(fd); err != nil {
			return nil, err
		}
		s.opened.Add(1)
		s.peak.Store(max(s.peak.Load(), s.now.Add(1))) // openers take turns
	}
	return nil, nil
}

func (s *shelf) Release(_ context.Context, files []*Backing) { s.now.Add(-int64(len(files))) }

func letNothing(context.Context, []*Backing) error { return nil }

func (s *shelf) check(b *Backing) {
	var p [1]byte
	if _, err := unix.Pread(b.FD, p[:], 0); err != nil || p[0] != byte(b.Object) {
		s.t.Errorf("object %d: read %d, %v", b.Object, p[0], err)
	}
}

func TestHandlesKeepWhatWasUsedLast(t *testing.T) {
	s := newShelf(t, 4)
	h := NewDescriptors(2, letNothing)
	use := func(i int) {
		t.Helper()
		if err := h.Pin(t.Context(), s.files[i:i+1]); err != nil {
			t.Fatal(err)
		}
		s.check(s.files[i])
		h.Unpin(s.files[i : i+1])
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
	drop(t, h, s.files)
	if s.files[2].FD != -1 || s.files[1].FD != -1 || h.order.Len() != 0 {
		t.Error("files are open after drop")
	}
}

func TestHandlesStayBoundedUnderManyUsers(t *testing.T) {
	const limit = 10
	s := newShelf(t, 40)
	h := NewDescriptors(limit, letNothing)
	var wg sync.WaitGroup
	for user := range 12 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(user)))
			for range 300 {
				var files []*Backing
				for range 1 + random.IntN(h.Share()) {
					if b := s.files[random.IntN(len(s.files))]; !slices.Contains(files, b) {
						files = append(files, b)
					}
				}
				if err := h.Pin(t.Context(), files); err != nil {
					t.Error(err)
					return
				}
				for _, b := range files {
					s.check(b)
				}
				h.Unpin(files)
			}
		})
	}
	wg.Wait()
	if s.peak.Load() > limit {
		t.Errorf("%d were open at once, at most %d may be", s.peak.Load(), limit)
	}
	if h.inUse != 0 || int64(h.order.Len()) != s.now.Load() {
		t.Errorf("%d pinned, %d in the order, %d open", h.inUse, h.order.Len(), s.now.Load())
	}
	drop(t, h, s.files)
}

func TestHandlesWaitForRoomAndCanBeGivenUp(t *testing.T) {
	s := newShelf(t, 3)
	h := NewDescriptors(2, letNothing)
	if err := h.Pin(t.Context(), s.files[:2]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := h.Pin(ctx, s.files[2:]); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("take without room: %v, want a deadline", err)
	}
	s.check(s.files[0])
	time.AfterFunc(20*time.Millisecond, func() { h.Unpin(s.files[:1]) })
	if err := h.Pin(t.Context(), s.files[2:]); err != nil {
		t.Fatal(err)
	}
	if s.files[0].FD != -1 {
		t.Error("the file that was given up is still open")
	}
	s.check(s.files[1])
	s.check(s.files[2])
	h.Unpin(s.files[1:])
	drop(t, h, s.files)
}

func TestHandlesAfterAFailure(t *testing.T) {
	s := newShelf(t, 4)
	stuck := errors.New("cuFile keeps it")
	var keep atomic.Bool
	h := NewDescriptors(4, func(context.Context, []*Backing) error {
		if keep.Load() {
			return stuck
		}
		return nil
	})
	s.fail.Store(true)
	if err := h.Pin(t.Context(), s.files); !errors.Is(err, errShelf) {
		t.Fatalf("%v, want the lender's error", err)
	}
	if s.now.Load() != 0 || h.inUse != 0 || h.order.Len() != 0 {
		t.Errorf("%d open, %d pinned, %d in the order after a failure", s.now.Load(), h.inUse, h.order.Len())
	}
	keep.Store(true) // the device is not asked for files that it never saw
	if err := h.Pin(t.Context(), s.files); !errors.Is(err, errShelf) {
		t.Fatalf("%v, want the lender's error", err)
	}
	if s.now.Load() != 0 || h.inUse != 0 || h.order.Len() != 0 {
		t.Errorf("%d open, %d pinned, %d in the order after a failure", s.now.Load(), h.inUse, h.order.Len())
	}
	keep.Store(false)
	s.fail.Store(false)
	h.limit = 2
	if err := h.Pin(t.Context(), s.files[:2]); err != nil {
		t.Fatal(err)
	}
	h.Unpin(s.files[:2])
	keep.Store(true) // a handle that cannot be had back keeps its file open
	if err := h.Pin(t.Context(), s.files[2:]); !errors.Is(err, stuck) {
		t.Fatalf("%v, want what kept the files", err)
	}
	s.check(s.files[0])
	keep.Store(false)
	if err := h.Pin(t.Context(), s.files[2:]); err != nil {
		t.Fatal(err)
	}
	h.Unpin(s.files[2:])
	drop(t, h, s.files)
}

// A daemon that lends no more is given files back: those that are in use stay, and so does what was used last.
func TestHandlesOfACrowdedDaemon(t *testing.T) {
	s := newShelf(t, 40)
	s.most = 16
	h := NewDescriptors(30, letNothing)
	for i := range 16 {
		if err := h.Pin(t.Context(), s.files[i:i+1]); err != nil {
			t.Fatal(err)
		}
		if i >= 2 {
			h.Unpin(s.files[i : i+1])
		}
	}
	if err := h.Pin(t.Context(), s.files[20:25]); err != nil {
		t.Fatal(err)
	}
	for i, b := range s.files[:25] {
		if want := i < 2 || i >= 9 && i < 16 || i >= 20; want != (b.element != nil) || want != (b.FD >= 0) {
			t.Errorf("object %d: open %t, want %t", i, b.FD >= 0, want)
		}
	}
	for _, b := range append(s.files[:2:2], s.files[20:25]...) {
		s.check(b)
	}
	if err := h.Pin(t.Context(), s.files[25:34]); err != nil { // nothing but what is in use is left open
		t.Fatal(err)
	}
	if err := h.Pin(t.Context(), s.files[34:35]); !errors.Is(err, ErrCrowded) {
		t.Fatalf("%v, want that no more are lent", err)
	}
	if s.now.Load() != 16 || h.order.Len() != 16 || h.inUse != 16 {
		t.Errorf("%d open, %d in the order, %d pinned, want 16", s.now.Load(), h.order.Len(), h.inUse)
	}
	for _, list := range [][]*Backing{s.files[:2], s.files[20:34]} {
		h.Unpin(list)
	}
	drop(t, h, s.files)
}

// A reader leaves half of the descriptors to its process, and a quarter of them to readers that have few files. The kernel numbers them.
func TestDescriptorsOfAProcessAreShared(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil || before.Max < 8192 {
		t.Skipf("this process may have %d descriptors: %v", before.Max, err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 8192, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) }) // the limit of a process that ends
	var taken []int
	t.Cleanup(func() {
		for _, fd := range taken {
			_ = unix.Close(fd) // as above
		}
	})
	h := NewDescriptors(4096, letNothing)
	own := func(before int) (int, error) {
		file, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := h.own(file, before)
		if err == nil {
			taken = append(taken, fd)
		} else if !errors.Is(err, ErrCrowded) {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(file.Fd(), unix.F_GETFD, 0); err == nil {
			t.Error("the descriptor that came stays open")
		}
		return fd, err
	}
	fill := func(to int) {
		t.Helper()
		for {
			fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, selectable)
			if err != nil {
				t.Fatal(err)
			}
			if taken = append(taken, fd); fd >= to-1 {
				return
			}
		}
	}
	if fd, err := own(0); err != nil || fd < selectable {
		t.Errorf("descriptor %d, %v, want one from %d on", fd, err, selectable)
	}
	for _, c := range []struct {
		taken, open int
		want        bool
	}{{4096, hardlyAny, true}, {4096, mostShare, false}, {6144, hardlyAny - 1, true}, {6144, hardlyAny, false}} {
		fill(c.taken)
		h.order.Init()
		for range c.open - 1 {
			h.order.PushBack(nil)
		}
		if fd, err := own(1); (err == nil) != c.want || c.want && fd < c.taken {
			t.Errorf("a reader of %d files is given descriptor %d where %d are taken: %v", c.open, fd, c.taken, err)
		}
	}
}

// Files of caches that no request needs are few, whatever else is open.
func TestHandlesKeepFewFilesOfCaches(t *testing.T) {
	s := newShelf(t, mostCached+100)
	for _, b := range s.files[:mostCached+50] {
		b.Cached = true
	}
	h := NewDescriptors(4*mostCached, letNothing)
	use := func(list []*Backing) {
		for len(list) > 0 {
			part := list[:min(len(list), 25)]
			if err := h.Pin(t.Context(), part); err != nil {
				t.Fatal(err)
			}
			h.Unpin(part)
			list = list[len(part):]
		}
	}
	use(s.files[mostCached+50:])
	use(s.files[:mostCached+50])
	if h.cached != mostCached || h.order.Len() != mostCached+50 || s.files[49].FD >= 0 || s.files[50].FD < 0 {
		t.Errorf("%d files of caches and %d in all are open", h.cached, h.order.Len())
	}
	h.Shed(t.Context(), -time.Hour)
	if h.cached != 0 || h.order.Len() != 50 || s.now.Load() != 50 {
		t.Errorf("%d files of caches and %d in all are open after they were shed", h.cached, h.order.Len())
	}
	drop(t, h, s.files)
}

// What was opened ahead is closed and given back where it cannot be kept; what is kept stays open.
func TestHandlesOfferWhatCannotBeKept(t *testing.T) {
	s := newShelf(t, 6)
	stuck := errors.New("cuFile keeps it")
	h := NewDescriptors(2, func(context.Context, []*Backing) error { return stuck })
	offer := func(ctx context.Context, files []*Backing) error {
		if _, err := s.Open(ctx, files); err != nil {
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
	s.files[5].dropped = true // its File was closed
	if err := offer(t.Context(), s.files[5:]); !errors.Is(err, stuck) {
		t.Fatalf("%v, want what kept the files", err)
	}
	for _, b := range s.files {
		if (b.element != nil) != (b.FD >= 0) {
			t.Errorf("object %d: in the order %t, descriptor %d", b.Object, b.element != nil, b.FD)
		}
	}
	if int(s.now.Load()) != h.order.Len() {
		t.Errorf("%d are open, %d in the order", s.now.Load(), h.order.Len())
	}
	drop(t, h, s.files)
}

func TestSplitOpensEachFileOnce(t *testing.T) {
	s := newShelf(t, 7)
	plain := &Backing{Inline: true}
	var pieces []Piece
	random := rand.New(rand.NewPCG(5, 6))
	for i := range 200 {
		b := plain
		if i%10 != 0 {
			b = s.files[random.IntN(len(s.files))]
		}
		pieces = append(pieces, Piece{b, 0, int64(i), 1})
	}
	if groups := Split(slices.Clone(pieces), 7); len(groups) != 1 || !slices.Equal(groups[0].Pieces, pieces) || len(groups[0].Files) != 7 {
		t.Errorf("%d groups, want one, in the order of the pieces", len(groups))
	}
	groups := Split(slices.Clone(pieces), 3)
	seen, to := map[*Backing]bool{}, map[int64]bool{}
	for _, g := range groups {
		if len(g.Files) > 3 {
			t.Errorf("%d files in a group of at most 3", len(g.Files))
		}
		for _, b := range g.Files {
			if seen[b] {
				t.Errorf("object %d is in two groups", b.Object)
			}
			seen[b] = true
		}
		for _, p := range g.Pieces {
			if p.File != plain && !slices.Contains(g.Files, p.File) {
				t.Errorf("a piece of object %d is not in its group", p.File.Object)
			}
			to[p.To] = true
		}
	}
	if len(groups) != 3 || len(to) != 200 {
		t.Errorf("%d groups with %d pieces, want 3 with 200", len(groups), len(to))
	}
}

// TestClosingAFileAtWhichALookHangs closes a file at which the Watch looks, while its server does not answer. Others are opened and read meanwhile.
func TestClosingAFileAtWhichALookHangs(t *testing.T) {
	s := newShelf(t, 3)
	h := NewDescriptors(8, letNothing)
	hung, others := s.files[:1], s.files[1:]
	use := func(files []*Backing) (err error) {
		if err = h.Pin(t.Context(), files); err == nil {
			h.Unpin(files)
		}
		return err
	}
	if err := use(s.files[:2]); err != nil {
		t.Fatal(err)
	}
	hung[0].look.Lock()
	closed := make(chan error, 1)
	go func() { closed <- h.Drop(hung) }()
	closing := func() bool { h.watch.mu.Lock(); defer h.watch.mu.Unlock(); return !hung[0].open }
	if !blackbox.Within(time.Minute, closing) {
		t.Fatal("the file is not being closed")
	}
	used := make(chan error, 1)
	go func() { used <- use(others) }() // of which one is open
	select {
	case err := <-used:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("others wait for a look at a file that is none of theirs")
	}
	if hung[0].FD < 0 {
		t.Error("the file was closed while it is looked at")
	}
	hung[0].look.Unlock()
	if err := <-closed; err != nil || hung[0].FD >= 0 {
		t.Errorf("closed: %v: %v", hung[0].FD < 0, err)
	}
	drop(t, h, others)
	ended(t, h.Watch())
}

// drop closes files, none of which has changed.
func drop(t *testing.T, h *Descriptors, files []*Backing) {
	t.Helper()
	if err := h.Drop(files); err != nil {
		t.Error(err)
	}
}
