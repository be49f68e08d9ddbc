package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
)

// arrowHead is the start of an object. schema is nil when it does not lie in them, or when bad is set.
type arrowHead struct {
	start  int64 // of the stream
	length int64 // of the schema message's metadata
	schema *arrowSchema
	bad    string
}

// arrowProbe asks for a message that holds a schema. One that is longer than the head is read by assemble. A file that
// is called .arrow may be damaged, and is reported then.
func arrowProbe(o *Object, head []byte) any {
	h := arrowHead{}
	if bytes.HasPrefix(head, []byte(arrowFileMagic)) {
		h.start = int64(len(arrowFileMagic))
	}
	named := strings.HasSuffix(o.Name, ".arrow")
	head = head[h.start:]
	if len(head) < 12 || binary.LittleEndian.Uint32(head) != arrowContinuation {
		return nil
	}
	h.length = int64(int32(binary.LittleEndian.Uint32(head[4:])))
	root := int64(binary.LittleEndian.Uint32(head[8:]))
	switch {
	case h.length < 4 || h.length > maxArrowMetadata || h.length > o.Size-h.start-8 || root > h.length-4:
		h.bad = fmt.Sprintf("the schema is said to have %d bytes, its table at %d of them: %d follow", h.length, root, o.Size-h.start-8)
	case h.length <= int64(len(head))-8:
		schema, err := parseArrowSchema(head[8 : 8+h.length])
		if err != nil {
			h.bad = fmt.Sprintf("the schema cannot be read: %v", err)
		}
		h.schema = schema
	}
	if h.bad != "" && !named {
		return nil
	}
	return h
}

// arrowFile is a shard with the schema of its stream, nil when it is bad.
type arrowFile struct {
	shard  *Shard
	schema *arrowSchema
	start  int64
}

// arrowAssemble makes a set of the files that a state.json lists, in its order, and one of each split among the others.
// Files of different columns are never one set.
func arrowAssemble(ctx context.Context, d *directory, members []member) {
	files := map[string]*arrowFile{}
	for _, m := range members {
		if f := arrowOpen(ctx, d, m); f != nil {
			files[m.object.Name] = f
		}
	}
	listed := arrowListed(ctx, d, files)
	arrowSets(d, "", listed)
	taken := map[string]bool{}
	for _, f := range listed {
		taken[f.shard.Name] = true
	}
	var rest []member
	for _, m := range members {
		if !taken[m.object.Name] && files[m.object.Name] != nil {
			rest = append(rest, m)
		}
	}
	for split, group := range bySplit(rest) {
		var of []*arrowFile
		for _, m := range group {
			of = append(of, files[m.object.Name])
		}
		arrowSets(d, split, of)
	}
}

// arrowOpen reads the schema that the head did not hold. It returns nil where that shows no Arrow stream.
func arrowOpen(ctx context.Context, d *directory, m member) *arrowFile {
	h := m.head.(arrowHead)
	f := &arrowFile{newShard(m.object), h.schema, h.start}
	if h.bad == "" && h.schema == nil {
		message, err := readFull(ctx, m.object, h.start+8, h.length)
		if err == nil {
			f.schema, err = parseArrowSchema(message)
		}
		if err != nil && !strings.HasSuffix(m.object.Name, ".arrow") {
			return nil
		}
		if err != nil {
			h.bad = fmt.Sprintf("the schema cannot be read: %v", err)
		}
	}
	if h.bad != "" {
		d.problem(m.object, h.start, "%s", h.bad)
		f.shard.Bad, f.schema = h.bad, nil
	}
	return f
}

// maxArrowState bounds the state.json of a dataset, bytes.
const maxArrowState = 16 << 20

// arrowListed returns the files that the directory's state.json lists, in its order, and a bad shard for each one that
// is missing. Source: huggingface/datasets, src/datasets/arrow_dataset.py (save_to_disk).
func arrowListed(ctx context.Context, d *directory, files map[string]*arrowFile) []*arrowFile {
	state := d.sibling("state.json")
	if state == nil || state.Size > maxArrowState || d.isClaimed(state) {
		return nil
	}
	names, err := arrowState(ctx, state)
	if err != nil {
		d.volume.report(state, err)
		return nil
	}
	var out []*arrowFile
	seen := map[string]bool{}
	for _, name := range names {
		o, err := d.lookup(name)
		switch {
		case err != nil:
			d.problem(state, 0, "the data file %q: %v", name, err)
			continue
		case seen[name] || (o != nil && seen[o.Name]):
			d.problem(state, 0, "the data file %q is listed twice", name)
			continue
		case o != nil && files[o.Name] != nil:
			seen[o.Name] = true
			out = append(out, files[o.Name])
			continue
		}
		seen[name] = true
		why := fmt.Sprintf("the data file %q is missing, or no Arrow stream", name)
		d.problem(state, 0, "%s", why)
		h := newShard(state)
		h.Name, h.Bad = name, why
		out = append(out, &arrowFile{shard: h})
	}
	if len(out) > 0 && out[0].shard.Objects[0] != state {
		out[0].shard.Objects = append(out[0].shard.Objects, state)
	}
	return out
}

