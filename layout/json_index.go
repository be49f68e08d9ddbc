package layout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxJSONIndex bounds the index that names a dataset's shards, bytes: about a million shards.
const maxJSONIndex = 256 << 20

// jsonIndexName is what MosaicML Streaming and LitData both call their index.
const jsonIndexName = "index.json"

// isJSONIndex reports whether head begins an index.json: a JSON object whose own keys, as far as head goes, have key
// with a list as its value.
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

// readJSONIndex calls member for each key of the JSON object that o holds; member reads the value from dec, or leaves it
// to be skipped. A value is in memory one at a time.
func readJSONIndex(ctx context.Context, o *Object, member func(key string, dec *json.Decoder) (read bool, err error)) error {
	if o.Size > maxJSONIndex {
		return corruptf(o, 0, "an index of %d bytes is too large, at most %d are read", o.Size, maxJSONIndex)
	}
	dec := json.NewDecoder(o.Reader(ctx))
	fail := func(err error) error {
		var c *corrupt
		if errors.As(err, &c) {
			return err
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return corruptf(o, dec.InputOffset(), "the index is not what it should be: %v", err)
	}
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return corruptf(o, 0, "the index is no JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return fail(err)
		}
		key, _ := tok.(string)
		if seen[key] {
			return corruptf(o, dec.InputOffset(), "the key %q is there twice", key)
		}
		seen[key] = true
		read, err := member(key, dec)
		if err == nil && !read {
			err = dec.Decode(new(json.RawMessage))
		}
		if err != nil {
			return fail(err)
		}
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return fail(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return corruptf(o, dec.InputOffset(), "something follows the index")
	}
	return nil
}

// readJSONList decodes the elements of a JSON list one by one into what element returns. One that is valid JSON but
// does not fit its type goes to misfit, with its number, and does not end the list.
func readJSONList(dec *json.Decoder, element func() any, misfit func(i int, err error)) error {
	if tok, err := dec.Token(); err != nil || tok != json.Delim('[') {
		return fmt.Errorf("a list is expected")
	}
	for i := 0; dec.More(); i++ {
		err := dec.Decode(element())
		var typed *json.UnmarshalTypeError
		if errors.As(err, &typed) {
			misfit(i, err)
		} else if err != nil {
			return err
		}
	}
	_, err := dec.Token()
	return err
}

// indexed is what an index in JSON names: it finds the objects, and sees to it that each is named once.
type indexed struct {
	*directory
	index *Object
	named map[*Object]bool
}

// object returns the object that the index calls name and checks its size: want is what the index says, -1 where it says
// nothing. why is what is wrong, "" if nothing is; it has been reported then.
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
