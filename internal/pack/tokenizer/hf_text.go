package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxParts bounds the parts of a normalizer or a pre-tokenizer, and how deep they are nested.
const maxParts = 16

// spaceRuns is the one regular expression that models ship in a Replace.
const spaceRuns = " {2,}"

// loadNormalizer reads the changes to a text before it is split.
func (l *hfLoader) loadNormalizer(f huggingFace) error {
	if isNull(f.Normalizer) {
		return nil
	}
	if err := l.addNormalizer(f.Normalizer, 0); err != nil {
		return fmt.Errorf("its normalizer: %w", err)
	}
	return nil
}

func (l *hfLoader) addNormalizer(raw json.RawMessage, depth int) error {
	if depth > maxParts || len(l.normalizer) > maxParts {
		return errors.New("it has too many parts")
	}
	kind, err := kindOf(raw)
	if err != nil {
		return err
	}
	var n normalizer
	switch kind {
	case "Sequence":
		var sequence struct {
			Parts []json.RawMessage `json:"normalizers"`
		}
		if err := json.Unmarshal(raw, &sequence); err != nil {
			return err
		}
		for _, part := range sequence.Parts {
			if err := l.addNormalizer(part, depth+1); err != nil {
				return err
			}
		}
		return sameKeys(raw, "normalizers")
	case "NFC":
		n.nfc, err = newComposer(), sameKeys(raw)
	case "Prepend":
		var prepend struct {
			Text string `json:"prepend"`
		}
		err = decode(raw, &prepend, "prepend")
		if n.prepend = prepend.Text; n.prepend == "" {
			return err
		}
	case "Strip":
		var s struct {
			Left  bool `json:"strip_left"`
			Right bool `json:"strip_right"`
		}
		err = decode(raw, &s, "strip_left", "strip_right")
		n.strip = &strip{s.Left, s.Right}
	case "Replace":
		n.replace, err = parseReplace(raw)
	case "Precompiled":
		var p struct {
			Map []byte `json:"precompiled_charsmap"`
		}
		if err = decode(raw, &p, "precompiled_charsmap"); err == nil {
			n.charmap, err = newCharsmap(p.Map)
		}
	default:
		return fmt.Errorf("%q is not supported: NFC, Prepend, Replace, Strip, Precompiled and Sequence are", kind)
	}
	if err == nil && (len(n.prepend) > maxReplacement || n.replace != nil && len(n.replace.to) > maxReplacement) {
		err = fmt.Errorf("its text has more than %d bytes", maxReplacement)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	l.normalizer = append(l.normalizer, n)
	return nil
}

// hfPattern is a text or a regular expression.
type hfPattern struct {
	String *string
	Regex  *string
}

// stage returns a stage that finds p, or splits by it where that is known.
func (p hfPattern) stage() (stage, error) {
	switch {
	case p.Regex != nil && p.String == nil:
		if split := known(*p.Regex); split != nil {
			return stage{next: split}, nil
		}
		parsed, err := parsePattern(*p.Regex)
		if err != nil {
			return stage{}, err
		}
		return stage{find: parsed.find, gaps: parsed.gaps()}, nil
	case p.String != nil && *p.String != "" && p.Regex == nil:
		return stage{find: findText(*p.String)}, nil
	}
	return stage{}, errors.New("its pattern is neither a String nor a Regex, or empty")
}

func parseReplace(raw json.RawMessage) (*replacement, error) {
	var f struct {
		Pattern hfPattern `json:"pattern"`
		Content string    `json:"content"`
	}
	if err := decode(raw, &f, "pattern", "content"); err != nil {
		return nil, err
	}
	r := &replacement{to: f.Content}
	if f.Pattern.Regex != nil {
		parsed, err := parsePattern(*f.Pattern.Regex)
		if err != nil {
			return nil, err
		}
		r.from, r.find = *f.Pattern.Regex, parsed.find
		if len(r.from) == 1 {
			return nil, fmt.Errorf("the Regex %q is not supported: write it as a String", r.from)
		}
		return r, nil
	}
	s, err := f.Pattern.stage()
	if err != nil {
		return nil, err
	}
	r.from, r.find = *f.Pattern.String, s.find
	return r, nil
}

// loadPreTokenizer reads how a text is split.
func (l *hfLoader) loadPreTokenizer(f huggingFace) error {
	if isNull(f.PreTokenize) {
		return nil
	}
	if err := l.addStage(f.PreTokenize, 0); err != nil {
		return fmt.Errorf("its pre_tokenizer: %w", err)
	}
	return nil
}

func (l *hfLoader) addStage(raw json.RawMessage, depth int) error {
	if depth > maxParts || len(l.stages) > maxParts {
		return errors.New("it has too many parts")
	}
	kind, err := kindOf(raw)
	if err != nil {
		return err
	}
	if kind == "Sequence" {
		var sequence struct {
			Parts []json.RawMessage `json:"pretokenizers"`
		}
		if err := json.Unmarshal(raw, &sequence); err != nil {
			return err
		}
		for _, part := range sequence.Parts {
			if err := l.addStage(part, depth+1); err != nil {
				return err
			}
		}
		return sameKeys(raw, "pretokenizers")
	}
	if l.byteWise {
		return fmt.Errorf("%q after ByteLevel is not supported", kind)
	}
	var s stage
	switch kind {
	case "ByteLevel":
		s, err = parseByteLevel(raw)
		l.byteWise = true
	case "Split":
		s, err = l.parseSplit(raw)
	case "Digits":
		var digits struct {
			Individual bool `json:"individual_digits"`
		}
		err = decode(raw, &digits, "individual_digits")
		s = stage{find: findRunes(isNumeric), behavior: contiguous, gaps: &gaps{letterSpace: true}}
		if digits.Individual {
			s.behavior = isolated
		}
	case "WhitespaceSplit":
		s, err = stage{find: findRunes(unicode.IsSpace), behavior: removed, gaps: &gaps{true, true}}, sameKeys(raw)
	case "Metaspace":
		s.meta, err = l.parseMetaspace(raw)
	default:
		return fmt.Errorf("%q is not supported: ByteLevel, Split, Digits, WhitespaceSplit, Metaspace and Sequence are", kind)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	if s.prefix != "" || s.meta != nil || s.next != nil || s.find != nil {
		l.stages = append(l.stages, s)
	}
	return nil
}

func parseByteLevel(raw json.RawMessage) (stage, error) {
	var f struct {
		Prefix *bool `json:"add_prefix_space"`
		Regex  *bool `json:"use_regex"`
		Trim   *bool `json:"trim_offsets"`
	}
	err := decode(raw, &f, "add_prefix_space", "use_regex", "trim_offsets")
	if err == nil && f.Prefix == nil {
		err = errors.New("add_prefix_space is missing")
	}
	var s stage
	if err == nil && *f.Prefix {
		s.prefix = " "
	}
	if f.Regex == nil || *f.Regex {
		s.next = gpt2
	}
	return s, err
}

func (l *hfLoader) parseSplit(raw json.RawMessage) (stage, error) {
	var f struct {
		Pattern  hfPattern `json:"pattern"`
		Behavior string    `json:"behavior"`
		Invert   bool      `json:"invert"`
	}
	if err := decode(raw, &f, "pattern", "behavior", "invert"); err != nil {
		return stage{}, err
	}
	behaviors := map[string]behavior{
		"Isolated": isolated, "Removed": removed, "MergedWithPrevious": mergedWithPrevious,
		"MergedWithNext": mergedWithNext, "Contiguous": contiguous,
	}
	how, ok := behaviors[f.Behavior]
	if !ok {
		return stage{}, fmt.Errorf("the behavior %q is not supported", f.Behavior)
	}
	s, err := f.Pattern.stage()
	s.behavior, s.invert = how, f.Invert
	if how != isolated && how != removed { // merged text may lie over any place
		s.gaps = nil
	}
	if s.next != nil && how != isolated && (how != removed || !f.Invert) { // its matches leave no gap
		return s, fmt.Errorf("the behavior %q of this pattern is not supported", f.Behavior)
	}
	if p := f.Pattern.String; p != nil && *p == " " && l.replacesSpaces() { // as in Gemma, where it finds nothing
		s.gaps = &gaps{letterSpace: true}
	}
	return s, err
}

// replacesSpaces reports whether the normalizer leaves no space.
func (l *hfLoader) replacesSpaces() bool {
	if len(l.normalizer) == 0 {
		return false
	}
	last := l.normalizer[len(l.normalizer)-1].replace
	return last != nil && last.from == " " && !strings.Contains(last.to, " ")
}

func (l *hfLoader) parseMetaspace(raw json.RawMessage) (*metaspace, error) {
	var f struct {
		Replacement string `json:"replacement"`
		Prefix      *bool  `json:"add_prefix_space"`
		Scheme      string `json:"prepend_scheme"`
		Split       *bool  `json:"split"`
	}
	err := decode(raw, &f, "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep")
	if err != nil {
		return nil, err
	}
	if utf8.RuneCountInString(f.Replacement) != 1 || f.Replacement == " " {
		return nil, fmt.Errorf("the replacement %q is not one character", f.Replacement)
	}
	m := &metaspace{mark: f.Replacement, split: f.Split == nil || *f.Split}
	switch f.Scheme {
	case "", "always":
		m.always = true
	case "first":
		m.first = true
	case "never":
	default:
		return nil, fmt.Errorf("the prepend_scheme %q is not supported", f.Scheme)
	}
	if f.Prefix != nil && !*f.Prefix && f.Scheme != "never" {
		return nil, errors.New("add_prefix_space does not match prepend_scheme")
	}
	if m.first { // the package looks where the text was before it was normalized
		for _, n := range l.normalizer {
			if n.strip != nil || n.charmap != nil || n.replace != nil && n.replace.to == "" {
				return nil, errors.New("the prepend_scheme first after a normalizer that removes text is not supported")
			}
		}
	}
	return m, nil
}
