package source

import (
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Chunk is pieces that land one after the other: N bytes at To.
type Chunk struct {
	Pieces []Piece
	To, N  int64
	Places []int64 // of pieces that land elsewhere, see Pack; nil as a rule
}

// Cut makes chunks of at most size bytes. Pieces are cut where a chunk is full.
func Cut(pieces []Piece, size int64) []Chunk {
	var short []Piece
	for _, p := range pieces {
		// Inner cuts lie on pages of the file, so that each is an aligned envelope of its own.
		for p.N > size {
			n := size
			if odd := (p.Offset + n) % driver.PageSize; odd < n {
				n -= odd
			}
			short = append(short, Piece{p.File, p.Offset, p.To, n})
			p.Offset, p.To, p.N = p.Offset+n, p.To+n, p.N-n
		}
		short = append(short, p)
	}
	var chunks []Chunk
	first := 0
	for i := range short {
		if i > first && (short[i].To != short[i-1].To+short[i-1].N || short[i].To+short[i].N-short[first].To > size) {
			chunks = append(chunks, newChunk(short[first:i]))
			first = i
		}
	}
	if first < len(short) {
		chunks = append(chunks, newChunk(short[first:]))
	}
	return chunks
}

func newChunk(pieces []Piece) Chunk {
	last := pieces[len(pieces)-1]
	return Chunk{Pieces: pieces, To: pieces[0].To, N: last.To + last.N - pieces[0].To}
}

// Read reads the chunk into the beginning of p.
func (c *Chunk) Read(p []byte) error {
	for rest := c.Pieces; len(rest) > 0; {
		n := near(rest)
		if err := read(rest[:n], p[rest[0].To-c.To:]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// Columns of a matrix are short pieces, and a system call for each costs several times as much as the copy. So one call reads
// pieces that are near each other, and the bytes between them as well. Those go to memory which stays in the CPU's cache.
const (
	mostGap  = 8 << 10 // bytes between two pieces
	mostNear = 512     // pieces of one call, which takes 1,024 buffers
)

// near gives how many of the first pieces are read by one call. Where the daemon makes the bytes, none may be read in vain.
func near(pieces []Piece) int {
	n := 1
	for n < min(len(pieces), mostNear) {
		a, b := &pieces[n-1], &pieces[n]
		if gap := b.Offset - a.Offset - a.N; b.File != a.File || gap < 0 || gap > mostGap || (gap > 0 && b.File.Inline) {
			break
		}
		n++
	}
	return n
}

// read reads near pieces to p, one after the other.
func read(pieces []Piece, p []byte) error {
	come := pieces[0].Offset // the file's bytes up to there have come
	if len(pieces) > 1 {
		n, _ := unix.Preadv(pieces[0].File.FD, buffers(pieces, p), come)
		come += int64(max(n, 0))
	}
	for _, piece := range pieces {
		// A call that ends early does not say why. Reading the piece does.
		if piece.Offset+piece.N > come {
			if err := piece.File.ReadFull(p[:piece.N], piece.Offset); err != nil {
				return err
			}
		}
		p = p[piece.N:]
	}
	return nil
}

// buffers gives those for consecutive bytes of the file: near pieces go to p, and bytes between them are
// dropped.
func buffers(pieces []Piece, p []byte) [][]byte {
	list, dropped := make([][]byte, 0, 2*len(pieces)), make([]byte, mostGap)
	end := pieces[0].Offset
	for _, piece := range pieces {
		gap := piece.Offset - end
		end = piece.Offset + piece.N
		if gap == 0 && len(list) > 0 { // it lands behind the one before
			last := &list[len(list)-1]
			*last = (*last)[:int64(len(*last))+piece.N]
		} else {
			if gap > 0 {
				list = append(list, dropped[:gap])
			}
			list = append(list, p[:piece.N])
		}
		p = p[piece.N:]
	}
	return list
}
