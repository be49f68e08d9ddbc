package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"
)

// mdsShard finds the tokens of one shard: a table of offsets, the JSON text of its columns, then the samples.
type mdsShard struct {
	columns *mdsColumns
	dtype   DType
	samples int64
	// pieces is how many more runs of equal samples the shards of the set may take together, which bounds its memory.
	pieces *atomic.Int64
}

// mdsRun is count samples of one size, one after the other, with their tokens at one place in each.
type mdsRun struct {
	begin, size  int64 // where the first sample lies, bytes
	at, length   int64 // where its tokens lie in it, bytes
	first, count int64 // samples
}

// resolve reads the shard's table of offsets. It also reads the beginning of the first sample of each run, and of every
// sample where the size does not tell where its tokens lie.
func (m *mdsShard) resolve(ctx context.Context, s *Shard) error {
	o := s.Objects[0]
	table, err := m.table(ctx, o)
	if err != nil {
		return err
	}
	var data Body
	var index runDocuments
	var current mdsRun
	taken := int64(0)
	flush := func() error {
		if current.count == 0 {
			return nil
		}
		taken++
		if m.pieces.Add(-1) < 0 {
			return absent("the samples of the set lie in more than %d separate pieces: repack it to read it as one stream", maxRuns)
		}
		data.AddStrided(o, current.begin+current.at, current.length, current.size, current.count)
		index.add(current.first, current.count, current.length/int64(m.dtype.Size()))
		return nil
	}
	bySize := m.columns.bySize()
	err = table.walk(ctx, func(i, begin, end int64) error {
		size := end - begin
		if bySize && current.count > 0 && size == current.size {
			current.count++
			return nil
		}
		at, length, err := m.locate(ctx, o, i, begin, size)
		if err != nil {
			return err
		}
		if current.count > 0 && size == current.size && at == current.at && length == current.length {
			current.count++
			return nil
		}
		if err := flush(); err != nil {
			return err
		}
		current = mdsRun{begin, size, at, length, i, 1}
		return nil
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		m.pieces.Add(taken) // nothing of this shard is kept
		return err
	}
	s.Data, s.Tokens, s.Documents = data, data.Size()/int64(m.dtype.Size()), m.samples
	s.Index = index.simplify(m.samples)
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

// locate reads the beginning of sample i, which lies in size bytes from begin, and returns where its tokens lie in it.
func (m *mdsShard) locate(ctx context.Context, o *Object, i, begin, size int64) (at, length int64, err error) {
	c, t := m.columns, m.columns.tokens
	at = 4 * int64(c.variable(len(c.sizes)))
	if size < at {
		return 0, 0, corruptf(o, begin, "sample %d has %d bytes, the sizes of its columns take %d", i, size, at)
	}
	const most = 1 + 1 + 8 // bytes that precede the values of an array of one dimension
	head, err := readFull(ctx, o, begin, min(size, at+most))
	if err != nil {
		return 0, 0, err
	}
	end, sizes := at, head[:at]
	for k, n := range c.sizes {
		if n < 0 {
			n = int64(binary.LittleEndian.Uint32(sizes))
			sizes = sizes[4:]
		}
		if k == t.column {
			at, length = end, n
		}
		end += n
	}
	if end != size {
		return 0, 0, corruptf(o, begin, "sample %d has %d bytes, its columns take %d", i, size, end)
	}
	if !t.typed && !t.shaped {
		if length%int64(m.dtype.Size()) != 0 {
			return 0, 0, absent("sample %d has %d bytes of tokens, which is no whole number of %s: name the element type with --dtype", i, length, m.dtype)
		}
		return at, length, nil
	}
	before := head[min(at, int64(len(head))):]
	if want := min(length, most); int64(len(before)) < want { // other columns come first
		if before, err = readFull(ctx, o, begin+at, want); err != nil {
			return 0, 0, err
		}
	}
	skip, err := m.arrayHeader(o, i, begin+at, before[:min(length, int64(len(before)))], length)
	return at + skip, length - skip, err
}

// arrayHeader returns the bytes before the values of the array of sample i, which takes length bytes at off in all. The
// number of elements is stored in as few bytes as it takes, so the length alone tells the rest. Therefore one sample
// speaks for the others of its size.
func (m *mdsShard) arrayHeader(o *Object, i, off int64, head []byte, length int64) (int64, error) {
	skip := 0
	if m.columns.tokens.typed {
		if len(head) == 0 {
			return 0, corruptf(o, off, "the array of sample %d is cut short", i)
		}
		d, known := mdsTypeCode(head[0])
		if !known {
			return 0, corruptf(o, off, "the array of sample %d has the type code %d, which no writer knows", i, head[0])
		}
		if d != m.dtype {
			return 0, absent("sample %d holds %s, the first one of the set %s", i, d, m.dtype)
		}
		skip = 1
	}
	if len(head) <= skip {
		return 0, corruptf(o, off, "the array of sample %d is cut short", i)
	}
	dims, width := head[skip]>>2, 1<<(head[skip]&3)
	if dims != 1 {
		return 0, absent("sample %d is an array of %d dimensions, one is expected of tokens", i, dims)
	}
	skip++
	if len(head) < skip+width {
		return 0, corruptf(o, off, "the array of sample %d is cut short", i)
	}
	var raw [8]byte
	copy(raw[:], head[skip:skip+width])
	n := binary.LittleEndian.Uint64(raw[:])
	values := length - int64(skip+width)
	item := int64(m.dtype.Size())
	least := 1
	for least < 8 && n>>(8*least) != 0 {
		least *= 2
	}
	if values%item != 0 || n != uint64(values/item) || width != least {
		return 0, corruptf(o, off, "the array of sample %d counts %d elements in %d bytes, %d bytes of %s follow", i, n, width, values, m.dtype)
	}
	return int64(skip + width), nil
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

// runDocuments is the index of documents that come in runs of one length each.
type runDocuments struct {
	wholeDocuments
	runs []documentRun
}

// documentRun says where a run begins: with which document, and where in the tokens.
type documentRun struct{ first, start, tokens int64 }

func (r *runDocuments) add(first, count, tokens int64) {
	start := int64(0)
	if n := len(r.runs); n > 0 {
		last := r.runs[n-1]
		start = last.start + (first-last.first)*last.tokens
	}
	r.runs = append(r.runs, documentRun{first, start, tokens})
	r.documents = first + count
}

// simplify returns the smallest index that says the same about all of the documents.
func (r *runDocuments) simplify(documents int64) DocumentIndex {
	if len(r.runs) <= 1 {
		x := regularDocuments{wholeDocuments: wholeDocuments{documents}}
		if len(r.runs) == 1 {
			x.tokens = r.runs[0].tokens
		}
		return x
	}
	return runDocuments{r.wholeDocuments, slices.Clip(r.runs)}
}

func (r runDocuments) Starts(_ context.Context, dst []int64, first int64) error {
	if len(dst) == 0 {
		return nil
	}
	if last := first + int64(len(dst)) - 1; first < 0 || last > r.documents {
		return fmt.Errorf("document %d of %d is asked for", last, r.documents)
	}
	k := sort.Search(len(r.runs), func(k int) bool { return r.runs[k].first > first }) - 1
	for i := range dst {
		at := first + int64(i)
		if k+1 < len(r.runs) && r.runs[k+1].first == at {
			k++
		}
		dst[i] = r.runs[k].start + (at-r.runs[k].first)*r.runs[k].tokens
	}
	return nil
}
