package cufile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/internal/crew"
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
			return nil, errors.Join(fmt.Errorf("%w: direct for %s: it can only be %s", ErrUnavailable, name, note), s.Close())
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
	f.r.descriptors.Drop(leaving)
	if s, ok := f.source.(connected); ok {
		f.mu.Lock()
		list := f.tally.take()
		f.mu.Unlock()
		report(s, list)
	}
	return errors.Join(append(errs, f.source.Close())...)
}
