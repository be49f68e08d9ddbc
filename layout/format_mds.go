package layout

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
)

// mdsEntry is an entry of "shards" in the index.json of MosaicML Streaming (mosaicml/streaming, base/format).
type mdsEntry struct {
	Format          string   `json:"format"` // mds; json, csv, tsv and xsv keep an index beside their data
	Version         int64    `json:"version"`
	Samples         int64    `json:"samples"`
	Compression     *string  `json:"compression"`
	RawData         *mdsFile `json:"raw_data"`
	ZipData         *mdsFile `json:"zip_data"`
	RawMeta         *mdsFile `json:"raw_meta"`
	ZipMeta         *mdsFile `json:"zip_meta"`
	ColumnNames     []string `json:"column_names"`
	ColumnEncodings []string `json:"column_encodings"`
	ColumnSizes     []*int64 `json:"column_sizes"`

	columns *mdsColumns
	bad     string // why the entry cannot be used
}

// mdsFile names an object relative to the index.
type mdsFile struct {
	Basename string `json:"basename"`
	Bytes    int64  `json:"bytes"`
}

// mdsAssemble makes one set of the shards of an index, in its order, which is the order that samples count in.
func mdsAssemble(ctx context.Context, d *directory, members []member) {
	for _, m := range members {
		entries, err := readMDSIndex(ctx, m.object)
		if err != nil {
			d.volume.report(m.object, err)
			continue
		}
		if d.allClaimed(entries) { // merge_index has written an index above that names the same shards
			d.claim(m.object)
			continue
		}
		mdsSet(ctx, &indexed{d, m.object, map[*Object]bool{}}, entries)
	}
}

// readMDSIndex reads the entries of an index. Those that do not fit are marked bad.
func readMDSIndex(ctx context.Context, o *Object) (entries []mdsEntry, err error) {
	var previous *mdsColumns
	version := int64(-1)
	err = readJSONIndex(ctx, o, func(p *objectParser, key string) error {
		switch key {
		case "version":
			return p.value(&version)
		case "shards":
			return p.list(func() any {
				if n := len(entries); n > 0 {
					previous = entries[n-1].settle(previous)
				}
				entries = append(entries, mdsEntry{})
				return &entries[len(entries)-1]
			}, func(i int, err error) { entries[i].bad = fmt.Sprintf("entry %d does not fit: %v", i, err) })
		}
		return p.skip()
	})
	if n := len(entries); n > 0 {
		entries[n-1].settle(previous)
	}
	if err == nil && version != 2 {
		err = corruptf(o, 0, "the index is of version %d, 2 is expected", version)
	}
	return entries, err
}

// settle checks an entry and drops its fields that are not needed any more. Shards that are laid out alike
// share one description, so that a million of them fit into memory.
func (e *mdsEntry) settle(previous *mdsColumns) *mdsColumns {
	switch {
	case e.bad != "":
	case e.Version != 2:
		e.bad = fmt.Sprintf("the shard is of version %d, 2 is expected", e.Version)
	case e.Samples < 0 || e.Samples > math.MaxUint32:
		e.bad = fmt.Sprintf("the shard has %d samples, which it cannot count", e.Samples)
	case e.RawData == nil:
		e.bad = "the entry names no raw_data"
	case e.Format == "mds":
		c, err := newMDSColumns(e)
		if err != nil {
			e.bad = err.Error()
			break
		}
		if previous != nil && c.same(previous) {
			c = previous
		}
		e.columns, previous = c, c
	}
	e.ColumnNames, e.ColumnEncodings, e.ColumnSizes = nil, nil, nil
	return previous
}

// allClaimed reports whether there are shards, and a set above has all that exist.
func (d *directory) allClaimed(entries []mdsEntry) bool {
	found := false
	for i := range entries {
		for _, f := range []*mdsFile{entries[i].RawData, entries[i].ZipData} {
			if f == nil {
				continue
			}
			if o, err := d.lookup(f.Basename); err == nil && o != nil {
				if !d.isClaimed(o) {
					return false
				}
				found = true
			}
		}
	}
	return found
}

