package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"github.com/hbmfs/hbmfs/internal/driver"
)

// Piece is consecutive bytes of one backing file, and where in the destination they go.
type Piece struct {
	File   *Backing
	Offset int64 // in file
	To     int64 // in the destination
	N      int64
}

// spans are ranges of a file, of equal length, that land one after the other.
type spans struct {
	offsets []int64
	length  int64
	runs    []Run // ordered; they cover every span
	files   map[uint64]*Backing
}

// mostPieces bounds the memory of one request's pieces: 40 bytes each.
const mostPieces = 1 << 22

// Pieces finds where the spans of length bytes that begin at offsets lie now. The spans must be inside the file. With inMount
// all of them lie in the file of the mount itself. More than 4 Mi pieces are ErrTooLarge.
func Pieces(ctx context.Context, f File, offsets []int64, length int64, inMount bool) ([]Piece, error) {
	q := &spans{offsets: offsets, length: length, files: map[uint64]*Backing{}}
	if length == 0 || len(offsets) == 0 {
		return nil, nil
	}
	if inMount {
		q.runs = []Run{{Length: f.Size(), Count: 1, Object: InlineObject}}
	} else {
		first, last := slices.Min(offsets), slices.Max(offsets)+length
		var err error
		if q.runs, err = f.Runs(ctx, first, last-first); err != nil {
			return nil, err
		}
	}
	q.locate(f)
	return q.pieces()
}

// locate names the backing files that the spans need.
func (q *spans) locate(s File) {
	need := func(r *Run) {
		if q.files[r.Object] == nil {
			q.files[r.Object] = s.Backing(r)
		}
	}
	if len(q.runs) == 1 {
		need(&q.runs[0])
		return
	}
	for _, offset := range q.offsets {
		for i := q.find(offset); i < len(q.runs) && q.runs[i].Logical < offset+q.length; i++ {
			need(&q.runs[i])
		}
	}
}

// find gives the index of the run that holds the file's byte at offset.
func (q *spans) find(offset int64) int {
	return sort.Search(len(q.runs), func(i int) bool { return q.runs[i].End() > offset })
}

// eachPiece calls fn for each piece of the span at offset, which lands at to.
func (q *spans) eachPiece(offset, to int64, fn func(Piece) error) error {
	i := q.find(offset)
	for n := q.length; n > 0; {
		if i >= len(q.runs) || q.runs[i].Logical > offset {
			return fmt.Errorf("source: internal error: no run covers offset %d", offset)
		}
		r := &q.runs[i]
		k := (offset - r.Logical) / r.Length
		skip := offset - r.Logical - k*r.Length
		take := min(r.Length-skip, n)
		if r.Count == 1 || r.Stride == r.Length {
			take = min(r.End()-offset, n)
		}
		if err := fn(Piece{q.files[r.Object], r.Offset + k*r.Stride + skip, to, take}); err != nil {
			return err
		}
		offset, to, n = offset+take, to+take, n-take
		if offset >= r.End() {
			i++
		}
	}
	return nil
}

// pieces cuts the spans where runs, and pieces of runs, end.
func (q *spans) pieces() ([]Piece, error) {
	list := make([]Piece, 0, min(len(q.offsets)+len(q.runs), mostPieces))
	for i, offset := range q.offsets {
		err := q.eachPiece(offset, int64(i)*q.length, func(p Piece) error {
			if len(list) == mostPieces {
				return fmt.Errorf("%w: more than %d pieces in one request: gather less at a time", ErrTooLarge, mostPieces)
			}
			list = append(list, p)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// ReadDirect reads the piece past the page cache, by the aligned pages around it, and gives the place of its first byte in
// memory, which has room for two pages more than the piece. Where a file cannot be read so, it reads like ReadFull.
func (p *Piece) ReadDirect(memory []byte) (skew int64, err error) {
	fd, ok := p.File.Direct()
	if !ok {
		return 0, p.File.ReadFull(memory[:p.N], p.Offset)
	}
	skew = p.Offset % driver.PageSize
	envelope := driver.RoundUp(skew+p.N, driver.PageSize)
	n, err := ReadAtLeast(fd, p.File.Name, memory[:envelope], p.Offset-skew, int(skew+p.N))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		// Some file systems take the flag at open and refuse the read. Then the page cache is the only way.
		return 0, p.File.ReadFull(memory[:p.N], p.Offset)
	}
	if int64(n) < skew+p.N {
		return 0, err
	}
	return skew, nil
}
