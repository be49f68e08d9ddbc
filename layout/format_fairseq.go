package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
)

// fairseqHeader is the start of fairseq's own MMIDIDX index. It has Megatron's magic and version, and neither a count of
// documents nor their array. Its size tells it from Megatron's, as 12S+26 is never 12S+8D+34. Every sequence is a
// document. Source: facebookresearch/fairseq, fairseq/data/indexed_dataset.py (MMapIndexedDataset).
type fairseqHeader struct {
	code      byte
	sequences int64
}

const fairseqHeaderSize = 26

func fairseqProbe(o *Object, head []byte) any {
	if !strings.HasSuffix(o.Name, ".idx") || !bytes.HasPrefix(head, []byte(megatronMagic)) || len(head) < fairseqHeaderSize ||
		binary.LittleEndian.Uint64(head[9:]) != 1 {
		return nil
	}
	n := binary.LittleEndian.Uint64(head[18:])
	room := uint64(o.Size - fairseqHeaderSize)
	if room%12 != 0 || n != room/12 {
		return nil
	}
	return fairseqHeader{head[17], int64(n)}
}

// fairseqType returns the type that a code stands for. 9 and 10 are fairseq's alone.
func fairseqType(code byte) DType {
	switch code {
	case 1:
		return U8
	case 2:
		return I8
	case 3:
		return I16
	case 4:
		return I32
	case 5:
		return I64
	case 6, 7:
		return F64
	case 8:
		return U16
	case 9:
		return U32
	case 10:
		return U64
	}
	return DTypeUnknown
}

// fairseqAssemble makes a set of each split and element type.
func fairseqAssemble(_ context.Context, d *directory, members []member) {
	for split, group := range bySplit(members) {
		var shards []typedShard
		for _, m := range group {
			shards = append(shards, fairseqShard(d, m))
		}
		for _, set := range d.addByType(split, shards) {
			set.note("fairseq's MMIDIDX: Megatron cannot read this index, but it reads the one in the view")
		}
	}
}

func fairseqShard(d *directory, m member) typedShard {
	h := m.head.(fairseqHeader)
	name := baseOf(strings.TrimSuffix(m.object.Name, ".idx")) + ".bin"
	bad := func(why string) typedShard {
		d.problem(m.object, 0, "%s", why)
		s := newShard(m.object)
		s.Bad = why
		return typedShard{shard: s}
	}
	bin, dtype := d.sibling(name), fairseqType(h.code)
	switch {
	case bin == nil:
		return bad(fmt.Sprintf("the data, %q, is missing", name))
	case dtype == DTypeUnknown:
		return bad(fmt.Sprintf("element type %d is not known", h.code))
	case bin.Size%int64(dtype.Size()) != 0:
		return bad(fmt.Sprintf("the data, %q, has %d bytes, which is no whole number of %s", name, bin.Size, dtype))
	}
	s := newShard(bin, m.object)
	s.Tokens, s.Documents = bin.Size/int64(dtype.Size()), h.sequences
	s.Data.addWhole(bin)
	index := fairseqIndex{wholeDocuments{h.sequences}, m.object, bin, int64(dtype.Size()), bin.Size}
	s.Index = index
	s.resolve = index.resolve
	s.check = func(ctx context.Context, h *Shard) error {
		if h.NoDocuments != "" { // said by resolve
			return nil
		}
		return checkStarts(ctx, h.Index)
	}
	return typedShard{dtype: dtype, shard: s}
}

// fairseqIndex reads the pointers: i64, bytes in the .bin, behind the lengths (i32).
type fairseqIndex struct {
	wholeDocuments
	idx, data *Object
	item      int64
	size      int64 // of the data, bytes
}

// resolve compares the end of the index with the data by two small reads. Only where they differ it sums all lengths: pointers overflow
// when datasets are large (fairseq issue 5532), and the tokens are sound then.
func (x fairseqIndex) resolve(ctx context.Context, h *Shard) error {
	var tail megatronTail
	if x.documents > 0 {
		pointer := make([]int64, 1)
		length, err := readFull(ctx, x.idx, fairseqHeaderSize+4*(x.documents-1), 4)
		if err == nil {
			err = readInt64s(ctx, x.idx, fairseqHeaderSize+12*x.documents-8, pointer)
		}
		if err != nil {
			return err
		}
		tail = megatronTail{pointer[0], int64(binary.LittleEndian.Uint32(length))}
	}
	if tail.end(x.item) == x.size {
		return nil
	}
	sum := int64(0)
	const atOnce = 1 << 16
	for first := int64(0); first < x.documents && sum <= x.size; first += atOnce {
		lengths, err := readFull(ctx, x.idx, fairseqHeaderSize+4*first, 4*min(atOnce, x.documents-first))
		if err != nil {
			return err
		}
		for ; len(lengths) > 0; lengths = lengths[4:] {
			sum += int64(binary.LittleEndian.Uint32(lengths)) * x.item
		}
	}
	switch {
	case sum > x.size:
		return corruptf(x.data, x.size, "the data has %d bytes, the index counts at least %d: the data is cut short, or the index is another's", x.size, sum)
	case sum < x.size:
		return corruptf(x.data, x.size, "the data has %d bytes, the index counts %d: the index is cut short, or another's", x.size, sum)
	}
	h.Documents, h.NoDocuments = -1, "the pointers of the index are not the running sum of its lengths: build the index again"
	return nil
}

// Starts implements [DocumentIndex].
func (x fairseqIndex) Starts(ctx context.Context, dst []int64, first int64) error {
	stored := min(int64(len(dst)), x.documents-first)
	at := fairseqHeaderSize + 4*x.documents + 8*first
	if err := readInt64s(ctx, x.idx, at, dst[:stored]); err != nil {
		return err
	}
	for i := range dst[:stored] {
		p := dst[i]
		if p < 0 || p > x.size || p%x.item != 0 || i > 0 && p/x.item < dst[i-1] {
			return corruptf(x.idx, at+8*int64(i), "sequence %d begins at byte %d, which is before the sequence before it, between two tokens, or after the data's end (%d)",
				first+int64(i), p, x.size)
		}
		dst[i] = p / x.item
	}
	if stored < int64(len(dst)) {
		dst[stored] = x.size / x.item
	}
	return nil
}
