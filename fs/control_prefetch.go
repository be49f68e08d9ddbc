package fs

import (
	"context"
	"sync"
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

// workers is how many ranges are fetched at once from an origin that takes its time. Those of local files only tell the
// kernel, which takes none.
const workers = 16

// run works the queue until ctx ends, in its order as far as workers that run side by side keep to it.
func (p *prefetcher) run(ctx context.Context) {
	type task struct {
		body *layout.Body
		r    control.Range
	}
	tasks := make(chan task)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(tasks)
	for range workers {
		wg.Go(func() {
			for t := range tasks {
				p.prefetch(ctx, t.body, t.r)
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			return
		case job := <-p.queue:
			for _, g := range job.ranges {
				select {
				case tasks <- task{job.body, g}:
				case <-ctx.Done():
					return
				}
			}
		}
	}
}

// prefetch brings a range nearer: into the page cache if it is local, onto this machine if it is not. What fails is no
// error: whoever reads the file will meet it.
func (p *prefetcher) prefetch(ctx context.Context, b *layout.Body, g control.Range) {
	for r := range b.RunsWithin(g.Offset, g.Length) {
		if ctx.Err() != nil {
			return
		}
		if k, ok := r.Object.Origin.(kept); ok {
			p.fetch(ctx, k, r)
			continue
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

func (p *prefetcher) fetch(ctx context.Context, k kept, r layout.Run) {
	if r.Stride-r.Length <= worthFetching {
		r.Length, r.Count = (r.Count-1)*r.Stride+r.Length, 1
	}
	for i := range r.Count {
		if k.Prefetch(ctx, r.Object, r.Offset+i*r.Stride, r.Length) != nil {
			return
		}
		p.bytes.Add(r.Length)
	}
}
