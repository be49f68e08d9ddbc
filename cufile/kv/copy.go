package kv

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/internal/sys/uncached"
)

// job is a block on its way to or from its slot.
type job struct {
	block  *Block
	index  int   // in the request
	tier   *tier // nil where there is nothing to copy
	offset int64 // in the tier
	token  uint64
	sums   bool // crc is wanted
	crc    uint32
	want   uint32 // the expected crc of a get
	path   cufile.Path
	err    error // why the tier could not be read or written
}

// failed notes that a tier failed. The other blocks go on.
func (j *job) failed(err error) error {
	j.err = err
	return nil
}

// errTier says that a tier contradicts the daemon: it was cut, or its disk fails.
var errTier = errors.New("the tier cannot be read or written")

// hostChunk is the size of one thread's copies on the host.
const hostChunk = 1 << 20

// alone is the bytes up to which one thread copies as fast as several, which must be woken first.
const alone = 256 << 10

// copyAll brings the bytes of jobs to their slots (in: from them). It returns when nothing is under way any more. Jobs whose tier failed
// have err.
func (s *Store) copyAll(ctx context.Context, jobs []*job, in bool, after driver.Handle) error {
	var host, staged, mapped []*job
	var list []fragment
	for _, j := range jobs {
		registered := j.tier.prepare(j.offset)
		switch {
		case !j.block.hbm:
			j.path, host = cufile.Host, append(host, j)
		case registered:
			j.path, mapped = cufile.Mapped, append(mapped, j)
			list = s.fragments(list, j)
		default:
			j.path, staged = cufile.Staged, append(staged, j)
		}
	}
	if after != 0 && (len(host) > 0 || len(mapped) > 0 && hasHost(mapped) || len(staged) > 0) { // the stream may write to memory of the host
		if err := s.gpu.Within(func() error { return s.gpu.CUDA.Wait(after) }); err != nil {
			return err
		}
	}
	if err := s.copyHost(ctx, host, in); err != nil {
		return err
	}
	if len(staged) > 0 {
		if err := s.copyStaged(ctx, staged, in, after); err != nil {
			return err
		}
	}
	return s.copyMapped(ctx, mapped, list, in, after)
}

func hasHost(jobs []*job) bool {
	for _, j := range jobs {
		for i := range j.block.Parts {
			if j.block.Parts[i].Host != nil {
				return true
			}
		}
	}
	return false
}

// fragments gives the parts of a block that are memory of the GPU.
func (s *Store) fragments(list []fragment, j *job) []fragment {
	at := j.offset
	for i := range j.block.Parts {
		m := &j.block.Parts[i]
		if m.Host == nil && m.N > 0 {
			list = join(list, driver.Pointer(m.HBM), j.tier, at, m.N)
		}
		at += m.Size()
	}
	return list
}

// copyMapped copies between the GPU and registered slots. Parts of the host go by the CPU, and so do checksums.
func (s *Store) copyMapped(ctx context.Context, jobs []*job, list []fragment, in bool, after driver.Handle) error {
	if len(jobs) == 0 {
		return nil
	}
	if err := s.gpu.move(ctx, list, in, after); err != nil {
		return err
	}
	return s.parallel(ctx, jobs, func(j *job) {
		at := j.offset
		for i := range j.block.Parts {
			m := &j.block.Parts[i]
			if m.Host != nil {
				copySlot(j.tier.slot(at, m.Size()), m.Host, in)
			}
			at += m.Size()
		}
		if j.sums {
			j.crc = update(0, j.tier.slot(j.offset, j.block.size))
		}
	})
}

func copySlot(slot, memory []byte, in bool) {
	if in {
		copy(memory, slot)
	} else {
		copy(slot, memory)
	}
}

func (s *Store) copyStaged(ctx context.Context, jobs []*job, in bool, after driver.Handle) error {
	finished, err := s.gpu.crew.Run(ctx, s.gpu.workers, int64(len(jobs)), func(w *crew.Worker, i int64) (err error) {
		j := jobs[i]
		defer func() {
			if err != nil { // copies of this block may have begun
				err = errors.Join(err, w.CUDA.Synchronize(w.Stream))
			}
		}()
		defer s.recoverFault(j, &err)()
		if in {
			return stagedGet(w, j, after)
		}
		return stagedPut(w, j, after)
	})
	<-finished
	return err
}

