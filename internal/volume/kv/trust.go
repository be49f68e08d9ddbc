package kv

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// fileID tells a file from all others of this boot of the machine.
type fileID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// identify asks which file is open.
func identify(f *os.File) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fileID{}, fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	return fileID{st.Dev, st.Ino}, nil
}

// trust removes a slab that is not worth keeping, or that processes of an earlier mount still write. It decides which files are kept, and not which blocks
// are hits: blocks of the disk are compared with their checksums whenever they are read.
func (sp *Space) trust() error {
	if sp.store.opt.Life.Adopts() && sp.store.frozen == "" {
		return nil
	}
	why := ""
	switch {
	case sp.meta.Lost:
		why = lostText
	case !sp.meta.Ended && sp.meta.Boot != bootID():
		why = "the machine has crashed since it was mounted last, and not all bytes may be on the disk"
	case !sp.meta.Ended:
		why = sp.changed()
	}
	if why == "" && sp.written() {
		why = "a process of an earlier mount still has its slab open for writing"
	}
	if why == "" {
		return nil
	}
	if sp.store.frozen != "" {
		return fmt.Errorf("it would begin anew, and the disk takes no writes: %s", why)
	}
	sp.store.note("namespace %q begins anew: %s", sp.name, why)
	for _, name := range []string{indexName, slabName} {
		f, err := openAt(sp.dir, name, unix.O_RDWR)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = errors.Join(f.Truncate(0), f.Close(), unix.Unlinkat(int(sp.dir.Fd()), name, 0))
		}
		if err != nil {
			return fmt.Errorf("begin namespace %q anew: %w", sp.name, err)
		}
	}
	sp.meta.ID = newID()
	return nil
}

const lostText = "the disk could not write all of its blocks"

// changed tells why the files of a namespace that did not end in order differ from its last mount's; empty where they do not.
func (sp *Space) changed() string {
	for _, was := range []struct {
		name string
		id   fileID
	}{{slabName, sp.meta.Slab}, {indexName, sp.meta.Index}} {
		f, err := sp.store.openOurs(sp.dir, was.name, unix.O_RDWR)
		if err != nil {
			continue // openTiers makes one, or reports the error
		}
		got, err := identify(f)
		synced := f.Sync() // it fails where a write-back has failed since the daemon before had the file open
		_ = f.Close()      // it was synced
		switch {
		case err != nil || got != was.id:
			return "its mount did not end in order, and these are copies of its files, or on another device"
		case synced != nil:
			return lostText
		}
	}
	return ""
}

// written tells whether some process can write the slab, after those of an earlier mount had time to see that it has ended. The kernel then refuses a read
// lease.
func (sp *Space) written() bool {
	f, err := openAt(sp.dir, slabName, unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // opened for reading
	for ; ; time.Sleep(20 * time.Millisecond) {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
		if !errors.Is(err, unix.EAGAIN) { // a filesystem without leases says so
			_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
			return false
		}
		if time.Now().After(sp.store.patience) {
			return true
		}
	}
}
