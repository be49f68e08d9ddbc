package order

import "fmt"

// Cut says which documents rows of length consecutive tokens hold: where documents begin, and the last one ends, is in
// borders. python/hbmfs/_segments.py has the same.
type Cut struct {
	borders, starts []int64
	length          int64
	first           []int64 // of each row: its first document
	Each            []int64 // of each row: how many it holds
}

// NewCut finds the documents of each row. Rows must be inside of the tokens.
func NewCut(borders, starts []int64, length int64, each []int64) (*Cut, error) {
	if len(borders) < 2 || borders[0] != 0 || length < 1 {
		return nil, fmt.Errorf("%d borders cut no rows of %d tokens", len(borders), length)
	}
	c := &Cut{borders, starts, length, make([]int64, len(starts)), each}
	end := borders[len(borders)-1]
	for _, start := range starts {
		if start < 0 || start > end-length {
			return nil, fmt.Errorf("a row of %d tokens from %d on, of %d", length, start, end)
		}
	}
	eachPart(len(starts), func(from, to int) {
		for i := from; i < to; i++ {
			c.first[i] = c.holds(starts[i])
			for d := c.first[i]; borders[d] < starts[i]+length; d++ {
				if borders[d+1] > borders[d] {
					each[i]++
				}
			}
		}
	})
	return c, nil
}

// holds gives the document that holds a token.
func (c *Cut) holds(token int64) int64 {
	low, high := int64(0), int64(len(c.borders)-1) // borders[low] <= token < borders[high]
	for high-low > 1 {
		middle := (low + high) / 2
		if c.borders[middle] <= token {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// Fill gives the documents of all rows, how much of each a row holds, and whether it goes on behind the row.
func (c *Cut) Fill(lengths, documents []int64, goesOn []byte) {
	at := 0
	for i, start := range c.starts {
		end := start + c.length
		for d := c.first[i]; c.borders[d] < end; d++ {
			if c.borders[d+1] == c.borders[d] {
				continue
			}
			lengths[at] = min(c.borders[d+1], end) - max(c.borders[d], start)
			documents[at] = d
			goesOn[at] = 0
			if c.borders[d+1] > end {
				goesOn[at] = 1
			}
			at++
		}
	}
}
