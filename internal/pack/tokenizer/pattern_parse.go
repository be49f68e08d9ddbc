package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a pattern. The longest that a model ships has 500 bytes and 30 sets.
const (
	maxPattern = 2 << 10
	maxSets    = 40
	maxNesting = 20
)

func isWhiteSpace(r rune) bool { return unicode.IsSpace(r) }

// parsePattern understands a regular expression, or names the part that this program does not.
func parsePattern(text string) (*pattern, error) {
	if len(text) > maxPattern || !utf8.ValidString(text) {
		return nil, fmt.Errorf("the pattern has %d bytes, more than %d, or is not UTF-8", len(text), maxPattern)
	}
	p := patternParser{rest: text, table: categories(), names: categoryNames(), sets: map[string]*runeSet{}}
	parsed, err := p.alternatives(0, false)
	if err == nil && p.rest != "" {
		err = errors.New("a parenthesis is closed that was not opened")
	}
	if err == nil && parsed.min() == 0 {
		err = errors.New("it matches the empty text")
	}
	if err != nil {
		return nil, fmt.Errorf("the pattern %q: %w", text, err)
	}
	return &pattern{parsed.link(&node{kind: accept})}, nil
}

// item is a part of a parsed pattern: a repeated set, or a group.
type item struct {
	set      *runeSet
	low, max int
	keep     bool

	group    *alternatives // or this, which may be left out where low is 0
	ahead    bool          // group is looked ahead to
	not      bool
	repeated bool // a quantifier was there
}

// alternatives is alternatives, each of them items in a row.
type alternatives [][]item

// min returns the least runes that c matches.
func (c alternatives) min() int {
	least := math.MaxInt
	for _, row := range c {
		n := 0
		for _, it := range row {
			switch {
			case it.ahead || it.low == 0:
			case it.group != nil:
				n += it.group.min()
			default:
				n += it.low
			}
		}
		least = min(least, n)
	}
	return least
}

// link returns the states of c, which go on with next.
func (c alternatives) link(next *node) *node {
	var branches []*node
	for _, row := range c {
		n := next
		for _, it := range slices.Backward(row) {
			switch {
			case it.ahead:
				n = &node{kind: ahead, inner: it.group.link(&node{kind: accept}), not: it.not, next: n}
			case it.group != nil && it.low == 0:
				n = &node{kind: branch, branches: []*node{it.group.link(n), n}}
			case it.group != nil:
				n = it.group.link(n)
			default:
				n = &node{kind: runes, set: it.set, min: it.low, max: it.max, keep: it.keep, next: n}
			}
		}
		branches = append(branches, n)
	}
	if len(branches) == 1 {
		return branches[0]
	}
	return &node{kind: branch, branches: branches}
}

type patternParser struct {
	rest  string
	table []uint8
	names []string
	sets  map[string]*runeSet
}

// take takes a prefix off the rest.
func (p *patternParser) take(prefix string) bool {
	var ok bool
	p.rest, ok = strings.CutPrefix(p.rest, prefix)
	return ok
}

func (p *patternParser) rune() rune {
	r, n := utf8.DecodeRuneInString(p.rest)
	p.rest = p.rest[n:]
	return r
}

// alternatives parses up to the end or a closing parenthesis. With fold, letters of either case match.
func (p *patternParser) alternatives(depth int, fold bool) (alternatives, error) {
	if depth > maxNesting {
		return nil, errors.New("its groups are nested too deep")
	}
	c := alternatives{nil}
	for p.rest != "" && p.rest[0] != ')' {
		if p.take("|") {
			c = append(c, nil)
			continue
		}
		it, err := p.item(depth, fold)
		if err != nil {
			return nil, err
		}
		c[len(c)-1] = append(c[len(c)-1], it)
	}
	for _, row := range c {
		if fold && foldsTogether(row) {
			return nil, errors.New("letters that fold together, such as ss and ß, are not supported in a group without case")
		}
	}
	return c, nil
}

