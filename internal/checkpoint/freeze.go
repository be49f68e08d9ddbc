package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// mostLeases is how many leases a draft holds at once. Of more files, the others are read-only and were looked at.
const mostLeases = 1024

// frozen is a draft whose files nobody writes any more.
type frozen struct {
	leased []*os.File
	modes  map[string]fs.FileMode // of files, before
}

// Freeze makes the files of a draft in a volume read-only, and fails with [ErrWritten] and the name of one that anybody has open
// for writing, or maps so. It takes a read lease on each (F_SETLEASE), which the kernel refuses then. [Draft.Publish] does it where it
// was not done before. After an error, the draft is as it was.
func (d *Draft) Freeze(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := error(os.ErrClosed)
	if !d.ended {
		err = d.freeze(ctx)
	}
	if err != nil {
		d.thaw()
		return fmt.Errorf("publish checkpoint %s: %w", d.path, err)
	}
	return nil
}

// Thaw takes back what Freeze did.
func (d *Draft) Thaw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.thaw()
	}
}

func (d *Draft) freeze(ctx context.Context) error {
	if d.volume == nil || d.frozen != nil {
		return nil
	}
	d.frozen = &frozen{modes: map[string]fs.FileMode{}}
	if err := walk(d.dir, ".", 0, func(name string, info fs.FileInfo) error {
		if info.IsDir() || name == ManifestName {
			return ctx.Err()
		}
		if !info.Mode().IsRegular() {
			return failf(ErrInvalid, "%q is no regular file", name)
		}
		return errors.Join(ctx.Err(), d.lease(name))
	}); err != nil {
		return err
	}
	// The mount has writers where a file has no name, or was removed.
	switch err := d.setReadOnly(true); {
	case errors.Is(err, unix.EBUSY):
		return &penError{"a file that is not among those of the draft is still open or mapped for writing: close all that BEGIN and ADD have given"}
	case err != nil:
		return fmt.Errorf("make the draft's mount read-only: %w", err)
	}
	return nil
}

// lease makes one file read-only, and takes a lease on it.
func (d *Draft) lease(name string) error {
	f, info, err := openRegular(d.dir, name)
	if err != nil {
		return err
	}
	mode := info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	ready := mode.Perm() &^ 0o222
	if d.volume.Past { // they were of mode 0600 until now
		ready = 0o444 &^ d.volume.Umask
	}
	if mode != ready {
		d.frozen.modes[name] = mode
		err = f.Chmod(ready)
	}
	if err == nil {
		err = takeLease(f, name)
	}
	if err != nil || len(d.frozen.leased) >= mostLeases {
		return errors.Join(err, f.Close())
	}
	d.frozen.leased = append(d.frozen.leased, f)
	return nil
}

func takeLease(f *os.File, name string) error {
	switch _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); {
	case errors.Is(err, unix.EAGAIN):
		return &penError{fmt.Sprintf("file %q is still open or mapped for writing: close it in all processes, and publish again", name)}
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("file %q: the filesystem has no leases (F_SETLEASE), so nobody can tell who still writes: keep the volume on ext4, XFS, Btrfs or tmpfs: %w", name, err)
	case err != nil:
		return fmt.Errorf("take a lease on file %q: %w", name, err)
	}
	return nil
}

// stillFrozen fails where a process has begun to open a file for writing since.
func (d *Draft) stillFrozen() error {
	if d.frozen == nil {
		return nil
	}
	for _, f := range d.frozen.leased {
		if kind, err := unix.FcntlInt(f.Fd(), unix.F_GETLEASE, 0); err != nil || kind != unix.F_RDLCK {
			return errors.Join(err, &penError{fmt.Sprintf("file %q is being opened for writing: close it in all processes, and publish again", f.Name())})
		}
	}
	return nil
}

// letGo gives the leases back.
func (d *Draft) letGo() {
	if d.frozen == nil {
		return
	}
	for _, f := range d.frozen.leased {
		_ = f.Close() // and the lease with it
	}
	d.frozen.leased = nil
}

// thaw makes files writable as they were.
func (d *Draft) thaw() {
	_ = d.setReadOnly(false) // it goes with the draft
	if d.frozen == nil {
		return
	}
	d.letGo()
	for name, mode := range d.frozen.modes {
		_ = d.dir.Chmod(name, mode) // their owner can, too
	}
	d.frozen = nil
}

// penError is [ErrWritten], and EBUSY.
type penError struct{ text string }

func (w *penError) Error() string   { return w.text }
func (w *penError) Unwrap() []error { return []error{ErrWritten, unix.EBUSY} }
