package cufile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
	"github.com/hbmfs/hbmfs/cufile/internal/tally"
)

// File is an open file. Its methods may be called from many goroutines at once.
type File struct {
	r      *Reader
	name   string
	source source.File
	note   string // why the file is not read from where its bytes lie
	tally  tally.Tally
	gate   crew.Gate     // of calls that use its backing files
	once   sync.Once     // gives it back
	gone   chan struct{} // closed when that is over
	seen   atomic.Bool   // the GPU saw all bytes of the last request already; on the host they were mapped
	cold   atomic.Int64  // requests on the host that threads read, since rows came from the disk

	mu       sync.Mutex // guards the fields below
	moved    Moved
	requests map[*Request]bool // that are under way
	failed   error             // of giving it back; told once
}

// Open opens a file: of an hbmfs mount, whose bytes are then read from where they really lie, or any other.
func (r *Reader) Open(ctx context.Context, name string) (*File, error) {
	if !r.gate.Enter() {
		return nil, fmt.Errorf("open %s: %w", name, ErrClosed)
	}
	defer r.gate.Leave()
	s, note, err := r.opener.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return r.admit(ctx, name, s, note)
}

// admit makes a File, if the path that was asked for is there for it.
func (r *Reader) admit(ctx context.Context, name string, s source.File, note string) (*File, error) {
	f, err := r.add(name, s, note), ctx.Err()
	switch {
	case err != nil || r.opt.Path != Direct:
	case note != "":
		err = fmt.Errorf("%w: direct for %s: it can only be %s", ErrUnavailable, name, note)
	default:
		err = f.proveDirect(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// add makes a File, which the Reader closes at the latest.
func (r *Reader) add(name string, s source.File, note string) *File {
	f := &File{r: r, name: name, source: s, note: note, tally: tally.Tally{Field: tally.FieldOf(name)}, gone: make(chan struct{}), requests: map[*Request]bool{}}
	r.opened.Add(s.Size())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[f] = true
	return f
}

// Size is the file's size in bytes.
func (f *File) Size() int64 { return f.source.Size() }

// Moved gives the bytes moved from this file so far.
func (f *File) Moved() Moved {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.moved
}

// enter keeps the backing files open until f.gate.Leave.
func (f *File) enter() error {
	if !f.gate.Enter() {
		return fmt.Errorf("read %s: %w", f.name, os.ErrClosed)
	}
	return nil
}

// Close closes the file, cancels its requests and reads, and waits for them. Views of it stay. It fails with ErrUnderWay
// where one hangs in a call into the system or a library, also one that was cancelled. Then the file is closed once that
// call has come back. Closing twice does nothing.
func (f *File) Close() (err error) {
	f.mu.Lock()
	left := f.gate.Shut()
	for q := range f.requests {
		q.cancel()
	}
	f.mu.Unlock()
	if err = crew.Await(left); err != nil {
		f.r.stuck.Go(func() {
			<-left
			f.once.Do(f.release)
		})
	} else {
		f.once.Do(f.release)
		err = crew.Await(f.gone)
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", f.name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err, f.failed = f.failed, nil
	return err
}

// release gives the file back. The last look at its backing files may hang.
func (f *File) release() {
	f.r.descriptors.Watch().Hear(context.Background())
	leaving := f.source.Unshare()
	errs := []error{f.r.forget(leaving)}
	if errs[0] == nil {
		_, errs[0] = f.uncache(leaving, f.r.opt.PageCache)
	}
	f.r.stuck.Go(func() {
		defer close(f.gone)
		errs = append(errs, f.r.descriptors.Drop(leaving))
		if s, ok := f.source.(connected); ok {
			tally.Report(s.Daemon, f.tally.Rest())
		}
		errs = append(errs, f.source.Close())
		f.mu.Lock()
		f.failed = errors.Join(errs...)
		f.mu.Unlock()
		f.r.mu.Lock()
		defer f.r.mu.Unlock()
		delete(f.r.files, f)
	})
}

// OpenMany opens many files, as Open does, and gives a File or an error for each. One message asks for a few hundred small
// files of a mount, or members of its archives, which are not opened in the mount at all. So thousands of them cost no
// round trip each. Where they are more than Options.Descriptors, those that are read in their order are opened again in
// the same way.
func (r *Reader) OpenMany(ctx context.Context, names []string) ([]*File, []error) {
	files, errs := make([]*File, len(names)), make([]error, len(names))
	opened := make([]source.File, len(names))
	if r.gate.Enter() { // else Open says why not
		defer r.gate.Leave()
		opened = r.opener.OpenMany(ctx, names)
	}
	for i, name := range names {
		if opened[i] == nil { // it is no such file, or cannot be opened, and Open says why
			files[i], errs[i] = r.Open(ctx, name)
		} else {
			files[i], errs[i] = r.admit(ctx, name, opened[i], "")
		}
	}
	return files, errs
}

// FileInfo describes a file. Of one that is in no mount only the size is known.
type FileInfo struct {
	Size        int64
	Mounted     bool   // of an hbmfs mount, and read from where its bytes lie
	DType       uint32 // of the elements, as numbered in docs/reference/control-protocol.md; 0 where unknown
	ElementSize uint32 // bytes, 0 where unknown
	Tokens      int64  // elements of the payload, -1 where unknown
	Generation  uint64 // equal for equal content; 0 where unknown
	Runs        int64  // that the file is made of
	Note        string // why it is read through the mount; empty as a rule
	Seen        bool   // the last request found all of its bytes registered, or mapped: then Prefetch does nothing
}

// Info describes the file. It asks neither the daemon nor the kernel.
func (f *File) Info() FileInfo {
	info := FileInfo{Size: f.Size(), Tokens: -1, Runs: 1, Note: f.note, Seen: f.seen.Load()}
	if s, ok := f.source.(interface{ Told() *control.FileInfo }); ok {
		told := s.Told()
		info.Mounted, info.Runs = true, told.Runs
		info.DType, info.ElementSize, info.Tokens, info.Generation = told.DType, told.ElementSize, told.Tokens, told.Generation
	}
	return info
}
