package cufile

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Path is a way for bytes to get where they are wanted.
type Path string

// The paths.
const (
	Auto   Path = "auto"   // chosen per request, see [Choice]
	Direct Path = "direct" // storage to HBM by DMA, proven for the file
	Mapped Path = "mapped" // page cache to HBM, or to pinned memory of the host, by the GPU: the file is mapped and registered with CUDA
	Staged Path = "staged" // pread into pinned memory, overlapped with copies to HBM
	Compat Path = "compat" // libcufile with its own POSIX reads allowed
	Host   Path = "host"   // pread into host memory
)

// Paths are the names of all paths, auto first.
func Paths() []string { return []string{"auto", "direct", "mapped", "staged", "compat", "host"} }

// ParsePath reads a path's name.
func ParsePath(s string) (Path, error) {
	if slices.Contains(Paths(), s) {
		return Path(s), nil
	}
	return "", fmt.Errorf("path %q is not one of %v", s, Paths())
}

// Choice is the path that a request took, and why.
type Choice struct {
	Path Path   `json:"path"`
	Why  string `json:"why"`
}

// Errors to be matched with errors.Is.
var (
	ErrClosed      = crew.ErrClosed
	ErrUnderWay    = crew.ErrUnderWay
	ErrMemory      = crew.ErrMemory       // memory of the caller cannot be written to as was asked
	ErrOutOfRange  = device.ErrOutOfRange // bytes that a file, a view or memory does not have
	ErrTooLarge    = source.ErrTooLarge
	ErrUnavailable = source.ErrUnavailable
	ErrShort       = source.ErrShort
	ErrNoLibrary   = driver.ErrNoLibrary
	ErrNoDevice    = driver.ErrNoDevice
)

// warm is the fraction of the bytes that must be in the page cache for mapping to pay. A page fault costs more than an
// O_DIRECT read (measured on one disk: 1.9 against 3.2 GB/s).
const warm = 0.9

// fewCPUs is the number of CPUs per reader below which staging cannot keep up: one thread copies about 10 GB/s out of
// the page cache.
const fewCPUs = 4

// chooseFor is choose for a destination. Bytes for memory of the host that the GPU does not write there are read to it at once.
func (f *File) chooseFor(ctx context.Context, to *crew.Destination, pieces []source.Piece) (c Choice, cold bool, err error) {
	switch onGPU := f.r.opt.Device != HostDevice; {
	case onGPU && to.Host != nil && to.HBM == 0:
		return Choice{Host, "the GPU runs no kernel that would write to memory of the host"}, false, nil
	case !onGPU || to.Host == nil:
		return f.choose(ctx, pieces, true)
	}
	switch c, cold, err = f.choose(ctx, pieces, false); c.Path {
	case Staged:
		c.Path = Host
	case Mapped:
		c.Why += toHost
	}
	return c, cold, err
}

// choose gives the path for a request, and says whether its bytes are known to be out of the page cache. byCuFile says that cuFile may bring them. Figures
// in a reason stand in parentheses, and details after a semicolon: see package tally.
func (f *File) choose(ctx context.Context, pieces []source.Piece, byCuFile bool) (c Choice, cold bool, err error) {
	o := &f.r.opt
	switch {
	case o.Device == HostDevice:
		return Choice{Host, onHost}, false, nil
	case o.Path == Auto && !slices.ContainsFunc(pieces, func(p source.Piece) bool { return !p.File.Inline }):
		return Choice{Staged, "it is read through the mount"}, false, nil
	case o.Path == Staged:
		fraction, known := source.Resident(pieces)
		return Choice{Staged, "asked for"}, known && fraction < warm, nil
	case o.Path == Direct:
		return Choice{Direct, "asked for"}, false, f.prove(ctx, pieces, false)
	case o.Path != Auto:
		return Choice{o.Path, "asked for"}, false, nil
	}
	why := "it goes to memory of the host"
	if byCuFile {
		var ok bool
		if why, ok, err = f.autoDirect(ctx, pieces); err != nil || ok {
			return Choice{Direct, why}, false, err
		}
	}
	if f.r.mapped.PinnedBytes() > 0 && f.r.mapped.Unseen(pieces) == 0 {
		return Choice{Mapped, seenWhy}, false, nil
	}
	fraction, known := source.Resident(pieces)
	if !known {
		return Choice{Staged, "the kernel does not say what is in the page cache; " + why}, false, nil
	}
	cached := fmt.Sprintf("in the page cache (%.0f%%)", 100*fraction)
	if fraction < warm {
		return Choice{Staged, "not " + cached + ", so it is read from the disk; " + why}, true, nil
	}
	if o.Reuse {
		return Choice{Mapped, cached + " and will be read again"}, false, nil
	}
	readers := f.readers(ctx)
	once := cached + " and read once"
	if readers > 1 {
		once += fmt.Sprintf(" by each of several readers (%d)", readers)
	}
	switch cpus := runtime.NumCPU(); {
	case readers > 1 && f.r.mapped.Devices() > 1:
		return Choice{Mapped, once + ", which share registrations"}, false, nil
	case cpus < fewCPUs*readers:
		return Choice{Mapped, fmt.Sprintf("%s, and there are few CPUs (%d)", once, cpus)}, false, nil
	}
	return Choice{Staged, once + "; " + why}, false, nil
}
