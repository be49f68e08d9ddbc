package order

import "fmt"

// Cut says which documents rows of length consecutive tokens hold. python/hbmfs/data/_segments.py has the same.
type Cut struct {
	Total int64 // of documents in all rows

	borders [][]int64 // of each dataset: where documents begin, and the last one ends
	sources []int32   // of each row: its dataset; nil: the first
	starts  []int64
	length  int64
	first   []int64 // of each row: its first document
	each    []int64 // of each row: how many it holds
}

// NewCut finds the documents of each row, and how many each holds. Rows must be inside of the tokens.
func NewCut(borders [][]int64, sources []int32, starts []int64, length int64, each []int64) (*Cut, error) {
	c := &Cut{borders: borders, sources: sources, starts: starts, length: length, first: make([]int64, len(starts)), each: each}
	for _, b := range borders {
		if len(b) < 2 || b[0] != 0 || b[len(b)-1] < 0 || length < 1 {
			return nil, fmt.Errorf("%d borders cut no rows of %d tokens", len(b), length)
		}
	}
	for i, start := range starts {
		if k := c.source(i); k < 0 || k >= len(borders) {
			return nil, fmt.Errorf("a row is of dataset %d, of %d", k, len(borders))
		}
		if b := c.of(i); start < 0 || start > b[len(b)-1]-length {
			return nil, fmt.Errorf("a row of %d tokens from %d on, of %d", length, start, b[len(b)-1])
		}
	}
	eachPart(len(starts), func(from, to int) {
		c.find(from, to)
		for i := from; i < to; i++ {
			each[i] = 0
			b, end := c.of(i), starts[i]+length
			for d := c.first[i]; b[d] < end; d++ {
				if b[d+1] > b[d] {
					each[i]++
				}
			}
		}
	})
	for _, n := range each {
		c.Total += n
	}
	return c, nil
}

func (c *Cut) source(row int) int {
	if c.sources == nil {
		return 0
	}
	return int(c.sources[row])
}

// of gives the borders of a row's dataset.
func (c *Cut) of(row int) []int64 { return c.borders[c.source(row)] }

// find gives each row the document that holds its first token. It halves the documents of several rows in turn, since each look
// waits for memory, and those of different rows wait at once.
func (c *Cut) find(from, to int) {
	const together = 16
	for ; from < to; from += together {
		var left [together]int64 // documents that may hold the token; first is the first of them
		rows := min(together, to-from)
		for k := range rows {
			left[k] = int64(len(c.of(from+k))) - 1
		}
		for more := true; more; {
			more = false
			for k := range rows {
				half := left[k] / 2
				if c.of(from + k)[c.first[from+k]+half] <= c.starts[from+k] {
					c.first[from+k] += half
				}
				left[k] -= half
				more = more || left[k] > 1
			}
		}
	}
}

// Fill gives the documents of all rows, how much of each a row holds, and whether it goes on behind the row.
func (c *Cut) Fill(lengths, documents []int64, goesOn []byte) {
	places, at := make([]int64, len(c.starts)), int64(0)
	for i, n := range c.each {
		places[i] = at
		at += n
	}
	eachPart(len(c.starts), func(from, to int) {
		for i := from; i < to; i++ {
			at, start, end, b := places[i], c.starts[i], c.starts[i]+c.length, c.of(i)
			for d := c.first[i]; b[d] < end; d++ {
				if b[d+1] == b[d] {
					continue
				}
				lengths[at], documents[at], goesOn[at] = min(b[d+1], end)-max(b[d], start), d, 0
				if b[d+1] > end {
					goesOn[at] = 1
				}
				at++
			}
		}
	})
}
