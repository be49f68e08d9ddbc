package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Result is the outcome of a request.
type Result struct {
	Outcomes []Outcome            // of each block or key, in order
	Tokens   []uint64             // of a Pin: of each key that is Done; else nil
	Survives []control.KVSurvival // of a Put, for each block that is Done: the events that it survives; else nil
	Moved    BlockBytes
}

type kind int

const (
	put kind = iota
	get
	other
)

// Request is blocks that are being moved, or keys that are asked for.
type Request struct {
	s      *Store
	kind   kind
	after  driver.Handle // an event of the caller's stream; 0 for none
	cancel context.CancelFunc
	done   chan struct{}
	ended  func()
	moving chan struct{} // has room for the parts that are copied at once

	mu     sync.Mutex // guards result until done is closed
	result Result
	err    error
}

// How much of a request is one part: the daemon gives slots for one at a time. The daemon is asked about two parts while the bytes of two others are on
// their way, so that the link does not stand still. Of more the copies would take turns.
const (
	partBlocks  = 256
	partBytes   = 256 << 20
	partsAtOnce = 4
	movesAtOnce = 2
)

// begin starts a request of n keys. ended, if not nil, runs once Done is closed.
func (s *Store) begin(k kind, n int, stream *uintptr, ended func(), check func() error, run func(ctx context.Context, q *Request) error) (*Request, error) {
	if !s.gate.Enter() {
		return nil, fmt.Errorf("%w: the store was closed", ErrClosed)
	}
	after, err := s.device.Mark(stream, check)
	if err != nil {
		s.gate.Leave()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	q := &Request{s: s, kind: k, after: after, cancel: cancel, done: make(chan struct{}), ended: ended, moving: make(chan struct{}, movesAtOnce)}
	q.result.Outcomes = make([]Outcome, n)
	for i := range q.result.Outcomes {
		q.result.Outcomes[i] = Undone
	}
	s.mu.Lock()
	s.requests[q] = true
	if s.closed { // meanwhile, by a Close that did not see q
		cancel()
	}
	s.mu.Unlock()
	go q.serve(ctx, run)
	return q, nil
}

func (q *Request) serve(ctx context.Context, run func(ctx context.Context, q *Request) error) {
	defer q.s.gate.Leave()
	q.err = run(ctx, q)
	if q.err != nil && ctx.Err() != nil {
		q.err = ctx.Err()
	}
	q.cancel()
	q.s.device.Unmark(q.after)
	q.s.account(q)
	q.s.mu.Lock()
	delete(q.s.requests, q)
	q.s.mu.Unlock()
	close(q.done)
	if q.ended != nil {
		q.ended()
	}
}

// Done is closed when the request has ended and nothing uses its memory any more.
func (q *Request) Done() <-chan struct{} { return q.done }

// Cancel asks the request to end. It may have been done by then.
func (q *Request) Cancel() { q.cancel() }

// Result waits for the request. With an error, outcomes other than Undone are true nevertheless.
func (q *Request) Result() (Result, error) {
	<-q.done
	return q.result, q.err
}

func (q *Request) set(i int, o Outcome) {
	q.mu.Lock()
	q.result.Outcomes[i] = o
	q.mu.Unlock()
}

func (q *Request) moved(j *job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, m := j.block.size, &q.result.Moved
	switch j.path {
	case cufile.Mapped:
		m.Mapped += n
	case cufile.Staged:
		m.Staged += n
	case cufile.Host:
		m.Host += n
	}
	if j.tier.kind == control.KVMemory {
		m.Memory += n
	} else {
		m.Disk += n
		if j.tier.direct() {
			m.Direct += n
		}
	}
}

// attempt moves those blocks of a part, the first of which has place first in the request, and gives those to begin again.
type attempt func(ctx context.Context, first int, part []Block, which []int) (again []int, err error)

// attempts is how often a part of a request is begun again because its daemon was replaced by one that knows nothing of it.
const attempts = 4

// part moves a part of a request. lost is the outcome of blocks whose last attempt failed, too.
func (q *Request) part(ctx context.Context, first int, part []Block, lost Outcome, try attempt) (err error) {
	left := make([]int, len(part))
	for i := range left {
		left[i] = i
	}
	for range attempts {
		if left, err = try(ctx, first, part, left); err != nil || len(left) == 0 {
			return err
		}
	}
	for _, i := range left {
		q.set(first+i, lost)
	}
	return nil
}

// parts runs try over blocks, some at a time.
func (q *Request) parts(ctx context.Context, blocks []Block, lost Outcome, try attempt) error {
	type part struct{ first, end int }
	var list []part
	for first := 0; first < len(blocks); {
		end, size := first, int64(0)
		for end < len(blocks) && end-first < partBlocks && (end == first || size+blocks[end].size <= partBytes) {
			size += blocks[end].size
			end++
		}
		list = append(list, part{first, end})
		first = end
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next atomic.Int64
	var once sync.Once
	var first error
	work := func() {
		for i := next.Add(1) - 1; i < int64(len(list)); i = next.Add(1) - 1 {
			err := ctx.Err()
			if err == nil {
				err = q.part(ctx, list[i].first, blocks[list[i].first:list[i].end], lost, try)
			}
			if err != nil {
				once.Do(func() { first = err })
				cancel()
				return
			}
		}
	}
	var all sync.WaitGroup
	for range min(partsAtOnce, len(list)) - 1 {
		all.Go(work)
	}
	work()
	all.Wait()
	return first
}

// move copies the bytes of a part, once it is its turn.
func (q *Request) move(ctx context.Context, jobs []*job, in bool) error {
	select {
	case q.moving <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-q.moving }()
	return q.s.copyAll(ctx, jobs, in, q.after)
}

// outcomeOf is the outcome that an errno of the daemon stands for.
func outcomeOf(errno syscall.Errno) Outcome {
	switch errno {
	case 0:
		return Done
	case syscall.ENOENT:
		return Missing
	case syscall.EEXIST:
		return Present
	case syscall.EBUSY:
		return Busy
	case syscall.ENOSPC:
		return NoRoom
	case syscall.EDQUOT:
		return OverLimit
	}
	return Failed
}

// errSlot says that the daemon gave a slot that its tiers do not have.
var errSlot = errors.New("the daemon gave a slot outside of its tiers: report this")

// jobOf makes the job of a slot.
func (q *Request) jobOf(n *session, tiers []*tier, b *Block, index int, slot *control.KVSlot) (*job, error) {
	slotBytes := n.space.SlotBytes
	if int(slot.Tier) >= len(tiers) || !tiers[slot.Tier].inside(slot.Slot, slotBytes, b.size) {
		return nil, fmt.Errorf("%w: slot %d of tier %d", errSlot, slot.Slot, slot.Tier)
	}
	return &job{block: b, index: index, tier: tiers[slot.Tier], offset: int64(slot.Slot) * slotBytes, token: slot.Token}, nil
}
