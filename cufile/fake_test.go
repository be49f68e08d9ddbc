package cufile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/driver/fakegpu"
)

// probeArgument makes the test binary the probe of Options.Probe.
const probeArgument = "run-cufile-probe"

// The fakes, compiled once; noFakes says why they could not be.
var (
	fakeFolder string
	noFakes    string
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == probeArgument {
		if err := RunProbe(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "hbmfs-fakes-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		fakeFolder = dir
		if noFakes = whyNoFakes(); noFakes == "" {
			if err := fakegpu.Compile(dir, fakegpu.CUDA, fakegpu.CUDAWithoutKernels, fakegpu.CuFile, fakegpu.OldCuFile, fakegpu.NVML); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return m.Run()
	}())
}

// whyNoFakes says what this machine or build lacks for the fakes, empty where nothing.
func whyNoFakes() string {
	if _, err := exec.LookPath("cc"); err != nil {
		return "the fake GPU libraries need a C compiler: " + err.Error()
	}
	if _, err := driver.LoadCUDA("libc.so.6"); err != nil && !strings.Contains(err.Error(), "too old or another library") {
		return err.Error() // a build that loads no library
	}
	return ""
}

// fake copies a compiled fake to a name of its own, so that every test gets a fresh one in a process that never
// unloads a library.
func fake(t testing.TB, name string) string {
	t.Helper()
	if noFakes != "" {
		t.Skip(noFakes)
	}
	data, err := os.ReadFile(filepath.Join(fakeFolder, name))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func fakeLibraries(t testing.TB) driver.Libraries {
	t.Helper()
	return driver.Libraries{CUDA: fake(t, fakegpu.CUDA), CuFile: fake(t, fakegpu.CuFile), NVML: fake(t, fakegpu.NVML)}
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
		if err := r.Close(); err != nil {
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
