package fs

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/layout"
)

// prefetcher tells the kernel what will be read soon of local files, and the cache of a remote origin what of that. The
// queue is bounded, so that asking never waits.
type prefetcher struct {
	queue chan prefetchJob
	bytes *atomic.Int64 // that they were told of

	mu    sync.Mutex   // guards what follows
	plans map[any]kept // by reader
}

// prefetchJob is ranges of a file of the mount, or of one object.
type prefetchJob struct {
	body   *layout.Body
	ranges []control.Range
}

// nodeReader is who plans what to read by an ioctl: all who have the file open. A connection plans for itself.
type nodeReader int

func newPrefetcher() *prefetcher {
	const pending = 128 // jobs, of 16 KiB at most
	return &prefetcher{queue: make(chan prefetchJob, pending), bytes: new(atomic.Int64), plans: map[any]kept{}}
}

// runsPerJob bounds what a job says of remote objects.
const runsPerJob = 1 << 16

// add queues what a job has of local files, and adds what it has of remote ones to the reader's plan. It reports
// whether there was room.
func (p *prefetcher) add(reader any, job prefetchJob) bool {
	var origin kept
	var runs []layout.Run
	var bytes int64
	anyLocal := false
	for _, g := range job.ranges {
		for r := range job.body.RunsWithin(g.Offset, g.Length) {
			k, ok := r.Object.Origin.(kept)
			switch {
			case !ok:
				anyLocal = true
				continue
			case len(runs) == runsPerJob:
				continue
			}
			if r.Stride-r.Length <= worthFetching {
				r.Length, r.Count = (r.Count-1)*r.Stride+r.Length, 1
			}
			origin, runs, bytes = k, append(runs, r), bytes+r.Count*r.Length
		}
	}
	if len(runs) > 0 {
		if !p.plan(reader, origin, runs) {
			return false
		}
		p.bytes.Add(bytes)
	}
	if !anyLocal {
		return true
	}
	select {
	case p.queue <- job:
		return true
	default:
		return false
	}
}

// plan adds to a reader's plan. All remote objects of a mount have one origin.
func (p *prefetcher) plan(reader any, origin kept, runs []layout.Run) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !origin.Plan(reader, runs) {
		return false
	}
	p.plans[reader] = origin
	return true
}

// endPlan forgets what a reader has planned.
func (p *prefetcher) endPlan(reader any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if origin := p.plans[reader]; origin != nil {
		origin.EndPlan(reader)
		delete(p.plans, reader)
	}
}

// run works the queue until ctx ends.
func (p *prefetcher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case job := <-p.queue:
			for _, g := range job.ranges {
				p.advise(ctx, job.body, g)
			}
		}
	}
}

// advise has the kernel read a range's local bytes ahead. What fails is no error: whoever reads the file will meet it.
func (p *prefetcher) advise(ctx context.Context, b *layout.Body, g control.Range) {
	for r := range b.RunsWithin(g.Offset, g.Length) {
		if ctx.Err() != nil {
			return
		}
		origin, ok := backed(r.Object)
		if !ok {
			continue
		}
		fd, done, err := origin.Borrow(r.Object)
		if err != nil {
			return
		}
		span := (r.Count-1)*r.Stride + r.Length // what lies between the pieces comes along
		if unix.Fadvise(fd, r.Offset, span, unix.FADV_WILLNEED) == nil {
			p.bytes.Add(span)
		}
		done()
	}
}

// worthFetching is the largest gap between pieces that comes along, bytes: a request of its own costs as much.
const worthFetching = 1 << 20
