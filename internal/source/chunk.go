package source

import "github.com/hbmfs/hbmfs/internal/driver"

// Chunk is pieces that land one after the other: N bytes at To.
type Chunk struct {
	Pieces []Piece
	To, N  int64
}

// Cut makes chunks of at most size bytes. Pieces are cut where a chunk is full.
func Cut(pieces []Piece, size int64) []Chunk {
	var parts []Piece
	for _, p := range pieces {
		// Inner cuts lie on pages of the file, so that each part is an aligned envelope of its own.
		for p.N > size {
			n := size
			if odd := (p.Offset + n) % driver.PageSize; odd < n {
				n -= odd
			}
			parts = append(parts, Piece{p.File, p.Offset, p.To, n})
			p.Offset, p.To, p.N = p.Offset+n, p.To+n, p.N-n
		}
		parts = append(parts, p)
	}
	var chunks []Chunk
	first := 0
	for i := range parts {
		if i > first && (parts[i].To != parts[i-1].To+parts[i-1].N || parts[i].To+parts[i].N-parts[first].To > size) {
			chunks = append(chunks, newChunk(parts[first:i]))
			first = i
		}
	}
	if first < len(parts) {
		chunks = append(chunks, newChunk(parts[first:]))
	}
	return chunks
}

func newChunk(pieces []Piece) Chunk {
	last := pieces[len(pieces)-1]
	return Chunk{pieces, pieces[0].To, last.To + last.N - pieces[0].To}
}

// Read reads the chunk into the beginning of p.
func (c *Chunk) Read(p []byte) error {
	for _, part := range c.Pieces {
		where := part.To - c.To
		if err := part.File.ReadFull(p[where:where+part.N], part.Offset); err != nil {
			return err
		}
	}
	return nil
}
