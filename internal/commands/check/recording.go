package check

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// kind is the kind of an entry of a recording.
type kind uint8

const (
	kindDir kind = iota + 1
	kindFile
	kindLink
	kindDevice
)

// entry is one file of a recording.
type entry struct {
	kind   kind
	data   []byte // of a file
	denied bool   // a file that is there and could not be read
	target string // of a link
}

// Recording is the facts that were kept of a machine: entries by their path without the leading slash and without
// symbolic links in its directories.
type Recording struct {
	entries map[string]*entry
}

// NewRecording gives an empty recording.
func NewRecording() *Recording { return &Recording{entries: map[string]*entry{".": {kind: kindDir}}} }

// Merge adds the entries of another recording of the same machine.
func (s *Recording) Merge(other *Recording) {
	maps.Copy(s.entries, other.entries)
}

// put adds an entry, and the directories above it.
func (s *Recording) put(name string, e *entry) {
	s.entries[name] = e
	for dir := path.Dir(name); s.entries[dir] == nil; dir = path.Dir(dir) {
		s.entries[dir] = &entry{kind: kindDir}
	}
}

// mostLinks bounds how many symbolic links a path may lead through, as the kernel does.
const mostLinks = 40

// follow walks a path from at without links, like realpath(3). link says where a path leads that is a link. ok is false
// after too many.
func follow(at, name string, link func(name string) (target string, is bool)) (resolved string, ok bool) {
	rest := strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		target, is := link(next)
		if !is {
			at = next
			continue
		}
		if links++; links > mostLinks {
			return name, false
		}
		if strings.HasPrefix(target, "/") {
			at = "."
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, true
}

// real follows symbolic links. The target need not be in the recording: sysfs has links to files that were not kept, and
// only where they lead matters.
func (s *Recording) real(name string) string {
	at, _ := follow(".", name, func(name string) (string, bool) {
		e := s.entries[name]
		if e == nil || e.kind != kindLink {
			return "", false
		}
		return e.target, true
	})
	return at
}

func (s *Recording) find(name string) *entry {
	return s.entries[s.real(name)]
}

func (s *Recording) exists(name string) bool { return s.find(name) != nil }

// text gives a file without the white space around it; ok says whether it is there and could be read.
func (s *Recording) text(name string) (text string, ok bool) {
	data, ok := s.raw(name)
	return strings.TrimSpace(string(data)), ok
}

// lines gives the lines of a file that are not empty.
func (s *Recording) lines(name string) []string {
	text, _ := s.text(name)
	return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return strings.TrimSpace(line) == "" })
}

// base gives the last part of where a link leads, as "nvme" for a device's link "driver".
func (s *Recording) base(name string) string {
	dir, file := path.Split(strings.Trim(name, "/"))
	at := s.real(dir)
	if e := s.entries[path.Join(at, file)]; e != nil && e.kind == kindLink {
		return path.Base(e.target)
	}
	return ""
}

// list gives the sorted names in a directory.
func (s *Recording) list(name string) []string {
	at := s.real(name)
	prefix := at + "/"
	if at == "." {
		prefix = ""
	}
	var names []string
	for entryName := range s.entries {
		if rest, ok := strings.CutPrefix(entryName, prefix); ok && rest != "." && rest != "" && !strings.Contains(rest, "/") {
			names = append(names, rest)
		}
	}
	slices.Sort(names)
	return names
}

// raw gives a file as it is.
func (s *Recording) raw(name string) ([]byte, bool) {
	e := s.find(name)
	if e == nil || e.kind != kindFile || e.denied {
		return nil, false
	}
	return e.data, true
}
