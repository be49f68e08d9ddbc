package source

import (
	"sync"

	"golang.org/x/sys/unix"
)

// descriptions are the files that daemons have lent to readers of this process, by version.
type descriptions struct {
	mu   sync.Mutex // guards the fields below, and users of each
	open map[Version]*description
}

// description is a descriptor, and how many readers use it.
type description struct{ fd, users int }

// A process has one descriptor of a file, also where several of its readers read it.
//
//nolint:gochecknoglobals // descriptors belong to a process
var shared = descriptions{open: map[Version]*description{}}

// share makes the descriptor of a file that was opened just now that of all readers. Another reader may have one: then this one is closed.
func (s *descriptions) share(b *Backing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.open[b.Version()]
	if d == nil {
		d = &description{fd: b.FD}
		s.open[b.Version()] = d
	} else {
		_ = unix.Close(b.FD) // opened for reading: nothing is lost
	}
	d.users++
	b.FD, b.shared = d.fd, d
}

// leave ends the use of a shared descriptor. The last one closes it.
func (s *descriptions) leave(b *Backing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := b.shared
	b.shared = nil
	if d.users--; d.users > 0 {
		return nil
	}
	delete(s.open, b.Version())
	return unix.Close(d.fd)
}
