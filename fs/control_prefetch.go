package fs

import (
	"context"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/layout"
)

// prefetcher tells the kernel what will be read soon. The queue is bounded, so that asking never waits.
type prefetcher struct {
	queue chan prefetchJob
	bytes *atomic.Int64 // that the kernel was told of
}

// prefetchJob is ranges of a file of the mount, or of one object.
type prefetchJob struct {
	body   *layout.Body
	ranges []control.Range
}

func newPrefetcher() prefetcher {
	const pending = 128 // jobs, of 16 KiB at most
	return prefetcher{make(chan prefetchJob, pending), new(atomic.Int64)}
}

// add queues a job, or reports that the queue is full.
func (p *prefetcher) add(job prefetchJob) bool {
	select {
	case p.queue <- job:
		return true
	default:
		return false
	}
}

// run works the queue until ctx ends. One worker is enough: the kernel reads in the background.
func (p *prefetcher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case job := <-p.queue:
			for _, g := range job.ranges {
				p.prefetch(ctx, job.body, g)
			}
		}
	}
}

// prefetch reads a range ahead into the page cache of the backing files. Advice that cannot be followed is no error:
// whoever reads the file will meet it.
func (p *prefetcher) prefetch(ctx context.Context, b *layout.Body, g control.Range) {
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
