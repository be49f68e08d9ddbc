package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/hbmfs/hbmfs/layout/safetensors"
)

// A GGUF file is a header, key-value pairs, the places of its tensors, and the tensors. Source: ggml-org/ggml,
// docs/gguf.md, and gguf-py/gguf/constants.py for the sizes of blocks.
const (
	ggufMagic     = "GGUF"
	ggufAlignment = 32 // where general.alignment does not say
	maxGGUFString = 64 << 10
	ggufName      = 64 // bytes of memory that a name takes beside its own
)

func ggufProbe(o *Object, head []byte) any {
	if !bytes.HasPrefix(head, []byte(ggufMagic)) || len(head) < 24 {
		return nil
	}
	h := tensorHead{}
	version := binary.LittleEndian.Uint32(head[4:])
	tensors, pairs := binary.LittleEndian.Uint64(head[8:]), binary.LittleEndian.Uint64(head[16:])
	switch why := ggufVersion(version); {
	case why != "":
		h.bad = why
	case tensors > maxTensors || tensors > uint64(o.Size)/24 || pairs > uint64(o.Size)/13:
		h.bad = fmt.Sprintf("%d tensors and %d keys do not fit into a file of %d bytes", tensors, pairs, o.Size)
	}
	return h
}

// ggufVersion says why a file of that version cannot be read, "" where it can. Version 1 has counts of 32 bits.
func ggufVersion(version uint32) string {
	switch {
	case version == 2 || version == 3:
		return ""
	case version != 0 && version&0xffff == 0:
		return "its numbers are big-endian, which is not supported"
	}
	return fmt.Sprintf("version %d is not known, 2 and 3 are", version)
}

// ggufAssemble makes one set of a directory's files.
func ggufAssemble(_ context.Context, d *directory, members []member) {
	set := d.addTensors(members, nil, func(ctx context.Context, o *Object) (int, error) {
		tensors, err := ggufRead(ctx, d.volume.headers, o)
		return len(tensors), err
	})
	set.entries = func(s *Set) (out []View) {
		for _, h := range s.Shards {
			out = append(out, tensorView(h, s.ggufFiles))
		}
		return out
	}
}

// ggufFiles makes a file of each tensor; a .bin has its blocks.
func (s *Set) ggufFiles(ctx context.Context, o *Object) (files []*File, err error) {
	tensors, err := ggufRead(ctx, s.volume.headers, o)
	for i := range tensors {
		t := &tensors[i]
		files = addTensor(files, o, t.name, t.kind.dtype, t.shape, t.begin, t.end)
	}
	return files, err
}

// ggufTensor is a tensor, and where it lies in the file.
type ggufTensor struct {
	name       string
	kind       ggufType
	shape      []int64 // the slowest dimension first, as in NumPy
	begin, end int64
}

// ggufType is a type of ggml: blocks of so many elements, in so many bytes.
type ggufType struct {
	elements, bytes int64
	dtype           DType // where a block is one element
}

// ggufTypeOf knows the types, but for those that ggml took back.
func ggufTypeOf(code uint32) (ggufType, bool) {
	plain := map[uint32]DType{0: F32, 1: F16, 24: I8, 25: I16, 26: I32, 27: I64, 28: F64, 30: BF16}
	if d, ok := plain[code]; ok {
		return ggufType{1, int64(d.Size()), d}, true
	}
	blocks := map[uint32][2]int64{
		2: {32, 18}, 3: {32, 20}, 6: {32, 22}, 7: {32, 24}, 8: {32, 34}, 9: {32, 40}, 10: {256, 84}, 11: {256, 110}, 12: {256, 144},
		13: {256, 176}, 14: {256, 210}, 15: {256, 292}, 16: {256, 66}, 17: {256, 74}, 18: {256, 98}, 19: {256, 50}, 20: {32, 18},
		21: {256, 110}, 22: {256, 82}, 23: {256, 136}, 29: {256, 56}, 34: {256, 54}, 35: {256, 66}, 39: {32, 17}, 40: {64, 36}, 41: {128, 18},
	}
	b, ok := blocks[code]
	return ggufType{elements: b[0], bytes: b[1]}, ok
}

// ggufReader reads the header.
type ggufReader struct {
	r    *windowReader
	room int64 // for names, bytes
	err  error
}

func (g *ggufReader) fail(format string, args ...any) {
	if g.err == nil {
		g.err = corruptf(g.r.o, g.r.off, format, args...)
	}
}

func (g *ggufReader) number(size int) uint64 {
	var raw [8]byte
	if g.err == nil {
		if _, err := io.ReadFull(g.r, raw[:size]); err != nil {
			if g.err = g.r.err; g.err == nil {
				g.fail("the header is cut off")
			}
			return 0
		}
	}
	return binary.LittleEndian.Uint64(raw[:])
}

func (g *ggufReader) skip(n uint64) {
	if g.err == nil && n > uint64(max(g.r.o.Size-g.r.off, 0)) {
		g.fail("%d bytes are announced, %d follow", n, g.r.o.Size-g.r.off)
	}
	if g.err == nil {
		g.r.off += int64(n)
	}
}

