//go:build !linux || (!amd64 && !arm64) || nogpu

package driver

import "errors"

// openShared refuses: loading a library needs the C runtime's linker, which a static binary does not have.
func openShared(string) (uintptr, error) {
	return 0, errors.New("this hbmfs was built without GPU support (build tag nogpu, or a platform other than linux/amd64 and linux/arm64)")
}

func lookUp(uintptr, string) uintptr { return 0 }

// invoke cannot be reached, since no library was loaded.
func invoke(uintptr, ...uintptr) uintptr {
	panic("cufile: internal error: call into a library that was not loaded")
}

func errnoPlace() *int32 { return new(int32) }
