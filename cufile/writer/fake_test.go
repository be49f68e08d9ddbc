package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

var fakes = fakegpu.Set{
	Libraries: []string{fakegpu.CUDA, fakegpu.CuFile},
	Load:      func(library string) error { _, err := driver.LoadCUDA(library); return err },
}

// probeArgument makes the test binary the probe of Options.Probe.
const probeArgument = "run-write-probe"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == probeArgument {
		if err := RunProbe(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 4 && os.Args[1] == writesArgument {
		fmt.Println(writeTwo(Path(os.Args[2]), os.Args[3]))
		os.Exit(0)
	}
	os.Exit(fakes.Run(m))
}

func fakeLibraries(t testing.TB) driver.Libraries {
	t.Helper()
	return driver.Libraries{CUDA: fakes.Copy(t, fakegpu.CUDA), CuFile: fakes.Copy(t, fakegpu.CuFile)}
}

// ask calls one of a fake's functions that take nothing and give a number.
func ask(t testing.TB, library, name string) uint64 {
	t.Helper()
	n, err := fakegpu.Ask(library, name)
	must(t, err)
	return n
}

// newWriter fails the test when the Writer does not give everything back.
func newWriter(t testing.TB, o Options) *Writer {
	t.Helper()
	before := goleak.IgnoreCurrent()
	left := leaks.Files(t)
	w, err := New(o)
	must(t, err)
	t.Cleanup(func() {
		if err := closed(w); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := leaks.Goroutines(before); err != nil {
			t.Error(err)
		}
		if err := left(); err != nil {
			t.Error(err)
		}
		if o.Device == HostDevice {
			return
		}
		for _, name := range []string{"fake_cuda_violations", "fake_cuda_pinned", "fake_cuda_retained", "fake_cuda_events"} {
			if n := ask(t, o.Libraries.CUDA, name); n != 0 {
				t.Errorf("%s is %d after Close, want 0", name, n)
			}
		}
	})
	return w
}

// closed closes a Writer. On a busy machine a step may take longer than Close waits.
func closed(w *Writer) (err error) {
	blackbox.Within(time.Minute, func() bool { err = w.Close(); return !errors.Is(err, ErrUnderWay) })
	return err
}

// untilWaiting waits until a goroutine is in a function of this package.
func untilWaiting(t testing.TB, function string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	if !blackbox.Within(time.Minute, func() bool { return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte(function+"(")) }) {
		t.Fatalf("nothing waits in %s", function)
	}
}

// hbm is memory of the fake GPU with bytes in it.
func hbm(t testing.TB, w *Writer, p []byte) Memory {
	t.Helper()
	if len(p) == 0 {
		return Memory{}
	}
	var at driver.Pointer
	must(t, w.device.Within(func() (err error) {
		if at, err = w.device.CUDA.Alloc(int64(len(p))); err != nil {
			return err
		}
		return w.device.CUDA.CopyPageable(at, p)
	}))
	cu, context := w.device.CUDA, w.device.Context
	t.Cleanup(func() { must(t, cu.Within(context, func() error { return cu.Free(at) })) })
	return Memory{HBM: uintptr(at), N: int64(len(p))}
}

// onEachDevice runs a test on the host and on a fake GPU. put brings bytes to the device.
func onEachDevice(t *testing.T, test func(t *testing.T, o Options, put func(t *testing.T, w *Writer, p []byte) Memory)) {
	t.Run("host", func(t *testing.T) {
		test(t, Options{Device: HostDevice, Threads: 3}, func(_ *testing.T, _ *Writer, p []byte) Memory { return Memory{Host: p} })
	})
	t.Run("gpu", func(t *testing.T) {
		test(t, Options{Threads: 3, Libraries: fakeLibraries(t)}, func(t *testing.T, w *Writer, p []byte) Memory { return hbm(t, w, p) })
	})
}
