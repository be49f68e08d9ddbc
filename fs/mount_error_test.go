package fs

import (
	"errors"
	"strings"
	"testing"
)

// A device that users may not open is the first obstacle in many containers, and fusermount3 names no way out.
func TestMountErrorSaysHowUsersGetTheDevice(t *testing.T) {
	err := mountError("/mnt/pile", errors.New("fusermount3: failed to open /dev/fuse: Permission denied"))
	if !strings.Contains(err.Error(), "chmod 666 /dev/fuse") {
		t.Errorf("the error names no remedy: %v", err)
	}
}
