package layout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/hbmfs/hbmfs/layout/safetensors"
)

// safetensorsProbe asks for a length that the format allows and a header that begins as JSON does. A file that is
// called .safetensors may have a wrong length or anything else as its header, and is reported then.
func safetensorsProbe(o *Object, head []byte) any {
	n, err := safetensors.HeaderSize(bytes.NewReader(head), o.Size)
	switch {
	case strings.HasSuffix(o.Name, ".safetensors") && err != nil:
		return tensorHead{err.Error()}
	case strings.HasSuffix(o.Name, ".safetensors"):
		return tensorHead{} // the whole header says more
	case err != nil || len(head) < 10 || head[8] != '{' || !jsonOfObjects(head[8:min(int64(len(head)), 8+n)]):
		return nil
	}
	return tensorHead{}
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
	have := map[string]bool{}
	for _, m := range members {
		have[m.object.Name] = true
		if o := d.sibling(safetensorsIndexName(baseOf(m.object.Name))); o != nil && indexes[o.Name] == nil {
			indexes[o.Name], named[m.object] = readSafetensorsIndex(ctx, d, o), o
		}
	}
	var missing []*Shard
	for _, name := range slices.Sorted(maps.Keys(indexes)) {
		missing = append(missing, indexes[name].missing(d, have)...)
	}
	set := d.addTensors(members, missing, func(ctx context.Context, o *Object) (int, error) {
		h, err := safetensorsRead(ctx, d.volume.headers, o)
		if err != nil {
			return 0, err
		}
		reportTensors(d, o, h.Tensors)
		for _, x := range indexes {
			if err := x.compare(ctx, d, o, h.Tensors); err != nil {
				return 0, err
			}
		}
		return len(h.Tensors), nil
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

// safetensorsRead reads and checks a file's header.
func safetensorsRead(ctx context.Context, budget headerBudget, o *Object) (*safetensors.Header, error) {
	n, err := safetensors.HeaderSize(o.Reader(ctx), o.Size)
	if err == nil {
		var giveBack func()
		if giveBack, err = budget.take(ctx, n); err != nil {
			return nil, err
		}
		defer giveBack()
		var h *safetensors.Header
		if h, err = safetensors.Open(o.Reader(ctx), o.Size); err == nil {
			return h, nil
		}
	}
	if bad, ok := errors.AsType[*safetensors.Error](err); ok {
		return nil, corruptf(o, bad.At, "%s", bad.Detail)
	}
	return nil, fmt.Errorf("read %s: %w", o.Name, err)
}

// safetensorsDType returns the type that hbmfs knows a tensor's by, DTypeUnknown where it has none.
func safetensorsDType(t *safetensors.Tensor) DType {
	if t.Bits == 0 {
		return DTypeUnknown
	}
	d := shortDType(strings.ToLower(t.DType)) // the types that both have are in upper case there
	return d
}

// tensorFiles makes a file of each tensor of o. [reportTensors] has said why one has none.
func (s *Set) tensorFiles(ctx context.Context, o *Object) (files []*File, err error) {
	h, err := safetensorsRead(ctx, s.volume.headers, o)
	if err != nil {
		return nil, err
	}
	for i := range h.Tensors {
		t := &h.Tensors[i]
		files = addTensor(files, o, t.Name, safetensorsDType(t), t.Shape, t.Begin, t.End)
	}
	return files, nil
}

// reportTensors makes a problem of every tensor that has no file, or whose type nobody knows.
func reportTensors(d *directory, o *Object, tensors []safetensors.Tensor) {
	for i := range tensors {
		t := &tensors[i]
		if _, err := tensorFileName(t.Name); err != nil {
			d.problem(o, t.At, "the view does not show a tensor: %v", err)
		}
		if t.Bits == 0 {
			d.problem(o, t.At, "tensor %q has the type %q, which is not known: its size cannot be checked", t.Name, t.DType)
		}
	}
}
