package writer

import (
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// ChunkSize is the bytes of a file that are summed, and written, at a time. The last chunk of a file may be shorter.
const ChunkSize = 4 << 20

// File is a file to be made.
type File struct {
	Name  string // in the directory: no path
	Size  int64
	Parts []Part // disjoint and in order; bytes that no part covers are zeros
}

// Given is a file that is there, empty or with blocks of zeros: see [Writer.WriteGiven].
type Given struct {
	File                                   // its name is for errors
	Open   func() (*os.File, error)        // for writing; the write closes it
	Sealed func(sums []uint32) (err error) // is called when the file is on storage and closed; err is the write's
}

// Part is memory that becomes the bytes of a file from Offset on.
type Part struct {
	Offset int64
	Memory
}

// ErrPlan says that files cannot be as they were described.
var ErrPlan = errors.New("cannot be written")

// checkPlan refuses files that cannot be, before anything is made. Names of given files may be paths.
func checkPlan(files []File, given bool) error {
	const most = 1 << 46 // bytes of a file
	seen := make(map[string]bool, len(files))
	for i := range files {
		f := &files[i]
		switch {
		case f.Name == "" || f.Name == "." || f.Name == ".." || !given && strings.ContainsAny(f.Name, "/\x00"):
			return fmt.Errorf("file %q %w: give the name of a file in the directory", f.Name, ErrPlan)
		case seen[f.Name]:
			return fmt.Errorf("file %q %w: it is there twice", f.Name, ErrPlan)
		case f.Size < 0 || f.Size > most:
			return fmt.Errorf("file %q %w: no file has %d bytes", f.Name, ErrPlan, f.Size)
		}
		seen[f.Name] = true
		end := int64(0)
		for j := range f.Parts {
			p := &f.Parts[j]
			n := p.Size()
			if p.Offset < end || n < 0 || p.Offset > f.Size || n > f.Size-p.Offset {
				return fmt.Errorf("file %q %w: part %d, %d bytes at %d, overlaps the one before or is not inside its %d bytes", f.Name, ErrPlan, j, n, p.Offset, f.Size)
			}
			end = p.Offset + n
		}
	}
	return nil
}

// join makes one part of those that follow each other in host memory as in the file, and leaves out those that are empty. So a
// chunk that covers several tensors of an arena is written from where they lie.
func join(parts []Part) []Part {
	joined := make([]Part, 0, len(parts))
	for _, p := range parts {
		if p.Size() == 0 {
			continue
		}
		if last := len(joined) - 1; last >= 0 && follows(&joined[last], &p) {
			before := joined[last].Host
			joined[last].Host = unsafe.Slice(unsafe.SliceData(before), len(before)+len(p.Host))
			continue
		}
		joined = append(joined, p)
	}
	return joined
}

func follows(a, b *Part) bool {
	if a.Host == nil || b.Host == nil || a.Offset+a.Size() != b.Offset {
		return false
	}
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(a.Host)), len(a.Host)) == unsafe.Pointer(unsafe.SliceData(b.Host))
}

// chunk is up to ChunkSize bytes of a file.
type chunk struct {
	of     *output
	index  int64
	offset int64
	n      int64
}

// chunks gives how many chunks a file of so many bytes has.
func chunks(size int64) int64 { return (size + ChunkSize - 1) / ChunkSize }

// piece is memory, and where in the chunk it goes.
type piece struct {
	Memory
	to int64
}

// pieces gives the memory that a chunk is made of.
func (c *chunk) pieces() []piece {
	parts := c.of.parts
	first := sort.Search(len(parts), func(i int) bool { return parts[i].Offset+parts[i].Size() > c.offset })
	var list []piece
	for i := first; i < len(parts) && parts[i].Offset < c.offset+c.n; i++ {
		p := &parts[i]
		skip := max(c.offset-p.Offset, 0)
		to := max(p.Offset-c.offset, 0)
		list = append(list, piece{p.Part(skip, min(p.Size()-skip, c.n-to)), to})
	}
	return list
}

// whole gives the memory of a chunk that is whole pages, and lies in one piece, from the beginning of a page on.
func (c *chunk) whole(pieces []piece) (Memory, bool) {
	if len(pieces) != 1 || pieces[0].Size() != c.n || c.n%driver.PageSize != 0 || !onPage(&pieces[0].Memory) {
		return Memory{}, false
	}
	return pieces[0].Memory, true
}
