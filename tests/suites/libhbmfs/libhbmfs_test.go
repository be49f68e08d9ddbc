// Package libhbmfs_test compiles a C program against libhbmfs and runs it: over a real mount, and with a fake GPU where
// there is none. Tests that need FUSE or a C compiler say so when they skip.
package libhbmfs_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
	"github.com/hbmfs/hbmfs/cufile/kv/kvtest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// patience bounds one run of the program. Nothing that works comes near it.
const patience = 5 * time.Minute

// built is the program, with the library that HBMFS_LIBRARY names or one that is built here, and the fakes: all built once.
type built struct {
	program, cuda, cufile string
}

var build = sync.OnceValues(func() (built, error) {
	dir, err := os.MkdirTemp("", "hbmfs-libhbmfs-test-")
	if err != nil {
		return built{}, err
	}
	b := built{filepath.Join(dir, "program"), filepath.Join(dir, fakegpu.CUDA), filepath.Join(dir, fakegpu.CuFile)}
	var steps []*exec.Cmd
	library := os.Getenv("HBMFS_LIBRARY")
	if library == "" {
		library = filepath.Join(dir, "libhbmfs.so")
		lib := exec.Command("go", "build", "-buildvcs=false", "-buildmode=c-shared", "-tags", "nonvml,netgo,osusergo", "-o", library, "../../../cmd/libhbmfs")
		lib.Env = append(os.Environ(), "CGO_ENABLED=1")
		steps = append(steps, lib)
	}
	sources, err := filepath.Glob("program/*.c")
	if err != nil {
		return built{}, err
	}
	flags := []string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"}
	program := append(append(append([]string{}, flags...), "-I../../../cmd/libhbmfs", "-o", b.program), sources...)
	if err := fakegpu.Compile(dir, fakegpu.CUDA, fakegpu.CuFile); err != nil {
		return b, err
	}
	for _, cmd := range append(steps, exec.Command("cc", append(program, library, "-Wl,-rpath,"+filepath.Dir(library), "-ldl")...)) {
		if out, err := cmd.CombinedOutput(); err != nil {
			return b, fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	return b, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if b, _ := build(); b.program != "" {
		_ = os.RemoveAll(filepath.Dir(b.program))
	}
	os.Exit(code)
}

// run runs a test of the program: on the host, or on GPU 0, which is fake.
func run(t *testing.T, test, device, method string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("the program needs a C compiler: ", err)
	}
	b, err := build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	libraries := []string{"", ""}
	if device != "-1" {
		libraries = []string{b.cuda, b.cufile}
	}
	cmd := exec.CommandContext(ctx, b.program, append(append([]string{test, device, method}, libraries...), args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s on device %s by %s: %v\n%s", test, device, method, err, out)
	}
	if bytes.Contains(out, []byte("fake libcuda:")) {
		t.Errorf("%s on device %s by %s:\n%s", test, device, method, out)
	}
	return string(out)
}

// everywhere runs a test for each device and path that there is.
func everywhere(t *testing.T, test func(t *testing.T, device, method string)) {
	for _, on := range [][2]string{{"-1", "auto"}, {"0", "auto"}, {"0", "staged"}, {"0", "mapped"}, {"0", "compat"}} {
		t.Run(on[0]+" "+on[1], func(t *testing.T) { test(t, on[0], on[1]) })
	}
}

func randomFile(t *testing.T, size int) string {
	t.Helper()
	data := make([]byte, size)
	if _, err := rand.NewChaCha8([32]byte{21}).Read(data); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// ofEachFolder is how many files of a folder are read: members of an archive are all alike.
const ofEachFolder = 4

// golden mounts the golden datasets and gives files and views of all of their folders.
func golden(t *testing.T) (files []string) {
	t.Helper()
	if err := blackbox.CanMount(); err != nil {
		t.Skip(err)
	}
	binary := os.Getenv("HBMFS_BINARY")
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "hbmfs")
		if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "../../../cmd/hbmfs").CombinedOutput(); err != nil {
			t.Fatalf("build hbmfs: %v\n%s", err, out)
		}
	}
	b, err := blackbox.NewBinary(binary)
	if err != nil {
		t.Fatal(err)
	}
	m, err := b.Mount(t.Context(), "../../data/testdata", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	taken := map[string]int{}
	for _, root := range []string{m.Path(), m.Path(".hbmfs", "views")} {
		err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if folder := filepath.Dir(path); err == nil && entry.Type().IsRegular() && taken[folder] < ofEachFolder {
				files = append(files, path)
				taken[folder]++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestEveryGoldenFileArrives(t *testing.T) {
	files := golden(t)
	views := 0
	for _, f := range files {
		if strings.Contains(f, "/.hbmfs/views/") {
			views++
		}
	}
	if views < 20 || len(files)-views < 50 {
		t.Fatalf("only %d views among %d files", views, len(files))
	}
	t.Logf("%d files, %d of them views", len(files), views)
	t.Setenv("FAKE_CUDA_DELAY_US", "0") // thousands of small reads; that they wait for a late GPU is seen below
	everywhere(t, func(t *testing.T, device, method string) { run(t, "compare", device, method, files...) })
}

func TestAFileOfNoMountArrives(t *testing.T) {
	file := randomFile(t, 3<<20+77) // parts, where it goes by way of an arena of 4 MiB
	everywhere(t, func(t *testing.T, device, method string) { run(t, "compare", device, method, file) })
}

func TestThreadsWhoseFileIsClosed(t *testing.T) {
	file := randomFile(t, 1<<20)
	everywhere(t, func(t *testing.T, device, method string) { run(t, "threads", device, method, file) })
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	file := randomFile(t, 10_000)
	for _, device := range []string{"-1", "0"} {
		run(t, "errors", device, "auto", file)
	}
}

func TestCancelAReadThatHangs(t *testing.T) {
	run(t, "cancel", "0", "staged", randomFile(t, 10_000))
}

func TestAForkedChildIsRefused(t *testing.T) {
	file := randomFile(t, 10_000)
	for _, device := range []string{"-1", "0"} {
		run(t, "forks", device, "auto", file)
	}
}

func TestFilesAreWritten(t *testing.T) {
	file := randomFile(t, 5<<20+77)
	for _, device := range []string{"-1", "0"} {
		run(t, "writes", device, "auto", file, t.TempDir())
	}
}

func TestSignalsReachTheProgram(t *testing.T) {
	file := randomFile(t, 10_000)
	for _, device := range []string{"-1", "0"} {
		run(t, "signals", device, "auto", file)
	}
}

// HBMFS_LEAK_ROUNDS asks for more rounds than fit into every run: 10000.
func TestNothingLeaks(t *testing.T) {
	rounds := 400
	if text := os.Getenv("HBMFS_LEAK_ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		rounds = n
	}
	file := randomFile(t, 10_000)
	for _, on := range [][2]string{{"-1", "auto"}, {"0", "staged"}, {"0", "mapped"}} {
		t.Log(on, run(t, "leaks", on[0], on[1], file, strconv.Itoa(rounds)))
	}
}

// TestCheckpoint publishes, verifies and removes a checkpoint. No device has a part in it.
func TestCheckpoint(t *testing.T) { run(t, "checkpoint", "-1", "auto", t.TempDir()) }

// TestVolume does it in a checkpoint volume. It needs root, FUSE, and HBMFS_BINARY.
func TestVolume(t *testing.T) {
	if os.Getenv("HBMFS_BINARY") == "" {
		t.Skip("HBMFS_BINARY names no built hbmfs (make test builds it)")
	}
	blackbox.NeedRoot(t)
	binary, err := blackbox.NewBinary(os.Getenv("HBMFS_BINARY"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := binary.Mount(t.Context(), t.TempDir(), t.TempDir(), "--checkpoints")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	run(t, "volume", "-1", "auto", m.Path())
}

// TestKV stores blocks in a KV volume, whose daemon a stand-in is: no mount is needed.
func TestKV(t *testing.T) {
	for name, device := range map[string]string{"host": "-1", "gpu": "0"} {
		t.Run(name, func(t *testing.T) {
			o := kvtest.Options{Dir: t.TempDir(), BlockBytes: 100_000, Memory: 30, Disk: 20, Region: 10}
			daemon, err := kvtest.Start(o)
			if err != nil {
				t.Fatal(err)
			}
			run(t, "kv", device, "auto", o.Dir)
			if err := daemon.Close(); err != nil {
				t.Error(err)
			}
			if n := daemon.Held(); n != 0 {
				t.Errorf("%d pins and reservations are held, want none", n)
			}
		})
	}
}
