package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Publish makes the draft the checkpoint. It is on the disk when Publish returns. files are all files below [Draft.Dir], each
// written and synced. They are synced once more, which costs little, and must be there with these sizes, and no others. After an error
// the checkpoint is not there, and the draft stays until Drop: Publish may be tried again. Only where a disk fails twice the
// checkpoint stays, complete, and the error says so.
func (d *Draft) Publish(ctx context.Context, files []File) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return fmt.Errorf("publish checkpoint %s: it was published or dropped before: %w", d.path, os.ErrClosed)
	}
	err := d.freeze(ctx, files)
	if err == nil {
		err = d.publish(ctx, files)
	}
	if err != nil {
		d.thaw()
		return fmt.Errorf("publish checkpoint %s: %w", d.path, err)
	}
	d.end()
	return nil
}

func (d *Draft) publish(ctx context.Context, files []File) error {
	m := &Manifest{Name: d.name, Part: d.part, Created: time.Now().UTC().Truncate(time.Millisecond), Files: files}
	text, err := m.marshal()
	if err != nil {
		return err
	}
	dirs, err := d.compare(files, false)
	if err != nil {
		return err
	}
	if err := d.sync(ctx, files, dirs, d.syncPast); err != nil {
		return err
	}
	return d.finish(text)
}

// syncPast syncs a file, and makes sure that its writer, who may have mapped it, has pinned no page.
func (d *Draft) syncPast(name string, f *os.File) error {
	if d.past == nil {
		return f.Sync()
	}
	return unpinned(context.Background(), f, name, f.Sync, closing)
}

// finish gives the draft its manifest and its name. All files are on the disk.
func (d *Draft) finish(text []byte) (err error) {
	there := false
	defer func() {
		if err != nil && !there { // the rest goes with the draft
			_ = d.hide()
			_ = d.dir.Remove(ManifestName)
		}
	}()
	if err := d.write(text); err != nil {
		return err
	}
	if err := d.self.Chmod(d.mode); err != nil {
		return err
	}
	if err := d.self.Sync(); err != nil {
		return err
	}
	if err := d.past.stillFrozen(); err != nil {
		return err
	}
	there, err = d.rename()
	return err
}

// compare refuses a draft that has other files than these, and directories without any where not empty. It gives the directories in it.
func (d *Draft) compare(files []File, empty bool) (dirs []string, err error) {
	missing := make(map[string]int64, len(files))
	needed := map[string]bool{}
	for _, f := range files {
		missing[f.Name] = f.Size
		for dir := parentOf(f.Name); dir != ""; dir = parentOf(dir) {
			needed[dir] = true
		}
	}
	err = walk(d.dir, ".", 0, func(name string, info fs.FileInfo) error {
		size, named := missing[name]
		switch {
		case name == ManifestName:
		case info.IsDir() && (empty || needed[name]):
			dirs = append(dirs, name)
		case !named || info.IsDir():
			return failf(ErrInvalid, "%q is in the draft, and not among its files: write it as one of them, or remove it", name)
		case !info.Mode().IsRegular():
			return failf(ErrInvalid, "%q is no regular file", name)
		case info.Size() != size:
			return failf(ErrInvalid, "file %q has %d bytes, and should have %d", name, info.Size(), size)
		default:
			delete(missing, name)
		}
		return nil
	})
	for name := range missing {
		if err == nil {
			err = failf(ErrInvalid, "file %q is not in the draft", name)
		}
	}
	return dirs, err
}

// sync makes files safe, each by sync, and the directories they are in.
func (d *Draft) sync(ctx context.Context, files []File, dirs []string, sync func(name string, f *os.File) error) error {
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		opened, info, err := openRegular(d.dir, f.Name)
		if err != nil {
			return err
		}
		err = errors.Join(sync(f.Name, opened), opened.Close())
		if err == nil && info.Size() != f.Size {
			err = failf(ErrInvalid, "file %q changes while it is published", f.Name)
		}
		if err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		if err := syncDir(d.dir, dir); err != nil {
			return err
		}
	}
	return nil
}

// write writes the manifest. One that an earlier attempt left is replaced.
func (d *Draft) write(text []byte) error {
	if err := d.dir.Remove(ManifestName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	perm := fs.FileMode(0o666)
	if d.owner != nil { // who may look into the checkpoint
		perm = d.mode & 0o666
	}
	f, err := d.dir.OpenFile(ManifestName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil && d.owner != nil {
		err = d.owner.give(f, d.mode&fs.ModeSetgid != 0)
	}
	if err == nil && d.past != nil {
		err = f.Chmod(0o444 & d.mode)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// rename gives the draft its name, and tells whether it has it. rename(2) replaces nothing but an empty directory, so it needs no
// flag that some filesystems lack.
func (d *Draft) rename() (there bool, err error) {
	if !d.isAt(d.base()) {
		return false, failf(ErrForeign, "%s is no longer the draft that was made: it was moved or removed meanwhile", d.Dir())
	}
	// NFS may say that the name is not there, where an answer was lost and the question asked again.
	if err := rename(d.parent, d.base(), d.name); err != nil && !d.isAt(d.name) {
		if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
			if other := d.refuseExisting(); other != nil {
				return false, other
			}
		}
		return false, err
	}
	if err := syncDir(d.parent, "."); err != nil {
		if back := rename(d.parent, d.name, d.base()); back != nil {
			return true, fmt.Errorf("it is there, but may not survive a power loss: %w", errors.Join(err, back))
		}
		return false, err
	}
	return true, nil
}
