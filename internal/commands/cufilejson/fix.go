package cufilejson

import (
	"bytes"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// apply makes the repairs of one pass. Fixes that touch text which another has changed wait for the next
// pass.
func (l *linter) apply() []byte {
	var done []edit
	for _, repair := range l.repairs {
		if !slices.ContainsFunc(repair, func(e edit) bool { return slices.ContainsFunc(done, e.touches) }) {
			done = append(done, repair...)
		}
	}
	slices.SortFunc(done, func(a, b edit) int { return b.start - a.start })
	text := slices.Clone(l.text)
	for _, e := range done {
		text = slices.Replace(text, e.start, e.end, []byte(e.text)...)
	}
	return text
}

func (e edit) touches(other edit) bool { return e.start <= other.end && other.start <= e.end }

// remove takes a member out, with its comma, and its line if nothing else is on it. Comments stay.
func (l *linter) remove(m *member) []edit {
	start, end := m.name().StartOffset, m.value().EndOffset
	members := m.object.Members
	if m.index+1 < len(members) {
		end += len(m.value().AfterExtra)
		if bytes.ContainsRune(m.value().AfterExtra, '/') { // a comment before the comma: take the comma alone
			return []edit{{start, m.value().EndOffset, ""}, {end, end + 1, ""}}
		}
		return []edit{l.wholeLine(edit{l.lineStart(start), end + 1, ""})}
	}
	edits := []edit{{l.lineStart(start), end, ""}}
	if m.value().AfterExtra != nil && end+len(m.value().AfterExtra) < len(l.text) && l.text[end+len(m.value().AfterExtra)] == ',' {
		comma := end + len(m.value().AfterExtra)
		return append(edits, edit{comma, comma + 1, ""})
	}
	if m.index > 0 {
		before := members[m.index-1].Value
		comma := before.EndOffset + len(before.AfterExtra)
		edits[0].start = max(edits[0].start, comma+1)
		if edits[0].start == comma+1 {
			return []edit{{comma, end, ""}}
		}
		edits = append(edits, edit{comma, comma + 1, ""})
	}
	return edits
}

// lineStart goes back over blanks and one newline, so that removing a line leaves none that is empty. It keeps the
// newline that ends a comment.
func (l *linter) lineStart(at int) int {
	start := at
	for start > 0 && (l.text[start-1] == ' ' || l.text[start-1] == '\t') {
		start--
	}
	if start == 0 || l.text[start-1] != '\n' {
		return at
	}
	line := l.text[bytes.LastIndexByte(l.text[:start-1], '\n')+1 : start-1]
	if bytes.Contains(line, []byte("//")) {
		return start
	}
	return start - 1
}

// wholeLine takes the newline behind a removal that starts a line, where nothing else is on it.
func (l *linter) wholeLine(e edit) edit {
	if e.start == 0 || l.text[e.start-1] != '\n' {
		return e
	}
	rest := bytes.TrimLeft(l.text[e.end:], " \t")
	if len(rest) > 0 && rest[0] == '\n' {
		e.end = len(l.text) - len(rest) + 1
	}
	return e
}

// insert adds a setting, and the sections that it needs.
func (l *linter) insert(path, value string) []edit {
	section, name := "", path
	for {
		first, rest, found := strings.Cut(name, ".")
		if !found || l.object(join(section, first)) == nil {
			break
		}
		section, name = join(section, first), rest
	}
	parts := strings.Split(name, ".")
	text := `"` + parts[len(parts)-1] + `": ` + value
	for _, part := range slices.Backward(parts[:len(parts)-1]) {
		text = `"` + part + `": { ` + text + " }"
	}
	o := l.object(section)
	if o == nil {
		return nil
	}
	at := l.opening(section)
	indent := "\n" + strings.Repeat("    ", 1+strings.Count(section, "."))
	if section != "" {
		indent += "    "
	}
	if len(o.Members) == 0 {
		return []edit{{at, at, indent + text + indent[:len(indent)-4]}}
	}
	if before := string(o.Members[0].Name.BeforeExtra); strings.TrimSpace(before) == "" {
		indent = before
	}
	return []edit{{at, at, indent + text + ","}}
}

// opening is the offset behind the opening bracket of a section that is there.
func (l *linter) opening(section string) int {
	v := l.root
	if section != "" {
		for name := range strings.SplitSeq(section, ".") {
			v = lookup(v.Value.(*hujson.Object), name)
		}
	}
	return v.StartOffset + 1
}
