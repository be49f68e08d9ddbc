package layout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	maxJSONIndex = 256 << 20 // bytes of the index that names a dataset's shards
	maxIndexed   = 1 << 20   // shards that it names
	minIndexed   = 32        // bytes of an entry that names a shard: the memory of entries without a name would be hundreds of times the index
)

// jsonIndexName is the name of the index in MosaicML Streaming and in LitData.
const jsonIndexName = "index.json"

// jsonIndexProbe returns a probe that accepts by isJSONIndex.
func jsonIndexProbe(key string) func(o *Object, head []byte) any {
	return func(o *Object, head []byte) any {
		if !isJSONIndex(o, head, key) {
			return nil
		}
		return struct{}{}
	}
}

// isJSONIndex reports whether head begins an index.json: a JSON object that has, as far as head goes, key with a list
// as its value.
func isJSONIndex(o *Object, head []byte, key string) bool {
	if baseOf(o.Name) != jsonIndexName {
		return false
	}
	dec := json.NewDecoder(bytes.NewReader(head))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return false
	}
	for depth, isKey, found := 0, true, false; ; {
		tok, err := dec.Token()
		if err != nil {
			return false
		}
		if found {
			return tok == json.Delim('[')
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
			continue
		case json.Delim('}'), json.Delim(']'):
			if depth--; depth < 0 {
				return false
			}
			isKey = depth == 0
			continue
		}
		if depth == 0 {
			found = isKey && tok == key
			isKey = !isKey
		}
	}
}

// objectParser reads JSON documents in which no key may come twice. encoding/json would keep the last and say nothing.
type objectParser struct {
	o    *Object
	base int64 // where the document begins in o
	dec  *json.Decoder
}

func newObjectParser(o *Object, base int64, document io.Reader) *objectParser {
	return &objectParser{o, base, json.NewDecoder(document)}
}

func (p *objectParser) offset() int64 { return p.base + p.dec.InputOffset() }

func (p *objectParser) fail(format string, args ...any) error {
	return corruptf(p.o, p.offset(), format, args...)
}

// value reads the next value into v.
func (p *objectParser) value(v any) error {
	if err := p.dec.Decode(v); err != nil {
		return p.fail("the JSON cannot be read: %v", err)
	}
	return nil
}

// skip passes over the next value.
func (p *objectParser) skip() error {
	var ignored json.RawMessage
	return p.value(&ignored)
}

// object reads a JSON object: each is called at every value, which it must read.
func (p *objectParser) object(each func(key string) error) error {
	if tok, err := p.dec.Token(); err != nil {
		return p.fail("a JSON object is expected: %v", err)
	} else if tok != json.Delim('{') {
		return p.fail("a JSON object is expected, found %v", tok)
	}
	seen := map[string]struct{}{}
	for p.dec.More() {
		tok, err := p.dec.Token()
		if err != nil {
			return p.fail("the JSON cannot be read: %v", err)
		}
		key, _ := tok.(string) // a decoder gives nothing else as a key
		if _, twice := seen[key]; twice {
			return p.fail("%q is there twice", key)
		}
		seen[key] = struct{}{}
		if err := each(key); err != nil {
			return err
		}
	}
	if _, err := p.dec.Token(); err != nil {
		return p.fail("the JSON cannot be read: %v", err)
	}
	return nil
}

// end checks that only white space follows.
func (p *objectParser) end() error {
	switch tok, err := p.dec.Token(); {
	case err == io.EOF:
		return nil
	case err != nil: // such as zeroes that fill a header up
		return p.fail("more follows the JSON object: %v", err)
	default:
		return p.fail("more follows the JSON object: %v", tok)
	}
}

// list decodes the elements of a JSON list one by one into the values that element returns. One that is valid JSON but
// does not fit its type goes to misfit, with its number, and does not end the list.
func (p *objectParser) list(element func() any, misfit func(i int, err error)) error {
	if tok, err := p.dec.Token(); err != nil || tok != json.Delim('[') {
		return p.fail("a JSON list is expected")
	}
	most := min(maxIndexed, 1024+int(p.o.Size/minIndexed))
	for i := 0; p.dec.More(); i++ {
		if i == most {
			return p.fail("the index lists more than %d shards, and has %d bytes", most, p.o.Size)
		}
		err := p.dec.Decode(element())
		if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			misfit(i, err)
		} else if err != nil {
			return p.fail("the JSON cannot be read: %v", err)
		}
	}
	if _, err := p.dec.Token(); err != nil {
		return p.fail("the JSON cannot be read: %v", err)
	}
	return nil
}

// readJSONIndex calls member for each key of the JSON object that o holds; member reads or skips the value. A value is in
// memory one at a time.
func readJSONIndex(ctx context.Context, o *Object, member func(p *objectParser, key string) error) error {
	if o.Size > maxJSONIndex {
		return corruptf(o, 0, "an index of %d bytes is too large, at most %d are read", o.Size, maxJSONIndex)
	}
	p := newObjectParser(o, 0, o.Reader(ctx))
	if err := p.object(func(key string) error { return member(p, key) }); err != nil {
		return err
	}
	return p.end()
}

// indexed finds the objects that an index in JSON names, and sees to it that each is named once.
type indexed struct {
	*directory
	index *Object
	named map[*Object]bool
}

// object returns the object that the index calls name, and compares its size with want, that of the index; -1 where it
// has none. why is a mistake, which object has reported, "" if there is none.
func (x *indexed) object(name string, want int64) (o *Object, why string) {
	o, err := x.lookup(name)
	switch {
	case err != nil:
		why = fmt.Sprintf("the index names %q: %v", name, err)
	case o == nil:
		why = fmt.Sprintf("the index names %q, which is not there", name)
	case o == x.index:
		o, why = nil, "the index names itself as a shard"
	case x.named[o]:
		o, why = nil, fmt.Sprintf("the index names %q twice", name)
	case x.isClaimed(o):
		o, why = nil, fmt.Sprintf("the index names %q, which another set has", name)
	default:
		x.named[o] = true
		if want >= 0 && want != o.Size {
			why = fmt.Sprintf("the file has %d bytes, the index says %d", o.Size, want)
			x.problem(o, min(o.Size, want), "%s", why)
		}
		return o, why
	}
	x.problem(x.index, 0, "%s", why)
	return o, why
}

// addIndexed makes the set of the shards, to the first of which the index itself belongs.
func (x *indexed) addIndexed(dtype DType, shards []*Shard) *Set {
	x.claim(x.index)
	if len(shards) > 0 && shards[0].Objects[0] != x.index {
		shards[0].Objects = append(shards[0].Objects, x.index)
	}
	return x.add("", dtype, shards)
}

// missing returns the shard that stands for one whose object is not to be had, so that its absence is seen.
func (x *indexed) missing(name, why string) *Shard {
	s := newShard(x.index)
	s.Name, s.Bad = fmt.Sprintf("%q", name), why
	return s
}
