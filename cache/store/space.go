package store

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// makeRoom reserves n more bytes for a segment that is being filled, and evicts others until both the budget and the disk's
// free space allow it. u is the planned read behind it, nil for one that comes now.
func (s *Store) makeRoom(e *entry, n int64, u *planned) error {
	victims, err := s.ledger.reserve(e, n, u)
	s.discard(victims...)
	reserved := err == nil
	if err == nil {
		var m shortage
		m, err = s.missing()
		for owed := m; err == nil && m.any(); {
			if err = s.giveWay(&owed, u); err == nil {
				m, err = s.missing()
			}
		}
	}
	if err != nil && reserved {
		s.ledger.book(e, -n)
	}
	if errors.Is(err, errNoRoom) && u == nil {
		s.stats.refused.Add(1)
	}
	return err
}

// shortage is what the filesystem has less free than shall stay.
type shortage struct{ bytes, files int64 }

func (m shortage) any() bool { return m.bytes > 0 || m.files > 0 }

// missing tells how much space and how many inodes are missing to what shall stay free.
func (s *Store) missing() (shortage, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.fd, &st); err != nil {
		return shortage{}, &localError{"ask for free space", err}
	}
	m := shortage{bytes: s.opt.MinFree - int64(st.Bavail)*st.Bsize}
	if st.Files > 0 {
		m.files = int64(math.Ceil(float64(st.Files)*float64(s.opt.MinFree)/float64(int64(st.Blocks)*st.Bsize))) - int64(st.Ffree)
	}
	return m, nil
}

// trim gives back the space that shall stay free and that others have taken. A cache that is not written to would never
// notice. It evicts as many bytes as are missing and no more, since the bytes of a segment that is open elsewhere come
// back later.
func (s *Store) trim() error {
	m, err := s.missing()
	for err == nil && m.bytes > 0 {
		err = s.giveWay(&m, nil)
	}
	if errors.Is(err, errNoRoom) { // all of it is in use
		return nil
	}
	return err
}

// giveWay evicts the next segment where something is owed, and counts it. Nothing is owed any more once as much as was missing has gone. If it
// is missing still, others have these segments open, and evicting more would not help now.
func (s *Store) giveWay(owed *shortage, u *planned) error {
	if !owed.any() {
		return errNoRoom
	}
	victim, bytes := s.ledger.evict(u)
	if victim == nil {
		return errNoRoom
	}
	s.discard(victim)
	owed.bytes -= bytes
	owed.files--
	return nil
}

// allocate reserves the place of bytes that are about to come, so that a full disk is met here and not between them. It evicts as many bytes and no
// more, as trim does.
func (s *Store) allocate(fd int, off, n int64, u *planned) error {
	for owed := (shortage{bytes: n}); ; {
		err := unix.Fallocate(fd, 0, off, n)
		switch {
		case err == nil, errors.Is(err, unix.EOPNOTSUPP):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT):
			return &localError{"reserve the place of a segment", err}
		}
		if err := s.giveWay(&owed, u); err != nil {
			if u == nil {
				s.stats.refused.Add(1)
			}
			return err
		}
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