// item parses a set or a group, and its quantifier.
func (p *patternParser) item(depth int, fold bool) (item, error) {
	it := item{low: 1, max: 1}
	var err error
	switch {
	case p.take("(?i:"):
		err = p.group(&it, depth, true)
	case p.take("(?:"):
		err = p.group(&it, depth, fold)
	case p.take("(?!"):
		it.ahead, it.not = true, true
		err = p.group(&it, depth, fold)
	case p.take("(?="):
		it.ahead = true
		err = p.group(&it, depth, fold)
	case strings.HasPrefix(p.rest, "(?"), strings.HasPrefix(p.rest, "(*"):
		err = fmt.Errorf("%.4q is not supported", p.rest)
	case p.take("("): // captures, and nobody asks for it
		err = p.group(&it, depth, fold)
	case p.take("["):
		var rule setRule
		if rule, err = p.class(depth); err == nil {
			it.set, err = p.compile(rule)
		}
		if fold && err == nil {
			err = errors.New("a set in a group without case is not supported")
		}
	case p.rest[0] == '.', p.rest[0] == '^', p.rest[0] == '$', strings.IndexByte("*+?{", p.rest[0]) >= 0:
		err = fmt.Errorf("%.1q is not supported here", p.rest)
	default:
		var rule setRule
		if rule, err = p.single(fold); err == nil {
			it.set, err = p.compile(rule)
		}
	}
	if err != nil {
		return it, err
	}
	return it, p.quantifier(&it)
}

func (p *patternParser) group(it *item, depth int, fold bool) error {
	c, err := p.alternatives(depth+1, fold)
	if err == nil && !p.take(")") {
		err = errors.New("a parenthesis is not closed")
	}
	it.group = &c
	return err
}

// quantifier parses the quantifier that may follow an item.
func (p *patternParser) quantifier(it *item) error {
	switch {
	case p.take("?"):
		it.low, it.max, it.repeated = 0, 1, true
	case p.take("*"):
		it.low, it.max, it.repeated = 0, math.MaxInt, true
	case p.take("+"):
		it.low, it.max, it.repeated = 1, math.MaxInt, true
	case strings.HasPrefix(p.rest, "{"):
		inner, rest, ok := strings.Cut(p.rest[1:], "}")
		if !ok || !interval(inner, it) {
			return fmt.Errorf("the quantifier %.10q is not supported", p.rest)
		}
		p.rest, it.repeated = rest, true
		// Oniguruma takes the rest for a quantifier of its own: x{1,3}+ is x+.
		if p.rest != "" && strings.IndexByte("*+?{", p.rest[0]) >= 0 {
			if it.low != 1 || it.set == nil || !p.take("+") {
				return fmt.Errorf("the quantifier {%s}%.1s is not supported", inner, p.rest)
			}
			it.max = math.MaxInt
		}
	}
	if !it.repeated {
		return nil
	}
	it.keep = p.take("+")
	switch {
	case p.rest != "" && strings.IndexByte("*+?{", p.rest[0]) >= 0:
		return errors.New("a quantifier that follows another, or takes as few as it can, is not supported")
	case it.ahead:
		return errors.New("looking ahead repeatedly is not supported")
	case it.group != nil && (it.max > 1 || it.keep):
		return errors.New("a repeated group is not supported")
	}
	return nil
}

// interval parses n, n,m or n, with a comma at its end.
func interval(s string, it *item) bool {
	low, high, ranged := strings.Cut(s, ",")
	var ok bool
	if it.low, ok = smallNumber(low); !ok {
		return false
	}
	it.max = it.low
	if ranged {
		it.max = math.MaxInt
		if high != "" {
			it.max, ok = smallNumber(high)
		}
	}
	return ok && it.max >= it.low && it.max > 0
}

func smallNumber(s string) (n int, ok bool) {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, s != "" && len(s) <= 4
}

// compile makes a set, or takes the one that was made of the same rule.
func (p *patternParser) compile(rule setRule) (*runeSet, error) {
	key := fmt.Sprintf("%+v", rule)
	if set := p.sets[key]; set != nil {
		return set, nil
	}
	if len(p.sets) >= maxSets {
		return nil, fmt.Errorf("it has more than %d sets", maxSets)
	}
	set := rule.compile(p.table, p.names)
	p.sets[key] = set
	return set, nil
}

// single parses a rune or an escape outside of brackets.
func (p *patternParser) single(fold bool) (setRule, error) {
	rule, err := p.element()
	if err != nil || !fold || len(rule.ranges) == 0 {
		if err == nil && fold {
			err = errors.New("a property in a group without case is not supported")
		}
		return rule, err
	}
	r := rule.ranges[0][0]
	if r >= utf8.RuneSelf {
		return rule, fmt.Errorf("%q in a group without case is not supported", r)
	}
	rule.ranges = nil
	for f := r; ; {
		rule.ranges = append(rule.ranges, [2]rune{f, f})
		if f = unicode.SimpleFold(f); f == r {
			return rule, nil
		}
	}
}