// arrowState returns the names in a state.json. One that is of another program lists none.
func arrowState(ctx context.Context, o *Object) ([]string, error) {
	document, err := readFull(ctx, o, 0, o.Size)
	if err != nil {
		return nil, err
	}
	var names []string
	p := newObjectParser(o, 0, bytes.NewReader(document))
	err = p.object(func(key string) error {
		if key != "_data_files" {
			return p.skip()
		}
		var entries []struct{ Filename string }
		if err := p.value(&entries); err != nil {
			return err
		}
		for _, e := range entries {
			names = append(names, e.Filename)
		}
		return nil
	})
	return names, err
}

// arrowSets adds a set for each schema among the files. Bad files join the first, so that its stream is not shown
// without them.
func arrowSets(d *directory, split string, files []*arrowFile) {
	first := ""
	for _, f := range files {
		if f.schema != nil {
			first = f.schema.signature()
			break
		}
	}
	_, groups := grouped(files, func(f *arrowFile) string {
		if f.schema == nil {
			return first
		}
		return f.schema.signature()
	})
	for _, group := range groups {
		arrowSet(d, split, group)
	}
}

// arrowSet adds the set of files of one schema.
func arrowSet(d *directory, split string, files []*arrowFile) {
	var column *arrowColumn
	why := "no file can be read"
	batches := new(atomic.Int64) // of all files, to bound the memory of their places
	left, bigEndian := newPieces(), false
	var shards []*Shard
	for _, f := range files {
		h := f.shard
		shards = append(shards, h)
		if f.schema == nil {
			continue
		}
		column, why = f.schema.tokens()
		s := &arrowStream{object: h.Objects[0], start: f.start, column: column, budget: d.volume.headers}
		h.resolve = func(ctx context.Context, h *Shard) error { return s.resolve(ctx, h, batches) }
		bigEndian = bigEndian || f.schema.bigEndian
		h.findFields = func(ctx context.Context, _ *Shard) (*fieldsOf, error) { return s.findFields(ctx, f.schema, left) }
		h.check = func(ctx context.Context, h *Shard) error {
			if !s.ended {
				d.problem(s.object, s.object.Size, "the stream ends without its mark: record batches may be missing")
			} else if s.start == 0 && s.end < s.object.Size { // a file has its footer there
				d.problem(s.object, s.end, "%d bytes follow the end of the stream, and no reader sees them", s.object.Size-s.end)
			}
			if h.Index == nil {
				return nil
			}
			return checkStarts(ctx, h.Index)
		}
	}
	dtype := DTypeUnknown
	if column != nil {
		dtype = column.dtype
	}
	set := d.add(split, dtype, shards)
	set.NoTokens = why
	if bigEndian {
		set.noFields = why
	}
	if column != nil {
		set.note(fmt.Sprintf("the tokens are the column %.80q, %s", column.name, column.kind))
	}
}

// resolve walks the record batches: their rows are samples, and documents where there are tokens.
func (s *arrowStream) resolve(ctx context.Context, h *Shard, batches *atomic.Int64) error {
	index := &arrowIndex{object: s.object}
	var data Body
	var gone error // why the tokens make no stream
	if s.column != nil {
		index.width = s.column.width
	}
	rows := int64(0)
	err := s.walk(ctx, func(b arrowBatch) error {
		n, err := s.rows(b)
		if err != nil {
			return err
		}
		if rows += n; rows > maxArrowRows {
			return corruptf(s.object, b.at, "the record batches have more than 2^53 rows")
		}
		if s.column == nil || gone != nil {
			return nil
		}
		p, err := s.piece(ctx, b, n, s.column)
		if err == nil && batches.Add(arrowBatchRuns) > maxRuns {
			err = absent("the tokens lie in more than %d record batches: write them in larger ones", maxRuns/arrowBatchRuns)
		}
		if _, ok := errors.AsType[*AbsentError](err); ok {
			gone, data, index = err, Body{}, &arrowIndex{}
			return nil
		}
		if err != nil {
			return err
		}
		index.add(p)
		data.Add(s.object, p.values, p.tokens*int64(s.column.dtype.Size()))
		return nil
	})
	if err != nil {
		return err
	}
	h.Samples = rows
	if s.column == nil {
		return nil
	}
	h.Documents = rows
	if gone != nil {
		return gone
	}
	h.Tokens, h.Data = index.tokens, data
	if s.column.width == 0 {
		h.Index = regularDocuments{wholeDocuments{rows}, s.column.elements()}
		return nil
	}
	index.batches = slices.Clip(index.batches)
	h.Index = index
	return nil
}