// mdsSet forms the set of an index.
func mdsSet(ctx context.Context, x *indexed, entries []mdsEntry) {
	shards := make([]*Shard, len(entries))
	stored := ""
	for i := range entries {
		e := &entries[i]
		var zip string
		shards[i], zip = mdsObjects(x, e)
		if shards[i].Bad == "" {
			shards[i].Samples = e.Samples
		}
		if stored == "" && zip != "" {
			stored = zip
		}
	}
	tokens, noTokens := mdsTokensOf(ctx, x, entries, shards)
	set := x.addIndexed(tokens.dtype, shards)
	if noTokens == "" {
		set.Notes = append(set.Notes, fmt.Sprintf("the tokens are the column %q, each sample is a document", tokens.name))
		for i, s := range shards {
			if s.Bad == "" {
				s.Documents = entries[i].Samples
			}
		}
	}
	if tokens.bytes && noTokens == "" {
		set.Notes = append(set.Notes, fmt.Sprintf("the column is plain bytes, which are taken for %s as llm-foundry does unless it is told otherwise", tokens.dtype))
	}
	if stored != "" {
		noTokens = stored
	}
	set.NoTokens, set.NoDocuments = noTokens, noTokens
	set.noFields = stored
	pieces, fields := newPieces(), newPieces()
	for i, s := range shards {
		e := &entries[i]
		if s.Bad != "" || e.columns == nil || s.Objects[0].Name != x.rawName(e) {
			continue
		}
		m := &mdsShard{columns: e.columns, dtype: tokens.dtype, samples: e.Samples, pieces: pieces, fields: fields}
		s.check, s.findFields = m.check, m.findFields
		if noTokens == "" {
			s.resolve = m.resolve
		}
	}
}

// rawName returns the name of the object that holds an entry's uncompressed data, "" where it is not there.
func (x *indexed) rawName(e *mdsEntry) string {
	if o, err := x.lookup(e.RawData.Basename); err == nil && o != nil {
		return o.Name
	}
	return ""
}

