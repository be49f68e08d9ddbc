package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Draft is a checkpoint that is being written. It may be used from several goroutines.
type Draft struct {
	path, name string // of the checkpoint
	part       Part
	parent     *os.Root
	dir        *os.Root
	self       *os.File    // dir
	mode       fs.FileMode // that mkdir gave, and the checkpoint will have
	of         trust
	owner      *Owner // nil for this user

	mu    sync.Mutex // guards the fields below
	lock  *lock
	past  *past // nil where files are made by their names
	ended bool
}

// Begin makes the draft of a checkpoint, and the directory around it where that is missing. Leftovers of this name are removed
// first. An empty directory at path is no obstacle: the checkpoint takes its place. [ErrExists]: something else is there. [ErrBusy]: a
// living process writes or removes it.
func Begin(ctx context.Context, path string, part Part) (d *Draft, err error) {
	if err := part.check(); err != nil {
		return nil, err
	}
	in, name, err := split(path)
	if err != nil {
		return nil, err
	}
	d = &Draft{path: filepath.Join(in, name), name: name, part: part, of: ours}
	defer func() {
		if err != nil {
			d.end()
			err = fmt.Errorf("begin checkpoint %s: %w", d.path, err)
			d = nil
		}
	}()
	if d.parent, err = openParent(in); err != nil {
		return d, err
	}
	return d, d.begin(ctx)
}

// begin makes the draft in its parent.
func (d *Draft) begin(ctx context.Context) (err error) {
	if d.lock, err = take(ctx, d.parent, d.name, d.of); err != nil {
		return err
	}
	if err = d.refuseExisting(); err != nil {
		return err
	}
	for _, ending := range []string{draftEnding, oldEnding} {
		if _, err = removeHidden(ctx, d.parent, hidden(d.name, ending), d.of); err != nil {
			return err
		}
	}
	if err = d.make(); err != nil {
		_ = d.parent.Remove(d.base()) // it is empty, or not there
	}
	return err
}

func (d *Draft) base() string { return hidden(d.name, draftEnding) }

// Dir is the directory where files go.
func (d *Draft) Dir() string { return filepath.Join(filepath.Dir(d.path), d.base()) }

// DraftDir is [Draft.Dir] of a checkpoint's path, for other processes that write into it.
func DraftDir(path string) (string, error) {
	in, name, err := split(path)
	return filepath.Join(in, hidden(name, draftEnding)), err
}

// refuseExisting reports the file that has the checkpoint's name.
func (d *Draft) refuseExisting() error {
	info, err := d.parent.Lstat(d.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() == fs.ModeSymlink:
		return failf(ErrExists, "a link is there, which is not followed: remove it, or name the directory itself")
	case !info.IsDir():
		return failf(ErrExists, "a file is there, and no checkpoint of hbmfs's: remove it, or choose another name")
	}
	if _, err := d.parent.Lstat(filepath.Join(d.name, ManifestName)); err == nil {
		return failf(ErrExists, "it is complete already, and is never overwritten: choose another name, or remove it first (hbmfs checkpoint rm)")
	}
	around, err := d.parent.Stat(".")
	if err != nil {
		return err
	}
	switch {
	case !isEmpty(d.parent, d.name):
		return failf(ErrExists, "a directory is there that is not empty, and no checkpoint of hbmfs's: move it away, or choose another name")
	case !d.of(info):
		return failf(ErrExists, "a directory of another user is there: choose another name")
	case device(info) != device(around):
		return failf(ErrExists, "a filesystem is mounted there: choose a name below it")
	}
	return nil
}

// make makes the draft's directory. mkdir says which mode the checkpoint will have.
func (d *Draft) make() (err error) {
	perm := fs.FileMode(0o777)
	if d.owner != nil {
		perm = 0o700
	}
	if err := d.parent.Mkdir(d.base(), perm); err != nil {
		return err
	}
	if err := d.open(); err != nil {
		return err
	}
	info, err := d.self.Stat()
	if err != nil {
		return err
	}
	if err := d.of.check(d.parent, d.base(), info, fs.ModeDir); err != nil {
		return err
	}
	d.mode = info.Mode() & (fs.ModePerm | fs.ModeSetgid)
	if d.owner != nil {
		d.mode = d.mode&fs.ModeSetgid | d.owner.Mode&fs.ModePerm
		if err := d.owner.give(d.self, d.mode&fs.ModeSetgid != 0); err != nil {
			return err
		}
	}
	return d.hide()
}

// open opens the draft's directory.
func (d *Draft) open() (err error) {
	if d.dir, err = openDir(d.parent, d.base()); err == nil {
		d.self, err = d.dir.Open(".")
	}
	return err
}

// hide gives the directory the mode of a draft.
func (d *Draft) hide() error { return d.self.Chmod(d.mode&fs.ModeSetgid | 0o700) }

// isAt tells whether a name in the parent is this draft's directory.
func (d *Draft) isAt(name string) bool {
	named, err := d.parent.Lstat(name)
	if err != nil {
		return false
	}
	info, err := d.self.Stat()
	return err == nil && os.SameFile(named, info)
}

// Drop removes a draft that was not published. A published one stays: dropping it does nothing, and so does dropping twice.
func (d *Draft) Drop() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return nil
	}
	var err error
	if !d.isAt(d.base()) {
		err = failf(ErrForeign, "%s is no longer the draft that was made: it was moved or removed meanwhile", d.Dir())
	} else if err = d.parent.RemoveAll(d.base()); err != nil {
		err = fmt.Errorf("drop checkpoint %s: %w", d.path, err)
	}
	d.end()
	return err
}

// end gives all back. mu is held, or nobody else has d.
func (d *Draft) end() {
	d.ended = true
	d.past.end()
	if d.lock != nil {
		d.lock.release()
	}
	if d.self != nil {
		_ = d.self.Close() // it was synced where that mattered
	}
	for _, root := range []*os.Root{d.dir, d.parent} {
		if root != nil {
			_ = root.Close() // the same
		}
	}
}
