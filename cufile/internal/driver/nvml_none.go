//go:build !cgo || !linux || nogpu || nonvml

package driver

import "fmt"

// describeNVML refuses: the NVML binding needs a C compiler at build time, and the release binary is built without.
func describeNVML(string, string, *GPU) error {
	return fmt.Errorf("%w: NVML: this hbmfs was built without cgo", ErrNoLibrary)
}
