package dataset

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/varint"
	"github.com/hbmfs/hbmfs/layout"
)

// Selections are the documents that views of a mount are made of beside the whole sets. They are a [handover.State]: a list that was
// read once stays, even if its file goes.
type Selections struct{ List []layout.Selection }

var _ handover.State = (*Selections)(nil)

// Read reads the files of words NAME=FILE. An error is a [cli.Mistake] where a word, or a line of a file, makes no sense.
func (s *Selections) Read(given []string) error {
	for _, g := range given {
		name, file, ok := strings.Cut(g, "=")
		if !ok || name == "" || file == "" {
			return cli.Mistakef("--select %s: give NAME=FILE", g)
		}
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("--select %s: %w", name, err)
		}
		documents, err := layout.ParseSelection(f)
		_ = f.Close() // opened for reading: nothing is lost
		if err != nil {
			return cli.Mistakef("--select %s: %s: %w", name, file, err)
		}
		s.List = append(s.List, layout.Selection{Name: name, Documents: documents})
	}
	return nil
}

// Section implements [handover.State].
func (*Selections) Section() (string, uint32) { return "selections", 1 }

// Save implements [handover.State]: for each the name, how many documents, and the steps from one to the next.
func (s *Selections) Save() ([]byte, error) {
	var w varint.Writer
	for _, sel := range s.List {
		w.Text(sel.Name)
		w.Uint(uint64(len(sel.Documents)))
		last := int64(0)
		for _, d := range sel.Documents {
			w.Uint(uint64(d - last))
			last = d
		}
	}
	return w.B, nil
}

// Adopt implements [handover.State].
func (s *Selections) Adopt(section []byte) error {
	s.List = nil
	r := varint.Reader{B: section}
	for len(r.B) > 0 {
		sel := layout.Selection{Name: r.Text(), Documents: make([]int64, r.Count())}
		at := int64(0)
		for i := range sel.Documents {
			at += int64(r.Uint())
			sel.Documents[i] = at
		}
		s.List = append(s.List, sel)
	}
	if r.Short {
		return errors.New("it is cut short")
	}
	return nil
}
