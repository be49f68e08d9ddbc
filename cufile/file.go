package cufile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// File is an open file. Its methods may be called from many goroutines at once.
type File struct {
	r      *Reader
	name   string
	source source.File
	note   string // why the file is not read from where its bytes lie
	once   sync.Once

	mu     sync.Mutex // guards what follows
	moved  Moved
	tally  tally
	moving int           // calls that use its backing files
	closed chan struct{} // not nil once nobody may begin to; closed when nobody does any more
}

// Open opens a file: of an hbmfs mount, whose bytes are then read from where they really lie, or any other.
func (r *Reader) Open(ctx context.Context, name string) (*File, error) {
	s, note, err := r.opener.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	f := &File{r: r, name: name, source: s, note: note}
	if r.opt.Path == Direct {
		if note != "" {
			return nil, errors.Join(fmt.Errorf("%w: direct for %s: it can only be %s", source.ErrUnavailable, name, note), s.Close())
		}
		if err := f.proveDirect(ctx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return f, nil
}

// Size is the file's size in bytes.
func (f *File) Size() int64 { return f.source.Size() }

// Moved gives the bytes moved from this file so far.
func (f *File) Moved() Moved {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.moved
}

// enter keeps what the file is read from open until leave.
func (f *File) enter() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed != nil {
		return fmt.Errorf("read %s: %w", f.name, os.ErrClosed)
	}
	f.moving++
	return nil
}

func (f *File) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.moving--; f.moving == 0 && f.closed != nil {
		close(f.closed)
	}
}

// shut lets nobody enter any more. What it gives is closed when those who have entered have left.
func (f *File) shut() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed == nil {
		f.closed = make(chan struct{})
		if f.moving == 0 {
			close(f.closed)
		}
	}
	return f.closed
}

// Close closes the file, and waits for reads that are under way: cancel them before. Views of it stay. It fails where one
// hangs in a call into the system or a library, also one that was cancelled: then the file is closed once that call has
// come back. Closing twice does nothing.
func (f *File) Close() (err error) {
	closed := f.shut()
	timer := time.NewTimer(crew.ClosePatience)
	defer timer.Stop()
	select {
	case <-closed:
		f.once.Do(func() { err = f.release() })
		return err
	case <-timer.C:
		f.r.stuck.Go(func() {
			<-closed
			f.once.Do(func() { _ = f.release() }) // who could be told has been told
		})
		return fmt.Errorf("close %s: a read of it has not ended after %v: the file is closed when it has", f.name, crew.ClosePatience)
	}
}

func (f *File) release() error {
	leaving := f.source.Leave()
	errs := []error{f.r.forget(leaving)}
	f.r.handles.Drop(leaving)
	if s, ok := f.source.(connected); ok {
		f.mu.Lock()
		list := f.tally.take()
		f.mu.Unlock()
		report(s, list)
	}
	return errors.Join(append(errs, f.source.Close())...)
}

// Read brings the file's [offset, offset+n) into memory.
func (f *File) Read(ctx context.Context, offset, n int64) (*View, error) {
	return f.fetch(ctx, []int64{offset}, n)
}

// Gather brings the spans of length bytes that begin at offsets into memory, one after the other: a [N, length]
// tensor. Spans may overlap and come in any order.
func (f *File) Gather(ctx context.Context, offsets []int64, length int64) (*View, error) {
	return f.fetch(ctx, offsets, length)
}

// mostPieces bounds the memory that one request takes for its plan: 40 bytes each.
const mostPieces = 1 << 22

func (f *File) fetch(ctx context.Context, offsets []int64, length int64) (*View, error) {
	v, w, err := f.prepare(ctx, offsets, length)
	if err != nil {
		return nil, err
	}
	return f.fill(ctx, v, w)
}

// work is a request, and the groups of its pieces as they lie at this moment.
type work struct {
	offsets []int64
	length  int64
	groups  []source.Group
}

// lone gives the piece of a request that is one piece, in a backing file; nil for others.
func (w *work) lone() *source.Piece {
	if len(w.groups) != 1 || len(w.groups[0].Pieces) != 1 || w.groups[0].Pieces[0].File.Inline {
		return nil
	}
	return &w.groups[0].Pieces[0]
}

// prepare plans a request and takes its memory.
func (f *File) prepare(ctx context.Context, offsets []int64, length int64) (*View, *work, error) {
	if length > 0 && int64(len(offsets)) > f.r.arena.size()/length {
		return nil, nil, fmt.Errorf("read %s: %w: %d spans of %d bytes do not fit into the arena of %d: read less at a time, use Stream, or make the arena larger",
			f.name, source.ErrTooLarge, len(offsets), length, f.r.arena.size())
	}
	v, w := &View{r: f.r}, &work{offsets: offsets, length: length}
	err := source.Follow(ctx, f.source, func(inMount bool) error { return f.locate(ctx, v, w, inMount) })
	if err != nil || v.n == 0 {
		return v, w, err
	}
	if p := w.lone(); p != nil && (v.choice.Path == Direct || v.choice.Path == Compat) {
		v.envelope, v.skew = true, p.Offset%driver.PageSize
	}
	v.reserved = driver.RoundUp(v.skew+v.n, driver.PageSize) // whole pages, so that an aligned envelope fits
	v.at, err = f.r.arena.take(ctx, v.reserved)
	return v, w, err
}

