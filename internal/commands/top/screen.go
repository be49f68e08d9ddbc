package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/hbmfs/hbmfs/internal/sys/aside"
)

// Screen is the live view: its lines, and the selected mount. [Screen.Run] alone uses it.
type Screen struct {
	Sampler  *Sampler
	Interval time.Duration
	By       string // the order of mounts

	sample        func(context.Context) ([]Sample, error) // the Sampler's; tests have their own
	rows          []Row
	sampled       time.Time // zero before the first sample
	selected      string    // mount point
	width, height int
}

// Escapes of a terminal. While the screen is shown, lines that are too wide are cut, and the cursor is hidden.
const (
	enter   = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leave   = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	reverse = "\x1b[7m"
	plain   = "\x1b[m"
)

// Run shows the screen until q is pressed or ctx ends. The terminal is as before when it returns.
func (s *Screen) Run(ctx context.Context, in, out *os.File) error {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("have the terminal pass keys on: %w", err)
	}
	defer func() { _ = term.Restore(int(in.Fd()), before) }() // it may be gone
	fmt.Fprint(out, enter)
	defer fmt.Fprint(out, leave)
	ctx, cancel := context.WithCancel(ctx)
	keys, resized, samples := make(chan string), make(chan os.Signal, 1), make(chan taken, 1)
	go readKeys(ctx, in, keys)
	defer func() {
		cancel()
		for range keys { // until nobody reads the terminal
		}
	}()
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	resized <- syscall.SIGWINCH
	due := time.NewTimer(0)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due.C: // the next is due only after this one came
			go func() { samples <- s.take(ctx) }()
			continue
		case t := <-samples:
			if t.err != nil {
				return t.err
			}
			s.show(t)
			due.Reset(s.Interval)
		case key, ok := <-keys:
			if !ok || s.press(key) {
				return nil
			}
		case <-resized:
			s.width, s.height, _ = term.GetSize(int(out.Fd())) // 0 shows as little as possible
		}
		s.draw(out)
	}
}

// taken is the samples of all mounts at an instant.
type taken struct {
	samples []Sample
	at      time.Time
	err     error
}

func (s *Screen) take(ctx context.Context) taken {
	sample := s.sample
	if sample == nil {
		sample = s.Sampler.Sample
	}
	samples, err := sample(ctx)
	return taken{samples, time.Now(), err}
}

// show takes samples over.
func (s *Screen) show(t taken) {
	s.rows, s.sampled = Rows(t.samples, s.rows), t.at
	Sort(s.rows, s.By)
	s.move(0)
}

// readKeys passes on typed keys, one at a time, and closes keys when the terminal is gone. It ends with ctx.
func readKeys(ctx context.Context, in *os.File, keys chan<- string) {
	defer close(keys)
	buffer := make([]byte, 64)
	for ctx.Err() == nil {
		ready := []unix.PollFd{{Fd: int32(in.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(ready, 100); n == 0 || err == unix.EINTR {
			continue
		}
		n, err := in.Read(buffer)
		if err != nil {
			return
		}
		for typed := buffer[:n]; len(typed) > 0; {
			length := 1
			if len(typed) >= 3 && typed[0] == '\x1b' {
				length = 3 // arrows; a longer key is no key here, and neither are its parts
			}
			select {
			case keys <- string(typed[:length]):
			case <-ctx.Done():
				return
			}
			typed = typed[length:]
		}
	}
}

// press carries out a key, and tells whether it ends the view.
func (s *Screen) press(key string) (quit bool) {
	switch key {
	case "q", "\x1b", "\x03": // escape, Ctrl-C
		return true
	case "\x1b[A", "\x1bOA", "k": // up
		s.move(-1)
	case "\x1b[B", "\x1bOB", "j": // down
		s.move(1)
	case "s":
		orders := Orders()
		s.By = orders[(slices.Index(orders, s.By)+1)%len(orders)]
		Sort(s.rows, s.By)
	}
	return false
}

// index is where the selected mount is, the first where it is gone.
func (s *Screen) index() int {
	return max(0, slices.IndexFunc(s.rows, func(r Row) bool { return r.MountPoint == s.selected }))
}

// move selects another mount.
func (s *Screen) move(by int) {
	if len(s.rows) > 0 {
		s.selected = s.rows[max(0, min(s.index()+by, len(s.rows)-1))].MountPoint
	}
}

// draw writes over the old screen, so that nothing flickers.
func (s *Screen) draw(out io.Writer) {
	lines := strings.Split(strings.TrimRight(s.text(), "\n"), "\n")
	lines = lines[:min(len(lines), max(1, s.height))]
	fmt.Fprint(out, "\x1b[H"+strings.Join(lines, "\x1b[K\r\n")+"\x1b[K\x1b[J")
}

// detailLines is the number of lines for a mount's details, for any number of mounts.
const detailLines = 12

// text is the screen. The terminal cuts lines that are too wide.
func (s *Screen) text() string {
	var b strings.Builder
	switch {
	case s.sampled.IsZero():
		return "hbmfs top: asking the mounts of this machine ..."
	case len(s.rows) == 0:
		return "hbmfs top: no hbmfs is mounted here. q quits"
	}
	broken := 0
	for _, r := range s.rows {
		if r.State != aside.OK {
			broken++
		}
	}
	fmt.Fprintf(&b, "hbmfs top  %s  mounts: %d, not ok: %d  every %v  by %s\nq quits, s sorts, up and down select\n\n",
		s.sampled.Format(time.TimeOnly), len(s.rows), broken, s.Interval, s.By)
	var table, details strings.Builder
	if err := WriteTable(&table, s.rows, s.width); err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(table.String(), "\n"), "\n")
	at := s.index()
	lines[1+at] = reverse + lines[1+at] + plain
	head, body := lines[0], lines[1:]
	room := max(1, s.height-5-detailLines)
	first := max(0, min(at-room/2, len(body)-room))
	body = body[first:min(first+room, len(body))]
	fmt.Fprintf(&b, "%s\n%s\n\n", head, strings.Join(body, "\n"))
	if err := WriteDetails(&details, &s.rows[at]); err != nil {
		return err.Error()
	}
	for line := range strings.Lines(details.String()) {
		b.WriteString(hang(strings.TrimRight(line, "\n"), s.width))
	}
	return b.String()
}

// hang breaks a line of details that is too wide for the terminal, below the beginning of its text. A width of 0 breaks none.
func hang(line string, width int) string {
	at := 0
	if _, text, found := strings.Cut(strings.TrimLeft(line, " "), "  "); found {
		at = utf8.RuneCountInString(line) - utf8.RuneCountInString(strings.TrimLeft(text, " "))
	}
	runes := []rune(line)
	var b strings.Builder
	for width > at+20 && len(runes) > width { // a narrower terminal cuts it
		end := width
		for end > at+1 && runes[end] != ' ' {
			end--
		}
		if end == at+1 {
			end = width // a word that is as wide as all
		}
		b.WriteString(string(runes[:end]) + "\n")
		runes = append([]rune(strings.Repeat(" ", at)), []rune(strings.TrimLeft(string(runes[end:]), " "))...)
	}
	return b.String() + string(runes) + "\n"
}
