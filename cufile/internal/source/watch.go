package source

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
)

// Watch knows which files have changed, beside the requests that read them. A request that reads memory which the device sees asks the kernel nothing.
// Each request of a file that has changed fails from then on.
//
// The daemon of a mount looks at its files: see notices. The Watch looks by itself at plain files, at those of caches, and at all where no daemon looks. Each
// lookEvery it looks at files that were read. Of a file without an open descriptor it sees the ends of its mappings, so it notices cuts, and no writes in
// place.
//
// A request marks a file, once in each turn. A turn ends when the Watch has looked at the marked files, or when a file is closed, or has changed.
type Watch struct {
	used   func(files []*Backing) // is told which files were read in a turn
	turn   atomic.Uint32
	closed atomic.Uint32              // files that cannot be looked at any more
	hears  atomic.Pointer[[]*notices] // replaced as a whole

	mu      sync.Mutex // guards the fields below, and open, marked and due of each Backing
	marked  []*Backing // in this turn
	since   time.Time  // when it began
	looking bool       // a goroutine looks
	ended   bool
	quit    chan struct{}
	gone    sync.WaitGroup
}

// lookEvery is the time between two looks. It is longer where looking takes more than a twentieth of the time.
const (
	lookEvery = 100 * time.Millisecond
	lookShare = 20
)

func newWatch(used func([]*Backing)) *Watch {
	w := &Watch{used: used, quit: make(chan struct{})}
	w.turn.Store(1)
	w.hears.Store(&[]*notices{})
	return w
}

// Turn gives the number of this turn, from 1 on.
func (w *Watch) Turn() uint32 { return w.turn.Load() }

// Closed counts the files that were closed, and cannot be looked at any more.
func (w *Watch) Closed() uint32 { return w.closed.Load() }

// Mark has the next look include a file, until when it may be read. It is false for a file that cannot be looked at, or has changed.
func (w *Watch) Mark(b *Backing) bool {
	if b.notices.live() {
		return b.changed.Load() == nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || b.changed.Load() != nil || !b.open && b.end() == nil && !b.copied() {
		return false
	}
	if b.marked {
		return true
	}
	b.marked, b.due = true, true
	w.marked = append(w.marked, b)
	if !w.looking {
		w.looking, w.since = true, time.Now()
		w.gone.Go(w.look)
	}
	return true
}

// look looks at the marked files at the end of each turn, until a turn has none.
func (w *Watch) look() {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-w.quit:
			return
		}
		list, since := w.next()
		if len(list) == 0 {
			return
		}
		w.used(list)
		began := time.Now()
		for some := range slices.Chunk(list, mostEnds) {
			w.lookAt(some, since)
		}
		timer.Reset(max(lookEvery, lookShare*time.Since(began)))
	}
}

// next begins a turn, and gives the files of the last one, and when that began.
func (w *Watch) next() (list []*Backing, since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn.Add(1)
	list, since = w.marked, w.since
	w.marked, w.since, w.looking = nil, time.Now(), len(list) > 0
	for _, b := range list {
		b.marked = false
	}
	return list, since
}

// lookAt looks at some files. Nothing waits for a look at a disk that does not answer, but closing that file.
func (w *Watch) lookAt(list []*Backing, since time.Time) {
	var closed []*Backing
	var ends []*End
	for _, b := range list {
		w.mu.Lock()
		open := b.open
		if open {
			b.look.Lock()
		}
		w.mu.Unlock()
		if open {
			b.judge(since)
			b.look.Unlock()
			w.mu.Lock()
			b.due = b.due && b.marked // again, meanwhile
			w.mu.Unlock()
		} else if end := b.end(); end != nil {
			closed, ends = append(closed, b), append(ends, end)
		}
	}
	for _, i := range cut(ends) {
		if b := closed[i]; b.end() == ends[i] { // else it was unmapped meanwhile
			b.found(since, fmt.Errorf("read %s: %w", b.Name, ErrShort))
		}
	}
}

// end is that of the part of a file that a device sees. A cache's file is not looked at by it, since the place on the disk goes with the
// descriptor.
func (b *Backing) end() *End {
	seen := b.Seen.Load()
	if seen == nil || b.Cached {
		return nil
	}
	return seen.End.Load()
}

// copied says whether a device sees a copy of a file, at which nobody needs to look.
func (b *Backing) copied() bool {
	seen := b.Seen.Load()
	return seen != nil && seen.Copied
}

