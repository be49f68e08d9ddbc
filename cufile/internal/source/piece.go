package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Piece is consecutive bytes of one backing file, and where in the destination they go.
type Piece struct {
	File   *Backing
	Offset int64 // in file
	To     int64 // in the destination
	N      int64
}

// BytesOf gives the bytes of pieces.
func BytesOf(pieces []Piece) (n int64) {
	for i := range pieces {
		n += pieces[i].N
	}
	return n
}

// FilesOf gives each file of pieces once.
func FilesOf(pieces []Piece) (files []*Backing) {
	seen, last := map[*Backing]bool{}, (*Backing)(nil)
	for i := range pieces {
		if b := pieces[i].File; b != last && !seen[b] {
			files, seen[b], last = append(files, b), true, b
		}
	}
	return files
}

// Span is a range of a file, and where in the destination it goes.
type Span struct {
	Offset int64
	N      int64
	To     int64
}

// mostPieces bounds the memory of one request's pieces: 40 bytes each.
const mostPieces = 1 << 22

// Pieces finds where spans lie now. The spans must be inside the file. With inMount all of them lie in the file of the mount
// itself. More than 4 Mi pieces are ErrTooLarge.
func Pieces(ctx context.Context, f File, list []Span, inMount bool) (pieces []Piece, err error) {
	if first, last := around(list); first >= last {
		return nil, nil
	}
	runs := []Run{{Length: f.Size(), Count: 1, Object: InlineObject}}
	if !inMount {
		if runs, err = f.Runs(ctx, list); err != nil {
			return nil, err
		}
	}
	pieces = make([]Piece, 0, min(len(list)+len(runs)-1, mostPieces))
	for _, s := range list { // they are cut where runs, and pieces of runs, end
		for i := findRun(runs, s.Offset); s.N > 0; {
			if i >= len(runs) || runs[i].Logical > s.Offset {
				return nil, fmt.Errorf("source: internal error: no run covers offset %d", s.Offset)
			}
			if len(pieces) == mostPieces {
				return nil, fmt.Errorf("%w: more than %d pieces in one request: gather less at a time", ErrTooLarge, mostPieces)
			}
			r := &runs[i]
			place, n := r.At(s.Offset)
			n = min(n, s.N)
			pieces = append(pieces, Piece{f.Backing(r), place, s.To, n})
			if s = (Span{s.Offset + n, s.N - n, s.To + n}); s.Offset >= r.End() {
				i++
			}
		}
	}
	return pieces, nil
}

// around gives where the bytes of spans begin and end.
func around(list []Span) (first, last int64) {
	first = math.MaxInt64
	for i := range list {
		if s := &list[i]; s.N > 0 {
			first, last = min(first, s.Offset), max(last, s.Offset+s.N)
		}
	}
	return first, last
}

// joined gives the same bytes as spans in order, which neither overlap nor touch.
func joined(list []Span) (ranges []Span) {
	list = slices.DeleteFunc(slices.Clone(list), func(s Span) bool { return s.N == 0 })
	slices.SortFunc(list, func(a, b Span) int { return cmp.Compare(a.Offset, b.Offset) })
	for _, s := range list {
		if k := len(ranges) - 1; k >= 0 && s.Offset <= ranges[k].Offset+ranges[k].N {
			ranges[k].N = max(ranges[k].N, s.Offset+s.N-ranges[k].Offset)
		} else {
			ranges = append(ranges, s)
		}
	}
	return ranges
}

// findRun gives the index of the run that holds the file's byte at offset.
func findRun(runs []Run, offset int64) int {
	return sort.Search(len(runs), func(i int) bool { return runs[i].End() > offset })
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
