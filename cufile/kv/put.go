package kv

import (
	"context"
	"errors"
	"fmt"

	"github.com/hbmfs/hbmfs/control"
)

// Put starts storing blocks. Bytes of the GPU are read after the work on the caller's stream; a nil stream is none. Memory must stay as
// it is until Done is closed. Blocks that make no sense are refused at once, with ErrBlock or ErrMemory. ended, if not nil, is called
// once Done is closed.
func (s *Store) Put(blocks []Block, stream *uintptr, ended func()) (*Request, error) {
	check := func() error {
		if !s.opt.Write {
			return fmt.Errorf("put: %w", ErrReadOnly)
		}
		return s.check(blocks)
	}
	return s.begin(put, len(blocks), stream, ended, check, func(ctx context.Context, q *Request) error {
		q.result.Survives = make([]control.KVSurvival, len(blocks))
		return q.parts(ctx, blocks, Lost, q.put)
	})
}

// put stores blocks of a part, and gives those to begin again.
func (q *Request) put(ctx context.Context, first int, part []Block, which []int) (again []int, err error) {
	s := q.s
	wanted := make([]control.KVBlock, len(which))
	for i, at := range which {
		wanted[i] = control.KVBlock{Key: part[at].Key, Length: uint32(part[at].size)}
	}
	slots, on, err := s.slots(ctx, func(ctx context.Context, n *control.Namespace) ([]control.KVSlot, error) {
		return n.Reserve(ctx, wanted)
	})
	if err != nil {
		return nil, fmt.Errorf("put: %w", err)
	}
	tiers, release, err := on.hold(s)
	if errors.Is(err, errRestarted) {
		s.giveUp(on, 0, tokensOf(slots))
		return which, nil
	}
	defer release()
	var jobs []*job
	var tokens []uint64
	for i, at := range which {
		if slots[i].Errno != 0 {
			q.set(first+at, outcomeOf(slots[i].Errno))
			continue
		}
		tokens = append(tokens, slots[i].Token)
		j, jobErr := q.jobOf(on, tiers, &part[at], at, &slots[i])
		if jobErr != nil {
			err = jobErr
			continue
		}
		j.sums = s.sums || j.tier.kind == control.KVDisk
		jobs = append(jobs, j)
	}
	if err == nil {
		err = q.move(ctx, jobs, false)
	}
	if err != nil {
		s.giveUp(on, 0, tokens)
		return nil, fmt.Errorf("put: %w", err)
	}
	return q.commit(ctx, on, first, jobs)
}

// commit has blocks found whose bytes are in their slots, and gives those whose reservations were gone.
func (q *Request) commit(ctx context.Context, on *session, first int, jobs []*job) (again []int, err error) {
	var stored []control.KVStored
	var good []*job
	var bad []uint64
	for _, j := range jobs {
		if j.err != nil {
			q.set(first+j.index, Failed)
			bad = append(bad, j.token)
			continue
		}
		good = append(good, j)
		m := control.KVStored{Token: j.token}
		if j.sums {
			m.CRC, m.Flags = j.crc, control.KVHasCRC
		}
		stored = append(stored, m)
	}
	q.s.giveUp(on, control.KVSuspect, bad)
	if len(stored) == 0 {
		return nil, nil
	}
	var done []control.KVDone
	_, err = q.s.ask(ctx, on, func(n *control.Namespace) error {
		done, err = n.Commit(ctx, stored)
		return err
	})
	switch {
	case errors.Is(err, errRestarted):
		for _, j := range good {
			again = append(again, j.index)
		}
		return again, nil
	case err != nil:
		tokens := make([]uint64, len(stored))
		for i := range stored {
			tokens[i] = stored[i].Token
		}
		q.s.giveUp(on, 0, tokens)
		return nil, fmt.Errorf("put: %w", err)
	}
	for i, j := range good {
		switch done[i].Errno {
		case 0:
			q.set(first+j.index, Done)
			q.moved(j)
			q.mu.Lock()
			q.result.Survives[first+j.index] = done[i].Survives
			q.mu.Unlock()
		case 2: // ENOENT: the daemon forgot it, or has committed it and could not say so
			again = append(again, j.index)
		default:
			q.set(first+j.index, Failed)
		}
	}
	return again, nil
}

// giveUp ends pins or reservations that nobody needs. It is for after an error, which is already known. The rest ends with the
// next connection, or the process.
func (s *Store) giveUp(on *session, flags uint32, tokens []uint64) {
	if len(tokens) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.redial)
	defer cancel()
	_, err := s.ask(ctx, on, func(n *control.Namespace) error {
		_, err := n.Release(ctx, flags, tokens...)
		return err
	})
	if err != nil && !errors.Is(err, errRestarted) {
		s.abandon(tokens)
	}
}
