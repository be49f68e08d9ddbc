package kv

import (
	"context"
	"errors"
	"fmt"

	"github.com/hbmfs/hbmfs/control"
)

// Get starts loading blocks into memory, after the work on the caller's stream; a nil stream is none. A block is loaded where it has
// as many bytes as its memory. Other memory may have been written to, and holds nothing of use.
func (s *Store) Get(blocks []Block, stream *uintptr, ended func()) (*Request, error) {
	return s.begin(get, len(blocks), stream, ended, func() error { return s.check(blocks) }, func(ctx context.Context, q *Request) error {
		return q.parts(ctx, blocks, Missing, q.get)
	})
}

// get loads blocks of a part, and gives those to begin again: whose pins ended before their bytes were read.
func (q *Request) get(ctx context.Context, first int, part []Block, which []int) (again []int, err error) {
	s := q.s
	keys := make([][]byte, len(which))
	for i, at := range which {
		keys[i] = part[at].Key
	}
	slots, on, err := s.slots(ctx, func(ctx context.Context, n *control.Namespace) ([]control.KVSlot, error) {
		return n.Lookup(ctx, keys, true)
	})
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	tiers, release, err := on.hold(s)
	if errors.Is(err, errRestarted) {
		s.giveUp(on, 0, tokensOf(slots))
		return which, nil
	}
	defer release()
	var jobs []*job
	var tokens, unused []uint64
	for i, at := range which {
		slot := &slots[i]
		if slot.Errno != 0 {
			q.set(first+at, outcomeOf(slot.Errno))
			continue
		}
		tokens = append(tokens, slot.Token)
		if int64(slot.Length) != part[at].size {
			q.set(first+at, Length)
			unused = append(unused, slot.Token)
			continue
		}
		j, jobErr := q.jobOf(on, tiers, &part[at], at, slot)
		if jobErr != nil {
			err = jobErr
			continue
		}
		known := slot.Flags&control.KVHasCRC != 0
		if j.tier.kind == control.KVDisk && !known { // nothing tells whether the disk has lost the block
			q.set(first+at, Damaged)
			unused = append(unused, slot.Token)
			continue
		}
		j.sums, j.want = known && (s.sums || j.tier.kind == control.KVDisk), slot.CRC
		jobs = append(jobs, j)
	}
	if err == nil {
		err = q.move(ctx, jobs, true)
	}
	if err != nil {
		s.giveUp(on, 0, tokens)
		return nil, fmt.Errorf("get: %w", err)
	}
	return q.release(ctx, on, first, jobs, unused)
}

// release ends the pins of blocks that were loaded. Only its answer says that they are good.
func (q *Request) release(ctx context.Context, on *session, first int, jobs []*job, unused []uint64) (again []int, err error) {
	var good, bad []*job
	for _, j := range jobs {
		if j.err != nil || j.sums && j.crc != j.want {
			bad = append(bad, j)
		} else {
			good = append(good, j)
		}
	}
	q.s.giveUp(on, 0, unused)
	if again, err = q.unpin(ctx, on, control.KVSuspect, bad, func(j *job) {
		outcome := Damaged
		if j.err != nil {
			outcome = Failed
		}
		q.set(first+j.index, outcome)
	}); err != nil {
		return nil, err
	}
	lost, err := q.unpin(ctx, on, 0, good, func(j *job) {
		q.set(first+j.index, Done)
		q.moved(j)
	})
	return append(again, lost...), err
}

// unpin ends the pins of blocks that were read. blocks whose pins held until then are done; the others are to be read again.
func (q *Request) unpin(ctx context.Context, on *session, flags uint32, jobs []*job, what func(j *job)) (again []int, err error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	tokens := make([]uint64, len(jobs))
	for i, j := range jobs {
		tokens[i] = j.token
	}
	var done []control.KVDone
	_, err = q.s.ask(ctx, on, func(n *control.Namespace) error {
		done, err = n.Release(ctx, flags, tokens...)
		return err
	})
	if err != nil && !errors.Is(err, errRestarted) {
		q.s.giveUp(on, 0, tokens)
		return nil, fmt.Errorf("get: %w", err)
	}
	for i, j := range jobs {
		if err != nil || done[i].Errno != 0 {
			again = append(again, j.index)
		} else {
			what(j)
		}
	}
	return again, nil
}
