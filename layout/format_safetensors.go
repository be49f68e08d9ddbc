package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// safetensorsProbe asks for a length that the format allows and a header that begins as JSON does. A file that is
// called .safetensors may have a wrong length or wrong JSON, and is reported then.
func safetensorsProbe(o *Object, head []byte) any {
	if len(head) < 10 || head[8] != '{' {
		return nil
	}
	n := binary.LittleEndian.Uint64(head)
	bad := safetensorsLength(o, n)
	sound := n >= 2 && n <= safetensorsMaxHeader && jsonOfObjects(head[8:min(uint64(len(head)), 8+n)])
	if !sound && !strings.HasSuffix(o.Name, ".safetensors") {
		return nil
	}
	return tensorHead{bad}
}

// jsonOfObjects reports whether p begins a JSON object of objects. p may end anywhere.
func jsonOfObjects(p []byte) bool {
	dec := json.NewDecoder(bytes.NewReader(p))
	for i := 0; ; i++ {
		tok, err := dec.Token()
		if err != nil {
			return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		}
		switch {
		case i == 1 && tok == json.Delim('}'):
			return true // {} has no tensors
		case (i == 0 || i == 2) && tok != json.Delim('{'):
			return false
		}
	}
}

// safetensorsAssemble makes one set of a directory's files. The indexes beside them say which tensors must be in which
// file; a file that is missing becomes a bad shard.
func safetensorsAssemble(ctx context.Context, d *directory, members []member) {
	indexes := map[string]*safetensorsIndex{} // by the name of the file
	named := map[*Object]*Object{}            // by the first file that an index names
	for _, m := range members {
		if o := d.sibling(safetensorsIndexName(baseOf(m.object.Name))); o != nil && indexes[o.Name] == nil {
			indexes[o.Name], named[m.object] = readSafetensorsIndex(ctx, d, o), o
		}
	}
	var missing []*Shard
	for _, x := range indexes {
		missing = append(missing, x.missing(d, members)...)
	}
	set := d.addTensors(members, missing, func(ctx context.Context, o *Object) (int, error) {
		tensors, err := safetensorsRead(ctx, d.volume.headers, o)
		if err != nil {
			return 0, err
		}
		reportTensors(d, o, tensors)
		for _, x := range indexes {
			if err := x.compare(ctx, d, o, tensors); err != nil {
				return 0, err
			}
		}
		return len(tensors), nil
	})
	for i, m := range members {
		if o := named[m.object]; o != nil {
			set.Shards[i].Objects = append(set.Shards[i].Objects, o)
			d.claim(o)
		}
	}
	set.entries = safetensorsViews
}

// safetensorsViews is a directory for each file, with a file for each tensor.
func safetensorsViews(s *Set) []View {
	var out []View
	s.mu.RLock() // shards are being resolved
	defer s.mu.RUnlock()
	for _, h := range s.Shards {
		if strings.HasSuffix(h.Objects[0].Name, ".json") {
			continue // a missing file: there is only the index that names it
		}
		out = append(out, tensorView(h, s.tensorFiles))
	}
	return out
}

// tensorFiles makes a file of each tensor of o. [reportTensors] has said why one has none.
func (s *Set) tensorFiles(ctx context.Context, o *Object) (files []*File, err error) {
	tensors, err := safetensorsRead(ctx, s.volume.headers, o)
	for i := range tensors {
		t := &tensors[i]
		_, dtype, _ := safetensorsType(t.dtype)
		files = addTensor(files, o, t.name, dtype, t.shape, t.begin, t.end)
	}
	return files, err
}

// reportTensors makes a problem of every tensor that has no file, or whose type nobody knows.
func reportTensors(d *directory, o *Object, tensors []tensor) {
	for i := range tensors {
		t := &tensors[i]
		if _, err := tensorFileName(t.name); err != nil {
			d.problem(o, t.at, "the view does not show a tensor: %v", err)
		}
		if _, _, known := safetensorsType(t.dtype); !known {
			d.problem(o, t.at, "tensor %q has the type %q, which is not known: its size cannot be checked", t.name, t.dtype)
		}
	}
}
