package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Home is a directory of checkpoints that this process looks after for all users, as root: a volume. Its drafts belong to the users who
// made them. It is safe for concurrent use.
type Home struct {
	path string
	root *os.Root
}

// Owner is the user that a draft is made for, and the mode that the checkpoint will have.
type Owner struct {
	UID, GID uint32
	Mode     fs.FileMode
}

// give gives a file to its owner, and to the group unless the directory around it decides that.
func (o *Owner) give(f *os.File, grouped bool) error {
	gid := int(o.GID)
	if grouped {
		gid = -1
	}
	return f.Chown(int(o.UID), gid)
}

// anybody trusts the hidden files of all users: who may make them in a volume, may have them removed.
func anybody(fs.FileInfo) bool { return true }

// OpenHome opens a directory that is there. It refuses a filesystem without leases, where nobody can tell whether a file is still
// open for writing.
func OpenHome(dir string) (*Home, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	h, err := openHome(abs, abs)
	if err != nil {
		return nil, err
	}
	if err := h.probe(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the checkpoint directory %s: %w", abs, err), h.Close())
	}
	return h, nil
}

// OpenHomeAt opens the directory of a file, even if its path leads elsewhere by now.
func OpenHomeAt(f *os.File, path string) (*Home, error) {
	if named, err := os.Stat(path); err == nil {
		if info, err := f.Stat(); err == nil && os.SameFile(named, info) {
			return openHome(path, path)
		}
	}
	return openHome(path, fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

func openHome(path, through string) (*Home, error) {
	root, err := os.OpenRoot(through)
	if err != nil {
		return nil, fmt.Errorf("open the checkpoint directory: %w", err)
	}
	return &Home{path, root}, nil
}

// probe takes a lease of a file without a name.
func (h *Home) probe() error {
	dir, err := h.root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // opened for reading
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("nothing can be written there: %w", err)
	}
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	_ = unix.Close(fd) // nothing was written
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(again) }() // nothing was written
	if _, err := unix.FcntlInt(uintptr(again), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return fmt.Errorf("its filesystem has no leases (F_SETLEASE), without which nobody can tell whether a file is still written: use a local one, such as ext4 or XFS: %w", err)
	}
	return nil
}

// Path is the path of the directory.
func (h *Home) Path() string { return h.path }

// Close closes the directory. Drafts stay as they are.
func (h *Home) Close() error { return h.root.Close() }

// CheckName refuses names that no checkpoint can have.
func CheckName(name string) error { return checkName(name) }

// DraftBase is the name of a draft's directory beside the checkpoint.
func DraftBase(name string) string { return hidden(name, draftEnding) }

// Begin is [Begin] for a user.
func (h *Home) Begin(ctx context.Context, name string, part Part, owner Owner) (d *Draft, err error) {
	if d, err = h.draft(name, part, &owner); err != nil {
		return nil, err
	}
	if err = d.begin(ctx); err != nil {
		d.end()
		return nil, fmt.Errorf("begin checkpoint %s: %w", d.path, err)
	}
	return d, nil
}

func (h *Home) draft(name string, part Part, owner *Owner) (*Draft, error) {
	err := errors.Join(part.check(), checkName(name))
	if err != nil {
		return nil, err
	}
	parent, err := h.root.OpenRoot(".")
	if err != nil {
		return nil, err
	}
	return &Draft{path: filepath.Join(h.path, name), name: name, part: part, parent: parent, of: anybody, owner: owner}, nil
}

// adopt takes the lock, which kept is if that is the draft's, and opens the draft.
func (d *Draft) adopt(kept *os.File) (err error) {
	base := hidden(d.name, lockEnding)
	if named, err := d.parent.Lstat(base); err == nil && kept != nil {
		if info, err := kept.Stat(); err == nil && os.SameFile(named, info) {
			d.lock = &lock{dir: d.parent, base: base, file: kept}
		}
	}
	if d.lock == nil && kept != nil {
		_ = kept.Close() // it is another file's by now
	}
	if _, err := d.parent.Lstat(d.base()); err != nil {
		return err
	}
	if d.lock != nil {
		err = d.lock.sign()
	} else {
		d.lock, err = take(context.Background(), d.parent, d.name, d.of)
	}
	if err != nil {
		return err
	}
	return d.open()
}

