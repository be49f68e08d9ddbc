package checkpoints

import (
	"context"
	"errors"
	iofs "io/fs"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// statRoot looks at the directory.
func (v *Volume) statRoot() (*unix.Statx_t, error) { return statx(int(v.self.Fd()), "") }

// asCaller does something with the rights of a request's caller. The kernel has asked default_permissions before, with the caller's
// capabilities. The backing filesystem answers for itself here, by quotas, access control lists and owners.
func asCaller(h *fuse.InHeader, do func() error) error { return asuser.Caller(h.Uid, h.Gid, h.Pid, do) }

// mayChange asks the kernel whether a caller may make and remove names in the directory. Its mode alone does not say that.
func (v *Volume) mayChange(h *fuse.InHeader) error {
	return asCaller(h, func() error {
		return unix.Faccessat2(int(v.self.Fd()), "", unix.W_OK|unix.X_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS)
	})
}

// mkdirTop begins a draft.
func (v *Volume) mkdirTop(ctx context.Context, req *fuse.MkdirIn, name string) (*mountedDraft, error) {
	if again, _ := handover.Resent(req.Unique); again { // the daemon before may have made it
		if d := v.draftShown(name); d != nil && d.owner.UID == req.Uid {
			v.opt.Life.Settle(ctx)
			return d, nil
		}
	}
	if err := v.mayChange(&req.InHeader); err != nil {
		return nil, err
	}
	if err := v.roomy(); err != nil {
		v.refuse("mkdir %s: %v", name, err)
		return nil, err
	}
	home, err := v.containers.of(&req.InHeader)
	if err != nil {
		v.refuse("mkdir %s: %v", name, err)
		return nil, err
	}
	v.goesOn(ctx, req.Pid)
	d, err := v.begin(ctx, name, checkpoint.Owner{UID: req.Uid, GID: req.Gid, Mode: iofs.FileMode(req.Mode & 0o777)}, home)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		v.refuse("mkdir %s: %v", name, err)
	}
	if err == nil {
		d.wrote(req.Pid)
	}
	return d, err
}

// rmdirTop drops a draft that is empty, or removes a published checkpoint as a whole.
func (v *Volume) rmdirTop(h *fuse.InHeader, name string) error {
	if err := v.mayChange(h); err != nil {
		return err
	}
	v.goesOn(context.Background(), h.Pid)
	if d := v.draftShown(name); d != nil {
		if h.Uid != 0 && h.Uid != d.owner.UID {
			return unix.EPERM
		}
		return d.drop()
	}
	f, err := v.home.Find(name)
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return unix.ENOENT
	case errors.Is(err, iofs.ErrNotExist):
		if again, _ := handover.Resent(h.Unique); again { // the daemon before has done it
			return nil
		}
		return unix.ENOENT
	case err != nil:
		return err
	case h.Uid != 0 && h.Uid != f.UID:
		v.refuse("rmdir %s: it belongs to user %d", name, f.UID)
		return unix.EPERM
	}
	// Once it has begun it goes on: half of it would be of no use to anybody.
	err = v.home.Remove(context.Background(), name, nil, func() { v.inner.DropBranch(name) })
	if err != nil {
		v.refuse("rmdir %s: %v", name, err)
	} else {
		v.opt.Log.Info("removed", "checkpoint", name, "uid", h.Uid)
	}
	return err
}

// renameTop renames a draft, which publishes it where the new name has no [Suffix].
func (v *Volume) renameTop(ctx context.Context, req *fuse.RenameIn, old, name string) error {
	if name == mountpoint.ControlName || old == mountpoint.ControlName {
		return unix.EPERM
	}
	if err := v.renameSide(old, name); err != nil {
		return err
	}
	base := strings.TrimSuffix(name, Suffix)
	d := v.draftShown(old)
	id, err := v.Published(base)
	switch again, _ := handover.Resent(req.Unique); {
	case err != nil:
		return err
	case d == nil && again && id != 0: // the daemon before has published it
		time.Sleep(draftForgotten) // it may have told of the draft until then
		return nil
	case d == nil:
		if was, _ := v.Published(old); was != 0 {
			v.refuse("rename %s to %s: a published name never changes", old, name)
			return unix.EROFS
		}
		return unix.ENOENT
	case req.Flags&^unix.RENAME_NOREPLACE != 0:
		return unix.EINVAL
	case id != 0:
		v.refuse("rename %s to %s: a published name is never overwritten: remove it first, or choose another", old, name)
		return unix.EEXIST
	}
	if err := v.mayChange(&req.InHeader); err != nil {
		return err
	}
	if req.Uid != 0 && req.Uid != d.owner.UID {
		return unix.EPERM
	}
	if err := checkpoint.CheckName(base); err != nil {
		v.refuse("rename %s to %s: %v", old, name, err)
		return unix.EINVAL
	}
	if base == name {
		return d.publish(ctx, name)
	}
	if err := d.enter(open, sealing); err != nil {
		return err
	}
	defer func() { _ = d.enter(sealing, open) }() // nobody else leaves this stage
	return d.rename(ctx, base, name)
}

// rootNames lists the root: published checkpoints, the drafts, and the side files.
func (v *Volume) rootNames() ([]fuse.DirEntry, error) {
	names, _, err := v.home.Names()
	if err != nil {
		return nil, err
	}
	side := v.sideNames()
	v.mu.Lock()
	defer v.mu.Unlock()
	entries := make([]fuse.DirEntry, 0, len(names)+len(v.drafts))
	for _, name := range names {
		entries = append(entries, fuse.DirEntry{Name: name, Mode: unix.S_IFDIR})
	}
	for _, d := range v.drafts {
		entries = append(entries, fuse.DirEntry{Name: d.shown, Mode: unix.S_IFDIR})
	}
	return append(entries, side...), nil
}

// errnoOf is the one place where an error of this package becomes an errno.
func errnoOf(err error) uint32 {
	var errno unix.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, checkpoint.ErrOpen), errors.Is(err, checkpoint.ErrBusy):
		return uint32(unix.EBUSY)
	case errors.Is(err, checkpoint.ErrExists):
		return uint32(unix.EEXIST)
	case errors.Is(err, checkpoint.ErrInvalid):
		return uint32(unix.EINVAL)
	case errors.Is(err, checkpoint.ErrForeign), errors.Is(err, checkpoint.ErrNone), errors.Is(err, asuser.ErrOther):
		return uint32(unix.EPERM)
	case errors.Is(err, context.Canceled):
		return uint32(unix.EINTR)
	case errors.As(err, &errno):
		return uint32(errno)
	}
	return uint32(unix.EIO)
}
