package control

import (
	"context"
	"os"
	"sync"
)

// turns let a few requests go on at a time, and half as many of one user: a user who asks much waits for itself. The user
// who runs the daemon waits for no other.
type turns struct {
	me   uint32
	all  chan struct{}
	each int

	mu sync.Mutex // guards the fields below
	of map[uint32]*userTurns
}

type userTurns struct {
	slots chan struct{}
	asked int // requests that have a turn or wait for one
}

func newTurns(atOnce int) *turns {
	return &turns{me: uint32(os.Geteuid()), all: make(chan struct{}, atOnce), each: atOnce / 2, of: map[uint32]*userTurns{}}
}

// wait waits for a turn, which lasts until done is called.
func (t *turns) wait(ctx context.Context, uid uint32) (done func(), err error) {
	u := t.user(uid)
	select {
	case u.slots <- struct{}{}:
	case <-ctx.Done():
		t.drop(uid, u)
		return nil, ctx.Err()
	}
	if uid == t.me {
		return func() { <-u.slots; t.drop(uid, u) }, nil
	}
	select {
	case t.all <- struct{}{}:
		return func() { <-t.all; <-u.slots; t.drop(uid, u) }, nil
	case <-ctx.Done():
		<-u.slots
		t.drop(uid, u)
		return nil, ctx.Err()
	}
}

func (t *turns) user(uid uint32) *userTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.of[uid]
	if u == nil {
		u = &userTurns{slots: make(chan struct{}, t.each)}
		t.of[uid] = u
	}
	u.asked++
	return u
}

func (t *turns) drop(uid uint32, u *userTurns) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.asked--; u.asked == 0 {
		delete(t.of, uid)
	}
}
