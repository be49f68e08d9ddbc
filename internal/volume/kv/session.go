package kv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

// Session is one connection of a client. Its methods are called by one goroutine at a time.
type Session struct {
	store  *Store
	user   asuser.User
	pidfd  *os.File // nil where the kernel tells none
	owner  *owner   // nil before the first KV_OPEN or KV_ATTACH
	over   atomic.Bool
	opened map[uint32]bool // namespaces by number: whether it may write
}

// Answer is the answer to a client: a frame, with open files that the caller closes.
type Answer struct {
	Type    control.FrameType
	Payload func([]byte) []byte // nil for an empty one
	Files   []*os.File
}

// Session begins a connection of a user. pidfd is of the process that connected (SO_PEERPIDFD), and becomes the session's.
func (s *Store) Session(user asuser.User, pidfd *os.File) *Session {
	return &Session{store: s, user: user, pidfd: pidfd, opened: map[uint32]bool{}}
}

// End ends the connection. Holds of its process stay, until that ends.
func (c *Session) End() {
	c.over.Store(true)
	for number := range c.opened {
		c.store.space(number).left()
	}
	if c.owner != nil {
		c.store.leave(c)
	}
	if c.pidfd != nil {
		_ = c.pidfd.Close() // owners have their own
	}
}

// IsKV tells whether a frame is one that Handle takes.
func IsKV(t control.FrameType) bool {
	switch t {
	case control.TypeKVOpen, control.TypeKVLookup, control.TypeKVReserve, control.TypeKVCommit, control.TypeKVRelease, control.TypeKVRemove,
		control.TypeKVStat, control.TypeKVAttach, control.TypeKVVerify:
		return true
	}
	return false
}

// Handle answers a frame. An error that is a [control.Refusal] is told to the client; after any other one the connection ends.
func (c *Session) Handle(ctx context.Context, t control.FrameType, payload []byte) (Answer, error) {
	switch t {
	case control.TypeKVOpen:
		return handle(payload, control.ParseKVOpen, c.open)
	case control.TypeKVAttach:
		return handle(payload, control.ParseKVAttach, c.attach)
	case control.TypeKVStat:
		return handle(payload, control.ParseKVStat, c.stat)
	case control.TypeKVLookup:
		return handle(payload, control.ParseKVKeys, func(m *control.KVKeys) (Answer, error) {
			return slots(inSpace(c, m.Space, false, func(sp *Space) []control.KVSlot { return c.lookup(sp, m.Keys, m.Flags&control.KVPin != 0) }))
		})
	case control.TypeKVReserve:
		return handle(payload, control.ParseKVReserve, func(m *control.KVReserve) (Answer, error) {
			return slots(inSpace(c, m.Space, true, func(sp *Space) []control.KVSlot { return c.reserve(sp, m.Blocks) }))
		})
	case control.TypeKVCommit:
		return handle(payload, control.ParseKVCommit, func(m *control.KVCommit) (Answer, error) {
			return done(inSpace(c, m.Space, true, func(sp *Space) []control.KVDone { return c.commit(sp, m.Stored) }))
		})
	case control.TypeKVRelease:
		return handle(payload, control.ParseKVRelease, func(m *control.KVRelease) (Answer, error) {
			return done(inSpace(c, m.Space, false, func(sp *Space) []control.KVDone {
				return c.drop(sp, m.Tokens, m.Flags&control.KVSuspect != 0)
			}))
		})
	case control.TypeKVRemove:
		return handle(payload, control.ParseKVKeys, func(m *control.KVKeys) (Answer, error) {
			return done(inSpace(c, m.Space, true, func(sp *Space) []control.KVDone {
				if m.Flags&control.KVAll != 0 && len(m.Keys) == 0 {
					sp.clear()
				}
				return c.remove(sp, m.Keys)
			}))
		})
	case control.TypeKVVerify:
		return handle(payload, control.ParseKVVerify, func(m *control.KVVerify) (Answer, error) {
			v, err := inSpace(c, m.Space, true, func(sp *Space) control.KVVerified { return sp.verify(ctx, m.Cursor) })
			return Answer{Type: control.TypeKVVerified, Payload: v.AppendTo}, err
		})
	}
	return Answer{}, fmt.Errorf("frame %d is none of a KV volume's", t)
}

// handle parses a message, and answers it.
func handle[M any](payload []byte, parse func([]byte) (M, error), answer func(*M) (Answer, error)) (Answer, error) {
	m, err := parse(payload)
	if err != nil {
		return Answer{}, err
	}
	a, err := answer(&m)
	if err != nil {
		return Answer{}, refusalOf(err)
	}
	return a, nil
}

func slots(s []control.KVSlot, err error) (Answer, error) {
	return Answer{Type: control.TypeKVSlots, Payload: func(b []byte) []byte { return control.AppendKVSlots(b, s) }}, err
}

func done(d []control.KVDone, err error) (Answer, error) {
	return Answer{Type: control.TypeKVDone, Payload: func(b []byte) []byte { return control.AppendKVDone(b, d) }}, err
}

// inSpace calls f with a namespace that a connection has opened.
func inSpace[A any](c *Session, number uint32, write bool, f func(*Space) A) (a A, err error) {
	may, open := c.opened[number]
	switch {
	case !open:
		return a, refuse(unix.EBADF, "namespace %d is not open on this connection: say KV_OPEN first", number)
	case write && !may:
		return a, refuse(unix.EACCES, "this connection has opened the namespace to read it: open it with WRITE")
	}
	return f(c.store.space(number)), nil
}

