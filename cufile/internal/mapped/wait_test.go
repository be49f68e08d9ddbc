package mapped

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// stick has a thread fill page tables of a mapped file until release is called, as one does that reads from a disk or a
// server that does not answer.
func stick(m *Windows, f *file) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.filling++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		f.filling--
		m.notify()
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// TestUnmappingEndsWithItsContext gives a file up while its page tables are being filled, which does not end. The thread
// that registers waits no longer than its request, and the file is good for others, and is unmapped later.
func TestUnmappingEndsWithItsContext(t *testing.T) {
	for _, c := range []struct {
		what   string
		unmaps func(m *Windows, w *crew.Worker, b *source.Backing) error
	}{
		{"forgetting it", func(m *Windows, w *crew.Worker, b *source.Backing) error { return m.forget(w, b) }},
		{"thinning", func(m *Windows, w *crew.Worker, _ *source.Backing) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.mostFiles = 0
			return m.thin(w)
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			m := newWindows(registryKey{"", 1 << 20, 4 << 20})
			p, err := source.OpenPlain(fileOf(t, 4096), 1)
			must(t, err)
			b := p.Backing(nil)
			f := mapOf(t, m, b)
			release := stick(m, f)
			run := worker(t)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go run(ctx, func(w *crew.Worker) { ended <- c.unmaps(m, w, b) })
			until(t, "it is about to be unmapped", func() bool { m.mu.Lock(); defer m.mu.Unlock(); return f.gone })
			cancel()
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("it ended with %v", err)
				}
			case <-time.After(time.Minute):
				t.Error("it waits on although its context has ended")
				release()
				release = func() {}
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			m.mu.Lock()
			if again, err := m.fileOf(b); err != nil || again != f || f.gone {
				t.Errorf("the file is not to be used any more: %v, gone %v", err, f.gone)
			}
			m.mu.Unlock()
			release()
			run(t.Context(), func(w *crew.Worker) { err = m.forget(w, b) })
			if err != nil || len(m.files) != 0 {
				t.Errorf("the file is still mapped: %v", err)
			}
			must(t, errors.Join(m.fill.close(), p.Close()))
		})
	}
}

// fakeGPU is a GPU that is not there, and memory on it.
type fakeGPU struct {
	options Options
	to      crew.Destination
}

func newFakeGPU(t *testing.T) *fakeGPU {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("the fake GPU needs a C compiler: ", err)
	}
	dir := t.TempDir()
	must(t, fakegpu.Compile(dir, fakegpu.CUDA))
	library := filepath.Join(dir, fakegpu.CUDA)
	cu, err := driver.LoadCUDA(library)
	must(t, err)
	gpu, err := driver.Describe(cu, driver.Libraries{}, 0)
	must(t, err)
	primary, err := cu.RetainPrimary(gpu.Device)
	must(t, err)
	g := &fakeGPU{options: Options{CUDA: cu, Library: library, Context: primary, Kernels: &driver.Kernels{}, Device: gpu.Device, Slot: 64 << 10, Window: 256 << 10, Pinned: 1 << 20}}
	must(t, cu.Within(primary, func() (err error) { g.to.HBM, err = cu.Alloc(4 << 20); return err }))
	return g
}

func (g *fakeGPU) mover(t *testing.T) *Mover {
	t.Helper()
	m, err := NewMover(g.options)
	must(t, err)
	return m
}

// end ends a Mover.
func end(t *testing.T, m *Mover) {
	t.Helper()
	must(t, m.Thread.Do(t.Context(), func(w *crew.Worker) error { m.Discard(w); return nil }))
	must(t, errors.Join(m.Thread.Close(), m.Detach()))
}

// TestAForgottenFileHoldsNobodyUp forgets a file while its page tables are being filled, which does not end. That fails, and
// other files are read all the same.
func TestAForgottenFileHoldsNobodyUp(t *testing.T) {
	t.Parallel() // it waits for crew.ClosePatience
	g := newFakeGPU(t)
	m := g.mover(t)
	move := func() source.File {
		p, err := source.OpenPlain(fileOf(t, 300_000), 1)
		must(t, err)
		left, err := m.Move(t.Context(), &g.to, []source.Piece{{File: p.Backing(nil), N: 300_000}}, false)
		if err != nil || left != nil {
			t.Fatalf("left %v: %v", left, err)
		}
		return p
	}
	b := move().Backing(nil)
	release := stick(m.windows, m.windows.used[b])
	err := m.Thread.DoAtLast(crew.ClosePatience, func(w *crew.Worker) error { return m.Forget(w, b) })
	if !errors.Is(err, crew.ErrUnderWay) {
		t.Errorf("%v, want %v", err, crew.ErrUnderWay)
	}
	move()
	release()
	end(t, m)
}

