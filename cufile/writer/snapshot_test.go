package writer

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// TestSnapshots copies memory of all kinds into an arena whose registrations are so small that most copies cross their borders.
func TestSnapshots(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, put func(t *testing.T, w *Writer, p []byte) Memory) {
		o.Arena, o.piece = 9<<20+5, 64<<10
		w := newWriter(t, o)
		memory := pages(t, 3<<20, 11)
		random := rand.New(rand.NewPCG(1, 2))
		for range 30 {
			var list []Memory
			var want [][]byte
			for range random.IntN(6) {
				n := random.IntN(1 << 19)
				p := memory[n : n+random.IntN(1<<20)]
				want = append(want, p)
				if random.IntN(2) == 0 {
					list = append(list, put(t, w, p))
				} else {
					list = append(list, Memory{Host: p})
				}
			}
			s, err := w.Snapshot(t.Context(), list, nil)
			must(t, err)
			_, err = s.Result()
			must(t, err)
			for i := range want {
				if !bytes.Equal(s.Copies[i], want[i]) {
					t.Errorf("copy %d of %d bytes is another", i, len(want[i]))
				}
			}
			must(t, s.Release())
			must(t, s.Release())
		}
		if _, ok := w.arena.room.Take(int64(len(w.arena.memory))); !ok {
			t.Errorf("not all of it is free: %v", w.arena.room)
		}
	})
}

// TestSnapshotsAreBehindTheStream changes memory by work on the caller's stream that is queued before the call.
func TestSnapshotsAreBehindTheStream(t *testing.T) {
	o := Options{Threads: 2, Arena: 2 << 20, Libraries: fakeLibraries(t)}
	w := newWriter(t, o)
	before, after := pages(t, 1<<20, 1), pages(t, 1<<20, 2)
	from, to := hbm(t, w, after), hbm(t, w, before)
	var stream driver.Handle
	must(t, w.device.Within(func() (err error) { stream, err = w.device.CUDA.NewStream(); return err }))
	ask(t, o.Libraries.CUDA, "fake_cuda_hold")
	must(t, w.device.Within(func() error {
		return w.device.CUDA.CopyWithin(driver.Pointer(to.HBM), driver.Pointer(from.HBM), to.N, stream)
	}))
	at := uintptr(stream)
	s, err := w.Snapshot(t.Context(), []Memory{to}, &at)
	must(t, err)
	select {
	case <-s.Done():
		t.Error("it was done before the stream")
	case <-time.After(20 * time.Millisecond):
	}
	dir := t.TempDir()
	q, err := w.Write(dir, []File{{Name: "a", Size: to.N, Parts: []Part{{0, to}}}, {Name: "b", Size: to.N, Parts: []Part{{0, Memory{Host: s.Copies[0]}}}}}, &at)
	must(t, err)
	ask(t, o.Libraries.CUDA, "fake_cuda_go_on")
	r, err := q.Result()
	must(t, err)
	if !bytes.Equal(s.Copies[0], after) {
		t.Error("the copy is not what the stream left")
	}
	checkFiles(t, dir, []model{{"a", after}, {"b", after}}, r)
	must(t, s.Release())
	must(t, w.device.Within(func() error { return w.device.CUDA.DestroyStream(stream) }))
}

// TestSnapshotsWaitForRoom, and give up with their context or with the writer.
func TestSnapshotsWaitForRoom(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, _ func(t *testing.T, w *Writer, p []byte) Memory) {
		o.Arena = 1 << 20
		w := newWriter(t, o)
		half := Memory{Host: pages(t, 600<<10, 3)}
		first, err := w.Snapshot(t.Context(), []Memory{half}, nil)
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := w.Snapshot(ctx, []Memory{half}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want that it waits", err)
		}
		if _, err := w.Snapshot(t.Context(), []Memory{half, half}, nil); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v, want that it never fits", err)
		}
		second := make(chan error, 1)
		go func() {
			s, err := w.Snapshot(context.Background(), []Memory{half}, nil)
			if err == nil {
				_, err = s.Result()
			}
			second <- err
		}()
		untilWaiting(t, "writer.(*arena).take")
		must(t, first.Release())
		must(t, <-second)
		third := make(chan error, 1)
		go func() {
			_, err := w.Snapshot(context.Background(), []Memory{half}, nil)
			third <- err
		}()
		untilWaiting(t, "writer.(*arena).take")
		must(t, closed(w))
		if err := <-third; !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want that the writer is closed", err)
		}
	})
}

// TestMemoryOfSnapshotsOutlivesTheWriter, since its owner may still read it.
func TestMemoryOfSnapshotsOutlivesTheWriter(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, _ func(t *testing.T, w *Writer, p []byte) Memory) {
		o.Arena = 1 << 20
		w := newWriter(t, o)
		p := pages(t, 1<<20, 3)
		s, err := w.Snapshot(t.Context(), []Memory{{Host: p}}, nil)
		must(t, err)
		must(t, closed(w))
		if _, err := s.Result(); err != nil || !bytes.Equal(s.Copies[0], p) {
			t.Errorf("%v, or other bytes", err)
		}
		must(t, s.Release())
	})
}

// TestArenaThatCannotBePinned says so, in words that help, from then on.
func TestArenaThatCannotBePinned(t *testing.T) {
	t.Setenv("FAKE_CUDA_PINNABLE", "40000000") // the slots of two threads fit
	o := Options{Threads: 2, Arena: 40 << 20, piece: 4 << 20, Libraries: fakeLibraries(t)}
	w := newWriter(t, o)
	<-w.Ready()
	ready, err := w.IsReady()
	if ready || !errors.Is(err, ErrNoMemory) || !strings.Contains(err.Error(), "give the writer less memory") {
		t.Errorf("%v %v", ready, err)
	}
	if _, err := w.Snapshot(t.Context(), []Memory{{Host: make([]byte, 10)}}, nil); !errors.Is(err, ErrNoMemory) {
		t.Errorf("%v, want why it is not pinned", err)
	}
}

// TestArenaLargerThanMemory is refused before the kernel ends the process.
func TestArenaLargerThanMemory(t *testing.T) {
	if most, what := available(); most < 1<<20 || most > 1<<45 || what == "" {
		t.Errorf("%d bytes by %q", most, what)
	}
	if _, err := New(Options{Device: HostDevice, Arena: 1 << 45}); !errors.Is(err, ErrNoMemory) || !strings.Contains(err.Error(), "give the writer less memory") {
		t.Errorf("%v, want that there is less memory", err)
	}
}

// TestCloseWhileTheArenaComesUp gives back what was registered by then.
func TestCloseWhileTheArenaComesUp(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, _ func(t *testing.T, w *Writer, p []byte) Memory) {
		o.Arena, o.piece = 64<<20, 1<<20
		for i := range 8 {
			t.Run("", func(t *testing.T) {
				w := newWriter(t, o)
				time.Sleep(time.Duration(i) * time.Millisecond)
				must(t, closed(w))
				<-w.Ready()
			})
		}
	})
}
