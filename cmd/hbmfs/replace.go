package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// replaceFile writes a file that a user names. The old file stays until all of the new one is on the disk: it may be the configuration of
// other programs. Links are followed, and devices and pipes are written to.
func replaceFile(name string, write func(io.Writer) error) error {
	if strings.HasPrefix(name, "/dev/") || strings.HasPrefix(name, "/proc/") {
		return writeThere(name, write) // /dev/stdout, for one: a file that is appended to
	}
	if to, err := filepath.EvalSymlinks(name); err == nil {
		name = to
	}
	before, err := os.Stat(name)
	if err == nil && !before.Mode().IsRegular() {
		return writeThere(name, write)
	}
	there := err == nil
	f, err := os.OpenFile(fmt.Sprintf("%s.%d.tmp", name, os.Getpid()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrPermission) {
		return writeThere(name, write) // the file may be the user's all the same
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	err = write(f)
	if there {
		err = errors.Join(err, f.Chmod(before.Mode().Perm()))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// writeThere writes to the existing file, or makes it.
func writeThere(name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
