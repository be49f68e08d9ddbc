package layout

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
)

// The header of a Megatron index (NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py): magic, version,
// dtype code, counts, then the arrays without padding.
const (
	megatronMagic      = "MMIDIDX\x00\x00"
	megatronHeaderSize = 34
)

// megatronCode returns the dtype code of Megatron-Core. It has none for u32; those bits are read as i32, which is the
// same number for every token id below 2^31.
func megatronCode(d DType) (byte, bool) {
	codes := [...]byte{U8: 1, I8: 2, I16: 3, I32: 4, U32: 4, I64: 5, F64: 6, F32: 7, U16: 8}
	if int(d) >= len(codes) {
		return 0, false
	}
	return codes[d], codes[d] != 0
}

// MegatronHeader returns the first 34 bytes of an index: documents is the number of documents, without the extra
// entry at the end of the array. ok is false for a dtype that Megatron does not know.
func MegatronHeader(d DType, sequences, documents int64) (header []byte, ok bool) {
	code, ok := megatronCode(d)
	if !ok {
		return nil, false
	}
	h := make([]byte, 0, megatronHeaderSize)
	h = append(h, megatronMagic...)
	h = binary.LittleEndian.AppendUint64(h, 1)
	h = append(h, code)
	h = binary.LittleEndian.AppendUint64(h, uint64(sequences))
	return binary.LittleEndian.AppendUint64(h, uint64(documents+1)), true
}

func (s *Set) megatronBin(ctx context.Context) (*File, error) {
	if _, err := s.megatronIdx(ctx); err != nil { // the one is of no use without the other
		return nil, err
	}
	return s.tokensBin(ctx)
}

// megatronIdx is the index of all shards as one. Lengths are taken over where they lie at the origin; pointers and
// documents count from where the shard begins in the stream. An index of the origin that is for all of the stream is
// shown byte for byte, in spite of mistakes in it.
func (s *Set) megatronIdx(ctx context.Context) (*File, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	if x, ok := s.Shards[0].Index.(*megatronIndex); ok && len(s.Shards) == 1 {
		var b Body
		b.addWhole(x.idx)
		return s.file(b, DTypeUnknown, -1), nil
	}
	x, err := s.index(ctx)
	if err != nil {
		return nil, err
	}
	header, ok := MegatronHeader(s.DType, x.Sequences(), x.Documents())
	if !ok {
		return nil, absent("Megatron has no type for %s", s.DType)
	}
	var b Body
	b.addWhole(Inline(header))
	for _, h := range s.Shards {
		if m, ok := h.Index.(*megatronIndex); ok {
			b.Add(m.idx, m.lengthsAt(), 4*m.Sequences())
		} else {
			b.addWhole(lengthsOf(h.Index))
		}
	}
	item := int64(s.DType.Size())
	b.addWhole(computedInt64(x.Sequences(), func(ctx context.Context, part []int64, first int64) error {
		if err := x.Starts(ctx, part, first); err != nil {
			return err
		}
		for i := range part {
			part[i] *= item
		}
		return nil
	}))
	b.addWhole(computedInt64(x.Documents()+1, x.DocumentSequences))
	if err := s.addModes(&b); err != nil {
		return nil, err
	}
	return s.file(b, DTypeUnknown, -1), nil
}

// addModes appends the modes of a multimodal dataset.
func (s *Set) addModes(b *Body) error {
	with := 0
	for _, h := range s.Shards {
		if m, ok := h.Index.(*megatronIndex); ok && m.header.modes {
			b.Add(m.idx, m.modesAt(), m.Sequences())
			with++
		}
	}
	if with != 0 && with != len(s.Shards) {
		return absent("%d of %d shards have sequence modes: Megatron wants all or none", with, len(s.Shards))
	}
	return nil
}

// lengthsOf computes the i32 sequence lengths of an index that stores positions.
func lengthsOf(x DocumentIndex) *Object {
	return computed(x.Sequences(), 4, func(ctx context.Context, dst []byte, first int64) error {
		starts := make([]int64, len(dst)/4+1)
		if err := x.Starts(ctx, starts, first); err != nil {
			return err
		}
		for i := range len(dst) / 4 {
			n := starts[i+1] - starts[i]
			if n < 0 || n > math.MaxInt32 {
				return fmt.Errorf("document %d has %d tokens: Megatron counts at most 2^31-1", first+int64(i), n)
			}
			binary.LittleEndian.PutUint32(dst[4*i:], uint32(n))
		}
		return nil
	})
}
