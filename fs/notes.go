package fs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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
	if v := m.volume.Load(); v != nil {
		n.addProblems(v.Problems(), told)
		for _, h := range append(v.Guesses(told), v.Hints()...) {
			if told(h.Object) {
				n.add(h.String())
			}
		}
	}
	if why := m.unrecognized.Load(); why != nil {
		n.add("the dataset could not be recognized, so it has no views: " + *why)
	}
	if n.untold > 0 {
		n.add(fmt.Sprintf("%d files in directories that not everybody may list have problems: hbmfs inspect %s", n.untold, m.inspected()))
	}
	if n.more > 0 {
		return append(n.lines, fmt.Sprintf("and %d more: hbmfs inspect %s", n.more, m.inspected()))
	}
	return n.lines
}

// inspected is the path for hbmfs inspect, which sees a remote source only through the mount.
func (m *Mount) inspected() string {
	if m.opt.Remote.Origin != nil {
		return m.point
	}
	return m.opt.Source
}

// lookTime bounds how long a mount reads indexes of shards that nobody has asked for, to find bad ones. Views read the
// others.
const lookTime = 400 * time.Millisecond

// look reads the indexes of local shards for lookTime, and counts the views. The views use the indexes later.
func (m *Mount) look(ctx context.Context) {
	v := m.volume.Load()
	if v == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	known := map[layout.Problem]bool{}
	for _, p := range v.Problems() {
		known[p] = true
	}
	remote := m.opt.Remote.Origin != nil // there each index costs a request
	for _, s := range v.Sets {
		if !remote && s.Resolve(ctx) != nil { // bad shards are problems: the error is the time's
			break
		}
	}
	for i := range v.Views {
		view := &v.Views[i]
		if view.Set.NeedsReading() {
			continue
		}
		exists, err := view.Exists(ctx)
		if ctx.Err() != nil {
			break
		}
		m.found.note(view.Path, err == nil && exists)
	}
	m.logProblems(slices.DeleteFunc(v.Problems(), func(p layout.Problem) bool { return known[p] }))
}

func (m *Mount) logProblems(problems []layout.Problem) {
	for _, p := range problems {
		m.log.Warn("problem in the dataset", "object", p.Object, "offset", p.Offset, "problem", p.Detail)
	}
}

// Looked is closed once recognition and look are over: then Notes has all findings of a mount.
func (m *Mount) Looked() <-chan struct{} { return m.looked }
