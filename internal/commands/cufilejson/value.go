package cufilejson

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"
)

// judge looks at the value of a setting that is known.
func (l *linter) judge(k key, m *member) {
	v := m.value()
	at := v.StartOffset
	if literal, ok := v.Value.(hujson.Literal); ok && literal.Kind() == 'n' {
		l.report(at, Warning, k.path, "is null, which is the same as leaving it out", "remove it")
		return
	}
	l.found[k.path] = m
	const known = 1015 // which later one brought a setting is not known of all
	if k.since > known && l.opts.Version != 0 && l.opts.Version <= known {
		l.report(m.name().StartOffset, Warning, k.path, fmt.Sprintf("this machine's libcufile is 1.%d, which does not know it and ignores it", l.opts.Version%1000), "")
	}
	switch k.kind {
	case texts, numbers:
		l.judgeArray(k, m)
	case object:
		if _, ok := v.Value.(*hujson.Object); !ok {
			l.report(at, Error, k.path, "must be an object, {...}; libcufile refuses the file", "remove it")
		}
	default:
		l.judgeScalar(k, v)
	}
}

// judgeArray looks at an array, and at each element as at a value of its own.
func (l *linter) judgeArray(k key, m *member) {
	v := m.value()
	element := k
	element.kind = number
	if k.kind == texts {
		element.kind = text
	}
	array, ok := v.Value.(*hujson.Array)
	if ok {
		for i := range array.Elements {
			l.judgeScalar(element, &array.Elements[i])
		}
		return
	}
	message := "must be " + k.kind.String() + "; libcufile refuses the file"
	literal, ok := v.Value.(hujson.Literal)
	if !ok || literal.Kind() == 't' || literal.Kind() == 'f' {
		l.report(v.StartOffset, Error, k.path, message, "remove it")
		return
	}
	values := []string{string(literal)}
	if literal.Kind() == '"' {
		values = nil
		for _, word := range strings.FieldsFunc(literal.String(), func(r rune) bool { return r == ',' || r == ' ' }) {
			values = append(values, quote(word))
		}
	}
	fixed := "[" + strings.Join(values, ", ") + "]"
	l.report(v.StartOffset, Error, k.path, message, fixed)
}

func quote(s string) string {
	out, err := json.Marshal(s)
	if err != nil {
		return `""` // it cannot fail for a string
	}
	return string(out)
}

// judgeScalar looks at one value.
func (l *linter) judgeScalar(k key, v *hujson.Value) {
	literal, _ := v.Value.(hujson.Literal) // nil for an array or object, whose kind is none of those below
	var fixed, why string
	switch k.kind {
	case boolean:
		fixed, why = repairBool(literal)
	case text:
		fixed, why = repairText(k, literal)
	default:
		l.judgeNumber(k, v, literal)
		return
	}
	l.replace(k, v, fixed, why)
}

// replace reports why, where it says something, with the value that is right, if there is one.
func (l *linter) replace(k key, v *hujson.Value, fixed, why string) {
	switch {
	case why == "":
	case fixed == "":
		l.report(v.StartOffset, Error, k.path, why, "remove it")
	default:
		l.report(v.StartOffset, Error, k.path, why, fixed)
	}
}

func repairBool(literal hujson.Literal) (fixed, why string) {
	why = "must be true or false, without quotes; libcufile refuses the file"
	switch strings.ToLower(strings.Trim(string(literal), `"`)) {
	case "true", "1", "yes", "on":
		fixed = "true"
	case "false", "0", "no", "off":
		fixed = "false"
	}
	if fixed != "" && fixed == string(literal) {
		return "", ""
	}
	return fixed, why
}

func repairText(k key, literal hujson.Literal) (fixed, why string) {
	if len(literal) == 0 || literal.Kind() != '"' {
		if len(k.values) == 0 && len(literal) > 0 {
			fixed = quote(string(literal))
		}
		return fixed, "must be a string in quotes; libcufile refuses the file"
	}
	s := literal.String()
	if len(k.values) == 0 || slices.Contains(k.values, s) {
		return "", ""
	}
	for _, value := range k.values {
		if strings.EqualFold(s, value) || distance(strings.ToLower(s), strings.ToLower(value)) <= 1 {
			fixed = quote(value)
		}
	}
	const most = 40
	if len(s) > most {
		s = s[:most] + "..."
	}
	return fixed, fmt.Sprintf("must be one of %s, not %q", strings.Join(k.values, ", "), s)
}

func (l *linter) judgeNumber(k key, v *hujson.Value, literal hujson.Literal) {
	digits := strings.TrimSpace(strings.Trim(string(literal), `"`))
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		l.replace(k, v, "", "must be "+k.kind.String()+"; libcufile refuses or misreads anything else")
		return
	}
	f = max(min(f, 1<<62), -1<<62)
	n := int64(f)
	if exact, err := strconv.ParseInt(digits, 10, 64); err == nil {
		n = exact
	}
	if n < 0 && k.min >= 0 {
		l.replace(k, v, "", "must not be negative; there is no value for \"unlimited\"")
		return
	}
	var why string
	switch {
	case literal.Kind() == '"':
		why = "is a number in quotes, which libcufile refuses"
	case float64(n) != f:
		why = "must be a whole number, without a fraction"
	}
	right, problem := k.inRange(n)
	l.replace(k, v, strconv.FormatInt(right, 10), cmp.Or(problem, why))
}

// inRange gives the nearest number that is right, and the problem with n.
func (k key) inRange(n int64) (right int64, problem string) {
	right = n
	if k.bytes != 0 && n > k.bytes && n>>10 >= k.min && n>>10 <= max(k.bytes, k.min) {
		right, problem = n>>10, fmt.Sprintf("is in KB, and %d KB are %s: these must be bytes", n, size(n))
	}
	switch {
	case right < k.min:
		right, problem = k.min, fmt.Sprintf("is at least %d, not %d", k.min, n)
	case right > k.max:
		right, problem = k.max, fmt.Sprintf("is at most %d, not %d", k.max, n)
	}
	if k.multiple != 0 && right%k.multiple != 0 {
		if problem == "" {
			problem = fmt.Sprintf("must be a multiple of %d, which %d is not; libcufile refuses the file", k.multiple, n)
		}
		right = right / k.multiple * k.multiple
		if right < k.min {
			right += k.multiple
		}
	}
	return right, problem
}

// size writes KB for people.
func size(kb int64) string {
	switch {
	case kb >= tibKB:
		return fmt.Sprintf("%d TiB", kb/tibKB)
	case kb >= gibKB:
		return fmt.Sprintf("%d GiB", kb/gibKB)
	case kb >= 1<<10:
		return fmt.Sprintf("%d MiB", kb>>10)
	}
	return fmt.Sprintf("%d KiB", kb)
}