// open answers KV_OPEN.
func (c *Session) open(m *control.KVOpen) (a Answer, err error) {
	if !goodName(m.Name) {
		return a, refuse(unix.EINVAL, "%q cannot be a namespace's name: use letters, digits and ._-+=@:, and no dot at the beginning", m.Name)
	}
	sp, err := c.store.find(m, c.user)
	if err != nil {
		return a, err
	}
	write := m.Flags&control.KVWrite != 0
	if err := sp.may(c.user, write); err != nil {
		return a, err
	}
	if m.BlockBytes != 0 && m.BlockBytes != sp.meta.Block {
		return a, refuse(unix.EINVAL, "namespace %q has blocks of %d bytes, and not of %d: open it so, or use another name", m.Name, sp.meta.Block, m.BlockBytes)
	}
	if c.owner == nil {
		if c.owner, err = c.store.newOwner(c); err != nil {
			return a, err
		}
	}
	answer := control.KVSpace{Space: sp.number, Mode: sp.mode(), Client: c.owner.id, BlockBytes: sp.meta.Block, SlotBytes: sp.meta.Slot}
	for _, t := range sp.tiers {
		f, err := t.give(write)
		if err != nil {
			for _, f := range a.Files {
				_ = f.Close() // nothing was done with it
			}
			return Answer{}, err
		}
		a.Files = append(a.Files, f)
	}
	before, again := c.opened[sp.number]
	c.opened[sp.number] = write || before
	answer.Tiers = sp.open(!again)
	a.Type, a.Payload = control.TypeKVSpace, answer.AppendTo
	return a, nil
}

// find gives a namespace, or makes it.
func (s *Store) find(m *control.KVOpen, user asuser.User) (*Space, error) {
	s.making.Lock()
	defer s.making.Unlock()
	s.mu.Lock()
	sp, many, ready := s.spaces[m.Name], len(s.spaces) >= mostSpaces, s.ready && !s.closed
	s.mu.Unlock()
	switch {
	case !ready:
		return nil, refuse(unix.EAGAIN, "the volume is being opened, or closed")
	case sp != nil:
		return sp, nil
	case m.Flags&control.KVCreate == 0:
		return nil, refuse(unix.ENOENT, "there is no namespace %q: its first writer makes it (CREATE)", m.Name)
	case m.BlockBytes == 0:
		return nil, refuse(unix.EINVAL, "namespace %q is new: say how many bytes a block has", m.Name)
	case many:
		return nil, refuse(unix.ENOSPC, "the volume has %d namespaces, and no room for another: unmount it, and remove the directory of one in %s", mostSpaces, s.opt.Directory)
	}
	if s.mayName(user) != nil {
		return nil, refuse(unix.EACCES, "user %d may make no namespace in %s: its mode says who may", user.UID, s.opt.Directory)
	}
	if !s.mayMake(user.UID) {
		return nil, refuse(unix.EDQUOT, "user %d has as many namespaces as one may have of the volume's %d: unmount it, and remove directories of some in %s", user.UID, mostSpaces, s.opt.Directory)
	}
	sp, err := s.newSpace(m, user)
	if err != nil {
		return nil, err
	}
	s.add(sp)
	s.opt.Log.Info("a namespace is made", "namespace", m.Name, "block_bytes", m.BlockBytes, "user", user.UID)
	return sp, nil
}

// mayMake reports whether a user has room for another namespace, beside those of other users. The kernel says whose each is now.
func (s *Store) mayMake(uid uint32) bool {
	owned := shares.New(mostSpaces, mostSpaces/2, 1)
	for _, sp := range s.all() {
		_, of, _ := sp.attributes()
		owned.Book(of, 1)
	}
	return owned.Fit(uid, 1)
}

// attach answers KV_ATTACH.
func (c *Session) attach(m *control.KVAttach) (a Answer, err error) {
	s := c.store
	s.mu.Lock()
	o := s.owners[m.Client]
	s.mu.Unlock()
	if o == nil || o.uid != c.user.UID || o.pidfd == nil || c.pidfd == nil {
		return a, refuse(unix.ENOENT, "no process holds anything under this number")
	}
	if c.owner != nil {
		return a, refuse(unix.EINVAL, "this connection has opened a namespace already: attach first")
	}
	lost, ok := o.attach(c, m.Seen)
	if !ok {
		return a, refuse(unix.ENOENT, "no process holds anything under this number, or it is another one")
	}
	s.mu.Lock()
	delete(s.away, o.id)
	s.mu.Unlock()
	s.giveBack(o, lost)
	return Answer{Type: control.TypeDone}, nil
}

// stat answers KV_STAT.
func (c *Session) stat(m *control.KVStat) (a Answer, err error) {
	var counts control.KVCounts
	if m.Space == 0 {
		for _, sp := range c.store.all() {
			sp.addCounts(&counts)
		}
	} else {
		sp := c.store.space(m.Space)
		if sp == nil {
			return a, refuse(unix.ENOENT, "there is no namespace %d", m.Space)
		}
		sp.addCounts(&counts)
	}
	return Answer{Type: control.TypeKVCounts, Payload: counts.AppendTo}, nil
}

func refuse(errno unix.Errno, format string, args ...any) *control.Refusal {
	return &control.Refusal{Errno: errno, Text: fmt.Sprintf(format, args...)}
}

// refusalOf makes an error the client's answer.
func refusalOf(err error) *control.Refusal {
	if known, ok := errors.AsType[*control.Refusal](err); ok {
		return known
	}
	errno := unix.EIO
	_ = errors.As(err, &errno)
	return &control.Refusal{Errno: errno, Text: err.Error()}
}
