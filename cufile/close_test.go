package cufile

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/direct"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// TestCloseWhileSomethingIsUnderWay closes a Reader while a step takes longer than closing waits. It does not say that
// anything hangs, gives back nothing that is in use, and is done again until nothing is under way.
func TestCloseWhileSomethingIsUnderWay(t *testing.T) {
	for name, c := range map[string]struct {
		host bool
		crew func(r *Reader) *crew.Crew
	}{
		"host":                      {true, func(r *Reader) *crew.Crew { return r.crew }},
		"GPU":                       {false, func(r *Reader) *crew.Crew { return r.crew }},
		"the thread that registers": {false, func(r *Reader) *crew.Crew { return r.mapped.Thread }},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Device: HostDevice, Threads: 2, Arena: 1 << 20}
			if !c.host {
				o = smallOptions(fakeLibraries(t), Staged)
			}
			synctest.Test(t, func(t *testing.T) {
				r, err := New(t.Context(), o)
				must(t, err)
				at, err := r.arena.Reserve(t.Context(), 1)
				must(t, err)
				r.arena.Free(at, 1)
				ended := make(chan error, 1)
				go func() {
					_, err := c.crew(r).Run(context.Background(), 1, 1, func(*crew.Worker, int64) error {
						time.Sleep(12 * time.Second) // of this bubble: a slow disk
						return nil
					})
					ended <- err
				}()
				synctest.Wait() // the step has begun
				for i := range 2 {
					err := r.Close()
					if !errors.Is(err, ErrUnderWay) || !strings.Contains(err.Error(), "close it again then") || strings.Contains(err.Error(), "process") {
						t.Errorf("close %d: %v, want that something is under way", i+1, err)
					}
					if r.arena.Host(0) == nil && r.arena.HBM(0) == 0 {
						t.Errorf("close %d: the memory was given back", i+1)
					}
				}
				for range 2 { // the second one does nothing
					must(t, r.Close())
				}
				must(t, <-ended)
				if r.arena.Host(0) != nil || r.device.Context != 0 {
					t.Error("it was not given back")
				}
			})
			if c.host {
				return
			}
			for _, name := range []string{"fake_cuda_violations", "fake_cuda_pinned", "fake_cuda_hbm", "fake_cuda_retained"} {
				if n := ask(t, o.Libraries.CUDA, name); n != 0 {
					t.Errorf("%s is %d, want 0", name, n)
				}
			}
		})
	}
}

// TestDriverThatDoesNotOpenIsAskedOnce, since auto would ask for every request.
func TestDriverThatDoesNotOpenIsAskedOnce(t *testing.T) {
	t.Setenv("FAKE_CUFILE_OPEN", "5002")
	o := smallOptions(fakeLibraries(t), Auto)
	r := newReader(t, o)
	for range 3 {
		if err := r.direct.Start(); err == nil || !strings.Contains(err.Error(), "DRIVER_INVALID_PROPS") {
			t.Errorf("%v, want cuFile's reason each time", err)
		}
	}
	if n := ask(t, o.Libraries.CuFile, "fake_cufile_opens"); n != 1 {
		t.Errorf("it was asked %d times, want once", n)
	}
}

// TestDriverThatAnotherReaderHasOpen is refused with a remedy, and opened once that Reader is closed.
func TestDriverThatAnotherReaderHasOpen(t *testing.T) {
	libraries := fakeLibraries(t)
	first, err := New(t.Context(), smallOptions(libraries, Compat))
	must(t, err)
	second := newReader(t, smallOptions(libraries, Auto))
	_, err = New(t.Context(), smallOptions(libraries, Compat))
	for _, err := range []error{err, second.direct.Start()} {
		if err == nil || !strings.Contains(err.Error(), "close that one first") {
			t.Errorf("%v, want what to do", err)
		}
	}
	eventually(t, "the first reader is closed", func() bool { err = first.Close(); return !errors.Is(err, ErrUnderWay) })
	must(t, err)
	must(t, second.direct.Start())
}

