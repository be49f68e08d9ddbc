package kv

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
)

// Where the disk takes no new names, a namespace is made in memory alone. Its disk tier is an empty file in memory that never grows. It lasts as
// long as the mount: the holder of the mount keeps its meta for the next daemon.

// errAlone says why a namespace has nothing on the disk.
var errAlone = errors.New("the disk took no new namespace when this one was made")

// errFrozen says why the disk tier of a namespace is never written.
var errFrozen = errors.New("the disk took no writes when the volume was mounted")

// alone tells whether the namespace is in memory alone.
func (sp *Space) alone() bool { return sp.dir == nil }

// noDisk tells whether an error is one of the disk, so that memory may be enough.
func noDisk(err error) bool {
	return noWrites(err) || errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// newAlone makes a namespace in memory alone. why is the disk's error.
func (s *Store) newAlone(sp *Space, m *control.KVOpen, user asuser.User, why error) (_ *Space, err error) {
	sp.meta.Name = m.Name
	defer func() {
		if err != nil {
			sp.release()
		}
	}()
	if sp.rights, err = handover.NewMemory("kv-space"); err != nil {
		return nil, err
	}
	if err := sp.belongs(m, user); err != nil {
		return nil, err
	}
	if err := sp.openTiers(); err != nil {
		return nil, err
	}
	if err := sp.begin(); err != nil {
		return nil, err
	}
	if life := s.opt.Life; life != nil && !sp.memory().unkept {
		if err := life.Keep(sp.memory().kept(aloneName), sp.rights); err != nil {
			return nil, err
		}
	}
	sp.noteAlone(why)
	return sp, nil
}

func (sp *Space) noteAlone(why error) {
	if sp.store.frozen != "" { // a note speaks of all
		return
	}
	sp.store.note("namespace %q is in memory alone, and ends with this mount: %v", sp.name, why)
}

const aloneName = "alone"

// emptyTier makes the files of a disk tier that has nothing.
func (sp *Space) emptyTier(t *tier) (err error) {
	if t.slab, err = handover.NewMemory("kv-slab"); err != nil {
		return err
	}
	if t.index, err = handover.NewMemory("kv-index"); err != nil {
		return err
	}
	_, err = unix.FcntlInt(t.slab.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_GROW) // clients get it for writing
	return errors.Join(err, t.slab.Chmod(0o600), t.index.Chmod(0o600))
}

// adoptAlone goes on with the namespaces that a daemon before has made in memory alone.
func (s *Store) adoptAlone(left *leftOut) {
	if !s.opt.Life.Adopts() {
		return
	}
	for _, kept := range s.opt.Life.Names() {
		if !strings.HasPrefix(kept, "kv-") || !strings.HasSuffix(kept, "-"+aloneName) {
			continue
		}
		sp := &Space{store: s, rights: s.opt.Life.Took(kept), used: time.Now()}
		text := make([]byte, 4096)
		n, _ := sp.rights.ReadAt(text, 0) // a short record has no checksum
		var ok bool
		sp.meta, ok = parseMeta(text[:n])
		sp.name = sp.meta.Name
		err := fmt.Errorf("%s is damaged", kept)
		if ok && goodName(sp.name) && s.spaces[sp.name] == nil {
			err = sp.openTiers()
		}
		if err != nil {
			left.add(sp.name, err)
			sp.release()
			continue
		}
		sp.noteAlone(errAlone)
		s.add(sp)
	}
}

// mayName asks the kernel whether a user may make names in the volume's directory. Names that are in memory alone may be made by the daemon's own user, too.
func (s *Store) mayName(user asuser.User) error {
	if s.frozen != "" && int(user.UID) == os.Geteuid() {
		return nil
	}
	return mayUse(s.dir, user, unix.W_OK|unix.X_OK)
}

// mayUse asks the kernel whether a user may use a file. On a read-only filesystem every request to write gets EROFS, and on an immutable file EPERM. There it is
// asked of a file in memory with the same owner and mode. An ACL cannot be asked so: then only root may.
func mayUse(f *os.File, user asuser.User, mode uint32) error {
	may := func(f *os.File) error {
		return asuser.Do(user, func() error { return unix.Faccessat2(int(f.Fd()), "", mode, unix.AT_EMPTY_PATH|unix.AT_EACCESS) })
	}
	err := may(f)
	if !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if n, err := unix.Fgetxattr(int(f.Fd()), "system.posix_acl_access", nil); err == nil && n > 0 && user.UID != 0 {
		return unix.EACCES
	}
	alike, err := handover.NewMemory("kv-rights")
	if err != nil {
		return err
	}
	defer func() { _ = alike.Close() }() // it is only asked
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if err := errors.Join(alike.Chown(int(st.Uid), int(st.Gid)), alike.Chmod(os.FileMode(st.Mode&0o777))); err != nil {
		return err
	}
	return may(alike)
}
