package driver

import (
	"errors"
	"fmt"
	"strings"
)

// Libraries names the shared libraries to load instead of the system's: file names that the dynamic linker finds, or
// paths. An empty field means the usual names.
type Libraries struct {
	CUDA   string `json:"cuda,omitempty"`   // libcuda.so.1
	CuFile string `json:"cufile,omitempty"` // libcufile.so.0
	NVML   string `json:"nvml,omitempty"`   // libnvidia-ml.so.1
}

// ErrNoLibrary says that a shared library, or a function in it, is not there.
var ErrNoLibrary = errors.New("library is not available")

// function is a C function that we call.
type function struct {
	names    []string // the first that the library has
	optional bool     // the library is of use without it
}

// library is a loaded shared library: the addresses of its functions by their index in the table it was loaded
// with, 0 where it has none.
type library struct {
	name string
	fn   []uintptr
}

// has says whether the library has the function with this index.
func (l *library) has(index int) bool { return l.fn[index] != 0 }

// loadLibrary loads the first of names that exists and looks up functions in it.
func loadLibrary(names []string, functions []function) (*library, error) {
	var reasons []string
	for _, name := range names {
		handle, err := openShared(name)
		if err != nil {
			reasons = append(reasons, err.Error())
			continue
		}
		l := &library{name: name, fn: make([]uintptr, len(functions))}
		for i, f := range functions {
			if l.fn[i] = lookUpFirst(handle, f.names); l.fn[i] == 0 && !f.optional {
				return nil, fmt.Errorf("%w: %s has no function %s: it is too old or another library", ErrNoLibrary, name, f.names[0])
			}
		}
		return l, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNoLibrary, strings.Join(reasons, "; "))
}

func lookUpFirst(handle uintptr, names []string) uintptr {
	for _, name := range names {
		if address := lookUp(handle, name); address != 0 {
			return address
		}
	}
	return 0
}

// cString gives s as C wants it.
func cString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}
