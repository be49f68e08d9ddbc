package layout

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// litdataChunk is an entry of "chunks" in LitData's index.json (Lightning-AI/litData, streaming/writer.py).
type litdataChunk struct {
	Bytes    *int64 `json:"chunk_bytes"` // of the file, before the whole of it is compressed
	Items    int64  `json:"chunk_size"`
	Dim      *int64 `json:"dim"` // tokens; null where items are no tokens, or the first one is empty
	Filename string `json:"filename"`
}

// litdataConfig is "config" in the same file.
type litdataConfig struct {
	Compression *string          `json:"compression"`
	Level       *string          `json:"compression_level"` // batch and sample compress inside the file
	IPC         *string          `json:"ipc_compression"`   // of the columns, where a chunk is rows in Arrow's format
	Encryption  *json.RawMessage `json:"encryption"`
	DataFormat  []string         `json:"data_format"`
	DataSpec    string           `json:"data_spec"` // the tree of an item
	ItemLoader  string           `json:"item_loader"`
}

// wholeFile reports whether each chunk is compressed as a whole, so that chunk_bytes is not the file's size.
func (c *litdataConfig) wholeFile() bool {
	return c.Compression != nil && (c.Level == nil || *c.Level == "chunk")
}

// codec returns how the items are compressed, "" where they are not.
func (c *litdataConfig) codec() string {
	for _, codec := range []*string{c.Compression, c.IPC} {
		if codec != nil {
			return *codec
		}
	}
	return ""
}

// litdataAssemble makes one set of the chunks of an index, in its order, which is the order that LitData counts in.
func litdataAssemble(ctx context.Context, d *directory, members []member) {
	for _, m := range members {
		chunks, config, err := readLitdataIndex(ctx, m.object)
		if err != nil {
			d.volume.report(m.object, err)
			continue
		}
		if config.ItemLoader == "ParquetLoader" { // litdata.index_parquet_dataset wrote it, and the format parquet has the files
			if d.opt.Format != "" {
				d.problem(m.object, 0, "LitData's index of Parquet files: --format parquet shows them")
			}
			continue
		}
		x := &indexed{d, m.object, map[*Object]bool{}}
		dtype, noTokens := config.tokens(chunks)
		shards := make([]*Shard, len(chunks))
		fields, left := config.fields(), newPieces()
		for i := range chunks {
			s := litdataShard(x, &chunks[i], &config, dtype, noTokens)
			if shards[i] = s; s.Bad == "" && config.codec() == "" && config.Encryption == nil {
				s.findFields = func(ctx context.Context, s *Shard) (*fieldsOf, error) {
					return fields.find(ctx, s, &mdsShard{samples: chunks[i].Items, fields: left}, dtype)
				}
			}
		}
		set := x.addIndexed(dtype, shards)
		set.NoTokens = noTokens
		if noTokens == "" {
			set.Notes = append(set.Notes, "TokensLoader: each item is a document here; LitData itself cuts blocks across them")
		} else {
			set.NoDocuments = noTokens
		}
		if config.codec() != "" || config.Encryption != nil {
			set.noFields = noTokens
		} else if len(config.DataFormat) > maxFields {
			set.noFields = fmt.Sprintf("the items have more than %d leaves", maxFields)
		}
		if codec := config.codec(); codec != "" {
			set.Notes = append(set.Notes, fmt.Sprintf("compressed with %q, presented as stored", codec))
		}
	}
}

func readLitdataIndex(ctx context.Context, o *Object) (chunks []litdataChunk, config litdataConfig, err error) {
	err = readJSONIndex(ctx, o, func(p *objectParser, key string) error {
		switch key {
		case "config":
			return p.value(&config)
		case "chunks":
			return p.list(func() any {
				chunks = append(chunks, litdataChunk{})
				return &chunks[len(chunks)-1]
			}, func(i int, _ error) { chunks[i] = litdataChunk{Items: -1} })
		}
		return p.skip()
	})
	return chunks, config, err
}

// tokens returns the type of the tokens that the chunks hold, or why there is no stream of them.
func (c *litdataConfig) tokens(chunks []litdataChunk) (DType, string) {
	switch {
	case c.Encryption != nil:
		return DTypeUnknown, "the chunks are encrypted: LitData itself reads them"
	case c.codec() != "":
		return DTypeUnknown, fmt.Sprintf("the chunks are compressed (%q) and decoding is not done here: write them without compression to read their tokens", c.codec())
	case len(chunks) == 0:
		return DTypeUnknown, "the index names no chunks"
	}
	kind, code := "", ""
	if len(c.DataFormat) > 0 {
		kind, code, _ = strings.Cut(c.DataFormat[0], ":")
	}
	plain := kind == "no_header_tensor" || kind == "no_header_numpy"
	// Indexes of early versions do not name the loader; only the one for tokens counts them.
	if c.ItemLoader != "TokensLoader" && (c.ItemLoader != "" || !plain || chunks[0].Dim == nil) {
		return DTypeUnknown, "the items are trees of leaves, each with its own sizes: they make no stream of tokens, LitData itself reads them"
	}
	dtype := DTypeUnknown
	if n, err := strconv.Atoi(code); err == nil && plain {
		dtype = litdataType(kind, n)
	}
	if dtype == DTypeUnknown {
		return dtype, fmt.Sprintf("the element type %q is not known", kind+":"+code)
	}
	return dtype, ""
}

