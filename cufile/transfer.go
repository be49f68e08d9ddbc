package cufile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hbmfs/hbmfs/cufile/internal/copied"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/mapped"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Read brings the file's [offset, offset+n) into memory. Bytes that the file does not have are refused with ErrOutOfRange.
func (f *File) Read(ctx context.Context, offset, n int64) (*View, error) {
	return f.Gather(ctx, []int64{offset}, n)
}

// Gather brings the spans of length bytes that begin at offsets into memory, one after the other: a [N, length]
// tensor. Spans may overlap and come in any order.
func (f *File) Gather(ctx context.Context, offsets []int64, length int64) (*View, error) {
	t, v, err := f.reserve(ctx, offsets, length)
	if err != nil {
		return nil, err
	}
	if err := t.fill(ctx, v); err != nil {
		return nil, err
	}
	return v, nil
}

// reserve checks a request and takes memory of the arena for it. Nothing is under way when it fails.
func (f *File) reserve(ctx context.Context, offsets []int64, length int64) (*transfer, *View, error) {
	if err := f.inside(offsets, length); err != nil {
		return nil, nil, err
	}
	if arena := f.r.arena.Size(); length > 0 && int64(len(offsets)) > arena/length {
		return nil, nil, fmt.Errorf("read %s: %w: %d spans of %d bytes do not fit into the arena of %d: read less at a time, use Stream, or make the arena larger",
			f.name, ErrTooLarge, len(offsets), length, arena)
	}
	t := &transfer{f: f, spans: source.Rows(offsets, length)}
	v, err := t.allocate(ctx)
	return t, v, err
}

// transfer is a request on its way: where its bytes lie, the path they take, and where they land.
type transfer struct {
	f       *File
	spans   []source.Span
	to      crew.Destination
	callers bool // to is not the arena

	located bool           // what follows is known, and no byte was moved by it
	room    []source.Piece // memory of the groups' pieces
	groups  []source.Group
	choice  Choice // of the group that was moved last; of the first one in the end
	cold    bool   // its bytes are not in the page cache

	skew     int64 // of the first byte in its page, where an envelope was reserved
	envelope bool  // the one piece is read as the aligned pages around it
	moved    Moved
}

// size is the number of bytes.
func (t *transfer) size() (n int64) { return sizeOf(t.spans) }

// lone gives the piece of a transfer that is one piece, in a backing file; nil for others.
func (t *transfer) lone() *source.Piece {
	if len(t.groups) != 1 || len(t.groups[0].Pieces) != 1 || t.groups[0].Pieces[0].File.Inline {
		return nil
	}
	return &t.groups[0].Pieces[0]
}

// allocate finds the bytes and takes memory of the arena for them. Nothing is under way when it fails.
func (t *transfer) allocate(ctx context.Context) (*View, error) {
	r := t.f.r
	n := t.size()
	if err := t.f.retryMoved(ctx, func(inMount bool) error { return t.locate(ctx, inMount) }); err != nil || n == 0 {
		return &View{r: r, choice: t.choice}, err
	}
	if p := t.lone(); p != nil && (t.choice.Path == Direct || t.choice.Path == Compat) {
		t.envelope, t.skew = true, p.Offset%driver.PageSize
	}
	v, err := r.view(ctx, n, t.skew)
	if err != nil {
		return nil, err
	}
	t.to = *v.destination()
	return v, nil
}

// view takes memory of the arena for n bytes, the first of which has a place in its page.
func (r *Reader) view(ctx context.Context, n, skew int64) (*View, error) {
	reserved := driver.RoundUp(skew+n, driver.PageSize) // whole pages, so that an aligned envelope fits
	at, err := r.arena.Reserve(ctx, reserved)
	if err != nil {
		return nil, err
	}
	return &View{r: r, n: n, at: at, reserved: reserved, skew: skew}, nil
}

// fill brings the bytes into the view that was reserved, and releases it where that fails.
func (t *transfer) fill(ctx context.Context, v *View) error {
	finished, err := t.run(ctx)
	if err != nil {
		t.f.r.after(finished, v.Release)
		return err
	}
	v.moved, v.choice = t.moved, t.choice
	return nil
}

// run moves the bytes to their destination, and finds them first where that is still to be done. It does both again where
// they have moved meanwhile. finished is what [crew.Crew.Run] gives.
func (t *transfer) run(ctx context.Context) (finished <-chan struct{}, err error) {
	if t.size() == 0 {
		return nil, nil
	}
	err = t.f.retryMoved(ctx, func(inMount bool) (err error) {
		if !t.located {
			if err := t.locate(ctx, inMount); err != nil {
				return err
			}
			p := t.lone() // an envelope has room for the place in a page that it was made for
			t.envelope = t.envelope && p != nil && p.Offset%driver.PageSize == t.skew
		}
		t.located, t.moved = false, Moved{}
		finished, err = t.moveGroups(ctx)
		return err
	})
	if known := t.changed(ctx); known != nil {
		err = known
	}
	if err == nil {
		t.f.account(t.moved, t.choice)
	}
	return finished, err
}

