package progress

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// screen is a terminal of a width, and a clock.
type screen struct {
	strings.Builder
	columns int
	at      time.Time
}

func (s *screen) bar(total int64, bytes bool) *Bar {
	return newBar(s, "reading", total, bytes, func() int { return s.columns }, func() time.Time { return s.at })
}

// last is the line that is on the screen.
func (s *screen) last() string {
	lines := strings.Split(s.String(), "\r\x1b[K")
	return lines[len(lines)-1]
}

func TestBar(t *testing.T) {
	for columns, want := range map[int]string{
		120: "reading  25% [############......................................]  1.6 GB of 6.4 GB, 400.0 MB/s, 12s left",
		60:  "reading  25%  1.6 GB of 6.4 GB, 400.0 MB/s, 12s left",
		40:  "reading  25%  1.6 GB of 6.4 GB",
		20:  "reading  25%",
		6:   "readi",
	} {
		s := &screen{columns: columns, at: time.Unix(0, 0)}
		b := s.bar(6.4e9, true)
		for range 16 {
			s.at = s.at.Add(250 * time.Millisecond)
			b.Add(100e6)
		}
		if got := s.last(); got != want {
			t.Errorf("in %d columns the line is\n%q, want\n%q", columns, got, want)
		}
		b.Close()
		if s.last() != "" {
			t.Errorf("a closed bar leaves %q", s.last())
		}
	}
}

// The first read comes from memory, at a rate that says nothing.
func TestBarTellsNoFirstRate(t *testing.T) {
	s := &screen{columns: 200, at: time.Unix(0, 0)}
	b := s.bar(1e12, true)
	for range 4 {
		s.at = s.at.Add(210 * time.Millisecond)
		if b.Add(1e9); strings.Contains(s.last(), "/s") {
			t.Errorf("after %v it says %q", s.at.Sub(time.Unix(0, 0)), s.last())
		}
	}
	for range 400 { // 100 MB/s from here on
		s.at = s.at.Add(250 * time.Millisecond)
		b.Add(25e6)
	}
	if !strings.Contains(s.last(), "100.0 MB/s") {
		t.Errorf("at 100 MB/s it says %q", s.last())
	}
}

func TestBarCounts(t *testing.T) {
	s := &screen{columns: 100, at: time.Unix(0, 0)}
	b := s.bar(-1, false)
	s.at = s.at.Add(2 * time.Second)
	if b.Add(5000); s.last() != "reading 5,000  2,500/s" {
		t.Errorf("of an unknown total it says %q", s.last())
	}
	s.at = s.at.Add(2 * time.Second)
	b.Set(20000, 10000)
	if got := s.last(); !strings.Contains(got, "100%") || !strings.Contains(got, "10,000 of 10,000") || strings.Contains(got, "it") {
		t.Errorf("past its end it says %q", got)
	}
	var none *Bar
	none.Add(1)
	none.Set(1, 2)
	none.Close()
}

func FuzzBar(f *testing.F) {
	f.Add(int64(10), int64(100), 80, true, int64(1000))
	f.Fuzz(func(t *testing.T, done, total int64, columns int, bytes bool, ms int64) {
		columns = columns % 1000
		s := &screen{columns: columns, at: time.Unix(0, 0)}
		b := s.bar(total, bytes)
		s.at = s.at.Add(time.Duration(ms%1e9) * time.Millisecond)
		b.Add(max(0, done))
		if n := utf8.RuneCountInString(s.last()); n > max(0, columns-1) {
			t.Errorf("%d columns of %d: %q", n, columns, s.last())
		}
	})
}
