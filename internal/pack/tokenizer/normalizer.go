package tokenizer

import (
	"bytes"
)

// normalizer is one part of a normalizer: exactly one of its fields is set.
type normalizer struct {
	prepend string
	replace *replacement
	strip   *strip
	nfc     *composer
	charmap *charsmap

	sentence *sentenceNormalizer
}

type strip struct{ left, right bool }

// replacement puts to in the place of a text, or of the matches of a pattern.
type replacement struct {
	from string
	find finder
	to   string
}

// append appends the normalized text to dst. continued says that text goes on with a document, whose start has been
// normalized before.
func (n *normalizer) append(dst, text []byte, continued bool, steps *int) []byte {
	switch {
	case n.replace != nil:
		return n.replace.append(dst, text, steps)
	case n.strip != nil:
		if n.strip.left && !continued {
			text = trimLeft(text)
		}
		if n.strip.right {
			text = trimRight(text)
		}
		return append(dst, text...)
	case n.nfc != nil:
		return n.nfc.append(dst, text)
	case n.charmap != nil:
		return n.charmap.append(dst, text, steps)
	case n.sentence != nil:
		return n.sentence.append(dst, text, continued, steps)
	case len(text) > 0 && !continued:
		dst = append(dst, n.prepend...)
	}
	return append(dst, text...)
}

// maxReplacement bounds a text that is put in the place of another, in bytes.
const maxReplacement = 256

// grows reports whether dst, made of text, is not much longer than that. If it is, no steps are left.
func grows(dst, text []byte, steps *int) bool {
	const times, free = 16, 1 << 20
	if len(dst) > times*len(text)+free {
		*steps = -1
		return false
	}
	return *steps >= 0
}

func (r *replacement) append(dst, text []byte, steps *int) []byte {
	if len(r.from) == 1 {
		from := r.from[0]
		for whole := text; grows(dst, whole, steps); {
			i := bytes.IndexByte(text, from)
			if i < 0 {
				return append(dst, text...)
			}
			dst = append(append(dst, text[:i]...), r.to...)
			text = text[i+1:]
		}
		return dst
	}
	for i := 0; i < len(text) && grows(dst, text, steps); {
		start, end := r.find(text, i, steps)
		dst = append(dst, text[i:start]...)
		if end > start {
			dst = append(dst, r.to...)
		}
		i = end
	}
	return dst
}
