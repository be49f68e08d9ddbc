package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// megatronHeader is the start of an index, and whether its size leaves room for modes. Sources: NVIDIA/Megatron-LM
// megatron/core/datasets/indexed_dataset.py; EleutherAI/gpt-neox megatron/data/indexed_dataset.py (other codes for
// floats); ServiceNow/Fast-LLM data/dataset/gpt/legacy_memmap.py (versions 2 and 3).
type megatronHeader struct {
	code      byte
	sequences int64
	documents int64 // entries of the document array, one more than there are documents
	modes     bool  // one i8 for each sequence follows: the header has no flag for it, the size tells
	bad       error // why the header cannot be believed, nil when it can
}

func megatronProbe(o *Object, head []byte) any {
	if !strings.HasSuffix(o.Name, ".idx") || !bytes.HasPrefix(head, []byte(megatronMagic)) {
		return nil
	}
	h, err := parseMegatron(o, head)
	h.bad = err
	return h
}

// parseMegatron reads the header and compares its counts with the size of the index, before anything uses them.
func parseMegatron(o *Object, head []byte) (megatronHeader, error) {
	var h megatronHeader
	if len(head) < megatronHeaderSize {
		return h, corruptf(o, int64(len(head)), "the index ends within its header of %d bytes", megatronHeaderSize)
	}
	switch version := binary.LittleEndian.Uint64(head[9:]); version {
	case 1:
	case 2, 3:
		return h, corruptf(o, 9, "version %d is Fast-LLM's own index, with spans, which is not supported: export the dataset as version 1", version)
	default:
		return h, corruptf(o, 9, "version %d is not known, 1 is", version)
	}
	h.code = head[17]
	sequences, documents := binary.LittleEndian.Uint64(head[18:]), binary.LittleEndian.Uint64(head[26:])
	room := uint64(o.Size - megatronHeaderSize)
	if sequences > room/12 || documents > room/8 {
		return h, corruptf(o, 18, "%d sequences and %d document entries do not fit into an index of %d bytes", sequences, documents, o.Size)
	}
	switch want := 12*sequences + 8*documents; room {
	case want:
	case want + sequences:
		h.modes = true
	default:
		return h, corruptf(o, 18, "%d sequences and %d document entries make an index of %d bytes, or %d with modes: it has %d",
			sequences, documents, want+megatronHeaderSize, want+sequences+megatronHeaderSize, o.Size)
	}
	if documents == 0 {
		return h, corruptf(o, 26, "the document array is empty: it must end with the number of sequences")
	}
	h.sequences, h.documents = int64(sequences), int64(documents)
	return h, nil
}

// megatronAssemble makes one set of all prefixes of a directory, by split and element type, as Megatron's
// merge_datasets would.
func megatronAssemble(ctx context.Context, d *directory, members []member) {
	prefixes := map[*Object]*megatronPrefix{}
	for _, m := range members { // whole files are claimed before pieces are looked for
		p := &megatronPrefix{d: d, idx: m.object, header: m.head.(megatronHeader)}
		p.stem = strings.TrimSuffix(m.object.Name, ".idx")
		if p.bin = d.sibling(baseOf(p.stem) + ".bin"); p.bin != nil {
			p.taken = !d.claim(p.bin)
		}
		prefixes[m.object] = p
	}
	for split, group := range bySplit(members) {
		var shards []typedShard
		made := map[*Shard]*megatronPrefix{}
		for _, m := range group {
			p := prefixes[m.object]
			shard := p.shard(ctx)
			shards, made[shard.shard] = append(shards, shard), p
		}
		for _, set := range d.addByType(split, shards) {
			for _, h := range set.Shards {
				p := made[h]
				set.joined = append(set.joined, p.joined...)
				for _, note := range p.notes {
					set.note(note)
				}
			}
		}
	}
}

// megatronPrefix is one index while its shard is made.
type megatronPrefix struct {
	d      *directory
	stem   string // the name of the index without .idx
	idx    *Object
	header megatronHeader
	bin    *Object // the data, if it lies whole
	taken  bool    // bin is another set's
	pieces []piece
	notes  []string
	joined []View
}

// shard finds the data of the prefix and the type of its elements. A prefix whose parts do not fit together becomes a
// bad shard, so that no stream is shown without it.
func (p *megatronPrefix) shard(ctx context.Context) typedShard {
	h := &Shard{Name: p.stem + ".bin", Tokens: -1, Documents: -1, Samples: -1}
	p.pieces = findPieces(p.d, p.stem)
	if p.bin != nil {
		if len(p.pieces) > 0 {
			p.notes = append(p.notes, "the pieces of "+p.bin.Name+" are not used, since it lies whole beside them")
		}
		for _, piece := range p.pieces { // the same bytes once more: they are not a stream of their own
			p.d.claim(piece.object)
		}
		h.Objects = []*Object{p.bin}
	} else {
		for _, piece := range p.pieces {
			h.Objects = append(h.Objects, piece.object)
		}
	}
	data := h.Objects[:len(h.Objects):len(h.Objects)]
	h.Objects = append(h.Objects, p.idx)
	dtype, err := p.fill(ctx, h, data)
	if err != nil {
		p.d.volume.bad(h, err)
	}
	return typedShard{h, dtype}
}

