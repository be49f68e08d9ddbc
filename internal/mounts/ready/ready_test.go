package ready

import (
	"bufio"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
)

// TestListenHearsAReport has one end hear what the other says: notes, the last word, and the end.
func TestListenHearsAReport(t *testing.T) {
	for what, c := range map[string]struct {
		say         func(r *Report)
		state, text string
		notes       []string
		end         error
	}{
		"ready":  {func(r *Report) { r.Note("first\nof two"); r.Ready("it is mounted") }, Mounted, "it is mounted", []string{"first of two"}, nil},
		"failed": {func(r *Report) { r.Failed(errors.New("no such\nsource")) }, "failed", "no such source", nil, nil},
		"died":   {func(r *Report) { r.Note("trying again") }, "", "", []string{"trying again"}, io.EOF},
	} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r := &Report{to: write, notes: true}
		c.say(r)
		r.Close()
		r.Note("nobody hears this")
		var notes []string
		state, text, err := Listen(bufio.NewReader(read), func(text string) { notes = append(notes, text) })
		if state != c.state || text != c.text || !slices.Equal(notes, c.notes) || !errors.Is(err, c.end) {
			t.Errorf("%s: %q %q, notes %q and %v, want %q %q, %q and %v", what, state, text, notes, err, c.state, c.text, c.notes, c.end)
		}
		if err := read.Close(); err != nil {
			t.Error(err)
		}
	}
}
