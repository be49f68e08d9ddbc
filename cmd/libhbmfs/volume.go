package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/writer"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// clientName is what the status of a volume calls this library.
const clientName = "libhbmfs"

// volumeDraft is a draft in a checkpoint volume, which is written past FUSE. begun: this process has begun it.
type volumeDraft struct {
	*control.DraftClient
	begun bool
}

// volumeCode gives errors of a checkpoint volume their codes.
func volumeCode(err error) error {
	var refusal *control.Refusal
	var errno syscall.Errno
	if !errors.As(err, &refusal) || !errors.As(err, &errno) {
		if errors.Is(err, control.ErrNoSocket) {
			return &failure{codeUnavailable, "a checkpoint is written past FUSE in a volume, and its daemon cannot be asked: " + err.Error()}
		}
		if errors.Is(err, control.ErrReadOnly) {
			return &failure{codePermission, err.Error()}
		}
		if errors.Is(err, syscall.EINVAL) {
			return &failure{codeInvalid, err.Error()}
		}
		return err
	}
	code := map[syscall.Errno]code{
		syscall.EEXIST: codeExists, syscall.EBUSY: codeBusy, syscall.EAGAIN: codeBusy, syscall.EINVAL: codeInvalid, syscall.ENOENT: codeStale,
		syscall.EACCES: codePermission, syscall.EPERM: codePermission, syscall.EROFS: codePermission, syscall.ESHUTDOWN: codeStale,
	}
	if c, ok := code[errno]; ok {
		return &failure{c, err.Error()}
	}
	return err // ENOSPC, EDQUOT, EIO: the system's
}

// beginVolumeDraft begins a draft where path lies in a checkpoint volume. It gives 0 where it does not.
func (l *library) beginVolumeDraft(path string, part checkpoint.Part) (uint64, error) {
	d, err := control.BeginDraft(context.Background(), path, part.Index, part.Of, clientName)
	switch {
	case errors.Is(err, control.ErrNoVolume):
		return 0, nil
	case err != nil:
		return 0, volumeCode(err)
	}
	return l.add(0, &volumeDraft{d, true})
}

// attachDraft opens a draft that another process has begun.
func (l *library) attachDraft(path string) (uint64, error) {
	d, err := control.AttachDraft(context.Background(), path, clientName)
	if errors.Is(err, control.ErrNoVolume) {
		return 0, &failure{codeNotFound, err.Error()}
	}
	if err != nil {
		return 0, volumeCode(err)
	}
	return l.add(0, &volumeDraft{d, false})
}

// inVolume tells whether a checkpoint would be one of a volume.
func inVolume(path string) (bool, error) {
	in, err := control.InVolume(context.Background(), path, clientName)
	return in, volumeCode(err)
}

// isInVolume tells whether a draft is one of a volume.
func (l *library) isInVolume(handle uint64) (bool, error) {
	thing, err := find[any](l, handle)
	if err != nil {
		return false, err
	}
	switch thing.(type) {
	case *volumeDraft:
		return true, nil
	case *checkpoint.Draft:
		return false, nil
	}
	return false, failf(codeInvalid, "handle %d is of another kind than this function takes", handle)
}

// publish makes it the checkpoint, if the volume has these files.
func (d *volumeDraft) publish(files []checkpoint.File) error {
	size := int64(0)
	for i := range files {
		size += files[i].Size
	}
	return volumeCode(d.Publish(context.Background(), len(files), size))
}

// end removes the draft, or leaves it to the process that began it.
func (d *volumeDraft) end() error {
	if d.begun {
		return volumeCode(d.Drop(context.Background()))
	}
	return d.Close()
}

// writeDraft starts writing files of a draft.
func (l *library) writeDraft(handle, draft uint64, files []writer.File, stream *uintptr) (uint64, error) {
	thing, err := find[any](l, draft)
	if err != nil {
		return 0, err
	}
	switch d := thing.(type) {
	case *checkpoint.Draft:
		return l.write(handle, d.Dir(), files, stream)
	case *volumeDraft:
		w, err := find[*writer.Writer](l, handle)
		if err != nil {
			return 0, err
		}
		g := newGiver(d.DraftClient, files)
		q, err := w.WriteGiven(d.Path, g.files(), stream)
		if err != nil {
			return 0, err
		}
		go func() { // ends with the write
			<-q.Done()
			g.close()
		}()
		return l.add(handle, q)
	}
	return 0, failf(codeInvalid, "handle %d is of another kind than this function takes", draft)
}

// giver asks for files as a write comes to them, since descriptors are few.
type giver struct {
	draft *control.DraftClient
	list  []writer.File

	mu      sync.Mutex // guards what follows
	pens    []*os.File // of files that are not opened yet; nil for others
	numbers []uint32
	next    int // the first that was not asked for
}

func newGiver(d *control.DraftClient, files []writer.File) *giver {
	return &giver{draft: d, list: files, pens: make([]*os.File, len(files)), numbers: make([]uint32, len(files))}
}

func (g *giver) files() []writer.Given {
	given := make([]writer.Given, len(g.list))
	for i := range g.list {
		given[i] = writer.Given{
			File:   g.list[i],
			Open:   func() (*os.File, error) { return g.open(i) },
			Sealed: func(sums []uint32) error { return g.seal(i, sums) },
		}
	}
	return given
}

// open gives the file of a number. Those that follow it are asked for with it.
func (g *giver) open(i int) (*os.File, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.next <= i {
		if err := g.ask(); err != nil {
			return nil, volumeCode(err)
		}
	}
	pen := g.pens[i]
	if g.pens[i] = nil; pen == nil {
		return nil, failf(codeInternal, "file %q was given before", g.list[i].Name)
	}
	return pen, nil
}

// ask asks for the next files. mu is held.
func (g *giver) ask() error {
	n := min(len(g.list)-g.next, control.MaxNewFiles)
	files := make([]control.NewFile, n)
	for j := range files {
		f := &g.list[g.next+j]
		files[j] = control.NewFile{Name: f.Name, Size: f.Size}
	}
	first, pens, err := g.draft.Add(context.Background(), files...)
	if err != nil {
		return err
	}
	for j, pen := range pens {
		g.pens[g.next+j], g.numbers[g.next+j] = pen, first+uint32(j)
	}
	g.next += n
	return nil
}

// close closes files that the write did not come to.
func (g *giver) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, pen := range g.pens {
		if pen != nil {
			_ = pen.Close() // nothing was written
			g.pens[i] = nil
		}
	}
}

func (g *giver) seal(i int, sums []uint32) error {
	g.mu.Lock()
	number := g.numbers[i]
	g.mu.Unlock()
	return volumeCode(g.draft.Seal(context.Background(), number, sums))
}
