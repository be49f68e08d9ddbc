package layout

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// ArrowTexts reads a column of texts out of an Arrow stream or file.
type ArrowTexts struct {
	stream *arrowStream
	column *arrowColumn
}

// ErrNoColumn says that a file has no column of texts with the name that was asked for.
var ErrNoColumn = errors.New("no column of texts")

// OpenArrowTexts finds the column. It fails with an error that is [ErrNoColumn] where there is none of that name, or
// its values are no texts.
func OpenArrowTexts(ctx context.Context, o *Object, name string) (*ArrowTexts, error) {
	start := int64(0)
	magic := make([]byte, min(int64(len(arrowFileMagic)), o.Size))
	if _, err := o.ReadAt(ctx, magic, 0); err != nil && int64(len(magic)) < o.Size {
		return nil, err
	}
	if string(magic) == arrowFileMagic {
		start = int64(len(arrowFileMagic))
	}
	r := &windowReader{ctx: ctx, o: o, off: start}
	length, err := arrowLength(o, r)
	if err != nil {
		return nil, err
	}
	message, err := readFull(ctx, o, start+8, length)
	if err != nil {
		return nil, err
	}
	schema, err := parseArrowSchema(message)
	if err != nil {
		return nil, corruptf(o, start, "the schema cannot be read: %v", err)
	}
	if schema.bigEndian {
		return nil, fmt.Errorf("%w: the numbers are big-endian: write the file on a little-endian machine", ErrNoColumn)
	}
	var all []string
	for i := range schema.columns {
		c := &schema.columns[i]
		if c.name == name && c.text > 0 {
			return &ArrowTexts{&arrowStream{object: o, start: start, column: c, budget: newHeaderBudget()}, c}, nil
		}
		if c.name == name {
			return nil, fmt.Errorf("%w: column %q is %s, and has no texts of its own", ErrNoColumn, name, c.kind)
		}
		if len(all) < 20 {
			all = append(all, fmt.Sprintf("%.60q is %s", c.name, c.kind))
		}
	}
	return nil, fmt.Errorf("%w: there is no column %q, name the one that holds the text with --text-key: %s", ErrNoColumn, name, strings.Join(all, ", "))
}

// ArrowBatch is a record batch: where it begins in the file, and how many rows it has.
type ArrowBatch struct {
	Start, Rows int64

	texts          *ArrowTexts
	nulls          int64 // where the map of nulls lies, 0 for none
	offsets        int64
	values, length int64
}

// Batches calls each for every record batch, in order. No text is read.
func (t *ArrowTexts) Batches(ctx context.Context, each func(b *ArrowBatch) error) error {
	err := t.stream.walk(ctx, func(b arrowBatch) error {
		rows, err := t.stream.rows(b)
		if err != nil {
			return err
		}
		batch, err := t.batch(b, rows)
		if err != nil {
			return err
		}
		return each(batch)
	})
	if err == nil && !t.stream.ended && t.stream.start == 0 {
		return corruptf(t.stream.object, t.stream.object.Size, "the stream ends without its mark: record batches may be missing")
	}
	return err
}

// batch checks where the texts of a batch lie.
func (t *ArrowTexts) batch(b arrowBatch, rows int64) (*ArrowBatch, error) {
	o, c := t.stream.object, t.column
	if b.table.has(3) {
		return nil, absent("the record batches are compressed: write the file without compression")
	}
	nodes, buffers := b.table.vector(1, 16), b.table.vector(2, 16)
	length, nulls := nodes.pair(c.node)
	bitmap, bitmapLength := buffers.pair(c.buffer)
	offsets, offsetsLength := buffers.pair(c.buffer + 1)
	values, valuesLength := buffers.pair(c.buffer + 2)
	if b.f.err != nil {
		return nil, corruptf(o, b.at, "%v", b.f.err)
	}
	if length != rows || nulls < 0 {
		return nil, corruptf(o, b.at, "column %q has %d rows in a batch of %d", c.name, length, rows)
	}
	out := &ArrowBatch{Start: b.at, Rows: rows, texts: t, values: b.body + values, length: valuesLength, offsets: b.body + offsets}
	if rows == 0 {
		return out, nil
	}
	if !b.holds(offsets, offsetsLength) || rows > offsetsLength/int64(c.text)-1 || !b.holds(values, valuesLength) {
		return nil, corruptf(o, b.at, "the texts of column %q lie outside of their batch of %d bytes", c.name, b.length)
	}
	if nulls > 0 {
		if !b.holds(bitmap, bitmapLength) || bitmapLength < (rows+7)/8 {
			return nil, corruptf(o, b.at, "the nulls of column %q lie outside of their batch of %d bytes", c.name, b.length)
		}
		out.nulls = b.body + bitmap
	}
	return out, nil
}

// Read appends the texts of rows from first on to dst, one behind the other, and where each ends to ends. It stops when
// dst has most bytes or ends most entries, and reads one text at least. A text of more than longest bytes is an error.
func (b *ArrowBatch) Read(ctx context.Context, dst []byte, ends []int, first int64, most, entries, longest int) ([]byte, []int, error) {
	o, width := b.texts.stream.object, int64(b.texts.column.text)
	n := min(b.Rows-first, int64(entries))
	raw, err := readFull(ctx, o, b.offsets+first*width, (n+1)*width)
	if err != nil {
		return dst, ends, err
	}
	offset := func(i int64) int64 {
		if width == 4 {
			return int64(int32(binary.LittleEndian.Uint32(raw[4*i:])))
		}
		return int64(binary.LittleEndian.Uint64(raw[8*i:]))
	}
	var nulls []byte
	if b.nulls > 0 {
		if nulls, err = readFull(ctx, o, b.nulls+first/8, (first+n+7)/8-first/8); err != nil {
			return dst, ends, err
		}
	}
	from, to := offset(0), offset(0)
	start := len(dst)
	var lengths []int
	for i := range n {
		end := offset(i + 1)
		if to < 0 || end < to || end > b.length {
			return dst, ends, corruptf(o, b.Start, "row %d of the batch has the bytes %d to %d of %d", first+i, to, end, b.length)
		}
		if end-to > int64(longest) {
			return dst, ends, fmt.Errorf("row %d of the batch at byte %d has a text of %d bytes: more than %d are not read", first+i, b.Start, end-to, longest)
		}
		if i > 0 && int64(start)+end-from > int64(most) {
			break
		}
		lengths = append(lengths, int(end-to))
		to = end
	}
	values, err := readFull(ctx, o, b.values+from, to-from)
	if err != nil {
		return dst, ends, err
	}
	for i, length := range lengths {
		if row := first%8 + int64(i); nulls == nil || nulls[row/8]>>(row%8)&1 != 0 {
			dst = append(dst, values[:length]...)
		}
		values = values[length:]
		ends = append(ends, len(dst))
	}
	return dst, ends, nil
}
