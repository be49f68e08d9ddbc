package mapped

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// worker gives a function that runs steps on a worker, and waits for each.
func worker(t testing.TB) func(ctx context.Context, step func(w *crew.Worker)) {
	t.Helper()
	c, err := crew.New(crew.Options{Threads: 1})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return func(ctx context.Context, step func(w *crew.Worker)) {
		ended := make(chan struct{})
		_, _ = c.Run(ctx, 1, 1, func(w *crew.Worker, _ int64) error { // the step says how it went
			defer close(ended)
			step(w)
			return nil
		})
		<-ended
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fileOf makes a file of so many bytes that are on the disk.
func fileOf(t testing.TB, size int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(name, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// mapOf maps a file, and has the page tables of some of its windows filled.
func mapOf(t testing.TB, m *Windows, b *source.Backing, windows ...int64) *file {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.fileOf(b)
	must(t, err)
	for _, index := range windows {
		m.fill.ask(f, index)
	}
	return f
}

func TestPageTablesAreFilledAheadAndTheFileUnmappedMeanwhile(t *testing.T) {
	name := fileOf(t, 8<<20)
	m := newWindows(registryKey{"", 2 << 20, 8 << 20})
	p, err := source.OpenPlain(name, 1)
	must(t, err)
	f := mapOf(t, m, p.Backing(nil), 0, 2)
	w := worker(t)
	m.mu.Lock()
	if !f.filled[0] || f.filled[1] || !f.filled[2] {
		t.Errorf("filled %v, want the first and third", f.filled)
	}
	w(t.Context(), func(w *crew.Worker) { err = m.unmap(w, f) })
	if len(m.files) != 0 || m.mapped != 0 || m.used[p.Backing(nil)] != nil {
		t.Error("the file is still mapped")
	}
	m.mu.Unlock()
	if err := errors.Join(err, m.fill.close(), p.Close()); err != nil {
		t.Error(err)
	}
}

// A file of which less is left than was mapped must not take the filling thread, and with it the process, along.
func TestFillingATruncatedFile(t *testing.T) {
	name := fileOf(t, 4<<20)
	m := newWindows(registryKey{"", 2 << 20, 4 << 20})
	p, err := source.OpenPlain(name, 1)
	must(t, err)
	must(t, os.Truncate(name, 100))
	mapOf(t, m, p.Backing(nil), 0, 1)
	for deadline := time.Now().Add(time.Minute); len(m.fill.fills) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the windows are not done with")
		}
	}
	if err := errors.Join(m.fill.close(), m.endAll(nil), p.Close()); err != nil {
		t.Error(err)
	}
}

// TestAPieceBehindTheEnd moves pieces of a file that had been cut when it was opened. They end, or begin, in its last window, or behind it.
func TestAPieceBehindTheEnd(t *testing.T) {
	g := newFakeGPU(t)
	m := g.mover(t)
	const length, n = 300_000, 8192
	p, err := source.OpenPlain(fileOf(t, length), 1)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, offset := range []int64{length - n/2, length + n, 2 * g.options.Window, 5 * g.options.Window} {
		_, err := m.Move(ctx, &g.to, []source.Piece{{File: p.Backing(nil), Offset: offset, N: n}}, false)
		if !errors.Is(err, source.ErrShort) || !strings.Contains(err.Error(), " at 300000:") {
			t.Errorf("a piece at %d: %v, want ErrShort and where the file ends", offset, err)
		}
	}
	if n := m.PinnedBytes(); n != 0 {
		t.Errorf("%d bytes are registered for pieces that cannot be moved", n)
	}
	_, err = m.Move(ctx, &g.to, []source.Piece{{File: p.Backing(nil), Offset: length - n, N: n}}, false)
	must(t, err)
	end(t, m)
	must(t, p.Close())
}
