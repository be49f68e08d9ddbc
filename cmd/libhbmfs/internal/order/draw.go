// Package order has the loops over samples and documents that decide the contents of a batch, and that cost too much in
// Python.
package order

import "math/bits"

// Wide is a number of 128 bits.
type Wide struct{ High, Low uint64 }

func (a Wide) minus(b Wide) (difference Wide, below bool) {
	low, borrow := bits.Sub64(a.Low, b.Low, 0)
	high, borrow := bits.Sub64(a.High, b.High, borrow)
	return Wide{high, low}, borrow != 0
}

func (a Wide) plus(b Wide) Wide {
	low, carry := bits.Add64(a.Low, b.Low, 0)
	high, _ := bits.Add64(a.High, b.High, carry)
	return Wide{high, low}
}

// Source is a source of a mixture on a line of its targets, as python/hbmfs/data/_chairman.py has them. Its next sample may come,
// and is due, at given numbers of samples.
type Source struct {
	May, Due         int64 // of its next sample
	ThenMay, ThenDue int64 // of the one after it, where Slope is not 0

	// A sample comes every Every + Part/Slope samples. MayPast and DuePast are the amounts by which ThenMay and ThenDue were rounded up,
	// times Slope.
	Every            int64
	Slope, Part      Wide
	MayPast, DuePast Wide
}

// step goes from a time that was rounded up by past to that of the next sample.
func (s *Source) step(time *int64, past *Wide) {
	*time += s.Every
	rest, below := past.minus(s.Part)
	if below {
		rest = rest.plus(s.Slope)
		*time++
	}
	*past = rest
}

// Draw draws the samples after the first n, and gives how many. Of the sources whose next sample may come, the one that is due
// first. It stops behind one of a source that is due only beyond end, or never.
func Draw(sources []Source, n, end int64, drawn []byte) int {
	for i := range drawn {
		n++
		best := -1
		for j := range sources {
			if sources[j].May <= n && (best < 0 || sources[j].Due < sources[best].Due) {
				best = j
			}
		}
		if best < 0 {
			return i
		}
		drawn[i] = byte(best)
		s := &sources[best]
		if s.Slope == (Wide{}) || s.ThenDue > end {
			return i + 1
		}
		s.May, s.Due = s.ThenMay, s.ThenDue
		s.step(&s.ThenMay, &s.MayPast)
		s.step(&s.ThenDue, &s.DuePast)
	}
	return len(drawn)
}
