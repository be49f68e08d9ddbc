package store

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// localError is a failure of the cache's disk. The bytes come from the origin then.
type localError struct {
	op  string
	err error
}

func (e *localError) Error() string { return fmt.Sprintf("cache disk: %s: %v", e.op, e.err) }
func (e *localError) Unwrap() error { return e.err }

// fill is a segment that is being filled.
type fill struct {
	store  *Store
	origin *Cached
	object *layout.Object // upstream's
	start  int64          // of the segment in the object
	size   int64
	entry  *entry

	mu       sync.Mutex // guards the fields below
	fd       int        // without a name; -1 before the first fetch, and when it is over
	users    int        // of fd
	over     bool       // published or given up: fd is closed when its last user goes
	lost     error      // lost bytes, as fd has told of them
	have     bits       // blocks
	left     int        // blocks that are missing
	sums     []uint32   // of each sumBlock, where summed
	summed   bits
	flights  []*flight
	reserved bits          // blocks that are on the books
	changed  chan struct{} // closed and renewed when blocks arrive
}

// flight is one request for consecutive blocks.
type flight struct {
	first, last int      // blocks, last is one beyond
	planned     *planned // that this is for, nil for a read that waits
	done        chan struct{}
	err         error // valid once done is closed

	waiting atomic.Int32 // readers
	ctx     context.Context
	cancel  context.CancelCauseFunc // once no reader waits
}

func newFill(x *Cached, o *layout.Object, start, size int64) *fill {
	blocks := int((size + block - 1) / block)
	sums := sumsOf(size)
	return &fill{
		store: x.store, origin: x, object: o, start: start, size: size, fd: -1, have: newBits(blocks), left: blocks,
		sums: make([]uint32, sums), summed: newBits(sums), reserved: newBits(blocks), changed: make(chan struct{}),
	}
}

// read fills p from at, an offset in the segment, as soon as the bytes are here. ahead bytes beyond are fetched as well.
func (f *fill) read(ctx context.Context, p []byte, at, ahead int64) error {
	if !f.use() {
		return errMoved
	}
	defer f.unuse()
	if err := f.want(ctx, at, at+int64(len(p)), ahead, nil); err != nil {
		return err
	}
	f.mu.Lock()
	fd := f.fd // has the blocks that want has seen arrive
	f.mu.Unlock()
	if err := readFull(fd, p, at); err != nil {
		return err
	}
	return f.sound()
}

// errLost says that the disk could not write bytes that it had taken.
var errLost = errors.New("the disk has lost bytes of it")

// sound returns an error once the disk has lost bytes of the segment. Linux counts lost pages as clean, so they may leave the page cache,
// and a read then gives the disk's bytes instead. A caller that asks after its read therefore knows whether to believe it. The descriptor
// tells of an error once, so the fill remembers it.
func (f *fill) sound() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost == nil && f.fd >= 0 {
		const far = math.MaxInt64 - 1 // no page lies there, so this waits for nothing
		if err := unix.SyncFileRange(f.fd, far, 1, unix.SYNC_FILE_RANGE_WAIT_BEFORE); err != nil {
			f.lost = &localError{"write a segment", fmt.Errorf("%w: %w", errLost, err)}
		}
	}
	return f.lost
}

// errMoved says that a segment was published, or given up, since it was looked up.
var errMoved = errors.New("the segment has moved")

// use keeps the file open, if it is not over yet, until unuse.
func (f *fill) use() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return false
	}
	f.users++
	return true
}

func (f *fill) unuse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
	f.closeIdle()
}

// close gives the file up. Readers that are at it still may read.
func (f *fill) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	f.closeIdle()
}

func (f *fill) closeIdle() {
	if f.over && f.users == 0 && f.fd >= 0 {
		_ = unix.Close(f.fd) // published and synced, or not wanted
		f.fd = -1
	}
}

