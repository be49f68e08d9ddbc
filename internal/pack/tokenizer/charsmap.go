package tokenizer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/clipperhouse/uax29/v2/graphemes"
)

// charsmap is a normalizer of sentencepiece models: a double-array trie of byte strings, and the replacement of each.
// The tokenizers package (normalizers/precompiled.rs, spm_precompiled 0.1) asks it for grapheme clusters of up to five
// bytes (of Unicode 17, as in unicode-segmentation 1.13), and for runes where the cluster is longer or not in it. It takes the shortest prefix that is in it.
type charsmap struct {
	units []uint32
	blob  []byte
	ascii [utf8.RuneSelf][]byte // the replacement of a byte that is a cluster, nil for itself
}

// newCharsmap reads precompiled_charsmap: the trie's size in bytes, the trie, and texts that end with a zero.
func newCharsmap(raw []byte) (*charsmap, error) {
	if len(raw) < 4 {
		return nil, errors.New("a precompiled_charsmap has less than 4 bytes")
	}
	size := int64(binary.LittleEndian.Uint32(raw))
	raw = raw[4:]
	if size > int64(len(raw)) || size < 4 || size%4 != 0 {
		return nil, errors.New("the trie of a precompiled_charsmap is longer than that, or not of 4-byte units")
	}
	c := &charsmap{units: make([]uint32, size/4), blob: raw[size:]}
	for i := range c.units {
		c.units[i] = binary.LittleEndian.Uint32(raw[4*i:])
	}
	if !utf8.Valid(c.blob) {
		return nil, errors.New("the texts of a precompiled_charsmap are not UTF-8")
	}
	for text := range bytes.SplitSeq(c.blob, []byte{0}) {
		if len(text) > maxReplacement {
			return nil, fmt.Errorf("a text of a precompiled_charsmap has more than %d bytes", maxReplacement)
		}
	}
	for b := range c.ascii {
		if to, ok := c.lookup([]byte{byte(b)}); ok {
			c.ascii[b] = append([]byte{}, to...)
		}
	}
	return c, nil
}

// trieOffset is where the children of a unit lie, relative to it.
func trieOffset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

// lookup returns the replacement of the shortest prefix of key that is in c.
func (c *charsmap) lookup(key []byte) ([]byte, bool) {
	at := trieOffset(c.units[0])
	for _, b := range key {
		if b == 0 {
			break
		}
		at ^= uint32(b)
		if int64(at) >= int64(len(c.units)) {
			return nil, false
		}
		unit := c.units[at]
		if unit&(1<<31|0xff) != uint32(b) {
			return nil, false
		}
		at ^= trieOffset(unit)
		if unit>>8&1 == 0 {
			continue
		}
		if int64(at) >= int64(len(c.units)) {
			return nil, false
		}
		from := c.units[at] & (1<<31 - 1)
		if int64(from) > int64(len(c.blob)) {
			return nil, false
		}
		end := from
		for int64(end) < int64(len(c.blob)) && c.blob[end] != 0 {
			end++
		}
		return c.blob[from:end], true
	}
	return nil, false
}

// append appends the normalized text to dst.
func (c *charsmap) append(dst, text []byte, steps *int) []byte {
	const longest = 5
	for i := 0; i < len(text) && grows(dst, text, steps); {
		b := text[i]
		if b < utf8.RuneSelf && b != '\r' && (i+1 == len(text) || text[i+1] < utf8.RuneSelf) {
			if to := c.ascii[b]; to != nil {
				dst = append(dst, to...)
			} else {
				dst = append(dst, b)
			}
			i++
			continue
		}
		n, _, _ := graphemes.SplitFunc(text[i:], true) // it never fails
		end := i + n
		if end-i <= longest {
			if to, ok := c.lookup(text[i:end]); ok {
				dst = append(dst, to...)
				i = end
				continue
			}
		}
		for i < end {
			_, n := utf8.DecodeRune(text[i:])
			if to, ok := c.lookup(text[i : i+n]); ok {
				dst = append(dst, to...)
			} else {
				dst = append(dst, text[i:i+n]...)
			}
			i += n
		}
	}
	return dst
}
