package writer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Path is a way for bytes: those of [cufile.Path] that lead into a file, and [Buffered].
type Path = cufile.Path

// The paths.
const (
	Auto          = cufile.Auto   // chosen for each write, see [Choice]
	Direct        = cufile.Direct // HBM to storage by DMA, proven for the directory
	Mapped        = cufile.Mapped // HBM to the pages of a file of tmpfs, which is mapped and registered with CUDA
	Staged        = cufile.Staged // HBM to pinned memory, and from memory to storage past the page cache (O_DIRECT)
	Buffered Path = "buffered"    // the same through the page cache
)

// Paths are the names of all paths, auto first.
func Paths() []string { return []string{"auto", "direct", "mapped", "staged", "buffered"} }

// ParsePath reads a path's name.
func ParsePath(s string) (Path, error) {
	if slices.Contains(Paths(), s) {
		return Path(s), nil
	}
	return "", fmt.Errorf("path %q is not one of %v", s, Paths())
}

// Choice is the path that a write took, and why.
type Choice = cufile.Choice

// PathBytes counts bytes of files by the path that they took. Zeros between parts count, too.
type PathBytes struct {
	Direct, Mapped, Staged, Buffered int64
}

// Total is all bytes.
func (m PathBytes) Total() int64 { return m.Direct + m.Mapped + m.Staged + m.Buffered }

func (m *PathBytes) add(n PathBytes) {
	m.Direct += n.Direct
	m.Mapped += n.Mapped
	m.Staged += n.Staged
	m.Buffered += n.Buffered
}

func (m *PathBytes) count(p Path, n int64) {
	switch p {
	case Direct:
		m.Direct += n
	case Mapped:
		m.Mapped += n
	case Staged:
		m.Staged += n
	case Buffered, Auto:
		m.Buffered += n
	}
}

// Errors to be matched with errors.Is.
var (
	ErrClosed      = errors.New("the writer is closed")
	ErrUnderWay    = crew.ErrUnderWay
	ErrTooLarge    = source.ErrTooLarge
	ErrUnavailable = source.ErrUnavailable
	ErrNoLibrary   = driver.ErrNoLibrary
	ErrNoDevice    = driver.ErrNoDevice
	ErrNoMemory    = errors.New("too little memory")
)

// Error is a system call that failed on a file or directory.
type Error struct {
	Path string
	Call string
	Err  error // a syscall.Errno as a rule
}

func (e *Error) Error() string { return fmt.Sprintf("write %s: %s: %v", e.Path, e.Call, e.Err) }
func (e *Error) Unwrap() error { return e.Err }
