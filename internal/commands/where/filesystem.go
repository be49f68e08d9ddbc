package where

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
)

// Filesystem tells the type of the filesystem that a directory lies on, as /proc/mounts has it.
func Filesystem(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory", dir)
	}
	path, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	above, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return "", err
	}
	kind, longest := "", -1
	for _, m := range above {
		if len(m.Mountpoint) >= longest { // of two at one point the later hides the other
			kind, longest = m.FSType, len(m.Mountpoint)
		}
	}
	return kind, nil
}
