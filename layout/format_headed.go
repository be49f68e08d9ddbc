package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
)

// headed is a file of tokens behind a small header that gives their type and number.
type headed struct {
	dtype  DType
	start  int64 // bytes
	tokens int64
	bad    string
}

// packedProbe knows a shard of TinyLlama's and litgpt's old PackedDataset: a magic, u64 version, u8 type as in GPT-NeoX,
// u64 tokens, then the tokens. Source: jzhang38/TinyLlama, lit_gpt/packed_dataset.py.
func packedProbe(o *Object, head []byte) any {
	const magic, size = "LITPKDS", 24
	if !bytes.HasPrefix(head, []byte(magic)) || len(head) < size {
		return nil
	}
	h := headed{start: size, dtype: map[byte]DType{1: U8, 2: I8, 3: I16, 4: I32, 5: I64, 6: F32, 7: F64, 8: U16}[head[15]]}
	version, n := binary.LittleEndian.Uint64(head[7:]), binary.LittleEndian.Uint64(head[16:])
	h.count(o, n)
	switch {
	case version != 1:
		h.bad = fmt.Sprintf("version %d is not known, 1 is", version)
	case h.dtype == DTypeUnknown:
		h.bad = fmt.Sprintf("element type %d is not known", head[15])
	case h.bad == "" && size+int64(n)*int64(h.dtype.Size()) != o.Size:
		h.bad = fmt.Sprintf("the header counts %d tokens of %d bytes: the file has %d", n, h.dtype.Size(), o.Size)
	}
	return h
}

// count believes a count of tokens where they fit into the file.
func (h *headed) count(o *Object, n uint64) {
	if h.dtype == DTypeUnknown {
		return
	}
	if n > uint64(o.Size-h.start)/uint64(h.dtype.Size()) {
		h.bad = fmt.Sprintf("the header counts %d tokens of %d bytes: the file has %d", n, h.dtype.Size(), o.Size)
		return
	}
	h.tokens = int64(n)
}

// pbinProbe knows a .pbin of Modalities: u64 bytes of the data, u32 bytes of a token, the data, and a pickle of where
// the documents lie. Source: Modalities/modalities, src/modalities/dataloader/create_packed_data.py.
func pbinProbe(o *Object, head []byte) any {
	if !strings.HasSuffix(o.Name, ".pbin") || len(head) < 12 {
		return nil
	}
	bytes, width := binary.LittleEndian.Uint64(head), binary.LittleEndian.Uint32(head[8:])
	h := headed{start: 12, dtype: map[uint32]DType{1: U8, 2: U16, 4: U32}[width]}
	switch {
	case h.dtype == DTypeUnknown:
		h.bad = fmt.Sprintf("a token is said to have %d bytes, 1, 2 and 4 are known", width)
	case bytes > uint64(o.Size-12) || bytes%uint64(width) != 0:
		h.bad = fmt.Sprintf("the data is said to have %d bytes of tokens of %d: the file has %d", bytes, width, o.Size)
	default:
		h.tokens = int64(bytes) / int64(width)
	}
	return h
}

// headedAssemble makes a set of each split and element type.
func headedAssemble(about string) func(ctx context.Context, d *directory, members []member) {
	return func(_ context.Context, d *directory, members []member) {
		for split, group := range bySplit(members) {
			var shards []typedShard
			for _, m := range group {
				h := m.head.(headed)
				s := newShard(m.object)
				if h.bad != "" {
					d.problem(m.object, 0, "%s", h.bad)
					s.Bad, h.dtype = h.bad, DTypeUnknown
				} else {
					s.Tokens = h.tokens
					s.Data.Add(m.object, h.start, h.tokens*int64(h.dtype.Size()))
				}
				shards = append(shards, typedShard{dtype: h.dtype, shard: s})
			}
			for _, set := range d.addByType(split, shards) {
				set.NoDocuments = about
			}
		}
	}
}
