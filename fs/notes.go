package fs

import (
	"fmt"
	"strings"

	"github.com/hbmfs/hbmfs/layout"
)

// notesMax bounds the notes that are told; the others are counted. noteMax bounds the bytes of a note.
const (
	notesMax = 10
	noteMax  = 400
)

// notes are findings of a line each, and how many more there are.
type notes struct {
	lines  []string
	more   int
	untold int
}

func (n *notes) add(line string) {
	if len(n.lines) == notesMax {
		n.more++
		return
	}
	if len(line) > noteMax {
		line = strings.ToValidUTF8(line[:noteMax], "") + "..."
	}
	n.lines = append(n.lines, line)
}

func (n *notes) addProblems(problems []layout.Problem, told func(object string) bool) {
	for i, p := range problems {
		switch {
		case !told(p.Object):
			n.untold++
		case len(n.lines) == notesMax:
			n.more += len(problems) - i
			return
		case p.Offset > 0:
			n.add(fmt.Sprintf("%s: at byte %d: %s", p.Object, p.Offset, p.Detail))
		default:
			n.add(p.Object + ": " + p.Detail)
		}
	}
}

// Notes returns the findings so far, one line each. Names in them are the dataset's.
func (m *Mount) Notes() []string {
	all := m.notesFor(func(string) bool { return true })
	if m.opt.KV != nil {
		all = append(all, m.opt.KV.Notes()...)
	}
	return all
}

// notesFor leaves out notes on objects that told refuses.
func (m *Mount) notesFor(told func(object string) bool) []string {
	n := notes{lines: []string{}}
	inspected := m.opt.Source // the path for hbmfs inspect, which sees a remote source only through the mount
	if m.opt.Remote.Origin != nil {
		inspected = m.point
	}
	for _, note := range m.opt.Notes {
		n.add(note)
	}
	if why := m.unfrozen.Load(); why != nil {
		n.add(*why)
	}
	if len(m.listing.Objects) == 0 && m.opt.Top == nil && m.opt.KV == nil {
		n.add(m.opt.Source + " has no files: is the path right, and the right filesystem mounted there?")
	}
	if denied := m.listing.Denied; len(denied) > 0 && told(denied[0].Name) {
		n.add(fmt.Sprintf("%d files cannot be opened (EACCES), the first is %s", len(denied), denied[0].Why))
	}
	n.addProblems(m.listing.Problems, told)
	if v := m.found.volume.Load(); v != nil {
		n.addProblems(v.Problems(), told)
	}
	if why := m.found.failed.Load(); why != nil {
		n.add("the dataset could not be recognized, so it has no views: " + *why)
	}
	if n.untold > 0 {
		n.add(fmt.Sprintf("%d files in directories that not everybody may list have problems: hbmfs inspect %s", n.untold, inspected))
	}
	if n.more > 0 {
		return append(n.lines, fmt.Sprintf("and %d more: hbmfs inspect %s", n.more, inspected))
	}
	return n.lines
}

// Looked is closed once recognition and look are over: then Notes has all findings of a mount.
func (m *Mount) Looked() <-chan struct{} { return m.found.looked }