// judge looks at an open file. It needs look.
func (b *Backing) judge(since time.Time) {
	if b.changed.Load() == nil {
		if err := b.Unchanged(); err != nil {
			b.found(since, err)
		}
	}
}

// found remembers that a file has changed: each request of it gives the error.
func (b *Backing) found(since time.Time, err error) {
	b.changed.CompareAndSwap(nil, &ChangedError{err.Error(), err, since})
}

// ChangedError is how a file was found to have changed.
type ChangedError struct {
	what  string
	kind  error
	Since time.Time // bytes that came since then may be wrong; zero: none
}

// Error implements error.
func (e *ChangedError) Error() string {
	if e.Since.IsZero() {
		return e.what + ": bytes of it that came before are right"
	}
	return fmt.Sprintf("%s: bytes of it that came since %s may be wrong", e.what, e.Since.UTC().Format("2006-01-02T15:04:05.000Z"))
}

// Unwrap gives [ErrShort] or [control.ErrStale], or an error that is one.
func (e *ChangedError) Unwrap() error { return e.kind }

// told takes a change that a daemon tells of.
func (w *Watch) told(b *Backing, c *control.Change, since time.Time) {
	e := &ChangedError{fmt.Sprintf("read %s: %s was %s at the source", b.Name, c.Name, c.Kind), control.ErrStale, since}
	switch c.Kind {
	case control.ChangeCut:
		e.kind = ErrShort
	case control.ChangeReplaced, control.ChangeRemoved: // open descriptors and mappings have the old file
		e.Since = time.Time{}
	}
	b.changed.CompareAndSwap(nil, e)
	w.turn.Add(1) // those who have marked it look again
}

// listen has the Watch hear a daemon.
func (w *Watch) listen(n *notices) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := append(slices.Clone(*w.hears.Load()), n)
	w.hears.Store(&list)
}

// unlisten has the Watch hear a daemon no more.
func (w *Watch) unlisten(n *notices) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*w.hears.Load()), func(o *notices) bool { return o == n })
	w.hears.Store(&list)
}

// News says whether a daemon has something to tell that Hear has not heard. It asks nobody.
func (w *Watch) News() (some bool) {
	for _, n := range *w.hears.Load() {
		some = n.look() || some
	}
	return some
}

// Hear asks daemons for changes. It takes a while, so callers that may not wait look for News first.
func (w *Watch) Hear(ctx context.Context) {
	for _, n := range *w.hears.Load() {
		if n.look() {
			n.ask(ctx)
		}
	}
}

// Changed gives how a file was found to have changed; nil for one that was not. It asks the kernel nothing.
func (b *Backing) Changed() error {
	known := b.changed.Load()
	if known == nil {
		return nil
	}
	b.told.Store(true)
	return known
}

// Changed gives how a file of pieces was found to have changed.
func Changed(pieces []Piece) error {
	last := (*Backing)(nil)
	for i := range pieces {
		if b := pieces[i].File; b != last {
			if err := b.Changed(); err != nil {
				return err
			}
			last = b
		}
	}
	return nil
}

// opened lets a file be marked.
func (w *Watch) opened(b *Backing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b.open = true
}

// closing looks at a file for the last time, before it is closed. It gives changes that no request gave before.
func (w *Watch) closing(b *Backing) error {
	w.mu.Lock()
	open, due, since := b.open, b.due, w.since
	b.open, b.due = false, false
	if b.end() == nil && (b.Cached || !b.copied()) && !b.notices.live() {
		w.turn.Add(1)
		w.closed.Add(1)
	}
	w.mu.Unlock()
	if !open {
		return nil
	}
	b.look.Lock()
	defer b.look.Unlock()
	if due {
		b.judge(since)
	}
	if known := b.changed.Load(); known != nil && !b.told.Load() && !known.Since.IsZero() {
		return known
	}
	return nil
}

// Close ends the looking. It fails with [crew.ErrUnderWay] where a look hangs on a disk or a server. Then call Close again.
func (w *Watch) Close() error {
	w.mu.Lock()
	if !w.ended {
		w.ended = true
		close(w.quit)
	}
	w.mu.Unlock()
	gone := make(chan struct{})
	go func() { // ends with the last look
		w.gone.Wait()
		close(gone)
	}()
	return crew.Await(gone)
}