// want returns when [from, to) is here. It starts flights for the missing blocks, and for up to ahead bytes beyond. u is
// the planned read behind it, nil for one that comes now.
func (f *fill) want(ctx context.Context, from, to, ahead int64, u *planned) error {
	first, last := int(from/block), f.blockEnd(to)
	beyond := f.beyond(to, ahead)
	for {
		f.mu.Lock()
		f.launch(first, beyond, u)
		missing := f.have.nextClear(first, last)
		if missing == last {
			f.mu.Unlock()
			return nil
		}
		carrier, changed := f.flightOf(missing), f.changed
		if u == nil {
			carrier.waiting.Add(1)
		}
		f.mu.Unlock()
		select {
		case <-changed:
			if u == nil {
				carrier.waiting.Add(-1)
			}
		case <-carrier.done:
			err := carrier.err
			switch {
			case err == nil, errors.Is(err, cache.ErrUnwanted): // this reader came as it was given up
			case u != nil || carrier.planned == nil || !errors.Is(err, errNoRoom):
				return err
			default: // the room that a plan did not get is there for this read
			}
		case <-ctx.Done():
			if u == nil {
				f.leave(carrier)
			}
			return ctx.Err()
		}
	}
}

// interest says who waits for a flight.
func (fl *flight) interest() cache.Interest {
	switch {
	case fl.waiting.Load() > 0:
		return cache.Reader
	case fl.planned != nil:
		return cache.Plan
	}
	return cache.Nobody
}

// leave has a reader wait no longer for a flight, which ends with the last one.
func (f *fill) leave(fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl.waiting.Add(-1) == 0 && fl.planned == nil {
		fl.cancel(cache.ErrUnwanted)
	}
}

// beyond gives the block up to which a read that ends at to has bytes fetched. Several requests ahead, it moves by
// whole ones: moving with each read, it would ask for little each time.
func (f *fill) beyond(to, ahead int64) int {
	end := to + ahead
	if ahead >= 2*spanSize && end < f.size {
		end = max(to, end-end%spanSize)
	}
	return f.blockEnd(end)
}

// begin starts flights for the missing blocks of [first, last), and waits for nothing.
func (f *fill) begin(first, last int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		f.launch(first, last, nil)
	}
}

// blockEnd gives the block before which the bytes up to an offset end.
func (f *fill) blockEnd(to int64) int { return int((min(to, f.size) + block - 1) / block) }

func (f *fill) flightOf(b int) *flight {
	for _, fl := range f.flights {
		if fl.first <= b && b < fl.last {
			return fl
		}
	}
	return nil
}

// launch starts flights for the blocks of [first, last) that are neither here nor on their way. f.mu is held.
func (f *fill) launch(first, last int, u *planned) {
	for b := f.have.nextClear(first, last); b < last; b = f.have.nextClear(b, last) {
		if fl := f.flightOf(b); fl != nil {
			b = fl.last
			continue
		}
		fl := &flight{first: b, last: b + 1, planned: u, done: make(chan struct{})}
		fl.ctx, fl.cancel = context.WithCancelCause(f.store.ctx)
		for fl.last < last && fl.last-b < spanSize/block && !f.have.get(fl.last) && f.flightOf(fl.last) == nil {
			fl.last++
		}
		f.flights = append(f.flights, fl)
		f.store.fly(f, fl)
		b = fl.last
	}
}

// fly carries a flight out on a goroutine, which ends with the fetch or the store.
func (s *Store) fly(f *fill, fl *flight) {
	s.ledger.pinAgain(f.entry)
	s.wg.Go(func() {
		defer fl.cancel(nil)
		ctx, span := s.opt.Trace.Start(fl.ctx, "fill")
		span.Text("object", f.object.Name).Int("offset", f.start+int64(fl.first)*block).Int("bytes", f.length(fl)).
			Int("blocks", int64(fl.last-fl.first)).Bool("planned", fl.planned != nil)
		err := f.carry(cache.WithInterest(ctx, fl.interest), fl)
		if errors.Is(context.Cause(ctx), cache.ErrUnwanted) {
			err = cache.ErrUnwanted
		}
		span.End(class(err))
		f.mu.Lock()
		fl.err = err
		f.flights = slices.DeleteFunc(f.flights, func(other *flight) bool { return other == fl })
		complete := f.left == 0 && len(f.flights) == 0 && !f.over
		f.mu.Unlock()
		close(fl.done)
		if complete {
			f.publish(context.WithoutCancel(ctx))
		}
		s.ledger.unpin(f.entry)
	})
}

// length is how many bytes a flight brings.
func (f *fill) length(fl *flight) int64 {
	return min(int64(fl.last)*block, f.size) - int64(fl.first)*block
}

