package source

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/control"
)

// notices are a daemon's reports of changes at its source, so that a reader need not look at the files. A counter in memory says whether there is
// something new: see CHANGES in docs/reference/control-protocol.md. While the daemon does not look, its readers do: see Watch.
type notices struct {
	mount *mount
	path  string // in the mount
	watch *Watch
	began time.Time // when the first file was opened
	end   context.CancelFunc
	gone  sync.WaitGroup

	page    atomic.Pointer[page]
	seen    atomic.Uint64 // the counter, as of the last question
	up      atomic.Bool   // the daemon answers, and tells of all files
	beats   atomic.Bool   // it looks
	beat    atomic.Int64  // when it has looked last, as it says
	changed atomic.Int64  // when that has changed last, of time.Since(began)

	mu     sync.Mutex // guards the fields below; held while the daemon is asked
	client *control.Client
	next   uint64 // in the daemon's list
	files  map[uint64][]*Backing
	closed bool
}

// page is a counter that is mapped until nobody uses it.
type page struct{ counter *control.Counter }

func mapPage(fd int) (*page, error) {
	counter, unmap, err := control.MapCounter(fd, false)
	if err != nil {
		return nil, err
	}
	p := &page{counter}
	runtime.AddCleanup(p, func(unmap func()) { unmap() }, unmap)
	return p, nil
}

// A daemon that has not looked for lateAfter is not relied on. One that has gone is looked for every retryEvery.
const (
	lateAfter  = time.Second
	retryEvery = 100 * time.Millisecond
	askTime    = 2 * time.Second
)

// listen gives the daemon's notices, nil where it has none. path lies in the mount.
func (m *mount) listen(ctx context.Context, path string) *notices {
	m.noticing.Lock()
	defer m.noticing.Unlock()
	if m.notices == nil {
		n := &notices{mount: m, path: path, watch: m.opener.descriptors.watch, began: time.Now(), files: map[uint64][]*Backing{}}
		if n.connect(ctx) != nil {
			return nil
		}
		m.notices = n
		n.watch.listen(n)
	}
	return m.notices
}

// close ends the looking for another daemon. No file is open any more. A request of another mount may still call ask.
func (n *notices) close() {
	n.watch.unlisten(n)
	n.mu.Lock()
	n.closed = true
	if n.end != nil {
		n.end()
	}
	n.mu.Unlock()
	n.gone.Wait()
}

// connect asks a daemon for its counter, and for all changes.
func (n *notices) connect(ctx context.Context) error {
	fresh, err := n.mount.connect(ctx, n.path)
	if err != nil {
		return err
	}
	_, counter, err := fresh.Changes(ctx, control.AskChanges{Counter: true})
	if err != nil {
		return err
	}
	p, err := mapPage(int(counter.Fd()))
	_ = counter.Close() // it is mapped, or not
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.client, n.next = fresh, 0
	n.page.Store(p)
	n.up.Store(true)
	return n.hear(ctx)
}

// hear takes the new entries of the daemon's list. It needs mu.
func (n *notices) hear(ctx context.Context) error {
	seen := n.page.Load().counter.Changes.Load()
	defer n.seen.Store(seen)
	for more := true; more; {
		asked := time.Now() // before the daemon counts back from the moment of its answer
		changes, _, err := n.client.Changes(ctx, control.AskChanges{From: n.next})
		if err != nil {
			n.up.Store(false)
			n.watch.turn.Add(1) // each file is looked at from now on
			return err
		}
		n.take(&changes, asked)
		more = changes.More
	}
	return nil
}

// take finds the files that have changed. It needs mu.
func (n *notices) take(changes *control.Changes, asked time.Time) {
	n.next = changes.Next
	if changes.Withheld > 0 { // perhaps of a file that the kernel has let this process open
		n.up.Store(false)
		n.watch.turn.Add(1)
	}
	for i := range changes.List {
		c := &changes.List[i]
		since := asked.Add(-c.Ago)
		if since.Before(n.began) {
			since = n.began
		}
		for _, b := range n.files[c.Object] {
			n.watch.told(b, c, since)
		}
	}
}

// add has the daemon look at a file of the mount, which nobody reads yet.
func (n *notices) add(b *Backing) {
	if n == nil || b.Cached {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.files[b.Object] = append(n.files[b.Object], b)
	b.notices = n
}

// remove forgets files that nobody reads any more.
func (n *notices) remove(files []*Backing) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range files {
		left := slices.DeleteFunc(n.files[b.Object], func(other *Backing) bool { return other == b })
		if n.files[b.Object] = left; len(left) == 0 {
			delete(n.files, b.Object)
		}
	}
}

// look says whether there is something new. It asks nobody.
func (n *notices) look() bool {
	p := n.page.Load()
	defer runtime.KeepAlive(p)
	if beat := p.counter.Looked.Load(); beat != n.beat.Load() {
		n.beat.Store(beat)
		n.changed.Store(int64(time.Since(n.began)))
		n.beats.Store(true)
	} else if time.Since(n.began)-time.Duration(n.changed.Load()) > lateAfter && n.beats.Swap(false) {
		n.watch.turn.Add(1) // each file is looked at from now on
	}
	return p.counter.Changes.Load() != n.seen.Load()
}

// live says whether the daemon looks at the files.
func (n *notices) live() bool { return n != nil && n.up.Load() && n.beats.Load() }

// ask asks for new entries.
func (n *notices) ask(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.end != nil || !n.look() { // the next daemon is looked for; or another request has asked
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancel()
	if n.hear(ctx) == nil {
		return
	}
	again, end := context.WithCancel(context.Background())
	n.end = end
	n.gone.Go(func() { n.reconnect(again) }) // ended by close
}

// reconnect looks for the next daemon until there is one.
func (n *notices) reconnect(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		asking, cancel := context.WithTimeout(ctx, askTime)
		err := n.connect(asking)
		cancel()
		if err == nil {
			break
		}
		timer.Reset(retryEvery)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.end()
	n.end = nil
}