// changed says whether a file that the transfer has read is known to have changed by now.
func (t *transfer) changed(ctx context.Context) error {
	if !t.f.r.descriptors.Watch().News() {
		return nil
	}
	t.f.r.descriptors.Watch().Hear(ctx)
	for i := range t.groups {
		if err := source.Changed(t.groups[i].Pieces); err != nil {
			return err
		}
	}
	return nil
}

// retryMoved calls do, which needs to know where bytes lie, and calls it again where a cache has moved them meanwhile. Where
// that goes on, or no more files are lent, it says inMount: then do reads through the mount, which finds them anywhere. Nothing of do
// may be under way when it returns ErrMoved or ErrCrowded.
func (f *File) retryMoved(ctx context.Context, do func(inMount bool) error) error {
	const times = 3
	for range times {
		err := do(false)
		moved := errors.Is(err, source.ErrMoved)
		if !moved && errors.Is(err, source.ErrCrowded) {
			break
		}
		m, ok := f.source.(source.Movable)
		if !ok || !moved {
			return err
		}
		if err := m.Relocate(ctx); err != nil {
			return err
		}
	}
	return do(true)
}

// locate finds where the bytes lie, and chooses the path of the first group.
func (t *transfer) locate(ctx context.Context, inMount bool) error {
	r := t.f.r
	pieces, err := t.f.pieces(ctx, t.spans, t.room, inMount)
	if err != nil {
		return err
	}
	t.room = pieces
	if err := source.Changed(pieces); err != nil {
		return err
	}
	if len(pieces) == 0 {
		t.located, t.choice = true, Choice{r.opt.Path, "there is nothing to move"}
		return nil
	}
	source.Announce(ctx, t.f.source, r.descriptors, pieces)
	// Files are not pinned while a request waits for memory: a request that has memory may wait for descriptors.
	t.groups = source.Split(pieces, r.descriptors.Share())
	err = r.descriptors.Pinned(ctx, t.groups[0].Files, func() error {
		t.choice, t.cold, err = t.choose(ctx, t.groups[0].Pieces)
		t.choice.Why += t.f.remark(inMount)
		return err
	})
	t.located = err == nil
	return err
}

// remark completes the reason of a choice.
func (f *File) remark(inMount bool) string {
	switch {
	case inMount:
		return "; read through the mount: its backing files could not be had"
	case f.note != "":
		return "; " + f.note
	}
	return ""
}

// moveGroups moves all groups, the first one by the choice that was made for it.
func (t *transfer) moveGroups(ctx context.Context) (finished <-chan struct{}, err error) {
	var first Choice
	for i := range t.groups {
		if finished, err = t.moveGroup(ctx, &t.groups[i], i > 0); err != nil {
			return finished, err
		}
		if i == 0 {
			first = t.choice
		}
	}
	t.choice = first
	return finished, nil
}

// moveGroup moves one group, by a choice of its own if choose is set.
func (t *transfer) moveGroup(ctx context.Context, g *source.Group, choose bool) (finished <-chan struct{}, err error) {
	if err := t.f.hold(func() error { return t.f.r.descriptors.Pin(ctx, g.Files) }); err != nil {
		return nil, err
	}
	if choose {
		t.choice, t.cold, err = t.choose(ctx, g.Pieces)
	}
	if err == nil {
		finished, err = t.moveAsChosen(ctx, g.Pieces)
	}
	t.f.drop(g.Files, finished)
	return finished, err
}

// hold keeps the File open, and backing files that pin opens, until drop.
func (f *File) hold(pin func() error) error {
	if err := f.enter(); err != nil {
		return err
	}
	err := pin()
	if err != nil {
		f.gate.Leave()
	}
	return err
}

// drop ends what hold began, once nothing of the job runs any more.
func (f *File) drop(files []*source.Backing, finished <-chan struct{}) {
	f.r.after(finished, func() {
		f.r.descriptors.Unpin(files)
		f.gate.Leave()
	})
}

// moveAsChosen moves pieces, and stages them where Auto chose to map files that CUDA does not register: the driver, the
// file system or a limit may be against that, and nothing tells before.
func (t *transfer) moveAsChosen(ctx context.Context, pieces []source.Piece) (finished <-chan struct{}, err error) {
	before := t.moved
	finished, err = t.move(ctx, pieces)
	if t.f.r.opt.Path != Auto || !errors.Is(err, mapped.ErrUnmapped) {
		return finished, err
	}
	t.f.r.quiet(finished)
	t.moved, t.choice = before, Choice{Staged, "the GPU cannot be shown the page cache; " + err.Error()}
	return t.move(ctx, pieces)
}

