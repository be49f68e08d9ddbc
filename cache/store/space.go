package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// makeRoom reserves n more bytes for a segment that is being filled, and evicts others until both the budget and the disk's
// free space allow it. u is the planned read behind it, nil for one that comes now.
func (s *Store) makeRoom(e *entry, n int64, u *planned) error {
	victims, err := s.ledger.reserve(e, n, u)
	s.discard(victims...)
	reserved := err == nil
	for err == nil {
		var low bool
		if low, err = s.low(); err != nil || !low {
			break
		}
		victim := s.ledger.evict(u)
		if victim == nil {
			err = errNoRoom
			break
		}
		s.discard(victim)
	}
	if err != nil && reserved {
		s.ledger.book(e, -n)
	}
	if errors.Is(err, errNoRoom) && u == nil {
		s.stats.refused.Add(1)
	}
	return err
}

// low reports whether the filesystem has less space or fewer inodes free than shall stay.
func (s *Store) low() (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.fd, &st); err != nil {
		return false, &localError{"ask for free space", err}
	}
	if int64(st.Bavail)*st.Bsize < s.opt.MinFree {
		return true, nil
	}
	return st.Files > 0 && float64(st.Ffree)/float64(st.Files) < float64(s.opt.MinFree)/float64(int64(st.Blocks)*st.Bsize), nil
}

// trim gives back the space that shall stay free and that others have taken. A cache that is not written to would never
// notice. It evicts as many bytes as are missing and no more, since the bytes of a segment that is open elsewhere come
// back later.
func (s *Store) trim() error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.fd, &st); err != nil {
		return &localError{"ask for free space", err}
	}
	for missing := s.opt.MinFree - int64(st.Bavail)*st.Bsize; missing > 0; {
		_, _, before, _ := s.ledger.sums()
		victim := s.ledger.evict(nil)
		if victim == nil {
			return nil // all of it is in use
		}
		_, _, after, _ := s.ledger.sums()
		s.discard(victim)
		missing -= max(before-after, 0)
	}
	return nil
}

// allocate reserves the place of bytes that are about to come, so that a full disk is met here and not between them.
func (s *Store) allocate(fd int, off, n int64, u *planned) error {
	for {
		err := unix.Fallocate(fd, 0, off, n)
		switch {
		case err == nil, errors.Is(err, unix.EOPNOTSUPP):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT):
			return &localError{"reserve the place of a segment", err}
		}
		victim := s.ledger.evict(u)
		if victim == nil {
			if u == nil {
				s.stats.refused.Add(1)
			}
			return errNoRoom
		}
		s.discard(victim)
	}
}

// discard removes segments that were taken off the books.
func (s *Store) discard(victims ...*entry) {
	for _, e := range victims {
		s.stats.evicted.Add(1)
		_, span := s.opt.Trace.Start(s.ctx, "evict")
		span.Text("segment", e.key.name()).Bool("filling", e.fill != nil)
		if e.fill != nil {
			e.fill.close()
		} else {
			s.unlink(e)
		}
		span.End("")
	}
}

// unlink removes a published segment from the directory. Readers that have it open read on.
func (s *Store) unlink(e *entry) {
	if e.object != nil {
		s.dir.Forget(e.object)
	}
	if err := unix.Unlinkat(s.fd, e.key.name(), 0); err != nil && !errors.Is(err, os.ErrNotExist) { // another process was first
		s.health.fail(&localError{"remove a segment", err})
	}
}
