// Package fakegpu makes shared libraries that stand for libcuda, libcufile and NVML, so that tests run every path on a
// machine without a GPU.
//
// The fake GPU runs everything late, checks every address, and counts pinned and allocated memory. Environment variables
// FAKE_CUDA_* and FAKE_CUFILE_* make it fail; its C sources name them.
package fakegpu

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/ebitengine/purego"
)

// The libraries, by their file names.
const (
	CUDA               = "libcuda.so"
	CUDAWithoutKernels = "libcuda-without-kernels.so" // of a driver that cannot launch kernels
	CuFile             = "libcufile.so"
	OldCuFile          = "libcufile-old.so" // without parameters and statistics by call
	NVML               = "libnvml.so"
)

//go:embed testdata/*.c
var sources embed.FS

// Compile makes the named libraries in dir. It needs cc.
func Compile(dir string, libraries ...string) error {
	for _, library := range libraries {
		source, flags := "cuda.c", []string(nil)
		switch library {
		case CUDAWithoutKernels:
			flags = []string{"-DWITHOUT_KERNELS"}
		case CuFile:
			source = "cufile.c"
		case OldCuFile:
			source, flags = "cufile.c", []string{"-DOLD"}
		case NVML:
			source = "nvml.c"
		}
		text, err := sources.ReadFile("testdata/" + source)
		if err != nil {
			return err
		}
		file := filepath.Join(dir, library+".c")
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
		args := []string{"-shared", "-fPIC", "-pthread", "-O1", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(dir, library), file}
		if out, err := exec.Command("cc", slices.Concat(args, flags)...).CombinedOutput(); err != nil {
			return fmt.Errorf("compile %s: %w\n%s", library, err, out)
		}
	}
	return nil
}

// Ask calls a function of a fake that takes nothing and gives a number. library is the path that the process loaded.
func Ask(library, function string) (uint64, error) {
	handle, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return 0, err
	}
	address, err := purego.Dlsym(handle, function)
	if err != nil {
		return 0, err
	}
	result, _, _ := purego.SyscallN(address)
	return uint64(result), nil
}
