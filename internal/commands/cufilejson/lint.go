package cufilejson

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"
)

// Level says how bad a finding is.
type Level string

// The levels.
const (
	Error   Level = "error"   // libcufile refuses the file, crashes, or disobeys it
	Warning Level = "warning" // it works, but probably not as wanted
)

// Finding is one thing that is wrong.
type Finding struct {
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // in characters, from 1
	Level   Level  `json:"level"`
	Key     string `json:"key,omitempty"` // with its sections, "properties.io_batchsize"
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"` // the correction; empty where it is not known
}

func (f Finding) String() string {
	s := fmt.Sprintf("%d:%d: %s: ", f.Line, f.Column, f.Level)
	if f.Key != "" {
		s += f.Key + ": "
	}
	s += f.Message
	if f.Fix != "" {
		s += " (fix: " + f.Fix + ")"
	}
	return s
}

// Options is the machine and the intent, as far as they are known. The zero value judges the text alone.
type Options struct {
	Direct     bool   // the user asked for proof: falling back to the CPU is an error
	HBM        int64  // bytes of the GPU in use, 0 where it is not known
	Filesystem string // where the data is, as in /proc/mounts: "nfs4"; "" where it is not known
	Version    int    // of libcufile, 1015 for 1.15; 0 where it is not known
}

// Result is the findings of Lint.
type Result struct {
	Findings []Finding // by line and column
}

// Errors counts findings that are errors.
func (r Result) Errors() (n int) {
	for _, f := range r.Findings {
		if f.Level == Error {
			n++
		}
	}
	return n
}

// MaxSize is the size in bytes of the largest file that is read.
const MaxSize = 64 << 10

// Lint finds the mistakes in a cufile.json.
func Lint(text []byte, opts Options) Result {
	if len(text) > MaxSize {
		return Result{Findings: []Finding{{Line: 1, Column: 1, Level: Error, Message: fmt.Sprintf("%d bytes are no configuration, at most %d are read", len(text), MaxSize)}}}
	}
	return Result{Findings: pass(text, opts).sorted()}
}

// linter is one pass over a text.
type linter struct {
	schema
	opts     Options
	text     []byte
	root     *hujson.Value
	findings []Finding
	found    map[string]*member // settings that count, by path
}

// member is one setting or section of the file.
type member struct {
	object *hujson.Object
	index  int
}

func (m *member) name() *hujson.Value  { return &m.object.Members[m.index].Name }
func (m *member) value() *hujson.Value { return &m.object.Members[m.index].Value }

func pass(text []byte, opts Options) *linter {
	l := &linter{schema: newSchema(), opts: opts, text: text, found: map[string]*member{}}
	if bom := []byte("\uFEFF"); bytes.HasPrefix(text, bom) {
		l.report(0, Error, "", "starts with a byte order mark, which libcufile takes for a syntax error", "remove it")
		return l
	}
	root, err := hujson.Parse(text)
	if err != nil {
		l.syntax(err)
		return l
	}
	l.root = &root
	l.punctuation(&root)
	top, ok := root.Value.(*hujson.Object)
	if !ok {
		l.report(root.StartOffset, Error, "", "the file must be an object, {...}; libcufile ignores or refuses anything else", "an empty object")
		return l
	}
	l.walk("", top)
	l.combinations()
	return l
}

// syntax reports the parser's error. It stops at the first mistake.
func (l *linter) syntax(err error) {
	f := Finding{Line: 1, Column: 1, Level: Error}
	if _, scan := fmt.Sscanf(err.Error(), "hujson: line %d, column %d:", &f.Line, &f.Column); scan != nil {
		f.Line, f.Column = 1, 1
	}
	what := err.Error()
	if inner := errors.Unwrap(err); inner != nil {
		what = inner.Error()
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		what = "the file ends too early, a bracket, quote or comment is open"
	}
	f.Message = "syntax error: " + what
	l.findings = append(l.findings, f)
}

// punctuation finds text that the parser takes and libcufile does not.
func (l *linter) punctuation(root *hujson.Value) {
	for v := range root.All() {
		var last *hujson.Value
		whole := v
		switch v := v.Value.(type) {
		case *hujson.Object:
			l.colons(v)
			if n := len(v.Members); n > 0 {
				last = &v.Members[n-1].Value
			}
		case *hujson.Array:
			if n := len(v.Elements); n > 0 {
				last = &v.Elements[n-1]
			} else if comment := strings.TrimSpace(string(v.AfterExtra)); comment != "" {
				l.report(whole.StartOffset, Error, "", "a comment in an empty array, which libcufile takes for a syntax error", "move it before the array")
			}
		}
		if last != nil && last.AfterExtra != nil {
			at := last.EndOffset + len(last.AfterExtra)
			if at < len(l.text) && l.text[at] == ',' {
				l.report(at, Error, "", "a comma before a closing bracket, which libcufile takes for a syntax error", "remove it")
			}
		}
	}
}