func (g *ggufReader) text() string {
	n := g.number(8)
	if n > maxGGUFString {
		g.fail("a name has %d bytes, at most %d are read", n, maxGGUFString)
		return ""
	}
	if g.room -= int64(n) + ggufName; g.room < 0 {
		g.fail("the names take more than %d bytes", safetensors.MaxHeader)
		return ""
	}
	raw := make([]byte, n)
	if _, err := io.ReadFull(g.r, raw); err != nil && g.err == nil && n > 0 {
		if g.err = g.r.err; g.err == nil {
			g.fail("the header is cut off")
		}
	}
	return string(raw)
}

// value reads past a value, and returns it where it is an integer of 32 bits.
func (g *ggufReader) value(kind uint64, depth int) uint64 {
	sizes := map[uint64]uint64{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
	switch size, ok := sizes[kind]; {
	case kind == 4:
		return g.number(4)
	case ok:
		g.skip(size)
	case kind == 8:
		g.skip(g.number(8))
	case kind == 9 && depth < 4:
		item, n := g.number(4), g.number(8)
		if size, ok := sizes[item]; ok {
			if n > uint64(g.r.o.Size) {
				g.fail("an array has %d elements", n)
			}
			g.skip(n * size)
			return 0
		}
		for ; n > 0 && g.err == nil; n-- {
			g.value(item, depth+1)
		}
	default:
		g.fail("a value has the type %d, which is not known", kind)
	}
	return 0
}

// ggufRead reads and checks the header.
func ggufRead(ctx context.Context, budget headerBudget, o *Object) ([]ggufTensor, error) {
	giveBack, err := budget.take(ctx, min(o.Size, safetensors.MaxHeader))
	if err != nil {
		return nil, err
	}
	defer giveBack()
	g := &ggufReader{r: &windowReader{ctx: ctx, o: o, off: 4}, room: safetensors.MaxHeader}
	if why := ggufVersion(uint32(g.number(4))); why != "" {
		g.fail("%s", why)
	}
	count, pairs := g.number(8), g.number(8)
	if count > maxTensors {
		g.fail("%d tensors, at most %d are read", count, maxTensors)
	}
	alignment := uint64(ggufAlignment)
	keys := map[string]bool{}
	for ; pairs > 0 && g.err == nil; pairs-- {
		key := g.text()
		if keys[key] && g.err == nil {
			g.fail("the key %.80q is there twice", key)
		}
		keys[key] = true
		if v := g.value(g.number(4), 0); key == "general.alignment" {
			alignment = v
		}
	}
	if g.err == nil && (alignment == 0 || alignment&(alignment-1) != 0 || alignment > 1<<20) {
		g.fail("general.alignment is %d, and no power of two up to 1 MiB", alignment)
	}
	var tensors []ggufTensor
	names := map[string]bool{}
	for ; count > 0 && g.err == nil; count-- {
		t := g.tensor()
		if names[t.name] && g.err == nil {
			g.fail("two tensors are called %.80q", t.name)
		}
		names[t.name] = true
		tensors = append(tensors, t)
	}
	if g.err != nil {
		return nil, g.err
	}
	start := (g.r.off + int64(alignment) - 1) &^ (int64(alignment) - 1)
	for i := range tensors {
		t := &tensors[i]
		size := t.end
		if t.begin > o.Size-start || size > o.Size-start-t.begin {
			return nil, corruptf(o, g.r.off, "tensor %.80q has %d bytes at %d of the data, the file has %d", t.name, size, t.begin, o.Size)
		}
		t.begin += start
		t.end = t.begin + size
	}
	return tensors, nil
}

// tensor reads the place of a tensor: begin is in the data, end its size in bytes.
func (g *ggufReader) tensor() ggufTensor {
	t := ggufTensor{name: g.text()}
	dims := g.number(4)
	if dims > 8 {
		g.fail("tensor %.80q has %d dimensions, at most 8 are read", t.name, dims)
	}
	elements := int64(1)
	for range dims {
		n := g.number(8)
		var ok bool
		if elements, ok = multiply(elements, int64(n&(1<<63-1))); !ok || n > 1<<62 {
			g.fail("tensor %.80q has too many elements", t.name)
		}
		if g.err != nil {
			return t
		}
		t.shape = append([]int64{int64(n)}, t.shape...)
	}
	code, offset := uint32(g.number(4)), g.number(8)
	kind, ok := ggufTypeOf(code)
	if !ok {
		g.fail("tensor %.80q has the type %d, which is not known", t.name, code)
		return t
	}
	if elements%kind.elements != 0 {
		g.fail("tensor %.80q has %d elements, which is no whole number of blocks of %d", t.name, elements, kind.elements)
	}
	size, ok := multiply(elements/kind.elements, kind.bytes)
	if !ok || offset > 1<<62 {
		g.fail("tensor %.80q is too large", t.name)
	}
	t.kind, t.begin, t.end = kind, int64(offset), size
	return t
}
