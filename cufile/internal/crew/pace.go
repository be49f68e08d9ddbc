package crew

import (
	"sync"
	"time"
)

// Pace says how many threads of a crew copy. It follows their observations while they work, since machines are shared.
// Threads that often wait for the link are too many. Threads that never do are too few, unless more of them make nothing
// faster.
//
// Measured on H200s that others used, warm: 8 threads with slots of 4 MiB moved 28 to 53 GB/s, and 38 to 40 from tmpfs; 10 to 12
// with slots of 2 MiB 46 from both. More threads than that, or two slots for each, moved less from tmpfs.
type Pace struct {
	mu       sync.Mutex // guards the fields below
	most     int
	now      int
	reading  time.Duration // of threads, since the last look
	waiting  time.Duration
	bytes    int64
	before   float64 // bytes a second before now was raised; 0 when it was not
	more     int     // by how many
	patience int     // looks until it may be raised again
}

const (
	fewest  = 4
	first   = 10
	raise   = 2
	look    = 64 << 20 // bytes between two looks
	hold    = 16       // looks after a raise that made nothing faster
	gained  = 1.04     // the rate that a raise must bring, as a multiple of the one before
	idle    = 0.5      // the fraction of their time from which on threads that wait are too many
	notIdle = 0.1      // and up to which they are too few
)

// NewPace begins with a number that suits most machines, for one of so many readers of the host.
func NewPace(most, readers int) *Pace {
	return &Pace{most: most, now: max(min(most, fewest), min(most, first, 2*first/max(readers, 1)))}
}

// Limit says that no more than so many threads may work, and gives how many do.
func (p *Pace) Limit(most int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most, p.now = most, min(p.now, most)
	return p.now
}

// Moved takes one thread's measurement of one chunk, and returns how many threads may work from now on.
func (p *Pace) Moved(bytes int64, reading, waiting time.Duration) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes, p.reading, p.waiting = p.bytes+bytes, p.reading+reading, p.waiting+waiting
	if p.bytes < look {
		return p.now
	}
	busy := (p.reading + p.waiting).Seconds()
	rate, waited := float64(p.bytes)/busy*float64(p.now), p.waiting.Seconds()/busy
	p.bytes, p.reading, p.waiting = 0, 0, 0
	p.patience = max(p.patience-1, 0)
	switch {
	case p.before > 0 && rate < gained*p.before:
		p.now, p.before, p.patience = p.now-p.more, 0, hold
	case waited > idle && p.now > fewest:
		p.now, p.before = p.now-1, 0
	case waited < notIdle && p.now < p.most && p.patience == 0:
		p.more, p.before = min(raise, p.most-p.now), rate
		p.now += p.more
	default:
		p.before = 0
	}
	return p.now
}

// MostThreads is the most threads of a reader that stage on a host of so many CPUs, which so many readers share. Some CPUs
// are left for other work: with as many threads as CPUs, each copies less than with fewer.
func MostThreads(cpus, readers int) int {
	const most, least = 16, 4
	cpus -= cpus / 4
	if readers > 1 {
		return min(most, max(least/2, cpus/readers))
	}
	return min(most, max(least, cpus))
}
