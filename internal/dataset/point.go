package dataset

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CheckPoint makes sure that a directory can be mounted on, or made for it where only its last name is missing: [MakePoint] does
// that. It notes when the directory hides files.
func CheckPoint(point, source string) (notes []string, err error) {
	info, err := os.Stat(point)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Dir(point)); errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("the directory of the mount point does not exist: mkdir -p %s", filepath.Dir(point))
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("the mount point %s is not a directory", point)
	}
	if from, err := os.Stat(source); err == nil && os.SameFile(from, info) { // mounted in place, it hides itself
		return nil, nil
	}
	dir, err := os.Open(point)
	if err != nil {
		return nil, nil //nolint:nilerr // one that cannot be listed is taken for empty
	}
	defer func() { _ = dir.Close() }() // opened for reading: nothing is lost
	if names, err := dir.Readdirnames(1); err == nil && len(names) > 0 {
		notes = append(notes, fmt.Sprintf("%s was not empty: what is in it, %q for one, is hidden until hbmfs umount", point, names[0]))
	}
	return notes, nil
}

// MakePoint makes the mount point where it is missing. After the mount, remove takes away what was made, if nobody has put
// anything there since.
func MakePoint(point string) (remove func(), err error) {
	switch err := os.Mkdir(point, 0o755); {
	case errors.Is(err, os.ErrExist):
		return func() {}, nil
	case err != nil:
		return nil, fmt.Errorf("make the mount point: %w", err)
	}
	made, err := os.Lstat(point)
	if err != nil {
		return nil, err
	}
	return func() {
		if now, err := os.Lstat(point); err == nil && os.SameFile(made, now) {
			_ = unix.Rmdir(point) // it stays where it is not empty, or mounted on; a file never goes
		}
	}, nil
}
