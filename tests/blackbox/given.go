package blackbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/driver/fakegpu"
)

// Given returns the hbmfs that HBMFS_BINARY names, or one that is built into dir. It is for tests that
// need no more of a [Suite].
func Given(dir string) (Binary, error) {
	path := os.Getenv("HBMFS_BINARY")
	if path == "" {
		path = filepath.Join(dir, "hbmfs")
		if err := Build("hbmfs", path, false); err != nil {
			return Binary{}, err
		}
	}
	return NewBinary(path)
}

// Build builds a program of cmd at path, with the race detector if race is set. It is for tests of this module.
func Build(program, path string, race bool) error {
	args := []string{"build", "-buildvcs=false", "-o", path}
	if race {
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