// fill gives h its data and index. It reads the end of the index only where the answer cannot wait: for pieces, and for
// the codes that the families read differently.
func (p *megatronPrefix) fill(ctx context.Context, h *Shard, data []*Object) (DType, error) {
	switch {
	case p.header.bad != nil:
		return DTypeUnknown, p.header.bad
	case p.taken:
		return DTypeUnknown, corruptf(p.idx, 0, "%s belongs to another dataset of this directory already", p.bin.Name)
	case len(data) == 0:
		return DTypeUnknown, corruptf(p.idx, 0, "%s is missing, and no pieces of it are there (%s-00000-of-...)", h.Name, baseOf(p.stem))
	}
	var body Body
	for _, o := range data {
		if o.Size > math.MaxInt64-body.Size() {
			return DTypeUnknown, corruptf(o, 0, "the pieces have more than 2^63 bytes together")
		}
		body.addWhole(o)
	}
	x := &megatronIndex{idx: p.idx, header: p.header, data: data[len(data)-1], size: body.Size(), volume: p.d.volume}
	dtype, err := p.dtype(ctx, x)
	if err != nil {
		return DTypeUnknown, err
	}
	x.item = int64(dtype.Size())
	if p.bin == nil {
		tail, err := x.tail(ctx)
		if err != nil {
			return dtype, err
		}
		if err := p.checkPieces(tail.end(x.item)); err != nil {
			return dtype, err
		}
		p.join(h, body, dtype, x.size/x.item)
	}
	if x.size%x.item != 0 {
		return dtype, corruptf(x.data, x.data.Size, "%d bytes of data are no whole number of %s", x.size, dtype)
	}
	if p.header.modes {
		p.notes = append(p.notes, "multimodal: the index has a mode for each sequence")
	}
	h.Data, h.Tokens, h.Documents, h.Index = body, x.size/x.item, p.header.documents-1, x
	h.resolve, h.check = x.resolve, x.check
	return dtype, nil
}

// dtype reads the type code. Megatron-Core and the GPT-NeoX family disagree about 6 and 7: the one reading with
// which the last sequence ends where the data ends is taken.
func (p *megatronPrefix) dtype(ctx context.Context, x *megatronIndex) (DType, error) {
	var core, neox DType
	switch p.header.code {
	case 6:
		core, neox = F64, F32
	case 7:
		core, neox = F32, F64
	default:
		for _, d := range []DType{U8, I8, I16, I32, I64, U16} {
			if code, _ := megatronCode(d); code == p.header.code {
				return d, nil
			}
		}
		return DTypeUnknown, corruptf(p.idx, 17, "dtype code %d is not known: 1 to 8 are", p.header.code)
	}
	if x.size == 0 && p.header.sequences == 0 {
		return core, nil // nothing to tell them apart by, and nothing to misread
	}
	tail, err := x.tail(ctx)
	if err != nil {
		return DTypeUnknown, err
	}
	asCore := tail.end(int64(core.Size())) == x.size
	asNeoX := tail.end(int64(neox.Size())) == x.size
	switch {
	case asCore && !asNeoX:
		p.notes = append(p.notes, fmt.Sprintf("dtype code %d is %s, as in Megatron-Core", p.header.code, core))
		return core, nil
	case asNeoX && !asCore:
		p.notes = append(p.notes, fmt.Sprintf("dtype code %d is %s, as in GPT-NeoX", p.header.code, neox))
		return neox, nil
	}
	which := "neither makes"
	if asCore {
		which = "both make"
	}
	return DTypeUnknown, corruptf(p.idx, 17, "dtype code %d is %s in Megatron-Core and %s in GPT-NeoX: %s the last sequence end where the %d bytes of data end",
		p.header.code, core, neox, which, x.size)
}

// join adds the views that show pieces as the one file which the index expects, with the index beside it. A prefix
// whose name would hide views that every set of tokens has is shown one directory below them.
func (p *megatronPrefix) join(h *Shard, data Body, dtype DType, tokens int64) {
	name := baseOf(p.stem)
	if name == "tokens" || name == "megatron" {
		name = "joined/" + name
	}
	var index Body
	index.addWhole(p.idx)
	changed := newest(h)
	file := func(b Body, dtype DType, tokens int64) func(context.Context) (*File, error) {
		return func(context.Context) (*File, error) {
			return &File{Body: b, DType: dtype, Tokens: tokens, ModTime: changed}, nil
		}
	}
	p.joined = []View{
		{Path: name + ".bin", File: file(data, dtype, tokens)},
		{Path: name + ".idx", File: file(index, DTypeUnknown, -1)},
	}
}
