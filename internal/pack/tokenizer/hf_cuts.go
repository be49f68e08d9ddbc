package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// findCuts decides where texts may be cut.
func (l *hfLoader) findCuts() {
	c := &l.cuts
	c.letterSpace, c.lines = true, true
	l.cutsOfStages(c)
	for i := range l.normalizer {
		c.normalized(&l.normalizer[i])
	}
	for _, added := range l.added {
		if added != nil {
			c.added(added.tokens)
		}
	}
	c.lines = c.lines && c.letterSpace
}

// cutsOfStages looks for a stage that surely splits before a blank that follows a letter, and for those that look over
// it. Without the first, the model decides.
func (l *hfLoader) cutsOfStages(c *cuts) {
	splits := false
	for i := range l.stages {
		s := &l.stages[i]
		switch {
		case s.meta != nil:
			splits = splits || s.meta.split
			c.onlySpace, c.lines = true, false
		case s.next != nil:
			splits = true
		case s.find != nil:
			c.lines = false
			if s.gaps == nil || !s.gaps.letterSpace {
				c.letterSpace = false
			}
			splits = splits || s.gaps != nil && s.gaps.splits
		}
		if s.prefix != "" && i > 0 { // it goes before each piece
			c.letterSpace = false
		}
	}
	if splits {
		return
	}
	c.onlySpace, c.lines = true, false
	if c.borders = l.model.merges; c.borders == nil || c.borders.borders == nil {
		c.letterSpace = false
	}
}

// normalized takes away the places over which n may look.
func (c *cuts) normalized(n *normalizer) {
	switch {
	case n.charmap != nil:
		c.onlyASCII, c.onlySpace, c.lines = true, true, false
		for b, to := range n.charmap.ascii {
			if to != nil && (b == ' ' && string(to) != " " || 'a' <= b|0x20 && b|0x20 <= 'z') {
				c.letterSpace = false
			}
		}
	case n.replace != nil:
		c.lines = false
		if n.replace.from != " " && n.replace.from != spaceRuns {
			c.letterSpace = false
		}
	case n.strip != nil, n.prepend != "":
		c.lines = false
	}
}

// added takes away the places over which an added token may lie, or that decide whether it strips blanks.
func (c *cuts) added(tokens []addedToken) {
	for _, t := range tokens {
		c.join(t.content)
		last, _ := utf8.DecodeLastRuneInString(t.content)
		if t.rstrip && unicode.IsLetter(last) {
			c.letterSpace = false
		}
		if t.lstrip {
			c.lines = false
		}
	}
}