// TestDriverThatNobodyHadTimeFor is asked again: its threads were busy, which says nothing of it.
func TestDriverThatNobodyHadTimeFor(t *testing.T) {
	o := smallOptions(fakeLibraries(t), Auto)
	o.Threads = 1
	synctest.Test(t, func(t *testing.T) {
		r, err := New(t.Context(), o)
		must(t, err)
		ended := make(chan error, 1)
		go func() {
			ended <- r.crew.Do(context.Background(), func(*crew.Worker) error { time.Sleep(direct.Patience + time.Minute); return nil })
		}()
		synctest.Wait() // the only thread is busy
		if err := r.direct.Start(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want a deadline", err)
		}
		must(t, <-ended)
		must(t, r.direct.Start())
		must(t, r.Close())
	})
}

// TestCloseWhileTheGPUGivesBack has giving back itself take longer than closing waits. It is not done twice.
func TestCloseWhileTheGPUGivesBack(t *testing.T) {
	t.Setenv("FAKE_CUFILE_GIVE_BACK", "wait")
	o := smallOptions(fakeLibraries(t), Compat)
	r := newReader(t, o)
	err := r.Close()
	ask(t, o.Libraries.CuFile, "fake_cufile_go_on")
	if !errors.Is(err, ErrUnderWay) {
		t.Errorf("%v, want that something is under way", err)
	}
	must(t, r.Close())
}

// TestCloseEndsFilesAndRequests closes a Reader whose file has a request that the GPU does not end.
func TestCloseEndsFilesAndRequests(t *testing.T) {
	name, data := randomFile(t, 200_000, 28)
	o := smallOptions(fakeLibraries(t), Staged)
	o.Threads = 1
	r, err := New(t.Context(), o)
	must(t, err)
	f, err := r.Open(t.Context(), name)
	must(t, err)
	m := newMemory(t, r, int64(len(data)), 0)
	ask(t, o.Libraries.CUDA, "fake_cuda_hold")
	q, err := f.BeginGather(t.Context(), Target{Memory: m.Memory}, []int64{0}, f.Size())
	must(t, err)
	eventually(t, "nothing is copied", func() bool { return ask(t, o.Libraries.CUDA, "fake_cuda_pending") > 0 })
	if err := r.Close(); !errors.Is(err, ErrUnderWay) {
		t.Errorf("close: %v, want that a read is under way", err)
	}
	if _, err := r.Open(t.Context(), name); !errors.Is(err, ErrClosed) {
		t.Errorf("open: %v, want that the reader is closed", err)
	}
	if _, errs := r.OpenMany(t.Context(), []string{name}); !errors.Is(errs[0], ErrClosed) {
		t.Errorf("open many: %v, want that the reader is closed", errs)
	}
	if _, err := r.Alloc(1); !errors.Is(err, ErrClosed) {
		t.Errorf("allocate: %v, want that the reader is closed", err)
	}
	if _, err := f.BeginGather(t.Context(), Target{Memory: m.Memory}, []int64{0}, 1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("begin: %v, want that the file is closed", err)
	}
	ask(t, o.Libraries.CUDA, "fake_cuda_go_on")
	if _, err := q.Result(); !errors.Is(err, context.Canceled) {
		t.Errorf("the request: %v, want that it was cancelled", err)
	}
	must(t, r.Close())
	must(t, f.Close())
	if len(r.files) != 0 {
		t.Errorf("%d files are left", len(r.files))
	}
}

// unanswered is a file whose server does not answer while it is closed.
type unanswered struct {
	source.File
	answers chan struct{}
}

func (u *unanswered) Close() error {
	<-u.answers
	return errors.Join(u.File.Close(), ErrShort)
}

// TestCloseWhileAServerDoesNotAnswer closes a file, and its Reader, that wait for a server. Once it answers, closing again tells how the file was
// closed, once.
func TestCloseWhileAServerDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name, _ := randomFile(t, 1000, 29)
		r, err := New(t.Context(), Options{Device: HostDevice, Threads: 2, Arena: 1 << 20})
		must(t, err)
		f, err := r.Open(t.Context(), name)
		must(t, err)
		u := &unanswered{f.source, make(chan struct{})}
		f.source = u
		for what, close := range map[string]func() error{"the file": f.Close, "the reader": r.Close} {
			if err := close(); !errors.Is(err, ErrUnderWay) || errors.Is(err, ErrShort) {
				t.Errorf("close %s: %v, want that something is under way", what, err)
			}
		}
		close(u.answers)
		if err := f.Close(); !errors.Is(err, ErrShort) {
			t.Errorf("close: %v, want %v", err, ErrShort)
		}
		must(t, f.Close())
		must(t, r.Close())
	})
}
