package main

import (
	"context"
	"errors"
	"os/exec"
	"sync"

	"github.com/hbmfs/hbmfs/cufile"
)

// reader is a cufile.Reader and the last that it did.
type reader struct {
	r    *cufile.Reader
	opt  cufile.Options
	note string // why the wished method is not in force

	mu    sync.Mutex // guards the fields below
	last  cufile.Choice
	reads int64
}

// readerOptions are hbmfs_reader_options.
type readerOptions struct {
	cufile.Options
	method, require string
	hbmfs           string // the command
}

// probeCommand is the name of hbmfs's hidden command, see cufile.Options.Probe.
const probeCommand = "cufile-probe"

func (l *library) openReader(o *readerOptions) (uint64, error) {
	opt := o.Options
	if opt.Client == "" {
		opt.Client = "libhbmfs"
	}
	var err error
	wish := o.method
	if wish == "" {
		wish = string(cufile.Auto)
	}
	if opt.Path, err = cufile.ParsePath(wish); err != nil {
		return 0, &otherwise{codeInvalid, err}
	}
	if o.require != "" {
		if opt.Path, err = cufile.ParsePath(o.require); err != nil {
			return 0, &otherwise{codeInvalid, err}
		}
	} else if opt.Path == cufile.Direct && opt.Device != cufile.HostDevice {
		// auto proves direct for each file, and that is all that a wish can ask.
		opt.Path = cufile.Auto
	}
	if o.hbmfs == "" {
		o.hbmfs, _ = exec.LookPath("hbmfs") // without it the direct path says that it cannot be proven
	}
	if o.hbmfs != "" {
		opt.Probe = []string{o.hbmfs, probeCommand}
	}
	note := ""
	r, err := cufile.New(context.Background(), opt)
	if o.require == "" && opt.Path != cufile.Auto && errors.Is(err, cufile.ErrUnavailable) {
		note, opt.Path = err.Error(), cufile.Auto
		r, err = cufile.New(context.Background(), opt)
	}
	if err != nil {
		return 0, &otherwise{codeInvalid, err}
	}
	return l.add(0, &reader{r: r, opt: opt, note: note})
}

// count notes a request that ended well.
func (r *reader) count(choice cufile.Choice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = choice
	r.reads++
}

// readerStats is hbmfs_reader_stats.
type readerStats struct {
	files, requests int
	moved           cufile.Moved
	pinned, reads   int64
	dropped         int64
	last            cufile.Choice
}

func (l *library) readerStats(handle uint64) (s readerStats, err error) {
	r, err := find[*reader](l, handle)
	if err != nil {
		return s, err
	}
	s.files, s.requests = l.count(handle)
	s.moved, s.pinned = r.r.Moved(), r.r.PinnedBytes()
	s.dropped = r.r.DroppedBytes()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.reads, s.last = r.reads, r.last
	return s, nil
}

// closeReader closes a reader with all that was opened through it. Where a call hangs, the handles stay.
func (l *library) closeReader(handle uint64) error {
	return internally(closeThing(l, handle, "reader", func(r *reader) error { return r.r.Close() }))
}

// file is a cufile.File and its reader.
type file struct {
	reader *reader
	f      *cufile.File
}

func (l *library) openFile(handle uint64, path string) (uint64, error) {
	r, err := find[*reader](l, handle)
	if err != nil {
		return 0, err
	}
	f, err := r.r.Open(context.Background(), path)
	if err != nil {
		return 0, &otherwise{codeInvalid, err}
	}
	return l.add(handle, &file{r, f})
}

// closeFile closes a file with its requests. Where one hangs, the handles stay.
func (l *library) closeFile(handle uint64) error {
	return closeThing(l, handle, "file", func(f *file) error { return f.f.Close() })
}

func (l *library) uncache(handle uint64, p cufile.PageCache) (dropped int64, err error) {
	f, err := find[*file](l, handle)
	if err != nil {
		return 0, err
	}
	if dropped, err = f.f.Uncache(context.Background(), p); err != nil {
		return dropped, &otherwise{codeInvalid, err}
	}
	return dropped, nil
}

// fileInfo is hbmfs_file_info.
type fileInfo struct {
	cufile.FileInfo
	moved cufile.Moved
}

func (l *library) fileInfo(handle uint64) (fileInfo, error) {
	f, err := find[*file](l, handle)
	if err != nil {
		return fileInfo{}, err
	}
	return fileInfo{f.f.Info(), f.f.Moved()}, nil
}

// openFiles opens files; errs has why not.
func (l *library) openFiles(handle uint64, paths []string) (handles []uint64, errs []error, err error) {
	r, err := find[*reader](l, handle)
	if err != nil {
		return nil, nil, err
	}
	files, errs := r.r.OpenMany(context.Background(), paths)
	handles = make([]uint64, len(paths))
	for i, f := range files {
		if errs[i] != nil {
			errs[i] = &otherwise{codeInvalid, errs[i]}
			continue
		}
		handles[i], errs[i] = l.add(handle, &file{r, f})
	}
	return handles, errs, nil
}

// prefetch announces reads: to the daemon for a file of a mount, to the kernel for any other.
func (l *library) prefetch(handle uint64, offsets, lengths []int64) error {
	f, err := find[*file](l, handle)
	if err != nil {
		return err
	}
	if err := inside(offsets, lengths, f.f.Size()); err != nil {
		return err
	}
	plan := make([]cufile.Span, len(offsets))
	for i := range offsets {
		plan[i] = cufile.Span{Offset: offsets[i], Length: lengths[i]}
	}
	return f.f.Prefetch(context.Background(), plan)
}

// inside refuses a plan of ranges that are not inside a file.
func inside(offsets, lengths []int64, size int64) error {
	for i, offset := range offsets {
		if n := lengths[i]; offset < 0 || n < 0 || offset > size || n > size-offset {
			return failf(codeOutOfRange, "range %d of the plan, %d bytes at %d, is not inside the file's %d", i, n, offset, size)
		}
	}
	return nil
}