// mdsObjects makes the shard of an entry of the objects that are there. stored says, if not "", why its samples can only
// be presented as they are stored.
func mdsObjects(x *indexed, e *mdsEntry) (s *Shard, stored string) {
	name := ""
	if e.RawData != nil {
		name = e.RawData.Basename
	}
	if e.bad != "" {
		x.problem(x.index, 0, "shard %q: %s", name, e.bad)
		return x.missing(name, e.bad), ""
	}
	var objects []*Object
	why := ""
	take := func(f *mdsFile) {
		if f == nil {
			return
		}
		o, bad := x.object(f.Basename, max(f.Bytes, 0))
		if o != nil {
			objects = append(objects, o)
		}
		if why == "" {
			why = bad
		}
	}
	raw, meta := e.RawData, e.RawMeta
	if x.rawName(e) == "" && e.ZipData != nil {
		raw, meta = e.ZipData, e.ZipMeta
		stored = fmt.Sprintf("shards are compressed (%q) and shown as they are stored: a mount with --cache-dir decodes zstd, gz, bz2 and snappy", text(e.Compression))
	}
	if take(raw); len(objects) == 0 {
		return x.missing(raw.Basename, why), stored
	}
	if zip := e.ZipData; zip != nil && zip != raw { // the compressed file beside the raw one is of no use
		if o, err := x.lookup(zip.Basename); err == nil && o != nil {
			take(zip)
		}
	}
	if e.Format != "mds" {
		take(meta)
		stored = fmt.Sprintf("shards are of format %q, not mds: they are served as they are", e.Format)
	}
	s = newShard(objects[0], objects[1:]...)
	s.Bad = why
	return s, stored
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// mdsTokensOf finds the column of tokens that all shards share, or says why there is none. Where the index does not
// tell the type, the first sample does.
func mdsTokensOf(ctx context.Context, x *indexed, entries []mdsEntry, shards []*Shard) (t mdsTokens, none string) {
	var columns *mdsColumns
	samples := int64(0)
	for i := range entries {
		e := &entries[i]
		samples += max(0, e.Samples)
		switch {
		case e.columns == nil || e.columns == columns:
		case e.columns.tokens.column < 0:
			return t, e.columns.tokens.none
		case columns == nil:
			columns = e.columns
			t = columns.tokens
		default:
			if u := e.columns.tokens; u.dtype != t.dtype || u.bytes != t.bytes || u.name != t.name {
				return t, fmt.Sprintf("shard %q has other columns than the shards before it: %s", e.RawData.Basename, e.columns.list())
			}
		}
		if e.columns != nil && !e.columns.bySize() && samples > maxRuns {
			return t, fmt.Sprintf("columns of variable size lie around %q, so that each sample has to be read to find its tokens: that is done for at most %d samples", t.name, maxRuns)
		}
	}
	if columns == nil {
		return t, "the index names no shard with columns"
	}
	if t.dtype != DTypeUnknown {
		return t, ""
	}
	if t.bytes && x.opt.DType != DTypeUnknown {
		t.dtype = x.opt.DType
		return t, ""
	}
	for i, s := range shards {
		if e := &entries[i]; s.Bad == "" && e.columns != nil && e.Samples > 0 && s.Objects[0].Name == x.rawName(e) {
			t.dtype, none = mdsPeek(ctx, s.Objects[0], e)
			return t, none
		}
	}
	return t, "no sample tells the type of the tokens"
}

// mdsPeek reads the first sample of a shard for the type of its tokens.
func mdsPeek(ctx context.Context, o *Object, e *mdsEntry) (DType, string) {
	fail := func(err error) (DType, string) {
		return DTypeUnknown, fmt.Sprintf("the first sample does not tell the type of the tokens: %v", err)
	}
	table, err := readOffsetTable(ctx, o, e.Samples)
	if err != nil {
		return fail(err)
	}
	var edges [2]int64
	for i := range edges {
		if edges[i], err = table.at(ctx, int64(i)); err != nil {
			return fail(err)
		}
	}
	if edges[0] < table.end() || edges[1] < edges[0] || edges[1] > o.Size {
		return fail(corruptf(o, 4, "the first sample lies from %d to %d", edges[0], edges[1]))
	}
	plain := *e.columns // the place of the column, with any contents
	plain.tokens.typed, plain.tokens.shaped = false, false
	m := &mdsShard{columns: &plain, dtype: U8}
	at, length, err := m.tokens(m.reader(ctx, o), 0, edges[0], edges[1])
	if err != nil {
		return fail(err)
	}
	head, err := readFull(ctx, o, at, min(length, headSize))
	if err != nil {
		return fail(err)
	}
	if e.columns.tokens.bytes {
		return mdsBytesType(head, length)
	}
	if len(head) == 0 {
		return fail(corruptf(o, edges[0]+at, "the array is empty"))
	}
	d, _ := mdsTypeCode(head[0])
	if !d.Integer() {
		return DTypeUnknown, fmt.Sprintf("the arrays are of %s, no integers", d)
	}
	return d, ""
}

// mdsBytesType tells whether bytes are the int64 token ids that llm-foundry wrote before it used arrays.
func mdsBytesType(head []byte, length int64) (DType, string) {
	const unsure = "the type of the tokens is not written anywhere, and they do not look like the int64 that llm-foundry writes: name it with --dtype"
	if length%8 != 0 {
		return DTypeUnknown, unsure
	}
	for ; len(head) >= 8; head = head[8:] {
		if v := binary.LittleEndian.Uint64(head); v > math.MaxInt32 {
			return DTypeUnknown, unsure
		}
	}
	return I64, ""
}
