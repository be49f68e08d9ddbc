package layout

import (
	"context"
	"encoding/binary"
	"math"
)

// megatronIndex reads the arrays of an index where they lie: lengths (i32, tokens), pointers (i64, bytes in the .bin)
// and documents (i64, sequences). Pointers are given as they are stored.
type megatronIndex struct {
	idx    *Object
	header megatronHeader
	data   *Object // the .bin, or the last piece of it
	size   int64   // bytes of data
	item   int64   // bytes of an element, 0 until known
	volume *Volume
}

func (x *megatronIndex) lengthsAt() int64   { return megatronHeaderSize }
func (x *megatronIndex) pointersAt() int64  { return megatronHeaderSize + 4*x.header.sequences }
func (x *megatronIndex) documentsAt() int64 { return megatronHeaderSize + 12*x.header.sequences }
func (x *megatronIndex) modesAt() int64     { return x.documentsAt() + 8*x.header.documents }

func (x *megatronIndex) Sequences() int64 { return x.header.sequences }
func (x *megatronIndex) Documents() int64 { return x.header.documents - 1 }

// Starts reads pointers. It wants each of them between two elements, inside the data, and not before the one before.
func (x *megatronIndex) Starts(ctx context.Context, dst []int64, first int64) error {
	stored := min(int64(len(dst)), x.header.sequences-first)
	at := x.pointersAt() + 8*first
	if err := readInt64s(ctx, x.idx, at, dst[:stored]); err != nil {
		return err
	}
	for i := range dst[:stored] {
		p := dst[i]
		if p < 0 || p > x.size || p%x.item != 0 || (i > 0 && p/x.item < dst[i-1]) {
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

// DocumentSequences reads the document array. It wants each entry to be a sequence, and not before the one before.
func (x *megatronIndex) DocumentSequences(ctx context.Context, dst []int64, first int64) error {
	at := x.documentsAt() + 8*first
	if err := readInt64s(ctx, x.idx, at, dst); err != nil {
		return err
	}
	for i, s := range dst {
		if s < 0 || s > x.header.sequences || (i > 0 && s < dst[i-1]) {
			return corruptf(x.idx, at+8*int64(i), "document %d begins at sequence %d of %d, or before the document before it",
				first+int64(i), s, x.header.sequences)
		}
	}
	return nil
}

// readInt64s fills dst with little-endian i64 from off.
func readInt64s(ctx context.Context, o *Object, off int64, dst []int64) error {
	raw, err := readFull(ctx, o, off, 8*int64(len(dst)))
	if err != nil {
		return err
	}
	for i := range dst {
		dst[i] = int64(binary.LittleEndian.Uint64(raw[8*i:]))
	}
	return nil
}

// megatronTail is the last sequence that has tokens, which ends where the data ends. Both are 0 where there is none.
type megatronTail struct {
	pointer int64 // bytes, as stored: not yet believed
	length  int64 // elements
}

// end returns where the data ends with elements of item bytes, -1 when the pointer cannot be believed.
func (t megatronTail) end(item int64) int64 {
	if t.pointer < 0 || t.pointer > math.MaxInt64-t.length*item {
		return -1
	}
	return t.pointer + t.length*item
}

// tail reads the end of the index. Sequences without tokens are passed over, as far as one read reaches.
func (x *megatronIndex) tail(ctx context.Context) (megatronTail, error) {
	const atOnce = 1024
	n := min(x.header.sequences, atOnce)
	if n == 0 {
		return megatronTail{}, nil
	}
	first := x.header.sequences - n
	raw, err := readFull(ctx, x.idx, x.lengthsAt()+4*first, 4*n)
	if err != nil {
		return megatronTail{}, err
	}
	last := n - 1
	for last > 0 && binary.LittleEndian.Uint32(raw[4*last:]) == 0 {
		last--
	}
	length := int64(int32(binary.LittleEndian.Uint32(raw[4*last:])))
	if length < 0 {
		return megatronTail{}, corruptf(x.idx, x.lengthsAt()+4*(first+last), "sequence %d has the length %d", first+last, length)
	}
	pointer := make([]int64, 1)
	if err := readInt64s(ctx, x.idx, x.pointersAt()+8*(first+last), pointer); err != nil {
		return megatronTail{}, err
	}
	return megatronTail{pointer[0], length}, nil
}

// resolve compares the end of the index with the data, and the documents with the sequences: a few reads, however
// long the index is. Only where the end does not fit it reads all lengths and pointers, to say why.
func (x *megatronIndex) resolve(ctx context.Context, h *Shard) error {
	tail, err := x.tail(ctx)
	if err != nil {
		return err
	}
	ends := make([]int64, 2)
	if err := readInt64s(ctx, x.idx, x.documentsAt(), ends[:1]); err != nil {
		return err
	}
	if err := readInt64s(ctx, x.idx, x.modesAt()-8, ends[1:]); err != nil {
		return err
	}
	if tail.end(x.item) != x.size {
		w, err := x.walk(ctx)
		if err != nil {
			return err
		}
		if !w.differs {
			return corruptf(x.idx, x.pointersAt(), "the last sequence ends at byte %d of %d", tail.end(x.item), x.size)
		}
		x.volume.problem(x.idx, w.at, "sequence %d begins at byte %d, the lengths before it make %d: the pointers are not the running sum of the lengths (Megatron-LM issue 1672: they overflow when datasets are merged)",
			w.sequence, w.pointer, w.expected)
		h.Documents, h.NoDocuments = -1, "the pointers of the index are not the running sum of its lengths: build the index again"
	}
	if ends[0] != 0 || ends[1] != x.header.sequences {
		x.volume.problem(x.idx, x.modesAt()-8, "the documents reach from sequence %d to %d, the index has 0 to %d",
			ends[0], ends[1], x.header.sequences)
		h.Documents, h.NoDocuments = -1, "the document array of the index does not cover its sequences: build the index again"
	}
	return nil
}

// megatronWalk is, if differs, the first sequence whose pointer is not the sum of the lengths before it.
type megatronWalk struct {
	differs                     bool
	sequence, pointer, expected int64
	at                          int64 // offset of the pointer in the index
}

// walk reads all lengths and pointers, 64 Ki sequences at a time. Lengths that do not make the data's size are an
// error: data is missing, or there is some that no sequence has.
func (x *megatronIndex) walk(ctx context.Context) (megatronWalk, error) {
	var w megatronWalk
	const atOnce = 1 << 16
	pointers := make([]int64, min(atOnce, x.header.sequences))
	sum := int64(0) // bytes
	for first := int64(0); first < x.header.sequences; first += atOnce {
		n := min(atOnce, x.header.sequences-first)
		lengths, err := readFull(ctx, x.idx, x.lengthsAt()+4*first, 4*n)
		if err != nil {
			return w, err
		}
		if err := readInt64s(ctx, x.idx, x.pointersAt()+8*first, pointers[:n]); err != nil {
			return w, err
		}
		for i, p := range pointers[:n] {
			seq := first + int64(i)
			if p != sum && !w.differs {
				w = megatronWalk{true, seq, p, sum, x.pointersAt() + 8*seq}
			}
			length := int64(int32(binary.LittleEndian.Uint32(lengths[4*i:])))
			if length < 0 {
				return w, corruptf(x.idx, x.lengthsAt()+4*seq, "sequence %d has the length %d", seq, length)
			}
			if sum += length * x.item; sum > x.size {
				return w, corruptf(x.data, x.data.Size, "the data has %d bytes, the index counts at least %d (up to sequence %d): the data is cut short, or the index is another's",
					x.size, sum, seq)
			}
		}
	}
	if sum != x.size {
		return w, corruptf(x.data, x.data.Size, "the data has %d bytes, the index counts %d: the index is cut short, or another's", x.size, sum)
	}
	return w, nil
}

// check reads the whole index, streaming.
func (x *megatronIndex) check(ctx context.Context, h *Shard) error {
	w, err := x.walk(ctx)
	if err != nil {
		return err
	}
	if h.NoDocuments != "" { // said by resolve
		return nil
	}
	if w.differs {
		return corruptf(x.idx, w.at, "sequence %d begins at byte %d, the lengths before it make %d", w.sequence, w.pointer, w.expected)
	}
	return checkEntries(x.Documents(), func(dst []int64, first int64) error { return x.DocumentSequences(ctx, dst, first) })
}
