package layout

import (
	"context"
	"strconv"
	"strings"
)

// Files of a datatrove dataset (huggingface/datatrove src/datatrove/pipeline/tokens/tokenizer.py; nanotron reads them):
//
//	X.ds           tokens, u16 or u32
//	X.ds.index     where each document ends, u64, in tokens
//	X.ds.metadata  text: tokenizer|bytes per token, then the number of tokens, then the same for people
//	X.ds.loss      one byte for each token, 1 where it is trained on
const (
	datatroveData     = ".ds"
	datatroveIndex    = ".ds.index"
	datatroveMetadata = ".ds.metadata"
	datatroveLoss     = ".ds.loss"
)

// datatroveMeta is the content of X.ds.metadata. Early files name no token size: width is 0 then.
type datatroveMeta struct {
	tokenizer string
	width     int // bytes of a token
	tokens    int64
}

// datatroveProbe takes files by their names, since only the metadata has a form of its own. Arithmetic between them
// decides their type: see datatroveStem.dtype.
func datatroveProbe(o *Object, head []byte) any {
	_, suffix := datatroveCut(o.Name)
	if suffix != datatroveMetadata {
		if suffix == "" {
			return nil
		}
		return datatroveMeta{}
	}
	meta, ok := parseDatatroveMeta(head)
	if !ok || o.Size > headSize {
		return nil
	}
	return meta
}

// datatroveCut returns a name without its suffix, and which of the format's it is, "" for none.
func datatroveCut(name string) (stem, suffix string) {
	for _, suffix := range []string{datatroveIndex, datatroveMetadata, datatroveLoss, datatroveData} {
		if stem, ok := strings.CutSuffix(name, suffix); ok {
			return stem, suffix
		}
	}
	return name, ""
}

func parseDatatroveMeta(text []byte) (datatroveMeta, bool) {
	lines := strings.Split(string(text), "\n")
	if len(lines) < 2 {
		return datatroveMeta{}, false
	}
	m := datatroveMeta{tokenizer: lines[0]}
	if i := strings.LastIndexByte(lines[0], '|'); i >= 0 {
		width, err := strconv.Atoi(lines[0][i+1:])
		if err != nil {
			return m, false
		}
		m.tokenizer, m.width = lines[0][:i], width
	}
	tokens, err := strconv.ParseInt(lines[1], 10, 64)
	m.tokens = tokens
	return m, err == nil && tokens >= 0
}

// datatroveStem is the files that share a name.
type datatroveStem struct {
	name                        string
	data, index, metadata, loss *Object
	meta                        datatroveMeta
}

func datatroveAssemble(ctx context.Context, d *directory, members []member) {
	stems := map[string]*datatroveStem{}
	var order []member // the first file of each stem
	for _, m := range members {
		name, suffix := datatroveCut(m.object.Name)
		s := stems[name]
		if s == nil {
			s = &datatroveStem{name: name}
			stems[name], order = s, append(order, m)
		}
		switch suffix {
		case datatroveData:
			s.data = m.object
		case datatroveIndex:
			s.index = m.object
		case datatroveLoss:
			s.loss = m.object
		case datatroveMetadata:
			s.metadata, s.meta = m.object, m.head.(datatroveMeta)
		}
	}
	for split, group := range bySplit(order) {
		var shards []typedShard
		made := map[*Shard]*datatroveStem{}
		for _, m := range group {
			name, _ := datatroveCut(m.object.Name)
			s := stems[name]
			if s.index == nil && s.metadata == nil {
				continue // nothing vouches for it but its name
			}
			shard := s.shard(ctx, d.volume)
			shards, made[shard.shard] = append(shards, shard), s
		}
		for _, set := range d.addByType(split, shards) {
			for _, h := range set.Shards {
				if s := made[h]; s.meta.tokenizer != "" {
					set.note("tokenizer " + s.meta.tokenizer)
				}
				if made[h].loss != nil {
					set.note("a loss mask lies beside the tokens (.ds.loss), one byte for each")
				}
			}
		}
	}
}

