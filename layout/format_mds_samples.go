package layout

import (
	"bytes"
	"context"
	"encoding/json"
	"sync/atomic"
)

// mdsShard finds the values in one shard: a table of offsets, the JSON text of its columns, then the samples.
type mdsShard struct {
	columns *mdsColumns
	dtype   DType // of the tokens
	samples int64
	pieces  *atomic.Int64 // that the tokens of the shards of the set may take together, and their fields
	fields  *atomic.Int64
}

// resolve reads the shard's table of offsets. It also reads the beginning of the first of equal samples, and of every
// sample where the size does not tell where its tokens lie.
func (m *mdsShard) resolve(ctx context.Context, s *Shard) error {
	table, err := m.table(ctx, s.Objects[0])
	if err != nil {
		return err
	}
	r := m.reader(ctx, table.object)
	p := fieldPieces{object: table.object, item: int64(m.dtype.Size()), left: m.pieces, what: "the samples"}
	bySize := m.columns.bySize()
	var at, length, size int64 // of the sample before, where its tokens lie in it
	err = table.walk(ctx, func(i, begin, end int64) error {
		if !bySize || i == 0 || end-begin != size {
			at, length, err = m.tokens(r, i, begin, end)
			at, size = at-begin, end-begin
		}
		if err != nil {
			return err
		}
		return p.add(begin+at, length)
	})
	if err == nil {
		err = p.flush()
	}
	if err != nil {
		p.giveBack()
		return err
	}
	s.Data, s.Index, s.Documents = p.data, p.index.done(), m.samples
	s.Tokens = p.index.elements
	return nil
}

// table checks that the samples end where the file does.
func (m *mdsShard) table(ctx context.Context, o *Object) (offsetTable, error) {
	t, err := readOffsetTable(ctx, o, m.samples)
	if err != nil {
		return t, err
	}
	last, err := t.at(ctx, t.samples)
	if err == nil && last != o.Size {
		err = corruptf(o, 4+4*t.samples, "the last sample ends at %d, the file has %d bytes", last, o.Size)
	}
	return t, err
}

// tokens returns where the tokens of sample i lie in the file, whose bytes are [begin, end) there.
func (m *mdsShard) tokens(r *mdsReader, i, begin, end int64) (at, length int64, err error) {
	t := m.columns.tokens
	if err := r.sample(i, begin, end); err != nil {
		return 0, 0, err
	}
	at, length = r.at[t.column], r.length[t.column]
	if !t.typed && !t.shaped {
		if length%int64(m.dtype.Size()) != 0 {
			return 0, 0, absent("sample %d has %d bytes of tokens, which is no whole number of %s: name the element type with --dtype", i, length, m.dtype)
		}
		return at, length, nil
	}
	a, err := r.array(i, at, length, mdsEncoding{form: form{dtype: m.dtype}, typed: t.typed, shaped: t.shaped})
	switch {
	case err != nil:
		return 0, 0, err
	case a.dtype != m.dtype:
		return 0, 0, absent("sample %d holds %s, the first one of the set %s", i, a.dtype, m.dtype)
	case len(a.shape) != 1:
		return 0, 0, absent("sample %d is an array of %d dimensions, one is expected of tokens", i, len(a.shape))
	}
	return at + a.skip, length - a.skip, nil
}

// check reads the table of offsets in full, and compares the columns that the shard itself names with the index.
func (m *mdsShard) check(ctx context.Context, s *Shard) error {
	o := s.Objects[0]
	table, err := m.table(ctx, o)
	if err != nil {
		return err
	}
	if err := table.walk(ctx, nil); err != nil {
		return err
	}
	first, err := table.at(ctx, 0)
	if err != nil {
		return err
	}
	const most = 1 << 20
	if first-table.end() > most {
		return corruptf(o, table.end(), "the text of the columns takes %d bytes, at most %d are expected", first-table.end(), most)
	}
	text, err := readFull(ctx, o, table.end(), first-table.end())
	if err != nil {
		return err
	}
	var own mdsEntry
	if err := json.Unmarshal(bytes.TrimSpace(text), &own); err != nil {
		return corruptf(o, table.end(), "the text of the columns cannot be read: %v", err)
	}
	if c, err := newMDSColumns(&own); err != nil || !c.same(m.columns) {
		return corruptf(o, table.end(), "the shard and the index name different columns")
	}
	return nil
}
