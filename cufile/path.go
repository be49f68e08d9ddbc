package cufile

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// Path is a way for bytes to get where they are wanted.
type Path string

// The paths.
const (
	Auto   Path = "auto"   // chosen per request, see [Choice]
	Direct Path = "direct" // storage to HBM by DMA, proven for the file
	Mapped Path = "mapped" // page cache to HBM by DMA: the file is mapped and registered with CUDA
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

// Moved counts bytes by the path that they took. Bytes that exist only in the mount, such as a synthesized header,
// lie in no backing file: they count as Staged, or as Host without a GPU.
type Moved struct {
	Direct int64 `json:"direct,omitempty"`
	Mapped int64 `json:"mapped,omitempty"`
	Staged int64 `json:"staged,omitempty"`
	Compat int64 `json:"compat,omitempty"`
	Host   int64 `json:"host,omitempty"`
}

// Total is all bytes.
func (m Moved) Total() int64 { return m.Direct + m.Mapped + m.Staged + m.Compat + m.Host }

// Add adds n to m.
func (m *Moved) Add(n Moved) {
	m.Direct += n.Direct
	m.Mapped += n.Mapped
	m.Staged += n.Staged
	m.Compat += n.Compat
	m.Host += n.Host
}

func (m *Moved) count(p Path, n int64) {
	switch p {
	case Direct:
		m.Direct += n
	case Mapped:
		m.Mapped += n
	case Staged:
		m.Staged += n
	case Compat:
		m.Compat += n
	case Host, Auto:
		m.Host += n
	}
}

// Errors to be matched with errors.Is.
var (
	ErrClosed      = crew.ErrClosed
	ErrUnderWay    = crew.ErrUnderWay
	ErrOutOfRange  = errors.New("out of range") // bytes that a file, a view or memory does not have
	ErrTooLarge    = source.ErrTooLarge
	ErrUnavailable = source.ErrUnavailable
	ErrShort       = source.ErrShort
	ErrNoLibrary   = driver.ErrNoLibrary
	ErrNoDevice    = driver.ErrNoDevice
)
