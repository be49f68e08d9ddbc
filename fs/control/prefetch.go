package control

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/layout"
)

// prefetcher announces ranges that readers will read: to the kernel for local files, to the cache for remote objects. The
// queue is bounded, so that a request never waits.
type prefetcher struct {
	queue *announcements
	cache Cache        // nil for none
	bytes atomic.Int64 // that the kernel and the cache were told of

	mu     sync.Mutex // guards the fields below
	byFile map[int][]planner
}

// announcement has the ranges of one message, of files of the mount or of objects.
type announcement []prefetchPart

type prefetchPart struct {
	body   *layout.Body
	ranges []control.Range
}

// planner has a plan: a user, for a file by its node number (ioctl), or for a connection.
type planner struct {
	uid uint32
	by  any
}

// User tells the cache whose plan it is.
func (r planner) User() uint32 { return r.uid }

func newPrefetcher(cache Cache) *prefetcher {
	const pending = 128 // announcements, of 200 KiB at most
	return &prefetcher{queue: newAnnouncements(pending), cache: cache, byFile: map[int][]planner{}}
}

// runsPerAnnouncement bounds the work of one: a message may name all of an irregular file a thousand times.
const runsPerAnnouncement = 1 << 16

// runs yields the runs that the ranges of an announcement cover, at most runsPerAnnouncement.
func (a announcement) runs(yield func(layout.Run) bool) {
	n := 0
	for _, part := range a {
		for _, g := range part.ranges {
			for r := range part.body.RunsWithin(g.Offset, g.Length) {
				if n++; n > runsPerAnnouncement || !yield(r) {
					return
				}
			}
		}
	}
}

// add queues the local part of an announcement, and adds the remote part to the reader's plan. It reports whether there
// was room: if not, nothing was planned.
func (p *prefetcher) add(reader planner, a announcement) bool {
	var runs []layout.Run
	var bytes int64
	anyLocal := false
	for r := range a.runs {
		s := storage.Of(r.Object)
		if s.Segmented == nil {
			anyLocal = anyLocal || s.Local != nil
			continue
		}
		if r.Stride-r.Length <= storage.WorthFetching {
			r.Length, r.Count = (r.Count-1)*r.Stride+r.Length, 1
		}
		runs, bytes = append(runs, r), bytes+r.Count*r.Length
	}
	if anyLocal && !p.queue.add(reader.uid, a) {
		return false
	}
	if len(runs) > 0 && p.cache != nil {
		if !p.cache.Plan(reader, runs) {
			return false
		}
		p.note(reader)
		p.bytes.Add(bytes)
	}
	return true
}

// note remembers a plan that ends with a file.
func (p *prefetcher) note(reader planner) {
	if number, ok := reader.by.(int); ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !slices.Contains(p.byFile[number], reader) {
			p.byFile[number] = append(p.byFile[number], reader)
		}
	}
}

// endPlan ends a reader's plan.
func (p *prefetcher) endPlan(reader planner) {
	if p.cache != nil {
		p.cache.EndPlan(reader)
	}
}

// endFile ends the plans of a file that nobody has open any more.
func (p *prefetcher) endFile(number int) {
	p.mu.Lock()
	readers := p.byFile[number]
	delete(p.byFile, number)
	p.mu.Unlock()
	for _, r := range readers {
		p.endPlan(r)
	}
}

// run works the queue until ctx ends.
func (p *prefetcher) run(ctx context.Context) {
	for {
		a, err := p.queue.next(ctx)
		if err != nil {
			return
		}
		p.advise(ctx, a)
	}
}

// patienceAhead bounds an announcement's wait for files that another program has leased: others wait behind it.
const patienceAhead = 100 * time.Millisecond

// advise makes the kernel read an announcement's local bytes ahead. It drops errors: readers of the file will meet them.
func (p *prefetcher) advise(ctx context.Context, a announcement) {
	patience := patienceAhead
	for r := range a.runs {
		if ctx.Err() != nil {
			return
		}
		origin := storage.Of(r.Object).Local
		if origin == nil {
			continue
		}
		began := time.Now()
		soon, cancel := context.WithTimeout(ctx, patience)
		fd, done, err := origin.Borrow(soon, r.Object)
		if cancel(); err != nil {
			patience -= time.Since(began)
			continue
		}
		span := (r.Count-1)*r.Stride + r.Length // the gaps between the pieces come along
		if unix.Fadvise(fd, r.Offset, span, unix.FADV_WILLNEED) == nil {
			p.bytes.Add(span)
		}
		done()
	}
}
