package source

import (
	"context"
	"sync"

	"github.com/hbmfs/hbmfs/control"
)

// connections are those to the daemons of mounts: one for each, whichever files are open there, since a user may have
// few. Those of a batch are its own: a lookup brings no backing file that its connection has redeemed.
type connections struct {
	mu   sync.Mutex // guards the fields below
	open map[control.Epoch]*connection
}

// connection is shared by the files of a mount.
type connection struct {
	*control.Client
	users int // guarded by connections.mu

	mu   sync.Mutex // guards the fields below
	late []uint64   // objects that were closed while the daemon did not listen
}

// giveBack says which objects were closed, at once or with those that come next.
func (c *connection) giveBack(ctx context.Context, objects []uint64) {
	c.mu.Lock()
	objects, c.late = append(c.late, objects...), nil
	c.mu.Unlock()
	if left := giveBack(ctx, c.Client, objects); len(left) > 0 && !c.Gone() {
		c.mu.Lock()
		c.late = append(c.late, left...)
		c.mu.Unlock()
	}
}

// acquire gives the connection of an epoch to one file more: the one that is open, or else fresh, which may be nil. Files
// that have one which the daemon closed keep that.
func (s *connections) acquire(epoch control.Epoch, fresh *connection) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.open[epoch]
	if c == nil || c.Gone() {
		if c = fresh; c == nil {
			return nil
		}
		if s.open == nil {
			s.open = map[control.Epoch]*connection{}
		}
		s.open[epoch] = c
	}
	c.users++
	return c
}

// release ends the use by one file. The last one closes the connection.
func (s *connections) release(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.users--; c.users > 0 {
		return nil
	}
	if epoch := c.Epoch(); s.open[epoch] == c {
		delete(s.open, epoch)
	}
	return c.Close()
}