// Adopt goes on with a draft of an earlier process. kept is its lock, if somebody has kept that open, and nil
// otherwise; it is closed with the draft, and where there is none any more.
func (h *Home) Adopt(name string, part Part, owner Owner, kept *os.File) (d *Draft, err error) {
	if d, err = h.draft(name, part, &owner); err != nil {
		return nil, err
	}
	if err = d.adopt(kept); err != nil {
		d.end()
		return nil, fmt.Errorf("go on with the draft of %s: %w", d.path, err)
	}
	if info, err := d.self.Stat(); err == nil {
		d.mode = info.Mode()&fs.ModeSetgid | owner.Mode&fs.ModePerm
	}
	return d, nil
}

// Found tells of a published checkpoint.
type Found struct {
	ID      uint64 // of its directory: a checkpoint of the same name that comes later has another
	UID     uint32 // of its owner
	Created time.Time
}

// Find looks a published checkpoint up. [ErrNone]: something else has the name.
func (h *Home) Find(name string) (f Found, err error) {
	if err := checkName(name); err != nil {
		return f, fs.ErrNotExist
	}
	info, err := h.root.Lstat(name)
	if err != nil {
		return f, err
	}
	if !info.IsDir() {
		return f, failf(ErrNone, "%s is no directory", filepath.Join(h.path, name))
	}
	if _, err := h.root.Lstat(filepath.Join(name, ManifestName)); err != nil {
		return f, failf(ErrNone, "%s has no %s", filepath.Join(h.path, name), ManifestName)
	}
	return Found{ID: inode(info), UID: uid(info), Created: info.ModTime()}, nil
}

// Open is [Open] of a checkpoint in the directory.
func (h *Home) Open(name string) (*Checkpoint, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return openIn(h.root, name)
}

// Natural compares names as [List] orders them.
func Natural(a, b string) int { return natural(a, b) }

// List is [List] of the directory.
func (h *Home) List() ([]Entry, error) { return List(h.root.Name()) }

// Names gives the names in the directory: of published checkpoints, and of files that are neither that nor
// hbmfs's own.
func (h *Home) Names() (published, foreign []string, err error) {
	dir, err := h.root.Open(".")
	if err != nil {
		return nil, nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		if _, ok := ofHidden(name); ok || name == DrainState {
			continue
		}
		if _, err := h.Find(name); err == nil {
			published = append(published, name)
		} else if !errors.Is(err, fs.ErrNotExist) || checkName(name) != nil {
			foreign = append(foreign, name)
		}
	}
	return published, foreign, nil
}

// Remove is [Remove], of any user's checkpoint. If only is not nil, it is [Checkpoint.Remove]. renamed is called once it has no name any more, and before its files go.
func (h *Home) Remove(ctx context.Context, name string, only *Checkpoint, renamed func()) error {
	err := remove(ctx, h.root, name, anybody, only, renamed)
	if err != nil {
		return fmt.Errorf("remove checkpoint %s: %w", filepath.Join(h.path, name), err)
	}
	return nil
}

// CleanAll is [Clean] of all users' leftovers, by root.
func CleanAll(ctx context.Context, dir string) (removed []string, err error) {
	if os.Geteuid() != 0 {
		return nil, failf(ErrInvalid, "what other users left is removed by root alone")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	h, err := openHome(abs, abs)
	if err != nil {
		return nil, err
	}
	removed, err = h.Clean(ctx)
	return removed, errors.Join(err, h.Close())
}

// Clean is [Clean], of any user's leftovers.
func (h *Home) Clean(ctx context.Context) (removed []string, err error) {
	dir, err := h.root.Open(".")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	return cleanAll(ctx, h.root, names, anybody)
}
