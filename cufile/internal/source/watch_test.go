package source

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
)

// watched opens a file of 100 bytes of a mount, as far as a Watch can tell.
func watched(t *testing.T, w *Watch) *Backing {
	t.Helper()
	name := filepath.Join(t.TempDir(), "shard")
	if err := errors.Join(os.WriteFile(name, make([]byte, 100), 0o600), os.Chtimes(name, time.Time{}, time.Unix(1000, 0))); err != nil {
		t.Fatal(err)
	}
	fd, err := OpenFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBacking(fd, name, 1)
	if err != nil {
		t.Fatal(err)
	}
	b.Lender = &shelf{}
	w.opened(b)
	t.Cleanup(func() { _ = b.Close() }) // it was opened for reading
	return b
}

func noUse([]*Backing) {}

// ended ends a Watch.
func ended(t *testing.T, w *Watch) {
	t.Helper()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestWatchSeesChanges has a file that is being read cut, or written to. The next look finds that.
func TestWatchSeesChanges(t *testing.T) {
	for what, c := range map[string]struct {
		change func(name string) error
		want   error
	}{
		"cut":          {func(name string) error { return os.Truncate(name, 99) }, ErrShort},
		"written to":   {func(name string) error { return os.Chtimes(name, time.Time{}, time.Unix(7, 0)) }, control.ErrStale},
		"replaced":     {func(name string) error { return os.Rename(name, name+".old") }, nil},
		"made smaller": {func(name string) error { return errors.Join(os.Truncate(name, 0), os.Truncate(name, 100)) }, control.ErrStale},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatch(noUse)
				b := watched(t, w)
				if !w.Mark(b) {
					t.Fatal("an open file is not to be read")
				}
				time.Sleep(lookEvery + time.Millisecond)
				turn := w.Turn()
				if !w.Mark(b) || turn == 1 {
					t.Fatalf("turn %d, and a file that is as it was is not to be read", turn)
				}
				if err := c.change(b.Name); err != nil {
					t.Fatal(err)
				}
				time.Sleep(lookEvery + time.Millisecond)
				err := b.Unchanged()
				if !errors.Is(err, c.want) || w.Mark(b) != (c.want == nil) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if c.want != nil && !strings.Contains(err.Error(), "bytes of it that came since 2000-01-01T00:00:00.10") {
					t.Errorf("%v does not say since when", err)
				}
				if err := w.closing(b); err != nil {
					t.Errorf("closing says again: %v", err)
				}
				ended(t, w)
			})
		})
	}
}

// TestWatchLooksBeforeItCloses has a change meet a file that was read since the last look. Closing it gives that, once.
func TestWatchLooksBeforeItCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(noUse)
		read, idle := watched(t, w), watched(t, w)
		closed, turn := w.Closed(), w.Turn()
		w.Mark(read)
		for _, b := range []*Backing{read, idle} {
			if err := os.Truncate(b.Name, 5); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.closing(read); !errors.Is(err, ErrShort) {
			t.Errorf("closing a file that was cut: %v", err)
		}
		if err := w.closing(idle); err != nil {
			t.Errorf("closing a file that was not read: %v", err)
		}
		if w.Closed() == closed || w.Turn() == turn || w.Mark(read) {
			t.Error("a closed file is to be read")
		}
		time.Sleep(time.Second)
		ended(t, w)
		if w.looking {
			t.Error("it looks on while nothing is read")
		}
	})
}

// TestWatchTellsWhatIsUsed gives the files of a turn to whoever keeps them open, and looks again only after they were read again.
func TestWatchTellsWhatIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var used []int
		w := newWatch(func(list []*Backing) { used = append(used, len(list)) })
		a, b := watched(t, w), watched(t, w)
		for range 3 {
			w.Mark(a)
			w.Mark(b)
		}
		time.Sleep(lookEvery + time.Millisecond)
		w.Mark(b)
		time.Sleep(time.Second)
		ended(t, w)
		if len(used) != 2 || used[0] != 2 || used[1] != 1 {
			t.Errorf("files of each turn: %v, want 2 and 1", used)
		}
		if w.Mark(a) {
			t.Error("a file is marked after the end")
		}
	})
}

// TestALookThatHangs has a look at a file wait for a server that does not answer. Closing the Watch gives up, and ends well later.
func TestALookThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := make(chan struct{})
		w := newWatch(func([]*Backing) { <-hung })
		w.Mark(watched(t, w))
		time.Sleep(lookEvery + time.Millisecond)
		for range 2 {
			if err := w.Close(); !errors.Is(err, crew.ErrUnderWay) {
				t.Errorf("%v, want that a look is under way", err)
			}
		}
		close(hung)
		ended(t, w)
	})
}