// foldsTogether reports whether letters of a row may fold with each other into one rune, as ß does with ss.
func foldsTogether(row []item) bool {
	const first, second = "fst", "filst" // ff, fi, fl, ss, st
	is := func(it item, letters string) bool {
		return it.group != nil || it.set != nil && slices.ContainsFunc([]byte(letters), func(c byte) bool { return it.set.at([]byte{c}, 0) > 0 })
	}
	for i := 1; i < len(row); i++ {
		if is(row[i-1], first) && is(row[i], second) {
			return true
		}
	}
	return false
}

// element parses a rune or an escape, as one may be in brackets too.
func (p *patternParser) element() (setRule, error) {
	if !p.take(`\`) {
		r := p.rune()
		return setRule{ranges: [][2]rune{{r, r}}}, nil
	}
	if p.rest == "" {
		return setRule{}, errors.New("it ends with a backslash")
	}
	one := func(r rune) (setRule, error) { return setRule{ranges: [][2]rune{{r, r}}}, nil }
	switch r := p.rune(); r {
	case 'n':
		return one('\n')
	case 'r':
		return one('\r')
	case 't':
		return one('\t')
	case 's':
		return setRule{space: true}, nil
	case 'S':
		return setRule{space: true, not: true}, nil
	case 'd':
		return setRule{within: []string{"Nd"}}, nil
	case 'p', 'P':
		return p.property(r == 'P')
	default:
		if r >= utf8.RuneSelf || unicode.IsLetter(r) || unicode.IsDigit(r) {
			return setRule{}, fmt.Errorf(`the escape \%c is not supported`, r)
		}
		return one(r)
	}
}

// property parses {L} and the like.
func (p *patternParser) property(not bool) (setRule, error) {
	name, rest, ok := strings.Cut(p.rest, "}")
	if !ok || !strings.HasPrefix(name, "{") {
		return setRule{}, errors.New("a property has no name")
	}
	name, p.rest = name[1:], rest
	if inverse, ok := strings.CutPrefix(name, "^"); ok {
		name, not = inverse, !not
	}
	rule := setRule{not: not, within: []string{name}}
	if len(name) == 1 && strings.Contains("LMNPSZ", name) || len(name) == 2 && name != "Cn" && name != "Cs" && slices.Contains(p.names, name) {
		return rule, nil
	}
	return rule, fmt.Errorf(`the property \p{%s} is not supported`, name)
}

// class parses a class in brackets, up to their end.
func (p *patternParser) class(depth int) (setRule, error) {
	var rule setRule
	if depth > maxNesting {
		return rule, errors.New("its sets are nested too deep")
	}
	rule.not = p.take("^")
	for first := true; ; first = false {
		switch {
		case p.rest == "":
			return rule, errors.New("a bracket is not closed")
		case strings.HasPrefix(p.rest, "[:"), strings.HasPrefix(p.rest, "&&"), first && p.rest[0] == ']':
			return rule, fmt.Errorf("%.2q in brackets is not supported", p.rest)
		case p.take("]"):
			return rule, nil
		case p.take("["):
			inner, err := p.class(depth + 1)
			if err != nil {
				return rule, err
			}
			rule.parts = append(rule.parts, inner)
			continue
		}
		dash := p.rest[0] == '-'
		part, err := p.element()
		if err != nil {
			return rule, err
		}
		switch {
		case dash && !first && !strings.HasPrefix(p.rest, "]"):
			return rule, errors.New("a dash in the middle of a set is not supported: write it as \\-")
		case len(p.rest) > 1 && p.rest[0] == '-' && p.rest[1] != ']' && !dash:
			p.rest = p.rest[1:]
			last, err := p.element()
			if err != nil {
				return rule, err
			}
			if len(part.ranges) != 1 || len(last.ranges) != 1 || part.ranges[0][0] > last.ranges[0][0] || strings.HasPrefix(p.rest, "-") && !strings.HasPrefix(p.rest, "-]") {
				return rule, errors.New("a range of a set is not one of two runes in order")
			}
			rule.ranges = append(rule.ranges, [2]rune{part.ranges[0][0], last.ranges[0][0]})
		default:
			rule.parts = append(rule.parts, part)
		}
	}
}
