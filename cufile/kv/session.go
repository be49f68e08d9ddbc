package kv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/control"
)

// session is a connection to a daemon, with the namespace open.
type session struct {
	client *control.Client
	space  *control.Namespace
	tiers  []*tier
	epoch  control.Epoch
}

// lookPause is the time between two looks at the daemon of a store that asks nothing.
const lookPause = time.Second

// errRestarted says that the volume was mounted again: the earlier daemon's slots and pins are void.
var errRestarted = fmt.Errorf("the volume was mounted again: %w", control.ErrStale)

// ask asks a daemon, and the next one where it has gone. Where on is not nil, it must be of the same mount. The session that answered
// stays until its tiers are dropped.
func (s *Store) ask(ctx context.Context, on *session, f func(n *control.Namespace) error) (*session, error) {
	for end := time.Now().Add(s.redial); ; {
		now, err := s.connection(ctx)
		if err == nil && on != nil && now.epoch != on.epoch {
			return nil, errRestarted
		}
		if err == nil {
			err = f(now.space)
		}
		if err == nil || !s.lost(now, err) || time.Now().After(end) {
			return now, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(control.RedialPause):
		}
	}
}

// comeBack finds the next daemon while no request asks for it, until the Store is closed. Memory that this process has registered is given to nobody else then,
// and slots of lost answers come back.
func (s *Store) comeBack() {
	tick := time.NewTicker(s.opt.look)
	defer tick.Stop()
	var lost time.Time // when; zero where the daemon is there, or was waited for in vain
	for {
		select {
		case <-s.life.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		now := s.now
		s.mu.Unlock()
		if now != nil && now.client.HungUp() && s.lost(now, control.ErrStale) {
			now, lost = nil, time.Now()
		}
		if now != nil || lost.IsZero() {
			lost = time.Time{}
			continue
		}
		if _, err := s.connection(s.life); err == nil || time.Since(lost) > s.redial {
			lost = time.Time{}
		}
	}
}

// slots asks for slots with tokens. The session waits for its answer even if the request is cancelled. Without one the connection ends, and the next one
// has the daemon take back its slots.
func (s *Store) slots(ctx context.Context, f func(ctx context.Context, n *control.Namespace) ([]control.KVSlot, error)) (slots []control.KVSlot, on *session, err error) {
	on, err = s.ask(ctx, nil, func(n *control.Namespace) error {
		settled, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.redial)
		defer cancel()
		slots, err = f(settled, n)
		if err != nil {
			s.abandon(tokensOf(slots)) // of the frames before the one that failed
		}
		if err != nil && settled.Err() != nil {
			return fmt.Errorf("%w: %w", err, control.ErrStale)
		}
		return err
	})
	return slots, on, err
}

func tokensOf(slots []control.KVSlot) (tokens []uint64) {
	for i := range slots {
		if slots[i].Token != 0 {
			tokens = append(tokens, slots[i].Token)
		}
	}
	return tokens
}

// abandon notes tokens that nobody needs, and that the daemon could not be told of.
func (s *Store) abandon(tokens []uint64) {
	s.mu.Lock()
	s.unneeded = append(s.unneeded, tokens...)
	s.mu.Unlock()
}

// connection gives the session, or makes another.
func (s *Store) connection(ctx context.Context) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		return s.now, nil
	}
	client, err := control.DialTrusted(ctx, s.root, s.opt.Client)
	if err != nil {
		return nil, err
	}
	now, err := s.open(ctx, client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	s.counts.connections++
	s.now = now
	for _, t := range now.tiers {
		t.hold()
		s.warming.Go(func() { // ends with the Store, or once all is prepared
			t.warm(s.life)
			_ = t.drop() // the memory is the daemon's
		})
	}
	return now, nil
}

// open needs mu.
func (s *Store) open(ctx context.Context, client *control.Client) (*session, error) {
	if s.before != nil && s.before.epoch != client.Epoch() { // the next daemon waits until nobody can write to the slab any more
		s.before.drop()
		s.before = nil
	}
	if s.before != nil {
		if err := client.AttachKV(ctx, s.before.space.Client, s.before.client.Seen()); err != nil && !errors.Is(err, syscall.ENOENT) {
			return nil, err
		}
	}
	m := control.KVOpen{BlockBytes: s.opt.BlockBytes, Mode: s.opt.Mode, Name: s.name}
	if s.opt.Create {
		m.Flags |= control.KVCreate
	}
	if s.opt.Write {
		m.Flags |= control.KVWrite
	}
	space, err := client.OpenKV(ctx, m)
	if err != nil {
		return nil, err
	}
	if s.blockBytes != 0 && space.BlockBytes != s.blockBytes || space.SlotBytes <= 0 || space.SlotBytes%4096 != 0 {
		return nil, errors.Join(fmt.Errorf("namespace %q has blocks of %d bytes in slots of %d now: %w", s.name, space.BlockBytes, space.SlotBytes, control.ErrStale), space.Close())
	}
	now := &session{client: client, space: space, epoch: client.Epoch()}
	if err := s.takeTiers(now); err != nil {
		return nil, err
	}
	if len(s.unneeded) > 0 {
		if _, err := space.Release(ctx, 0, s.unneeded...); err != nil { // those that another daemon gave are none
			now.drop()
			return nil, err
		}
		s.unneeded = nil
	}
	if s.before != nil {
		s.before.drop()
		s.before = nil
	}
	if s.blockBytes == 0 { // of the first session, before there are requests
		s.blockBytes = space.BlockBytes
	}
	return now, nil
}

// takeTiers makes tiers of the descriptors, or takes those of the session before where they are the same files.
func (s *Store) takeTiers(now *session) error {
	for i, given := range now.space.Tiers {
		file := now.space.Files[i]
		if s.before != nil && i < len(s.before.tiers) && s.before.tiers[i].is(file, given) {
			s.before.tiers[i].hold()
			now.tiers = append(now.tiers, s.before.tiers[i])
			_ = file.Close() // another one is open
			continue
		}
		t, err := newTier(file, given, now.space.SlotBytes, s.opt.Write, s.gpu)
		if err != nil {
			now.drop()
			for _, f := range now.space.Files[i:] {
				_ = f.Close() // they were not used
			}
			return err
		}
		now.tiers = append(now.tiers, t)
	}
	return nil
}

// drop ends the session's use of its tiers. Errors have nowhere to go: the memory is the daemon's.
func (n *session) drop() {
	for _, t := range n.tiers {
		_ = t.drop()
	}
	n.tiers = nil
}

// lost forgets a session whose daemon has gone, as far as an error says, and tells whether that is so.
func (s *Store) lost(now *session, err error) bool {
	if _, ok := errors.AsType[*control.Refusal](err); ok {
		return false
	}
	gone := errors.Is(err, control.ErrStale) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
	if !gone && !errors.Is(err, os.ErrClosed) { // closed by another request that has found it
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now == nil || s.now != now { // none could be made, or another request has found it
		return !s.closed
	}
	_ = now.client.Close() // nobody is at the other end
	s.now = nil
	if s.before != nil {
		s.before.drop()
	}
	s.before = now
	return !s.closed
}

// hold keeps the tiers of a session while a request uses them, and returns the function that ends that. It fails where another
// request has found meanwhile that the daemon has gone. The next connection may have given slots back that this request learns of
// too late.
func (n *session) hold(s *Store) (tiers []*tier, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != n {
		return nil, nil, errRestarted
	}
	tiers = n.tiers
	for _, t := range tiers {
		t.hold()
	}
	return tiers, func() {
		for _, t := range tiers {
			_ = t.drop() // as above
		}
	}, nil
}
