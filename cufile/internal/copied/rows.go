package copied

import (
	"math"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

const (
	mostRows  = 1024     // of one system call (IOV_MAX)
	mostBytes = 64 << 10 // that are widened at a time, while they are in the CPU's cache

	leastShare = 1 << 20 // bytes that a thread copies at least: waking it takes as long as copying some hundred kilobytes
)

// plan lists the copies, and has the memory of one system call's arguments.
type plan struct {
	list    []piece
	from    []unix.RemoteIovec
	to      []unix.Iovec
	missing []piece
	scratch []byte // of mostBytes, where something is widened
	cold    int64  // pages that had to come from the disk
}

// piece is bytes of a mapping that follow each other.
type piece struct {
	at   uintptr
	span source.Span
	of   *source.Rows
}

// Writer writes bytes that are to be widened, whole elements, to the place that their span says.
type Writer func(place int64, from []byte)

// MoveRows copies rows of mapped files to their places in memory, or has write do that, if it is not nil, for elements of so many bytes. Rows that are not
// mapped, or whose file cannot be looked at, or was cut, are left out as Missing. It gives how many pages had to come from the disk.
func (m *Mover) MoveRows(to []byte, element int64, write Writer, rows []source.Rows) (cold int64) {
	m.using.RLock()
	defer m.using.RUnlock()
	return m.MoveFound(to, write, &source.Finder{Rows: rows, Element: element, Generation: m.generation})
}

// MoveFound is MoveRows for a Finder of rows in any mappings, which stay until it returns.
func (m *Mover) MoveFound(to []byte, write Writer, f *source.Finder) (cold int64) {
	p := m.plan()
	f.Most = mostBytes
	f.Find(math.MaxInt, func(of *source.Rows, at driver.Pointer, s source.Span) {
		p.list = append(p.list, piece{uintptr(at), s, of})
	})
	shares := [][]piece{p.list}
	if write == nil {
		shares = m.share(p.list)
	}
	plans := []*plan{p}
	var wg sync.WaitGroup
	for _, list := range shares[1:] {
		other := m.plan()
		plans = append(plans, other)
		wg.Go(func() { other.cold = m.copyAll(other, to, nil, list) })
	}
	p.cold = m.copyAll(p, to, write, shares[0])
	wg.Wait()
	for _, p := range plans {
		cold += p.cold
		m.end(p)
	}
	return cold
}

// share divides a list among the threads that copy it.
func (m *Mover) share(list []piece) (shares [][]piece) {
	total := int64(0)
	for i := range list {
		total += list[i].span.N
	}
	n := max(1, min(m.threads, total/leastShare))
	size, first := int64(0), 0
	for i := range list {
		if size += list[i].span.N; size >= total/n && int64(len(shares)) < n-1 {
			shares, first, size = append(shares, list[first:i+1]), i+1, 0
		}
	}
	return append(shares, list[first:])
}

// copyAll copies a list, and gives how many pages had to come from the disk.
func (m *Mover) copyAll(p *plan, to []byte, write Writer, list []piece) (cold int64) {
	if m.working != nil {
		m.working <- true
		defer func() { <-m.working }()
	}
	runtime.LockOSThread() // whose faults are counted
	defer runtime.UnlockOSThread()
	before := majorFaults()
	for len(list) > 0 {
		list = list[m.moveSome(p, to, write, list):]
	}
	return majorFaults() - before
}

func (m *Mover) plan() *plan {
	if p, ok := m.plans.Get().(*plan); ok {
		return p
	}
	return &plan{}
}

// end names the rows that could not be copied, and keeps the memory of a plan for another one.
func (m *Mover) end(p *plan) {
	for i := range p.missing {
		of := p.missing[i].of
		of.Missing = append(of.Missing, p.missing[i].span)
	}
	clear(p.list)
	clear(p.missing)
	p.list, p.missing = p.list[:0], p.missing[:0]
	m.plans.Put(p)
}

// majorFaults is how often this thread has waited for a page from a disk.
func majorFaults() int64 {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &usage) != nil {
		return 0
	}
	return usage.Majflt
}

// moveSome copies the first pieces of a list, as many as one call does, and gives how many that has settled. One that cannot be copied whole is
// missing.
func (m *Mover) moveSome(p *plan, to []byte, write Writer, list []piece) int {
	list = p.arguments(to, write, list)
	n, err := unix.ProcessVMReadv(m.pid, p.to, p.from, 0)
	if err != nil {
		n = 0
	}
	done := 0
	for done < len(list) && int64(n) >= list[done].span.N {
		n -= int(list[done].span.N)
		done++
	}
	if write != nil {
		from := p.scratch
		for i := range list[:done] {
			s := &list[i].span
			write(s.To, from[:s.N])
			from = from[s.N:]
		}
	}
	if done < len(list) {
		p.missing = append(p.missing, list[done])
		done++
	}
	return done
}

// arguments makes those of a call that copies the first pieces of a list, and gives these. Bytes that are widened go to scratch.
func (p *plan) arguments(to []byte, write Writer, list []piece) []piece {
	p.from, p.to = p.from[:0], p.to[:0]
	end, size := int64(-1), int64(0)
	for i := range min(len(list), mostRows) {
		s := &list[i].span
		if size += s.N; size > mostBytes && write != nil {
			size -= s.N
			break
		}
		p.from = append(p.from, unix.RemoteIovec{Base: list[i].at, Len: int(s.N)})
		switch {
		case write != nil:
		case s.To == end: // it lands behind the one before
			p.to[len(p.to)-1].Len += uint64(s.N)
		default:
			p.to = append(p.to, unix.Iovec{Base: &to[s.To], Len: uint64(s.N)})
		}
		end = s.To + s.N
	}
	if write != nil {
		if p.scratch == nil {
			p.scratch = make([]byte, mostBytes)
		}
		p.to = append(p.to, unix.Iovec{Base: &p.scratch[0], Len: uint64(size)})
	}
	return list[:len(p.from)]
}
