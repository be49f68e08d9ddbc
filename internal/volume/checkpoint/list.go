package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// State is how a checkpoint stands.
type State string

// The states.
const (
	Complete State = "complete" // published, and its files are there with their sizes
	Damaged  State = "damaged"  // published, and no longer whole
	InWork   State = "in work"  // a living process writes or removes it
	Leftover State = "leftover" // of a process that died: Clean and the next Begin remove it
)

// Entry is a checkpoint in a directory, or a draft of one.
type Entry struct {
	Name  string `json:"name"`
	Path  string `json:"path"`
	State State  `json:"state"`
	Why   string `json:"why,omitempty"` // it is not complete

	// Of complete ones.
	Part
	Files   int       `json:"files"`
	Size    int64     `json:"size"` // bytes
	Created time.Time `json:"created,omitzero"`
}

// List gives the checkpoints in a directory in the natural order of their names: step_9 before step_10. Sums are not
// compared; [Verify] does that. Directories without a manifest are not listed.
func List(dir string) ([]Entry, error) {
	root, names, err := openList(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // opened for reading
	all := []Entry{}
	unfinished := map[string]bool{}
	for _, base := range names {
		if name, ok := ofHidden(base); ok {
			unfinished[name] = unfinished[name] || !strings.HasSuffix(base, lockEnding)
			continue
		}
		if _, err := root.Lstat(filepath.Join(base, ManifestName)); err == nil && checkName(base) == nil {
			if e := entry(root, base); e != nil {
				all = append(all, *e)
			}
		}
	}
	for name, is := range unfinished {
		if is {
			all = append(all, unfinishedEntry(root, name))
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Or(natural(a.Name, b.Name), cmp.Compare(a.State, b.State)) })
	return all, nil
}

// openList opens a directory, and lists the names in it.
func openList(dir string) (*os.Root, []string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, nil, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, nil, fmt.Errorf("list checkpoints: %w", err)
	}
	d, err := root.Open(".")
	var names []string
	if err == nil {
		names, err = d.Readdirnames(-1)
		_ = d.Close() // opened for reading
	}
	if err != nil {
		_ = root.Close() // opened for reading
		return nil, nil, fmt.Errorf("list checkpoints in %s: %w", dir, err)
	}
	return root, names, nil
}

// entry looks at a directory that has a manifest. It gives nil where that was removed meanwhile.
func entry(root *os.Root, name string) *Entry {
	e := &Entry{Name: name, Path: filepath.Join(root.Name(), name), State: Damaged}
	c, err := openIn(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		e.Why = err.Error()
		return e
	}
	defer func() { _ = c.Close() }() // opened for reading
	m := c.Manifest
	for i := range m.Files {
		if err := c.misfit(&m.Files[i]); err != nil {
			if c.removed() {
				return nil
			}
			e.Why = fmt.Sprintf("file %q: %v", m.Files[i].Name, err)
			return e
		}
	}
	e.State, e.Part, e.Files, e.Size, e.Created = Complete, m.Part, len(m.Files), m.Size(), m.Created
	return e
}

// unfinishedEntry looks at a draft, or at the remains of a checkpoint.
func unfinishedEntry(root *os.Root, name string) Entry {
	e := Entry{Name: name, Path: filepath.Join(root.Name(), hidden(name, draftEnding)), State: Leftover, Why: "its writer has ended"}
	if _, err := root.Lstat(hidden(name, draftEnding)); errors.Is(err, fs.ErrNotExist) {
		e.Path, e.Why = filepath.Join(root.Name(), hidden(name, oldEnding)), "it is half removed"
	}
	if by := held(root, name); by != "" {
		e.State, e.Why = InWork, by
		if err := allWhole(root, hidden(name, draftEnding)); errors.Is(err, ErrInvalid) {
			e.Why += "; " + err.Error()
		}
	}
	return e
}

// natural compares names as people do: numbers in them by their value.
func natural(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		n, m := digits(x), digits(y)
		if n == 0 || m == 0 {
			if x[0] != y[0] {
				return cmp.Compare(x[0], y[0])
			}
			x, y = x[1:], y[1:]
			continue
		}
		p, q := strings.TrimLeft(x[:n], "0"), strings.TrimLeft(y[:m], "0")
		if c := cmp.Or(cmp.Compare(len(p), len(q)), cmp.Compare(p, q)); c != 0 {
			return c
		}
		x, y = x[n:], y[m:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(a, b))
}

// digits is how many digits a text begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
