package cufile

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// TestCopyToWritesNothingAfterItReturned cancels a copy out of HBM while the GPU stands still.
func TestCopyToWritesNothingAfterItReturned(t *testing.T) {
	name, data := randomFile(t, 200_000, 22)
	o := smallOptions(fakeLibraries(t), Staged)
	r := newReader(t, o)
	v, err := openFileIn(t, r, name).Read(t.Context(), 0, int64(len(data)))
	must(t, err)
	defer v.Release()
	ask(t, o.Libraries.CUDA, "fake_cuda_hold")
	p := make([]byte, len(data))
	ctx, cancel := context.WithCancel(t.Context())
	copied := make(chan error, 1)
	go func() { copied <- v.CopyTo(ctx, p, 0) }()
	eventually(t, "nothing is copied", func() bool { return ask(t, o.Libraries.CUDA, "fake_cuda_pending") > 0 })
	cancel()
	err = <-copied
	ask(t, o.Libraries.CUDA, "fake_cuda_go_on")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// All threads have taken part in this, so that none is still at what was cancelled.
	for range 2 * o.Threads {
		_, err := r.crew.Run(t.Context(), o.Threads, int64(o.Threads), func(*crew.Worker, int64) error { return nil })
		must(t, err)
	}
	if !bytes.Equal(p, make([]byte, len(p))) {
		t.Error("it wrote after it had returned")
	}
}

// TestLostGPU closes everything after a kernel of somebody else's made every call fail: the program goes on without it.
func TestLostGPU(t *testing.T) {
	name, data := randomFile(t, 3<<20, 23)
	for _, path := range []Path{Staged, Mapped} {
		t.Run(string(path), func(t *testing.T) {
			o := smallOptions(fakeLibraries(t), path)
			var readers []*Reader
			var files []*File
			for range 2 {
				r, err := New(t.Context(), o)
				must(t, err)
				f, err := r.Open(t.Context(), name)
				must(t, err)
				v, err := f.Read(t.Context(), 0, int64(len(data)))
				must(t, err)
				v.Release()
				readers, files = append(readers, r), append(files, f)
			}
			ask(t, o.Libraries.CUDA, "fake_cuda_lose")
			for i, f := range files {
				before := f.Moved()
				if _, err := f.Read(t.Context(), 0, int64(len(data))); err == nil || !strings.Contains(err.Error(), "start the process again") {
					t.Errorf("read: %v, want that the process must be started again", err)
				}
				if f.Moved() != before {
					t.Error("bytes were counted that did not come")
				}
				t.Log(f.Close()) // fails or not; what counts is what it leaves behind
				t.Log(readers[i].Close())
			}
			maps, err := os.ReadFile("/proc/self/maps")
			must(t, err)
			if strings.Contains(string(maps), name) {
				t.Error("the file is still mapped")
			}
		})
	}
}

// TestCopyWithoutItsEvent has a read fail whose copies are under way, and ends only after them.
func TestCopyWithoutItsEvent(t *testing.T) {
	t.Setenv("FAKE_CUDA_DELAY_US", "20000")
	name, data := randomFile(t, 100_000, 24)
	for _, path := range []Path{Staged, Mapped} {
		o := smallOptions(fakeLibraries(t), path)
		r := newReader(t, o)
		m := newMemory(t, r, int64(len(data)), 0)
		f := openFileIn(t, r, name)
		ask(t, o.Libraries.CUDA, "fake_cuda_no_record")
		if _, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, []int64{0}, f.Size()); err == nil || f.Moved().Total() != 0 {
			t.Errorf("%s: %v, and %+v moved", path, err, f.Moved())
		}
		if n := ask(t, o.Libraries.CUDA, "fake_cuda_pending"); n != 0 {
			t.Errorf("%s: it ended while %d steps were under way", path, n)
		}
	}
}

