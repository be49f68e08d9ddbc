package layout

import (
	"context"
	"encoding/binary"
	"strings"
)

// bosSuffix ends the name of an index beside a shard of NeMo Automodel: int32 of where tokens that begin a text (BOS) lie, in bytes of
// the shard with its header (tools/nanogpt_data_processor.py, BinaryDataWriter). The writer puts BOS before each document. Where a
// document has one inside, it adds a position in tokens to one in bytes, so an entry counts only where BOS lies there. Automodel's own
// reader takes the entries for positions in tokens (datasets/llm/nanogpt_dataset.py).
const bosSuffix = ".bos.idx"

// bosIndex is such an index of a shard of width bytes a token.
type bosIndex struct {
	wholeDocuments
	object, shard *Object
	width         int64
	tokens        int64
}

// Starts reads the entries, and the token at each.
func (x bosIndex) Starts(ctx context.Context, dst []int64, first int64) error {
	listed := min(int64(len(dst)), x.documents-first)
	if listed < int64(len(dst)) {
		dst[listed] = x.tokens
	}
	if listed <= 0 {
		return nil
	}
	raw, err := readFull(ctx, x.object, 4*first, 4*listed)
	if err != nil {
		return err
	}
	bos, err := readFull(ctx, x.shard, llmcHeaderSize, x.width)
	if err != nil {
		return err
	}
	for i := range listed {
		at := int64(binary.LittleEndian.Uint32(raw[4*i:]))
		pos := (at - llmcHeaderSize) / x.width
		if at < llmcHeaderSize || (at-llmcHeaderSize)%x.width != 0 || pos >= x.tokens || i > 0 && pos <= dst[i-1] || (first+i == 0) != (pos == 0) {
			return corruptf(x.object, 4*(first+i), "entry %d says that a document begins at byte %d, which is before the one before it, between two tokens, or outside of the tokens",
				first+i, at)
		}
		token, err := readFull(ctx, x.shard, at, x.width)
		if err != nil {
			return err
		}
		if string(token) != string(bos) {
			return corruptf(x.object, 4*(first+i), "entry %d says that a document begins at byte %d, and another token lies there than where the first begins: Automodel's writer counts wrong where a document has that token inside",
				first+i, at)
		}
		dst[i] = pos
	}
	return nil
}

// listBOS gives the shards of a set their indexes. It reports whether any has one.
func (d *directory) listBOS(shards []*Shard, dtype DType) (any bool) {
	for _, h := range shards {
		data := h.Objects[0]
		index := d.sibling(strings.TrimSuffix(baseOf(data.Name), ".bin") + bosSuffix)
		if index == nil || !strings.HasSuffix(data.Name, ".bin") || d.isClaimed(index) {
			continue
		}
		any = true
		h.Objects = append(h.Objects, index)
		if h.Bad != "" {
			continue
		}
		x := bosIndex{wholeDocuments{index.Size / 4}, index, data, int64(dtype.Size()), h.Tokens}
		if index.Size%4 != 0 || x.documents == 0 && h.Tokens > 0 {
			h.withoutBOS(d.volume, corruptf(index, index.Size, "the index has %d bytes, which is no whole number of int32, or none", index.Size))
			continue
		}
		h.Documents, h.Index = x.documents, x
		h.resolve = func(ctx context.Context, h *Shard) error { // one token for a glance; the rest are looked at where they are asked for
			if err := x.Starts(ctx, make([]int64, min(1, x.documents)), 0); err != nil && ctx.Err() == nil {
				h.withoutBOS(d.volume, err)
			}
			return ctx.Err()
		}
		h.check = func(ctx context.Context, h *Shard) error {
			if err := checkStarts(ctx, x); err != nil && ctx.Err() == nil && h.Index != nil {
				h.withoutBOS(d.volume, err)
			}
			return ctx.Err()
		}
	}
	for _, h := range shards {
		if any && h.Index == nil && h.NoDocuments == "" {
			h.NoDocuments = "no " + bosSuffix + " lists its documents"
		}
	}
	return any
}

// withoutBOS is for a shard whose index is wrong: its tokens are as good as without one.
func (h *Shard) withoutBOS(v *Volume, err error) {
	h.Documents, h.Index, h.NoDocuments = -1, nil, err.Error()
	v.report(h.Objects[0], err)
}
