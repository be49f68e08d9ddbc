//go:build linux && (amd64 || arm64) && !nogpu

package driver

import (
	"unsafe"

	"github.com/ebitengine/purego"
)

// openShared loads a shared library for the life of the process. libcufile must never be unloaded (its exit handlers
// stay behind), and libcuda need not be.
func openShared(name string) (uintptr, error) {
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
}

// lookUp gives a function's address, 0 when the library has none.
func lookUp(handle uintptr, name string) uintptr {
	address, err := purego.Dlsym(handle, name)
	if err != nil {
		return 0
	}
	return address
}

// invoke calls a C function with at most 15 integer or pointer arguments.
//
//go:uintptrescapes
func invoke(fn uintptr, args ...uintptr) uintptr {
	result, _, _ := purego.SyscallN(fn, args...)
	return result
}

// errnoPlace gives where the C library keeps the calling thread's errno. purego reports none on Linux. The caller
// must be locked to its thread; between two calls on it, nothing of Go's changes errno.
func errnoPlace() *int32 {
	location := lookUp(purego.RTLD_DEFAULT, "__errno_location")
	if location == 0 {
		return new(int32)
	}
	place := invoke(location)
	return *(**int32)(unsafe.Pointer(&place))
}
