package source

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hbmfs/hbmfs/control"
)

// mount is an hbmfs mount in which files of a reader are open. The files share one connection to the daemon, since a daemon allows each user few. A
// batch has a connection of its own: a lookup brings no backing file that its connection has redeemed.
type mount struct {
	opener *Opener
	epoch  control.Epoch
	users  int // files and batches; guarded by Opener.mu

	mu     sync.Mutex      // guards the fields below
	now    *control.Client // nil until the first file asks
	former *control.Client // to the daemon before, which requests that began earlier may still use; nil where there was none
	late   []uint64        // objects that were closed while the daemon did not listen

	noticing sync.Mutex // held while notices are made
	notices  *notices   // nil until a file needs them; guarded by noticing
}

// mount adds a user to the mount that has an epoch, and connects to its daemon. path lies in the mount.
func (o *Opener) mount(ctx context.Context, path string, epoch control.Epoch) (*mount, error) {
	o.mu.Lock()
	m := o.mounts[epoch]
	if m == nil {
		m = &mount{opener: o, epoch: epoch}
		o.mounts[epoch] = m
	}
	m.users++
	o.mu.Unlock()
	if _, err := m.connect(ctx, path); err != nil {
		return nil, errors.Join(err, m.release())
	}
	return m, nil
}

// release ends the use by one user. The last one closes the connection.
func (m *mount) release() error {
	if m == nil {
		return nil
	}
	m.opener.mu.Lock()
	m.users--
	last := m.users == 0
	if last {
		delete(m.opener.mounts, m.epoch)
	}
	m.opener.mu.Unlock()
	if !last {
		return nil
	}
	if m.notices != nil {
		m.notices.close()
	}
	var errs []error
	for _, c := range []*control.Client{m.former, m.now} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// client is the connection to the daemon that was asked last; nil where there was none.
func (m *mount) client() *control.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// restarts bounds how often one question is asked of daemons that go before they answer, where others go on with their mount.
const restarts = 3

// connect gives the connection to the daemon, a new one where another daemon goes on with the mount. path lies in the mount.
func (m *mount) connect(ctx context.Context, path string) (*control.Client, error) {
	if c := m.client(); c != nil && !c.Gone() {
		return c, nil
	}
	fresh, err := control.DialReader(ctx, path, m.opener.client, m.opener.number)
	for again := 0; errors.Is(err, control.ErrStale) && again < restarts; again++ { // it went before it answered
		fresh, err = control.DialReader(ctx, path, m.opener.client, m.opener.number)
	}
	if err != nil {
		if c := m.client(); c != nil && !c.Gone() { // another user was faster, and had perhaps the last place
			return c, nil
		}
		return nil, err
	}
	if fresh.Epoch() != m.epoch {
		_ = fresh.Close() // nothing was asked
		return nil, fmt.Errorf("open %s: the daemon has gone, it was restarted: %w", path, control.ErrStale)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now != nil && !m.now.Gone() { // another user was faster
		_ = fresh.Close() // nothing was asked
		return m.now, nil
	}
	if m.former != nil {
		_ = m.former.Close() // its daemon has gone
	}
	m.now, m.former, m.late = fresh, m.now, nil
	return fresh, nil
}

// giveBack tells the daemon which objects were closed, now or with the next ones. It tells only the daemon that lent them.
func (m *mount) giveBack(ctx context.Context, lender *control.Client, objects []uint64) {
	m.mu.Lock()
	if lender != m.now {
		objects = nil
	} else {
		objects, m.late = append(m.late, objects...), nil
	}
	m.mu.Unlock()
	left := giveBack(ctx, lender, objects)
	m.mu.Lock()
	if lender == m.now {
		m.late = append(m.late, left...)
	}
	m.mu.Unlock()
}
