package dataset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hbmfs/hbmfs/internal/handover"
	"github.com/hbmfs/hbmfs/layout"
)

// Selections are the documents that views of a mount are made of beside the whole sets. They are a [handover.State]: what was read once
// stays, whatever becomes of the files.
type Selections struct{ List []layout.Selection }

var _ handover.State = (*Selections)(nil)

// Read reads the files of words NAME=FILE. An error is WrongUse where a word, or what a file says, makes no sense.
func (s *Selections) Read(given []string) error {
	for _, g := range given {
		name, file, ok := strings.Cut(g, "=")
		if !ok || name == "" || file == "" {
			return WrongUse{fmt.Errorf("--select %s: give NAME=FILE", g)}
		}
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("--select %s: %w", name, err)
		}
		documents, err := layout.ParseSelection(f)
		_ = f.Close() // opened for reading: nothing is lost
		if err != nil {
			return WrongUse{fmt.Errorf("--select %s: %s: %w", name, file, err)}
		}
		s.List = append(s.List, layout.Selection{Name: name, Documents: documents})
	}
	return nil
}

// Section implements [handover.State].
func (*Selections) Section() (string, uint32) { return "selections", 1 }

// Save implements [handover.State]: for each the length of its name, the name, how many documents, and the steps from one to the next.
func (s *Selections) Save() (b []byte, err error) {
	for _, sel := range s.List {
		b = append(binary.AppendUvarint(b, uint64(len(sel.Name))), sel.Name...)
		b = binary.AppendUvarint(b, uint64(len(sel.Documents)))
		last := int64(0)
		for _, d := range sel.Documents {
			b = binary.AppendUvarint(b, uint64(d-last))
			last = d
		}
	}
	return b, nil
}

// Adopt implements [handover.State].
func (s *Selections) Adopt(section []byte) error {
	cut := errors.New("it is cut short")
	number := func() (uint64, bool) {
		v, n := binary.Uvarint(section)
		section = section[max(n, 0):]
		return v, n > 0
	}
	s.List = nil
	for len(section) > 0 {
		length, ok := number()
		if !ok || length > uint64(len(section)) {
			return cut
		}
		sel := layout.Selection{Name: string(section[:length])}
		section = section[length:]
		count, ok := number()
		if !ok || count > uint64(len(section)) { // a document takes a byte at least
			return cut
		}
		sel.Documents = make([]int64, count)
		at := int64(0)
		for i := range sel.Documents {
			step, ok := number()
			if !ok {
				return cut
			}
			at += int64(step)
			sel.Documents[i] = at
		}
		s.List = append(s.List, sel)
	}
	return nil
}
