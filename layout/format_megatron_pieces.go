package layout

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// piece is one part of a .bin that was cut to be distributed: X-00003-of-00082.bin. GPT-NeoX's utils/unshard_memmap.py
// puts Pythia's data together again. It counts from 0 to the last number, and so has one piece more than the name says.
// Other writers have as many as it says. Pieces are cut without regard to tokens.
type piece struct {
	object *Object
	index  int
	of     string // as it stands in the name
}

// findPieces returns the pieces of stem.bin that no set has yet, in order.
func findPieces(d *directory, stem string) []piece {
	var pieces []piece
	objects := d.volume.Objects
	first, _ := slices.BinarySearchFunc(objects, stem+"-", func(o *Object, name string) int { return ComparePaths(o.Name, name) })
	for _, o := range objects[first:] {
		rest, ok := strings.CutPrefix(o.Name, stem+"-")
		if !ok {
			break
		}
		if p, ok := parsePiece(o, rest); ok && !d.isClaimed(o) {
			pieces = append(pieces, p)
		}
	}
	slices.SortStableFunc(pieces, func(a, b piece) int { return cmp.Compare(a.index, b.index) })
	return pieces
}

// parsePiece reads the end of a piece's name, "00003-of-00082.bin".
func parsePiece(o *Object, rest string) (piece, bool) {
	rest, isBin := strings.CutSuffix(rest, ".bin")
	index, of, isPiece := strings.Cut(rest, "-of-")
	if !isBin || !isPiece || !isNumber(index) || !isNumber(of) {
		return piece{}, false
	}
	n, err := strconv.Atoi(index)
	return piece{o, n, of}, err == nil
}

// isNumber reports whether s is decimal digits that fit into an int.
func isNumber(s string) bool {
	return s != "" && len(s) <= 9 && strings.Trim(s, "0123456789") == ""
}

// checkPieces finds a piece that is missing, there twice, or of the wrong size. Together they must have want bytes. All
// but the last are of one size.
func (p *megatronPrefix) checkPieces(want int64) error {
	pieces, n := p.pieces, len(p.pieces)
	name := func(index int) string { return fmt.Sprintf("%s-%05d-of-%s.bin", p.stem, index, pieces[0].of) }
	count, err := strconv.Atoi(pieces[0].of)
	if err != nil {
		return corruptf(pieces[0].object, 0, "the number of pieces in the name is too large")
	}
	total := int64(0)
	for i, piece := range pieces {
		switch {
		case piece.of != pieces[0].of:
			return corruptf(piece.object, 0, "the name says a piece of %s, %s says of %s", piece.of, pieces[0].object.Name, pieces[0].of)
		case piece.index > count:
			return corruptf(piece.object, 0, "the piece is number %d of at most %d", piece.index, count)
		case piece.index < i:
			return corruptf(piece.object, 0, "the piece is there twice: %s is the same", pieces[i-1].object.Name)
		case piece.index > i:
			return corruptf(p.idx, 0, "%s is missing", name(i))
		}
		total += piece.object.Size
	}
	if n < count {
		return corruptf(p.idx, 0, "%s is missing", name(n))
	}
	size := commonSize(pieces[:max(1, n-1)])
	for _, piece := range pieces[:n-1] {
		if piece.object.Size != size {
			return corruptf(piece.object, piece.object.Size, "the piece has %d bytes, the others have %d", piece.object.Size, size)
		}
	}
	switch last := pieces[n-1].object; {
	case want < 0:
		return corruptf(p.idx, 34, "the last pointer is out of range, so that the size of the data is not known")
	case total == want:
		return nil
	case n == count && last.Size == size && total < want:
		return corruptf(p.idx, 0, "the pieces hold %d bytes, the index wants %d: %s is missing", total, want, name(n))
	default:
		return corruptf(last, last.Size, "the last piece has %d bytes, the index wants %d in it", last.Size, want-(total-last.Size))
	}
}

// commonSize returns the size that most pieces have, the larger of two: a piece is rather cut short than too long.
func commonSize(pieces []piece) int64 {
	seen := map[int64]int{}
	best := pieces[0].object.Size
	for _, p := range pieces {
		size := p.object.Size
		seen[size]++
		if seen[size] > seen[best] || (seen[size] == seen[best] && size > best) {
			best = size
		}
	}
	return best
}
