package source

// Pack makes chunks of at most size bytes and count pieces, which land anywhere. Each piece of a chunk goes behind the one before, and from there to its
// place in Places. No piece is longer than most.
func Pack(pieces []Piece, size int64, count int, most int64) (chunks []Chunk) {
	for _, p := range pieces {
		for p.N > 0 {
			last := len(chunks) - 1
			if last < 0 || chunks[last].N == size || len(chunks[last].Pieces) == count {
				chunks = append(chunks, Chunk{})
				last++
			}
			c := &chunks[last]
			n := min(p.N, most, size-c.N)
			c.Pieces, c.Places = append(c.Pieces, Piece{p.File, p.Offset, c.N, n}), append(c.Places, p.To)
			c.N += n
			p.Offset, p.To, p.N = p.Offset+n, p.To+n, p.N-n
		}
	}
	return chunks
}
