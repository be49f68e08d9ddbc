package cufile

import (
	"context"
	"errors"
	"fmt"

	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// PageCache says whether a file's pages stay in the page cache after reading.
type PageCache int

// AutoPageCache drops pages where the files that the Reader has opened are more than the page cache could have beside other memory: of the process's
// control groups, and of the machine.
const (
	KeepPageCache PageCache = iota
	DropPageCache
	AutoPageCache
)

func (p PageCache) check() error {
	if p < KeepPageCache || p > AutoPageCache {
		return fmt.Errorf("page cache must be 0 (keep), 1 (drop) or 2 (auto), not %d", int(p))
	}
	return nil
}

// Uncache ends this Reader's mappings and registrations of the file. Then, as p says, it advises the kernel to drop the pages of the files that hold the bytes,
// and gives the bytes that went. Processes that read the same file first all end their mappings (KeepPageCache), and then drop it.
//
// The kernel keeps pages that a process has mapped or pinned, and dirty ones. Backing files of a mount whose descriptors were closed meanwhile are left out.
// The file can still be read.
func (f *File) Uncache(ctx context.Context, p PageCache) (dropped int64, err error) {
	if err := p.check(); err != nil {
		return 0, err
	}
	if err := f.enter(); err != nil {
		return 0, err
	}
	defer f.gate.Leave()
	files := f.source.Backings()
	if err := f.r.unmap(ctx, files); err != nil {
		return 0, fmt.Errorf("unmap %s: %w", f.name, err)
	}
	return f.uncache(files, p)
}

// uncache drops files of this one, as p says, and counts what went.
func (f *File) uncache(files []*source.Backing, p PageCache) (dropped int64, err error) {
	if p == KeepPageCache || p == AutoPageCache && f.r.opened.Load() <= device.MemoryLeft("/") {
		return 0, nil
	}
	lent := f.r.descriptors.OpenOf(files)
	defer f.r.descriptors.Unpin(lent)
	open := lent
	if own := f.source.Backing(&source.Run{Object: source.InlineObject}); own != nil { // a plain file, or the file in the mount itself where it is open
		open = append([]*source.Backing{own}, lent...)
	}
	var errs []error
	for _, b := range open {
		n, err := source.Uncache(b)
		dropped, errs = dropped+n, append(errs, err)
	}
	f.r.dropped.Add(dropped)
	return dropped, errors.Join(errs...)
}

// DroppedBytes are those that the kernel has dropped from the page cache by this Reader's advice.
func (r *Reader) DroppedBytes() int64 { return r.dropped.Load() }