// errArena says that a path cannot write to the caller's memory: cuFile wants memory that it was shown before.
var errArena = errors.New("cufile: internal error: this path moves by way of the arena")

// move brings pieces to the destination by the chosen path, and counts them.
func (t *transfer) move(ctx context.Context, pieces []source.Piece) (finished <-chan struct{}, err error) {
	path := t.choice.Path
	if t.callers && (path == Direct || path == Compat) {
		return nil, errArena
	}
	if path == Staged || path == Host {
		return t.stage(ctx, pieces)
	}
	// Bytes that exist only in the mount can be read, but neither mapped for the GPU nor given to cuFile.
	here, mount := pieces, []source.Piece(nil)
	if slices.ContainsFunc(pieces, inline) {
		here = nil
		for _, p := range pieces {
			if inline(p) {
				mount = append(mount, p)
			} else {
				here = append(here, p)
			}
		}
	}
	if finished, err = t.stage(ctx, mount); err != nil {
		return finished, err
	}
	switch path {
	case Mapped:
		o := &t.f.r.opt
		left, finished, err := t.f.r.mapped.Move(ctx, &t.to, here, o.Path == Auto && o.Reuse)
		if err != nil {
			return finished, err
		}
		t.moved.count(Mapped, bytesOf(here)-bytesOf(left))
		return t.stage(ctx, left)
	case Direct, Compat:
		skew := int64(-1)
		if t.envelope {
			skew = t.skew
		}
		n, finished, err := t.f.r.direct.Move(ctx, &t.to, here, skew)
		t.moved.count(path, n)
		return finished, err
	}
	return nil, fmt.Errorf("cufile: internal error: path %q was chosen", path)
}

// stage moves pieces by way of memory of the host.
func (t *transfer) stage(ctx context.Context, pieces []source.Piece) (<-chan struct{}, error) {
	if len(pieces) == 0 {
		return nil, nil
	}
	r, path := t.f.r, Staged
	if r.device.CUDA == nil {
		path = Host
	}
	n, finished, err := r.staged.Move(ctx, &t.to, pieces, t.cold, func() int { return t.f.readers(ctx) })
	t.moved.count(path, n)
	if err == nil && r.copied != nil && n < copied.SmallRow*int64(len(pieces)) {
		err = r.copied.Map(pieces)
	}
	return finished, err
}

// inline says whether the bytes of a piece exist only in the mount.
func inline(p source.Piece) bool { return p.File.Inline }

func bytesOf(pieces []source.Piece) (n int64) {
	for i := range pieces {
		n += pieces[i].N
	}
	return n
}

// quiet waits until nothing of a job writes any more; nil is none.
func (r *Reader) quiet(finished <-chan struct{}) {
	crews := []*crew.Crew{r.crew}
	if r.mapped != nil {
		crews = append(crews, r.mapped.Thread)
	}
	crew.Quiet(finished, crews...)
}

// after calls giveBack once nothing of a job runs any more: at once as a rule, and else when the last thread has come back
// from a foreign call that did not end with the context.
func (r *Reader) after(finished <-chan struct{}, giveBack func()) {
	if finished != nil {
		select {
		case <-finished:
		default:
			r.stuck.Go(func() {
				r.quiet(finished)
				giveBack()
			})
			return
		}
	}
	giveBack()
}

// inside refuses spans that the file does not have, with ErrOutOfRange.
func (f *File) inside(offsets []int64, length int64) error {
	if length < 0 {
		return fmt.Errorf("read %s: a length of %d bytes: %w", f.name, length, ErrOutOfRange)
	}
	for _, offset := range offsets {
		if err := f.insideAll([]source.Span{{Offset: offset, N: length}}); err != nil {
			return err
		}
	}
	return nil
}

func (f *File) insideAll(spans []source.Span) error {
	size := f.Size()
	for i := range spans {
		if s := &spans[i]; s.Offset < 0 || s.N < 0 || s.Offset > size || s.N > size-s.Offset {
			return fmt.Errorf("read %s: %d bytes at %d are not inside its %d: %w", f.name, s.N, s.Offset, size, ErrOutOfRange)
		}
	}
	return nil
}

// pieces checks a request and finds where its bytes lie; retryMoved says inMount.
func (f *File) pieces(ctx context.Context, spans []source.Span, room []source.Piece, inMount bool) ([]source.Piece, error) {
	if f.r.gate.IsShut() {
		return nil, fmt.Errorf("read %s: %w", f.name, ErrClosed)
	}
	if err := f.insideAll(spans); err != nil {
		return nil, err
	}
	return source.Pieces(ctx, f.source, spans, room, inMount)
}