// shard makes a shard of the files, a bad one where they do not fit together.
func (s *datatroveStem) shard(ctx context.Context, v *Volume) typedShard {
	h := &Shard{Name: s.name + datatroveData, Tokens: -1, Documents: -1, Samples: -1}
	for _, o := range []*Object{s.data, s.index, s.metadata, s.loss} {
		if o != nil {
			h.Objects = append(h.Objects, o)
		}
	}
	dtype, err := s.dtype(ctx)
	if err == nil {
		err = s.fill(h, dtype)
	}
	if err != nil {
		v.bad(h, err)
		return typedShard{h, dtype}
	}
	if s.loss != nil && s.loss.Size != h.Tokens {
		v.problem(s.loss, 0, "the loss mask has %d bytes for %d tokens", s.loss.Size, h.Tokens)
	}
	return typedShard{h, dtype}
}

// dtype returns the type of the tokens: that of the metadata, else the one with which the last document ends where the
// data ends.
func (s *datatroveStem) dtype(ctx context.Context) (DType, error) {
	if s.data == nil {
		at := s.index
		if at == nil {
			at = s.metadata
		}
		return DTypeUnknown, corruptf(at, 0, "%s is missing", s.name+datatroveData)
	}
	switch {
	case s.meta.width == 2:
		return U16, nil
	case s.meta.width == 4:
		return U32, nil
	case s.meta.width != 0:
		return DTypeUnknown, corruptf(s.metadata, 0, "tokens of %d bytes are not known, 2 and 4 are", s.meta.width)
	}
	at, tokens := s.metadata, s.meta.tokens
	if s.metadata == nil {
		at = s.index
		if s.index.Size >= 8 {
			last := make([]int64, 1)
			if err := readInt64s(ctx, s.index, s.index.Size/8*8-8, last); err != nil {
				return DTypeUnknown, err
			}
			tokens = last[0]
		}
	}
	switch size := s.data.Size; {
	case size == 0 && tokens == 0:
		return U16, nil // either would do
	case size%2 == 0 && size/2 == tokens:
		return U16, nil
	case size%4 == 0 && size/4 == tokens:
		return U32, nil
	}
	return DTypeUnknown, corruptf(at, 0, "%d tokens are counted, neither 2 nor 4 bytes each make the %d bytes of %s", tokens, s.data.Size, s.data.Name)
}

// fill gives the shard its data and index, as far as sizes tell.
func (s *datatroveStem) fill(h *Shard, dtype DType) error {
	width := int64(dtype.Size())
	tokens := s.data.Size / width
	if s.data.Size%width != 0 {
		return corruptf(s.data, s.data.Size, "%d bytes are no whole number of %s", s.data.Size, dtype)
	}
	if s.metadata != nil && tokens != s.meta.tokens {
		return corruptf(s.data, s.data.Size, "the data has %d tokens of %d bytes, the metadata counts %d", tokens, width, s.meta.tokens)
	}
	h.Tokens = tokens
	h.Data.Add(s.data, 0, s.data.Size)
	if s.index == nil {
		h.NoDocuments = s.name + datatroveIndex + " is missing, which would say where documents end"
		return nil
	}
	documents := s.index.Size / 8
	if s.index.Size%8 != 0 || (documents == 0 && tokens > 0) {
		return corruptf(s.index, s.index.Size, "the index has %d bytes, which is no whole number of u64, or none", s.index.Size)
	}
	x := endsIndex{wholeDocuments: wholeDocuments{documents}, object: s.index, width: 8, scale: 1, tokens: tokens}
	h.Documents, h.Index = documents, x
	h.resolve = func(ctx context.Context, _ *Shard) error { return x.checkEnd(ctx) }
	h.check = func(ctx context.Context, _ *Shard) error { return checkStarts(ctx, x) }
	return nil
}
