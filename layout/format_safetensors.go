package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// safetensorsHead says why a file's header cannot be believed, "" when it can.
type safetensorsHead struct{ bad string }

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
	return safetensorsHead{bad}
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
	var shards []*Shard
	counts := make([]int64, len(members)) // each written by its own shard's resolve
	for i, m := range members {
		h := newShard(m.object)
		if bad := m.head.(safetensorsHead).bad; bad != "" {
			d.problem(m.object, 0, "%s", bad)
			h.Bad = bad
		}
		if o := d.sibling(safetensorsIndexName(baseOf(m.object.Name))); o != nil && indexes[o.Name] == nil {
			indexes[o.Name] = readSafetensorsIndex(ctx, d, o)
			h.Objects = append(h.Objects, o)
		}
		h.resolve = func(ctx context.Context, h *Shard) error {
			if h.Bad != "" {
				return nil
			}
			tensors, err := safetensorsRead(ctx, d.volume.headers, m.object)
			if err != nil {
				return err
			}
			counts[i] = int64(len(tensors))
			reportTensors(d, m.object, tensors)
			for _, x := range indexes {
				if err := x.compare(ctx, d, m.object, tensors); err != nil {
					return err
				}
			}
			return nil
		}
		shards = append(shards, h)
	}
	for _, x := range indexes {
		shards = append(shards, x.missing(d, members)...)
	}
	set := d.add("", DTypeUnknown, shards)
	set.entries = safetensorsViews
	set.summarize = func(s *Set) {
		total := int64(0)
		for _, n := range counts {
			total += n
		}
		s.Notes = append(s.Notes, fmt.Sprintf("%d tensors", total))
	}
}

// safetensorsViews is a directory for each file, with a file for each tensor.
func safetensorsViews(s *Set) []View {
	var out []View
	s.mu.RLock() // shards are being resolved
	defer s.mu.RUnlock()
	for _, h := range s.Shards {
		object := h.Objects[0]
		if strings.HasSuffix(object.Name, ".json") {
			continue // a missing file: there is only the index that names it
		}
		out = append(out, View{
			Path:    path.Join("tensors", baseOf(h.Name)),
			Entries: func(ctx context.Context) ([]*File, error) { return tensorFiles(ctx, s.volume.headers, object) },
		})
	}
	return out
}

// tensorFiles makes a file of each tensor of o: .npy where NumPy knows type and shape, else .bin, the bytes alone.
func tensorFiles(ctx context.Context, budget headerBudget, o *Object) ([]*File, error) {
	tensors, err := safetensorsRead(ctx, budget, o)
	if err != nil {
		return nil, err
	}
	var out []*File
	for i := range tensors {
		t := &tensors[i]
		name, err := tensorFileName(t.name)
		if err != nil {
			continue // reportTensors has said why
		}
		_, dtype, _ := safetensorsType(t.dtype)
		f := &File{Name: name + ".bin", ModTime: o.ModTime, DType: dtype, Tokens: -1}
		if dtype != DTypeUnknown {
			f.Tokens = (t.end - t.begin) / int64(dtype.Size())
		}
		if dtype.NumPy() != "" && numpyShape(t.shape, int64(dtype.Size())) {
			f.Body.addWhole(Inline(NPYHeader(dtype, t.shape...)))
			f.Name = name + ".npy"
		}
		f.Body.Add(o, t.begin, t.end-t.begin)
		out = append(out, f)
	}
	return out, nil
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

// numpyShape reports whether NumPy makes an array of the shape: at most 32 dimensions (64 from version 2). Where one is
// 0, the others must still multiply to fewer than 2^63 bytes.
func numpyShape(shape []int64, width int64) bool {
	_, ok := product(width, shape, 1)
	return ok && len(shape) <= 32
}

// maxTensorName leaves room for a suffix in the 255 bytes that Linux allows a name.
const maxTensorName = 200

// tensorFileName makes a file's name of a tensor's, so that different tensors have different names. It writes '/', '%',
// control characters and a leading dot as %2F, %25, ... An empty name, or one that gets longer than 200 bytes, has
// none.
func tensorFileName(name string) (string, error) {
	if name == "" {
		return "", errors.New("its name is empty")
	}
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c == '/' || c == '%' || c < ' ' || c == 0x7f || (c == '.' && i == 0) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
		if b.Len() > maxTensorName {
			return "", fmt.Errorf("the name %.40q... needs more than %d bytes", name, maxTensorName)
		}
	}
	return b.String(), nil
}
