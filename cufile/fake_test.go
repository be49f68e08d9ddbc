package cufile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// probeArgument makes the test binary the probe of Options.Probe.
const probeArgument = "run-cufile-probe"

var fakes = fakegpu.Set{
	Libraries: []string{fakegpu.CUDA, fakegpu.CUDAWithoutKernels, fakegpu.CuFile, fakegpu.OldCuFile, fakegpu.NVML},
	Load:      func(library string) error { _, err := driver.LoadCUDA(library); return err },
}

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == probeArgument {
		if err := RunProbe(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(fakes.Run(m))
}

func fakeLibraries(t testing.TB) driver.Libraries {
	t.Helper()
	return driver.Libraries{CUDA: fakes.Copy(t, fakegpu.CUDA), CuFile: fakes.Copy(t, fakegpu.CuFile), NVML: fakes.Copy(t, fakegpu.NVML)}
}

// ask calls one of a fake's functions that take nothing and give a number.
func ask(t testing.TB, library, name string) uint64 {
	t.Helper()
	n, err := fakegpu.Ask(library, name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// smallOptions make chunks, windows and the arena so small that a file of a few MiB goes through many.
func smallOptions(l driver.Libraries, path Path) Options {
	return Options{Path: path, Threads: 3, Slot: 64 << 10, Arena: 4 << 20, Window: 256 << 10, Pinned: 1 << 20, Libraries: l,
		Probe: []string{os.Args[0], probeArgument}}
}

// newReader fails the test when the Reader does not give everything back.
func newReader(t testing.TB, o Options) *Reader {
	t.Helper()
	r, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// On a busy machine a step may take longer than Close waits.
		eventually(t, "the reader is closed", func() bool { err = r.Close(); return !errors.Is(err, ErrUnderWay) })
		if err != nil {
			t.Errorf("close: %v", err)
		}
		if o.Libraries.CUDA == "" {
			return
		}
		for _, name := range []string{"fake_cuda_violations", "fake_cuda_pinned", "fake_cuda_hbm", "fake_cuda_retained"} {
			if n := ask(t, o.Libraries.CUDA, name); n != 0 {
				t.Errorf("%s is %d after Close, want 0", name, n)
			}
		}
	})
	return r
}

// randomFile makes a file of random bytes, the same for the same seed.
func randomFile(t testing.TB, size int, seed uint64) (string, []byte) {
	t.Helper()
	data := make([]byte, size)
	if _, err := rand.NewChaCha8([32]byte{byte(seed)}).Read(data); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name, data
}

func openFileIn(t testing.TB, r *Reader, name string) *File {
	t.Helper()
	f, err := r.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close %s: %v", name, err)
		}
	})
	return f
}

// content copies a view back and releases it.
func content(t testing.TB, v *View) []byte {
	t.Helper()
	defer v.Release()
	p := make([]byte, v.Len())
	if err := v.CopyTo(context.Background(), p, 0); err != nil {
		t.Fatal(err)
	}
	return p
}
