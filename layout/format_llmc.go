package layout

import (
	"context"
	"encoding/binary"
	"fmt"
)

// llmcHeader begins a shard of llm.c and its relatives: 256 little-endian int32, then the tokens.
//
//	[0] magic  [1] version  [2] tokens  [3] bytes per token (Automodel), else 0
//
// Sources: karpathy/llm.c dev/data/data_common.py (gpt-2 and llama-3), KellerJordan/modded-nanogpt data/ (the same as
// gpt-2), NVIDIA-NeMo/Automodel tools/nanogpt_data_processor.py.
type llmcHeader struct {
	variant string
	dtype   DType
	tokens  int64
	bad     string // why the header cannot be believed, "" when it can
}

const (
	llmcHeaderSize = 1024
	llmcMagicGPT2  = 20240520
	llmcMagicLlama = 20240801
	llmcMagicAuto  = 278895051
)

func llmcProbe(o *Object, head []byte) any {
	if len(head) < 12 {
		return nil
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(head[4*i:]) }
	h := llmcHeader{tokens: int64(int32(word(2)))}
	version := word(1)
	switch {
	case word(0) == llmcMagicGPT2 && version == 1:
		h.variant, h.dtype = "llm.c gpt-2 header", U16
	case word(0) == llmcMagicLlama && version == 7:
		h.variant, h.dtype = "llm.c llama-3 header", U32
	case word(0) == llmcMagicAuto && version == 1 && len(head) >= 16 && word(3) == 2:
		h.variant, h.dtype = "NeMo Automodel header", U16
	case word(0) == llmcMagicAuto && version == 1 && len(head) >= 16 && word(3) == 4:
		h.variant, h.dtype = "NeMo Automodel header", U32
	default:
		return nil
	}
	if want := llmcHeaderSize + h.tokens*int64(h.dtype.Size()); h.tokens < 0 || want != o.Size {
		h.bad = fmt.Sprintf("the header counts %d tokens of %d bytes, which makes %d bytes with the header: the file has %d",
			h.tokens, h.dtype.Size(), want, o.Size)
	}
	return h
}

// llmcAssemble makes a set of each split and element type, in the order of the names, as the readers glob them.
func llmcAssemble(_ context.Context, d *directory, members []member) {
	for split, group := range bySplit(members) {
		for _, dtype := range []DType{U16, U32} {
			var shards []*Shard
			var variant string
			for _, m := range group {
				h := m.head.(llmcHeader)
				if h.dtype != dtype {
					continue
				}
				variant = h.variant
				s := newShard(m.object)
				if h.bad != "" {
					d.problem(m.object, 8, "%s", h.bad)
					s.Bad = h.bad
				} else {
					s.Tokens = h.tokens
					s.Data.Add(m.object, llmcHeaderSize, h.tokens*int64(dtype.Size()))
				}
				shards = append(shards, s)
			}
			if len(shards) == 0 {
				continue
			}
			listed := d.listBOS(shards, dtype)
			set := d.add(split, dtype, shards)
			set.Notes = append(set.Notes, variant)
			if !listed {
				set.NoDocuments = "the format does not say where documents begin: hbmfs pack can find them by their end-of-text token"
			}
		}
	}
}
