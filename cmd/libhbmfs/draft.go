package main

import (
	"context"
	"errors"
	"os"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/writer"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// draftHandle stands behind a handle of a draft: a directory, or one of a checkpoint volume, which is written past FUSE.
type draftHandle interface {
	inVolume() bool
	write(w *writer.Writer, files []writer.File, stream *uintptr) (*writer.Write, error)
	publish(files []checkpoint.File) error
	end() error // removes the draft, or leaves it to the process that began it
}

// openDraft decides whether a draft is one of a volume or a directory: it asks for that of a volume first.
func (l *library) openDraft(begun bool, volume func() (*control.DraftClient, error), directory func() (draftHandle, error)) (uint64, error) {
	v, err := volume()
	var d draftHandle = &volumeDraft{v, begun}
	if errors.Is(err, control.ErrNoVolume) {
		if d, err = directory(); err != nil {
			return 0, checkpointCode(err)
		}
	}
	if err != nil {
		return 0, volumeCode(err)
	}
	return l.add(0, d)
}

// beginDraft begins a draft.
func (l *library) beginDraft(path string, part checkpoint.Part) (uint64, error) {
	return l.openDraft(true, func() (*control.DraftClient, error) {
		return control.BeginDraft(context.Background(), path, part.Index, part.Of, clientName)
	}, func() (draftHandle, error) {
		d, err := checkpoint.Begin(context.Background(), path, part)
		if err != nil {
			return nil, err
		}
		return &directoryDraft{d.Dir(), d}, nil
	})
}

// attachDraft opens a draft that another process has begun.
func (l *library) attachDraft(path string) (uint64, error) {
	return l.openDraft(false, func() (*control.DraftClient, error) {
		return control.AttachDraft(context.Background(), path, clientName)
	}, func() (draftHandle, error) {
		dir, err := checkpoint.DraftDir(path)
		if err != nil {
			return nil, err
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, failf(codeNotFound, "there is no draft %s", dir)
		}
		return &directoryDraft{dir, nil}, nil
	})
}

// inVolume tells whether a checkpoint would be one of a volume.
func inVolume(path string) (bool, error) {
	in, err := control.InVolume(context.Background(), path, clientName)
	return in, volumeCode(err)
}

// writeDraft starts writing files of a draft.
func (l *library) writeDraft(handle, opened uint64, files []writer.File, stream *uintptr) (uint64, error) {
	d, err := find[draftHandle](l, opened)
	if err != nil {
		return 0, err
	}
	w, err := find[*writer.Writer](l, handle)
	if err != nil {
		return 0, err
	}
	q, err := d.write(w, files, stream)
	if err != nil {
		return 0, err
	}
	return l.add(handle, q)
}

// publish ends the draft's handle if it succeeds.
func (l *library) publish(handle uint64, files []checkpoint.File) error {
	d, err := find[draftHandle](l, handle)
	if err == nil {
		err = d.publish(files)
	}
	if err == nil {
		l.remove(handle)
	}
	return err
}

func (l *library) drop(handle uint64) error {
	d, err := find[draftHandle](l, handle)
	if err != nil {
		return err
	}
	l.remove(handle)
	return d.end()
}

// directoryDraft is a draft in a directory. begun is nil where another process has begun it.
type directoryDraft struct {
	dir   string
	begun *checkpoint.Draft
}

func (d *directoryDraft) inVolume() bool { return false }

func (d *directoryDraft) write(w *writer.Writer, files []writer.File, stream *uintptr) (*writer.Write, error) {
	return w.Write(d.dir, files, stream)
}

func (d *directoryDraft) publish(files []checkpoint.File) error {
	if d.begun == nil {
		return failf(codeInvalid, "the process that began the draft %s publishes it", d.dir)
	}
	return checkpointCode(d.begun.Publish(context.Background(), files))
}

func (d *directoryDraft) end() error {
	if d.begun == nil {
		return nil
	}
	return checkpointCode(d.begun.Drop())
}