// copyHost copies memory of the host. Blocks are divided among threads; with checksums each is one thread's.
func (s *Store) copyHost(ctx context.Context, jobs []*job, in bool) error {
	if len(jobs) == 0 {
		return nil
	}
	var pieces []*job
	for _, j := range jobs {
		if j.sums || j.block.size <= hostChunk {
			pieces = append(pieces, j)
			continue
		}
		for at := int64(0); at < j.block.size; at += hostChunk {
			n := min(hostChunk, j.block.size-at)
			part := *j
			part.block = &Block{Parts: j.block.pieces(at, n), size: n}
			part.offset += at
			pieces = append(pieces, &part)
		}
	}
	err := s.parallel(ctx, pieces, func(j *job) { j.copyHost(in) })
	of := map[int]*job{}
	for _, j := range jobs {
		of[j.index] = j
	}
	for _, p := range pieces {
		if p.err != nil {
			of[p.index].err = p.err
		}
	}
	return err
}

func (j *job) copyHost(in bool) {
	if len(j.block.Parts) > 1 && j.tier.direct() {
		j.err = j.copyGathered(in)
		return
	}
	at := j.offset
	for i := range j.block.Parts {
		p := j.block.Parts[i].Host
		if j.err = j.copyPart(p, at, in); j.err != nil {
			return
		}
		at += int64(len(p))
	}
}

// copyGathered copies a block of several parts by few large calls: past the page cache each of them is one of the disk's.
func (j *job) copyGathered(in bool) error {
	b := j.tier.disk.Take()
	defer j.tier.disk.Give(b)
	for at := int64(0); at < j.block.size; at += uncached.Chunk {
		p := b.Bytes[:min(uncached.Chunk, j.block.size-at)]
		rest := p
		if in {
			if err := j.tier.read(p, j.offset+at); err != nil {
				return err
			}
		}
		for _, m := range j.block.pieces(at, int64(len(p))) {
			copySlot(rest[:len(m.Host)], m.Host, in)
			rest = rest[len(m.Host):]
		}
		if j.sums {
			j.crc = update(j.crc, p)
		}
		if !in {
			if err := j.tier.write(p, j.offset+at); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyPart copies, and sums bytes while they are in the CPU's cache.
func (j *job) copyPart(p []byte, at int64, in bool) error {
	const near, nearCalls = 16 << 10, 128 << 10 // each piece of the page cache is a call
	for len(p) > 0 {
		n := len(p)
		switch {
		case !j.sums || j.tier.direct():
		case j.tier.kind == control.KVMemory:
			n = min(n, near)
		default:
			n = min(n, nearCalls)
		}
		var err error
		if in {
			err = j.tier.read(p[:n], at)
		} else {
			err = j.tier.write(p[:n], at)
		}
		if err != nil {
			return err
		}
		if j.sums {
			j.crc = update(j.crc, p[:n])
		}
		p, at = p[n:], at+int64(n)
	}
	return nil
}

func update(crc uint32, p []byte) uint32 {
	return crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), p)
}

// parallel does something for each job on several goroutines, and waits for them.
func (s *Store) parallel(ctx context.Context, jobs []*job, do func(j *job)) error {
	total := int64(0)
	for _, j := range jobs {
		total += j.block.size
	}
	threads := min(s.threads, len(jobs))
	if total <= alone {
		threads = 1
	}
	var next atomic.Int64
	var once sync.Once
	var first error
	work := func() {
		for i := next.Add(1) - 1; i < int64(len(jobs)); i = next.Add(1) - 1 {
			err := ctx.Err()
			if err == nil {
				err = s.guarded(jobs[i], do)
			}
			if err != nil {
				once.Do(func() { first = err })
				next.Store(int64(len(jobs)))
			}
		}
	}
	var all sync.WaitGroup
	for range threads - 1 {
		all.Go(work)
	}
	work()
	all.Wait()
	return first
}

func (s *Store) guarded(j *job, do func(j *job)) (err error) {
	defer s.recoverFault(j, &err)()
	if do(j); errors.Is(j.err, syscall.EFAULT) { // the caller's memory, and no fault of the tier
		err, j.err = fmt.Errorf("%w: %w", ErrMemory, j.err), nil
	}
	return err
}

// recoverFault gives a function to defer: an address without memory must not end the process. Where it is the tier's, that was cut.
func (s *Store) recoverFault(j *job, err *error) func() {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		fault := recover()
		if fault == nil {
			return
		}
		if at, ok := fault.(interface{ Addr() uintptr }); ok && j.tier.has(at.Addr()) {
			j.err = fmt.Errorf("%w: it is shorter than the daemon said", errTier)
			return
		}
		*err = fmt.Errorf("%w: %v", ErrMemory, fault)
	}
}

// has says whether an address is in the mapping.
func (t *tier) has(at uintptr) bool {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(t.memory)))
	return t.memory != nil && at >= first && at < first+uintptr(len(t.memory))
}