// carry makes room, fetches and writes.
func (f *fill) carry(ctx context.Context, fl *flight) error {
	off := int64(fl.first) * block
	n := f.length(fl)
	if !f.use() {
		return errMoved
	}
	defer f.unuse()
	fd, err := f.room(fl, off, n)
	if err != nil {
		return err
	}
	sumBlock := sumBlock(f.size)
	w := &writer{fill: f, fd: fd, at: off, sumBlock: sumBlock, summing: off%sumBlock == 0}
	err = f.origin.up.Fetch(ctx, f.object, f.start+off, n, w.write)
	f.store.stats.fetched.Add(w.at - off)
	return err
}

// room reserves the blocks of a flight in the ledger, and their place on the disk.
func (f *fill) room(fl *flight, off, n int64) (fd int, err error) {
	if err := f.reserve(fl.first, fl.last, fl.planned); err != nil {
		return -1, err
	}
	if other := f.store.ledger.excess(f.store.halfOpen()); other != nil {
		f.store.discard(other)
	}
	if fd, err = f.file(); err != nil {
		return -1, err
	}
	return fd, f.store.allocate(fd, off, n, fl.planned)
}

// reserve takes those blocks of [first, last) that are not on the books.
func (f *fill) reserve(first, last int, u *planned) error {
	f.mu.Lock()
	var fresh []int
	for b := first; b < last; b++ {
		if !f.reserved.get(b) {
			f.reserved.set(b)
			fresh = append(fresh, b)
		}
	}
	f.mu.Unlock()
	err := f.store.makeRoom(f.entry, int64(len(fresh))*block, u)
	if err != nil {
		f.mu.Lock()
		for _, b := range fresh {
			f.reserved.unset(b)
		}
		f.mu.Unlock()
	}
	return err
}

// file opens the file without a name, the first time.
func (f *fill) file() (fd int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd >= 0 {
		return f.fd, nil
	}
	if fd, err = unix.Openat(f.store.fd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600); err != nil {
		return -1, &localError{"make a segment", err}
	}
	if err := unix.Ftruncate(fd, f.size); err != nil {
		_ = unix.Close(fd) // nothing was written
		return -1, &localError{"size a segment", err}
	}
	f.fd = fd
	return fd, nil
}

// writer writes the bytes of a flight, in order, and sums them where they come in whole blocks of a sum.
type writer struct {
	fill *fill
	fd   int
	at   int64

	sumBlock int64
	sum      uint32
	summing  bool
}

func (w *writer) write(p []byte) error {
	for len(p) > 0 {
		q := p[:min(int64(len(p)), w.sumBlock-w.at%w.sumBlock)] // up to where a sum ends
		for n := 0; n < len(q); {
			m, err := unix.Pwrite(w.fd, q[n:], w.at+int64(n))
			if err != nil && err != unix.EINTR {
				return &localError{"write a segment", err}
			}
			n += max(m, 0)
		}
		before := w.at
		w.at += int64(len(q))
		if w.summing {
			w.sum = crc32.Update(w.sum, castagnoli(), q)
		}
		w.fill.arrived(before, w.at, w)
		p = p[len(q):]
	}
	return nil
}

// arrived notes the bytes that a flight has written: [from, to), which does not cross the end of a sum.
func (f *fill) arrived(from, to int64, w *writer) {
	first, last := int(from/block), int(to/block) // a block counts with its last byte
	if to == f.size {
		last = int((to + block - 1) / block)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for b := first; b < last; b++ {
		if !f.have.get(b) {
			f.have.set(b)
			f.left--
		}
	}
	if to%w.sumBlock == 0 || to == f.size {
		if w.summing {
			f.sums[from/w.sumBlock] = w.sum
			f.summed.set(int(from / w.sumBlock))
		}
		w.sum, w.summing = 0, true
	}
	if last > first {
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// bits is a set of small numbers.
type bits struct {
	words []uint64
	n     int
}

func newBits(n int) bits { return bits{make([]uint64, (n+63)/64), n} }

func (b bits) get(i int) bool { return b.words[i/64]>>(i%64)&1 != 0 }
func (b bits) set(i int)      { b.words[i/64] |= 1 << (i % 64) }
func (b bits) unset(i int)    { b.words[i/64] &^= 1 << (i % 64) }

// nextClear gives the first of [i, end) that is not in the set, or end.
func (b bits) nextClear(i, end int) int {
	for i < end && b.get(i) {
		if i%64 == 0 && ^b.words[i/64] == 0 {
			i = min(i+64, end)
			continue
		}
		i++
	}
	return min(i, end)
}