// locate finds where the bytes of a request lie, and chooses their path.
func (f *File) locate(ctx context.Context, v *View, w *work, inMount bool) error {
	q, err := f.plan(ctx, w.offsets, w.length, inMount)
	if err != nil {
		return err
	}
	v.n = q.Total()
	if v.n == 0 {
		v.choice = Choice{f.r.opt.Path, "there is nothing to move"}
		return nil
	}
	pieces, err := q.Pieces(mostPieces)
	if err != nil {
		return err
	}
	source.Announce(ctx, f.source, f.r.handles, pieces)
	// What choosing looks at is not kept open while memory is waited for: who has memory may wait for open files.
	w.groups = source.Split(pieces, f.r.handles.Share())
	if err := f.r.handles.Pin(ctx, w.groups[0].Files); err != nil {
		return err
	}
	v.choice, v.cold, err = f.choose(ctx, w.groups[0].Pieces)
	f.r.handles.Unpin(w.groups[0].Files)
	v.choice.Why += f.remark(inMount)
	return err
}

// remark is what is to be said of a choice beside its reason.
func (f *File) remark(inMount bool) string {
	switch {
	case inMount:
		return "; read through the mount: the cache lets files go sooner than they can be opened"
	case f.note != "":
		return "; " + f.note
	}
	return ""
}

// fill brings the groups of a request into its prepared view, which it releases when that fails.
func (f *File) fill(ctx context.Context, v *View, w *work) (*View, error) {
	if len(w.groups) == 0 {
		return v, nil
	}
	finished, again := closedChannel(), false
	err := source.Follow(ctx, f.source, func(inMount bool) (err error) {
		if again {
			if err := f.locate(ctx, v, w, inMount); err != nil {
				return err
			}
			p := w.lone() // an envelope has room for the place in a page that it was made for
			v.envelope = v.envelope && p != nil && p.Offset%driver.PageSize == v.skew
		}
		again, v.moved = true, Moved{}
		finished, err = f.fillGroups(ctx, v, w.groups)
		return err
	})
	if err != nil {
		f.r.after(finished, v.Release)
		return nil, err
	}
	f.account(v.moved, v.choice)
	return v, nil
}

// fillGroups moves groups, the first one by the choice that was made for it. finished is as of crew.run.
func (f *File) fillGroups(ctx context.Context, v *View, groups []source.Group) (finished <-chan struct{}, err error) {
	var first Choice
	for i := range groups {
		if finished, err = f.fillGroup(ctx, v, &groups[i], i > 0); err != nil {
			return finished, err
		}
		if i == 0 {
			first = v.choice
		}
	}
	v.choice = first
	return finished, nil
}

// fillGroup moves one group, by a choice of its own if choose is set. finished is as of crew.run.
func (f *File) fillGroup(ctx context.Context, v *View, g *source.Group, choose bool) (finished <-chan struct{}, err error) {
	finished = closedChannel()
	if err := f.enter(); err != nil {
		return finished, err
	}
	if err := f.r.handles.Pin(ctx, g.Files); err != nil {
		f.leave()
		return finished, err
	}
	if choose {
		v.choice, v.cold, err = f.choose(ctx, g.Pieces)
	}
	if err == nil {
		finished, err = f.moveAsChosen(ctx, v, g.Pieces)
	}
	f.r.after(finished, func() {
		f.r.handles.Unpin(g.Files)
		f.leave()
	})
	return finished, err
}

// moveAsChosen moves pieces, and stages them where Auto chose to map what the GPU cannot be shown: the driver, the file
// system or a limit may be against that, and nothing tells before.
func (f *File) moveAsChosen(ctx context.Context, v *View, pieces []source.Piece) (finished <-chan struct{}, err error) {
	before := v.moved
	finished, err = f.move(ctx, v, pieces)
	if f.r.opt.Path != Auto || !errors.Is(err, errUnmapped) {
		return finished, err
	}
	<-finished // it has failed, so nothing of it is under way
	v.moved, v.choice = before, Choice{Staged, "the GPU cannot be shown the page cache; " + err.Error()}
	return f.move(ctx, v, pieces)
}

// after gives back what a job used once nothing uses it any more: at once as a rule, and after the last thread came
// back from a foreign call that did not end with the context.
func (r *Reader) after(finished <-chan struct{}, giveBack func()) {
	select {
	case <-finished:
		giveBack()
	default:
		r.stuck.Go(func() {
			r.quiet(finished)
			giveBack()
		})
	}
}

// plan checks a request and finds where its bytes lie; inMount is as of follow.
func (f *File) plan(ctx context.Context, offsets []int64, length int64, inMount bool) (*source.Spans, error) {
	f.r.mu.Lock()
	closed := f.r.closed
	f.r.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("read %s: %w", f.name, crew.ErrClosed)
	}
	size := f.Size()
	if length < 0 {
		return nil, fmt.Errorf("read %s: a length of %d bytes is not possible", f.name, length)
	}
	q := &source.Spans{Offsets: offsets, Length: length, Files: map[uint64]*source.Backing{}}
	first, last := size, int64(0)
	for _, offset := range offsets {
		if offset < 0 || offset > size || length > size-offset {
			return nil, fmt.Errorf("read %s: %d bytes at %d are not inside its %d: %w", f.name, length, offset, size, io.ErrUnexpectedEOF)
		}
		first, last = min(first, offset), max(last, offset+length)
	}
	if q.Total() == 0 {
		return q, nil
	}
	if inMount {
		q.Runs = []source.Run{{Length: size, Count: 1, Object: source.InlineObject}}
	} else {
		var err error
		if q.Runs, err = f.source.Runs(ctx, first, last-first); err != nil {
			return nil, err
		}
	}
	q.Locate(f.source)
	return q, nil
}