// TestReadThatCloseOvertook is planned before its Reader is closed, and comes to the GPU when its memory is gone.
func TestReadThatCloseOvertook(t *testing.T) {
	name, data := randomFile(t, 1<<20, 25)
	o := smallOptions(fakeLibraries(t), Mapped)
	r, err := New(t.Context(), o)
	must(t, err)
	f, err := r.Open(t.Context(), name)
	must(t, err)
	spans := []source.Span{{N: int64(len(data))}}
	v, err := f.reserve(t.Context(), spans)
	must(t, err)
	must(t, r.mapped.Thread.Do(t.Context(), r.releaseGPU))
	if _, err := f.fill(t.Context(), v, spans); !errors.Is(err, ErrClosed) {
		t.Errorf("read: %v, want that the reader is closed", err)
	}
	_ = f.Close()
	_ = r.Close() // what they give back is given back already
	for _, name := range []string{"fake_cuda_violations", "fake_cuda_pinned", "fake_cuda_hbm", "fake_cuda_retained"} {
		if n := ask(t, o.Libraries.CUDA, name); n != 0 {
			t.Errorf("%s is %d, want 0", name, n)
		}
	}
}

// TestLettingGoEndsWithItsContext cancels it at the first of two files: the second one is open for others by then, and
// what the device holds of it must stay.
func TestLettingGoEndsWithItsContext(t *testing.T) {
	t.Setenv("FAKE_CUFILE_GIVE_BACK", "wait")
	o := smallOptions(fakeLibraries(t), Compat)
	r := newReader(t, o)
	var files []*source.Backing
	for range 2 {
		name, _ := randomFile(t, 100_000, 26)
		f := openFileIn(t, r, name)
		v, err := f.Read(t.Context(), 0, 1000)
		must(t, err)
		v.Release()
		files = append(files, f.source.Backing(nil))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.letGo(ctx, files) }()
	eventually(t, "it does not come to the first file", func() bool { return ask(t, o.Libraries.CuFile, "fake_cufile_giving_back") == 1 })
	cancel()
	err := <-ended
	ask(t, o.Libraries.CuFile, "fake_cufile_go_on")
	must(t, r.mapped.Thread.Do(t.Context(), func(*crew.Worker) error { return nil }))
	if n := ask(t, o.Libraries.CuFile, "fake_cufile_handles"); !errors.Is(err, context.Canceled) || n != 1 || !r.direct.Knows(files[1]) {
		t.Errorf("%v; %d files have a handle, the second one: %v", err, n, r.direct.Knows(files[1]))
	}
}

// TestCloseWaitsForWhatReads closes a file that a call of cuFile still reads from, which nobody waits for any more.
func TestCloseWaitsForWhatReads(t *testing.T) {
	t.Setenv("FAKE_CUFILE_READ", "wait")
	name, _ := randomFile(t, 100_000, 27)
	o := smallOptions(fakeLibraries(t), Compat)
	r := newReader(t, o)
	f, err := r.Open(t.Context(), name)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := f.Read(ctx, 0, 1000)
		ended <- err
	}()
	eventually(t, "nothing is read", func() bool { return ask(t, o.Libraries.CuFile, "fake_cufile_reading") > 0 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := f.Close(); !errors.Is(err, ErrUnderWay) || !strings.Contains(err.Error(), "still under way after 5s") {
		t.Errorf("close: %v, want that a read is under way", err)
	}
	if _, err := f.Read(t.Context(), 0, 1000); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a read that begins meanwhile: %v, want that the file is closed", err)
	}
	ask(t, o.Libraries.CuFile, "fake_cufile_go_on")
	eventually(t, "its handle is kept", func() bool { return ask(t, o.Libraries.CuFile, "fake_cufile_handles") == 0 })
	if n := ask(t, o.Libraries.CuFile, "fake_cufile_violations"); n != 0 {
		t.Error("a handle was given back while a call used it")
	}
	must(t, f.Close())
}