// TestClosingWaitsForFillingNoLongerThanItSays has the thread that fills page tables hang. Closing fails in time, and ends
// well once the thread has come back.
func TestClosingWaitsForFillingNoLongerThanItSays(t *testing.T) {
	t.Parallel() // it waits for crew.ClosePatience
	m := newFakeGPU(t).mover(t)
	hung := &filler{quit: make(chan struct{}), gone: make(chan struct{})}
	must(t, m.windows.fill.close())
	m.windows.fill = hung
	must(t, m.Thread.Do(t.Context(), func(w *crew.Worker) error { m.Discard(w); return nil }))
	must(t, m.Thread.Close())
	if err := m.Detach(); !errors.Is(err, crew.ErrUnderWay) {
		t.Errorf("%v, want %v", err, crew.ErrUnderWay)
	}
	close(hung.gone)
	must(t, errors.Join(m.Detach(), m.Detach()))
}

// TestRoomThatAnotherReaderGivesUp has a reader forget a file that takes all room, while the GPU reads the file. Another reader waits for that room, and
// does not hold the lock of the windows meanwhile.
func TestRoomThatAnotherReaderGivesUp(t *testing.T) {
	g := newFakeGPU(t)
	g.options.Pinned = 2 * g.options.Window
	first, second := g.mover(t), g.mover(t)
	windows := first.windows
	full, other := fileOf(t, 512<<10), fileOf(t, 300_000)
	open := func(name string) source.File { p, err := source.OpenPlain(name, 1); must(t, err); return p }
	p, q := open(full), open(other)
	b := p.Backing(nil)
	move := func(m *Mover, b *source.Backing, n int64, keep bool) error {
		_, err := m.Move(t.Context(), &g.to, []source.Piece{{File: b, N: n}}, keep)
		return err
	}
	ask := func(function string) uint64 {
		n, err := fakegpu.Ask(g.options.Library, function)
		must(t, err)
		return n
	}
	must(t, move(first, b, 512<<10, true))
	ask("fake_cuda_hold")
	ended := make(chan error, 3)
	go func() { ended <- move(first, b, 4096, true) }()
	until(t, "the GPU reads the file", func() bool { return ask("fake_cuda_pending") > 0 })
	go func() {
		ended <- first.Thread.Do(t.Context(), func(w *crew.Worker) error { return first.Forget(w, b) })
	}()
	free := func(ok func() bool) func() bool {
		return func() bool {
			if !windows.mu.TryLock() {
				return false
			}
			defer windows.mu.Unlock()
			return ok()
		}
	}
	until(t, "the file is given up", free(func() bool { return windows.order.Len() == 0 }))
	go func() { ended <- move(second, q.Backing(nil), 300_000, false) }()
	until(t, "the other reader has found no room, and others can go on", free(func() bool { return windows.used[q.Backing(nil)] != nil }))
	ask("fake_cuda_go_on")
	for range 3 {
		select {
		case err := <-ended:
			must(t, err)
		case <-time.After(time.Minute):
			t.Fatal("not all ends within a minute")
		}
	}
	end(t, first)
	end(t, second)
	must(t, errors.Join(p.Close(), q.Close()))
}

// TestWaitingForWindowsThatGo has others give up the only window, which is in the way. Who needs its place waits, and no longer than its request.
func TestWaitingForWindowsThatGo(t *testing.T) {
	for what, waits := range map[string]func(m *Windows, w *crew.Worker, b *source.Backing) error{
		"of bytes": func(m *Windows, w *crew.Worker, b *source.Backing) error {
			return m.makeRoom(w, &pieces{}, &source.Piece{File: b, N: 1})
		},
		"of files": func(m *Windows, w *crew.Worker, _ *source.Backing) error { m.mostFiles = 1; return m.thin(w) },
	} {
		t.Run(what, func(t *testing.T) {
			m := newWindows(registryKey{"", 1 << 20, 2 << 20})
			p, err := source.OpenPlain(fileOf(t, 4096), 1)
			must(t, err)
			f := mapOf(t, m, p.Backing(nil))
			f.windows[0] = &window{file: f, settled: make(chan struct{})}
			ctx, cancel := context.WithCancel(t.Context())
			worker(t)(ctx, func(w *crew.Worker) {
				cancel()
				m.mu.Lock()
				defer m.mu.Unlock()
				if err := waits(m, w, p.Backing(nil)); !errors.Is(err, context.Canceled) {
					t.Errorf("%v, want that the request was cancelled", err)
				}
			})
			f.windows[0] = nil
			must(t, errors.Join(m.fill.close(), m.endAll(nil), p.Close()))
		})
	}
}
