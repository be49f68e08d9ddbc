// Package progress draws how far long work is, with rate and time left, in the last line of a terminal.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/hbmfs/hbmfs/internal/text/size"
)

// Bar is the line of one piece of work. A nil Bar draws nothing.
type Bar struct {
	out   io.Writer
	what  string
	bytes bool
	width func() int
	now   func() time.Time

	mu           sync.Mutex // guards the fields below
	done, total  int64
	rate         float64 // a second, 0 while unknown
	began, drawn time.Time
	counted      int64 // of done, when it was drawn
}

// The rate is told once some time went by, and follows the work of the last seconds. The first reads may be from memory, so
// they say nothing of the rest.
const (
	drawTime = 200 * time.Millisecond
	rateTime = time.Second
	rateSpan = 5 * time.Second
	leftMost = 1000 * time.Hour // more is a guess
)

// New makes a bar where w is a terminal. A total of 0 or less is not known. Without bytes the work is counted in things.
func New(w io.Writer, what string, total int64, bytes bool) *Bar {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	width := func() int {
		columns, _, err := term.GetSize(int(f.Fd()))
		if err != nil || columns <= 0 {
			return 80
		}
		return columns
	}
	return newBar(w, what, total, bytes, width, time.Now)
}

func newBar(w io.Writer, what string, total int64, bytes bool, width func() int, now func() time.Time) *Bar {
	return &Bar{out: w, what: what, bytes: bytes, width: width, now: now, total: total, began: now(), drawn: now()}
}

// Add counts n more as done.
func (b *Bar) Add(n int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to(b.done + n)
}

// Set says that done of total are done.
func (b *Bar) Set(done, total int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total = total
	b.to(done)
}

// to takes the lock as held. A line that cannot be drawn is no reason to stop.
func (b *Bar) to(done int64) {
	if b.done = done; b.total > 0 {
		b.done = min(done, b.total)
	}
	now := b.now()
	since := now.Sub(b.drawn)
	if since < drawTime {
		return
	}
	switch age := now.Sub(b.began); {
	case age < rateTime:
	case b.rate == 0:
		b.rate = float64(b.done) / age.Seconds()
	default:
		recent := float64(b.done-b.counted) / since.Seconds()
		b.rate += (recent - b.rate) * min(1, since.Seconds()/rateSpan.Seconds())
	}
	b.counted, b.drawn = b.done, now
	fmt.Fprintf(b.out, "\r\x1b[K%s", b.line(b.width()-1))
}

// Close takes the line away.
func (b *Bar) Close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprint(b.out, "\r\x1b[K")
}

// line puts together as much as fits into width columns, the most telling first. The bar itself takes the rest.
func (b *Bar) line(width int) string {
	text := b.what + " " + b.count(b.done)
	parts := []string{}
	if b.total > 0 {
		text = fmt.Sprintf("%s %3d%%", b.what, int(100*float64(b.done)/float64(b.total)))
		parts = append(parts, fmt.Sprintf("%s of %s", b.count(b.done), b.count(b.total)))
	}
	if b.rate > 0 {
		parts = append(parts, b.count(int64(b.rate))+"/s")
		if left := float64(b.total-b.done) / b.rate; b.total > 0 && left < leftMost.Seconds() {
			parts = append(parts, (time.Duration(left)*time.Second).String()+" left")
		}
	}
	used := utf8.RuneCountInString(text)
	if used > width {
		return string([]rune(text)[:max(0, width)])
	}
	tail := ""
	for i, part := range parts {
		separator := map[bool]string{true: "  ", false: ", "}[i == 0]
		if used+len(tail)+len(separator)+len(part) > width {
			break
		}
		tail += separator + part
	}
	if room := min(width-used-len(tail)-3, 50); b.total > 0 && room >= 10 {
		full := int(float64(room) * float64(b.done) / float64(b.total))
		text += " [" + strings.Repeat("#", full) + strings.Repeat(".", room-full) + "]"
	}
	return text + tail
}

func (b *Bar) count(n int64) string {
	if b.bytes {
		return size.Decimal(n)
	}
	return size.Grouped(n)
}
