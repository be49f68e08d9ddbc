package kv

import (
	"context"
	"fmt"

	"github.com/hbmfs/hbmfs/control"
)

// Contains starts asking which keys are there: their outcomes are Done or Missing.
func (s *Store) Contains(keys [][]byte, ended func()) (*Request, error) {
	return s.keys(keys, ended, func(ctx context.Context, q *Request) error {
		return q.lookup(ctx, keys, false)
	})
}

// Pin is Contains that keeps the blocks from eviction until Unpin, or the end of this process. Result.Tokens has the pins to
// release.
func (s *Store) Pin(keys [][]byte, ended func()) (*Request, error) {
	return s.keys(keys, ended, func(ctx context.Context, q *Request) error {
		return q.lookup(ctx, keys, true)
	})
}

// Unpin starts giving up pins. Those that ended with an earlier daemon are Missing.
func (s *Store) Unpin(tokens []uint64, ended func()) (*Request, error) {
	return s.begin(other, len(tokens), nil, ended, func() error { return nil }, func(ctx context.Context, q *Request) error {
		var done []control.KVDone
		_, err := s.ask(ctx, nil, func(n *control.Namespace) (err error) {
			done, err = n.Release(ctx, 0, tokens...)
			return err
		})
		return q.settle("unpin", done, err)
	})
}

// Remove starts removing blocks. One that is pinned is found no more, and goes with its last pin.
func (s *Store) Remove(keys [][]byte, ended func()) (*Request, error) {
	return s.keys(keys, ended, func(ctx context.Context, q *Request) error {
		if !s.opt.Write {
			return fmt.Errorf("remove: %w", ErrReadOnly)
		}
		var done []control.KVDone
		_, err := s.ask(ctx, nil, func(n *control.Namespace) (err error) {
			done, err = n.Remove(ctx, keys...)
			return err
		})
		return q.settle("remove", done, err)
	})
}

// Clear removes all blocks of the namespace, of all its clients.
func (s *Store) Clear(ctx context.Context) error {
	if !s.opt.Write {
		return fmt.Errorf("clear: %w", ErrReadOnly)
	}
	_, err := s.ask(ctx, nil, func(n *control.Namespace) error { return n.Clear(ctx) })
	return err
}

func (s *Store) keys(keys [][]byte, ended func(), run func(ctx context.Context, q *Request) error) (*Request, error) {
	check := func() error {
		for _, key := range keys {
			if len(key) == 0 || len(key) > control.MaxKVKey {
				return fmt.Errorf("%w: a key has %d bytes, and a key has 1 to %d", ErrBlock, len(key), control.MaxKVKey)
			}
		}
		return nil
	}
	return s.begin(other, len(keys), nil, ended, check, run)
}

func (q *Request) lookup(ctx context.Context, keys [][]byte, pin bool) error {
	slots, _, err := q.s.slots(ctx, func(ctx context.Context, n *control.Namespace) ([]control.KVSlot, error) {
		return n.Lookup(ctx, keys, pin)
	})
	if err != nil {
		return fmt.Errorf("look up: %w", err)
	}
	if pin {
		q.result.Tokens = make([]uint64, len(keys))
	}
	for i := range slots {
		q.set(i, outcomeOf(slots[i].Errno))
		if pin && slots[i].Errno == 0 {
			q.result.Tokens[i] = slots[i].Token
		}
	}
	return nil
}

func (q *Request) settle(what string, done []control.KVDone, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for i := range done {
		q.set(i, outcomeOf(done[i].Errno))
	}
	return nil
}