// colons finds comments between a name and its colon.
func (l *linter) colons(object *hujson.Object) {
	for _, m := range object.Members {
		if at := m.Name.EndOffset; strings.ContainsRune(string(m.Name.AfterExtra), '/') {
			l.report(at, Error, "", "a comment between a name and its colon, which libcufile takes for a syntax error", "move it behind the colon")
		}
	}
}

// walk judges the members of one section.
func (l *linter) walk(section string, object *hujson.Object) {
	last := map[string]int{}
	for i := range object.Members {
		last[object.Members[i].Name.Value.(hujson.Literal).String()] = i
	}
	for i := range object.Members {
		m := &member{object, i}
		name := m.name().Value.(hujson.Literal).String()
		path := join(section, name)
		if last[name] != i {
			l.report(m.name().StartOffset, Error, path, fmt.Sprintf("is there again in line %d, and libcufile takes the last alone", l.line(object.Members[last[name]].Name.StartOffset)),
				"remove this one")
			continue
		}
		k, isKey := l.keys[path]
		inner, isObject := m.value().Value.(*hujson.Object)
		switch {
		case strings.Contains(name, "."): // a path in one name
			l.unknown(section, name, m)
		case isKey:
			l.judge(k, m)
		case l.sections[path] && isObject:
			l.found[path] = m
			l.walk(path, inner)
		case l.sections[path]:
			l.report(m.value().StartOffset, Error, path, "is a section and must be an object, {...}; libcufile crashes on anything else", "an empty section")
		default:
			l.unknown(section, name, m)
		}
	}
}

// unknown reports a key that libcufile never looks at.
func (l *linter) unknown(section, name string, m *member) {
	at, path := m.name().StartOffset, join(section, name)
	const why = "libcufile does not know it and ignores it"
	inner, isObject := m.value().Value.(*hujson.Object)
	if isObject {
		near := l.meantSection(section, name)
		switch {
		case near == "" || near == path:
		case l.object(near) == nil:
			l.report(at, Error, path, why+"; the section is "+near, "rename it")
			return
		case len(inner.Members) > 0:
			l.report(at, Error, path, why+"; the section is "+near+", which is there, too", "remove this one")
			return
		}
	}
	near := l.meant(section, name)
	if dotted := strings.ReplaceAll(path, ":", "."); l.keys[dotted].path != "" { // "properties.x" or "properties:x" as one name
		near = dotted
	}
	if near == "" || isObject {
		l.report(at, Error, path, why, "remove it")
		return
	}
	k := l.keys[near]
	switch {
	case l.has(near):
		l.report(at, Error, path, why+"; the setting is "+near+", which is there, too", "remove this one")
	case k.section() == section:
		l.report(at, Error, path, why+"; did you mean "+k.name()+"?", "rename it")
	default:
		l.report(at, Error, path, why+" here; the setting is "+near, "move it there")
	}
}

// object finds a section, whichever of equal names counts, nil where it is not there.
func (l *linter) object(section string) *hujson.Object {
	o, _ := l.root.Value.(*hujson.Object)
	if section == "" {
		return o
	}
	for name := range strings.SplitSeq(section, ".") {
		v := lookup(o, name)
		if v == nil {
			return nil
		}
		if o, _ = v.Value.(*hujson.Object); o == nil {
			return nil
		}
	}
	return o
}

func lookup(o *hujson.Object, name string) *hujson.Value {
	if o == nil {
		return nil
	}
	for i := range slices.Backward(o.Members) {
		if o.Members[i].Name.Value.(hujson.Literal).String() == name {
			return &o.Members[i].Value
		}
	}
	return nil
}

func (l *linter) has(path string) bool {
	k := l.keys[path]
	return lookup(l.object(k.section()), k.name()) != nil
}

func (l *linter) report(at int, level Level, key, message, fix string) {
	f := Finding{Level: level, Key: key, Message: message, Fix: fix}
	f.Line = l.line(at)
	start := bytes.LastIndexByte(l.text[:at], '\n') + 1
	f.Column = 1 + utf8.RuneCount(l.text[start:at])
	l.findings = append(l.findings, f)
}

func (l *linter) line(at int) int { return 1 + bytes.Count(l.text[:at], []byte{'\n'}) }

func (l *linter) sorted() []Finding {
	slices.SortStableFunc(l.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return l.findings
}
