package source

import "github.com/hbmfs/hbmfs/internal/driver"

// Chunk is pieces that land one after the other: N bytes at To.
type Chunk struct {
	Pieces []Piece
	To, N  int64
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
	return Chunk{pieces, pieces[0].To, last.To + last.N - pieces[0].To}
}

// Read reads the chunk into the beginning of p.
func (c *Chunk) Read(p []byte) error {
	for _, piece := range c.Pieces {
		where := piece.To - c.To
		if err := piece.File.ReadFull(p[where:where+piece.N], piece.Offset); err != nil {
			return err
		}
	}
	return nil
}