// litdataType returns the type of a code in data_format (litData, src/litdata/constants.py). Torch types have several
// codes, since the list there holds aliases.
func litdataType(kind string, code int) DType {
	torch := [...]DType{F32, F32, F64, F64, 0, 0, 0, 0, F16, F16, BF16, U8, I8, I16, I16, I32, I32, I64, I64, Bool, U16}
	numpy := [...]DType{I8, I16, I32, I64, U8, U16, U32, U64, F16, F32, F64, 0, 0, Bool}
	switch {
	case kind == "no_header_tensor" && code >= 0 && code < len(torch):
		return torch[code]
	case kind == "no_header_numpy" && code >= 0 && code < len(numpy):
		return numpy[code]
	}
	return DTypeUnknown
}

func litdataShard(x *indexed, c *litdataChunk, config *litdataConfig, dtype DType, noTokens string) *Shard {
	want := int64(-1)
	if c.Bytes != nil && !config.wholeFile() {
		want = max(*c.Bytes, 0)
	}
	o, why := x.object(c.Filename, want)
	if o == nil {
		return x.missing(c.Filename, why)
	}
	s := newShard(o)
	s.Bad = why
	if why == "" && (c.Items < 0 || c.Items > math.MaxUint32) {
		x.volume.bad(s, corruptf(x.index, 0, "chunk %q has %d items in the index, which a chunk cannot count", c.Filename, c.Items))
	}
	if s.Bad != "" {
		return s
	}
	s.Samples = c.Items
	if config.Compression == nil && config.Encryption == nil {
		s.check = func(ctx context.Context, s *Shard) error { return litdataCheck(ctx, s, dtype) }
	}
	if noTokens == "" {
		if err := litdataTokens(s, c, dtype); err != nil {
			x.volume.bad(s, err)
		}
	}
	return s
}

// litdataTokens places the tokens: all that follows the table of offsets, which tells where the items end.
func litdataTokens(s *Shard, c *litdataChunk, dtype DType) error {
	o, item := s.Objects[0], int64(dtype.Size())
	t := offsetTable{o, c.Items}
	area := o.Size - t.end()
	if area < 0 || area%item != 0 {
		return corruptf(o, 0, "a table of %d items ends at %d and %s tokens follow, the file has %d bytes", c.Items, t.end(), dtype, o.Size)
	}
	if c.Dim != nil && *c.Dim != area/item {
		return corruptf(o, t.end(), "%d tokens follow the table of offsets, the index says %d", area/item, *c.Dim)
	}
	s.Tokens, s.Documents = area/item, c.Items
	s.Data.Add(o, t.end(), area)
	s.Index = endsIndex{
		wholeDocuments: wholeDocuments{c.Items}, object: o, offset: 8, width: 4, scale: item, bias: t.end(), tokens: s.Tokens,
	}
	s.resolve = func(ctx context.Context, _ *Shard) error {
		t, err := readOffsetTable(ctx, o, c.Items)
		if err != nil {
			return err
		}
		for _, edge := range []struct{ entry, want int64 }{{0, t.end()}, {c.Items, o.Size}} {
			if at, err := t.at(ctx, edge.entry); err != nil {
				return err
			} else if at != edge.want {
				return corruptf(o, 4+4*edge.entry, "entry %d of the table of offsets is %d, want %d", edge.entry, at, edge.want)
			}
		}
		return nil
	}
	return nil
}

// litdataCheck reads the whole table of offsets. Chunks of rows in Arrow's format have one too, of empty items.
func litdataCheck(ctx context.Context, s *Shard, dtype DType) error {
	t, err := readOffsetTable(ctx, s.Objects[0], s.Samples)
	if err != nil {
		return err
	}
	item := int64(max(1, dtype.Size()))
	return t.walk(ctx, func(i, begin, end int64) error {
		if (end-begin)%item != 0 {
			return corruptf(t.object, 8+4*i, "item %d has %d bytes, which is no whole number of %s tokens", i, end-begin, dtype)
		}
		return nil
	})
}
