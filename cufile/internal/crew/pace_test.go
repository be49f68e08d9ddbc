package crew

import (
	"testing"
	"time"
)

// TestPaceFollowsWhatThreadsSee has threads that each read so many GB/s, all of them no more than memory gives, beside a
// link, and looks where their number settles.
func TestPaceFollowsWhatThreadsSee(t *testing.T) {
	for name, c := range map[string]struct {
		each, memory, link float64 // GB/s
		readers            int
		least, most        int
	}{
		"a quiet machine":            {each: 10, memory: 1000, link: 55, readers: 1, least: 5, most: 11},
		"slow threads":               {each: 4, memory: 1000, link: 55, readers: 1, least: 13, most: 16},
		"memory that others use":     {each: 6, memory: 40, link: 55, readers: 1, least: 8, most: 12},
		"eight readers, much memory": {each: 4, memory: 1000, link: 55, readers: 8, least: 13, most: 16},
		"a disk":                     {each: 0.3, memory: 3, link: 55, readers: 1, least: 10, most: 16},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPace(16, c.readers)
			n := p.Limit(16)
			for range 20_000 {
				const chunk = 2 << 20
				reading := max(chunk/c.each, chunk*float64(n)/c.memory) // ns of one thread
				waiting := max(0, chunk*float64(n)/c.link-reading)      // until the link has taken all threads' chunks
				n = p.Moved(chunk, time.Duration(reading), time.Duration(waiting))
			}
			if n < c.least || n > c.most {
				t.Errorf("%d threads, want %d to %d", n, c.least, c.most)
			}
			if n = p.Limit(2); n != 2 {
				t.Errorf("%d threads, and 2 are allowed", n)
			}
		})
	}
}

func TestThreadsShareTheHost(t *testing.T) {
	for _, c := range []struct{ cpus, readers, want int }{{16, 0, 12}, {16, 1, 12}, {2, 1, 4}, {32, 1, 16}, {32, 2, 12}, {32, 4, 6}, {32, 8, 3}, {8, 100, 2}} {
		if got := MostThreads(c.cpus, c.readers); got != c.want {
			t.Errorf("%d CPUs, %d readers: %d, want %d", c.cpus, c.readers, got, c.want)
		}
	}
}
