package blackbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
)

// Given returns the hbmfs that HBMFS_BINARY names, or one that is built for the test. It is for tests that need no more of
// a [Suite].
func Given(t testing.TB) Binary {
	t.Helper()
	path := os.Getenv("HBMFS_BINARY")
	var err error
	if path == "" {
		path = filepath.Join(t.TempDir(), "hbmfs")
		err = Build("hbmfs", path)
	}
	var b Binary
	if err == nil {
		b, err = NewBinary(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// NeedFUSE skips a test where nothing can be mounted.
func NeedFUSE(t testing.TB) {
	t.Helper()
	if err := CanMount(); err != nil {
		t.Skipf("needs FUSE: %v", err)
	}
}

// NeedRoot skips a test where root cannot mount: others cannot change users, and their mounts have no control socket.
func NeedRoot(t testing.TB) {
	t.Helper()
	NeedFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// Build builds a program of cmd at path, under the race detector with it. It is for tests of this module.
func Build(program, path string) error {
	args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", path}
	if Race {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "github.com/hbmfs/hbmfs/cmd/"+program)...).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", program, err, out)
	}
	return nil
}

// Fakes are the libraries of a GPU that is not there: paths of shared libraries.
type Fakes struct{ CUDA, CuFile, NVML string }

// NewFakes compiles the libraries of a fake GPU into dir. It needs cc.
func NewFakes(dir string) (Fakes, error) {
	f := Fakes{filepath.Join(dir, fakegpu.CUDA), filepath.Join(dir, fakegpu.CuFile), filepath.Join(dir, fakegpu.NVML)}
	return f, fakegpu.Compile(dir, fakegpu.CUDA, fakegpu.CuFile, fakegpu.NVML)
}

// FakeGPU compiles the libraries of a fake GPU and returns the flags that load them. It skips where there is no C compiler.
func FakeGPU(t testing.TB) (flags []string) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("the fake GPU needs a C compiler: ", err)
	}
	fakes, err := NewFakes(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return fakes.Flags()
}

// Flags are the flags by which hbmfs loads them.
func (f Fakes) Flags() []string {
	return []string{"--libcuda", f.CUDA, "--libcufile", f.CuFile, "--libnvml", f.NVML}
}

// PublicFUSE gives ordinary users the device, as every distribution does and some containers do not, until private is
// called. Test programs that run side by side take turns.
func PublicFUSE() (private func() error, err error) {
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(device.Fd()), unix.LOCK_EX)
	var info os.FileInfo
	if err == nil {
		info, err = device.Stat()
	}
	if err == nil && info.Mode().Perm()&0o006 != 0o006 {
		err = os.Chmod(device.Name(), 0o666)
	}
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return func() error { return errors.Join(os.Chmod(device.Name(), info.Mode().Perm()), device.Close()) }, nil
}

// ParseRange reads an HTTP header Range of one range that has both ends.
func ParseRange(header string) (from, to int64, ok bool) {
	first, last, ok := strings.Cut(strings.TrimPrefix(header, "bytes="), "-")
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	return from, to, ok && err1 == nil && err2 == nil
}
