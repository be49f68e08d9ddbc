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

// clientName is this library's name in the status of a volume.
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

func (d *volumeDraft) inVolume() bool { return true }

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

func (d *volumeDraft) write(w *writer.Writer, files []writer.File, stream *uintptr) (*writer.Write, error) {
	g := newGiver(d.DraftClient, files)
	q, err := w.WriteGiven(d.Path, g.files(), stream)
	if err != nil {
		return nil, err
	}
	go func() { // ends with the write
		<-q.Done()
		g.close()
	}()
	return q, nil
}

// giver asks for files as a write comes to them, since descriptors are few.
type giver struct {
	draft *control.DraftClient
	list  []writer.File

	mu      sync.Mutex // guards the fields below
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
