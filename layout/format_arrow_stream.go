package layout

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
)

// An Arrow stream is a row of messages: u32 0xFFFFFFFF, i32 metadata length, metadata (a flatbuffer), and a body. The
// metadata gives the body's length. A length of 0 ends it. The file variant has 8 bytes before the stream and a footer
// behind it. Source: apache/arrow, docs/source/format/Columnar.rst, "Serialization and Interprocess Communication".
const (
	arrowContinuation = 0xffffffff
	arrowFileMagic    = "ARROW1\x00\x00"
	maxArrowMetadata  = 64 << 20
	maxArrowRows      = 1 << 53
	arrowBatchRuns    = 5 // a batch of lists takes the memory of so many runs: its values, and where its rows begin
)

// arrowStream is one object's stream.
type arrowStream struct {
	object *Object
	start  int64        // of the first message: 0, or 8 in the file variant
	column *arrowColumn // that holds the tokens, nil for none
	ended  bool         // by its mark; set by walk
	end    int64        // of the stream; set by walk
	budget headerBudget // for one message's metadata at a time
}

// arrowBatch is a record batch of a stream.
type arrowBatch struct {
	f      *flatbuffer
	table  flatTable
	at     int64 // of the metadata in the file
	body   int64 // in the file
	length int64 // of the body
	first  int64 // row of the file, set for fields

	unread *int64 // bytes of the body that offsets of arrays may still be: buffers of different columns share none
}

// walk calls each for every record batch. Bodies are not read.
func (s *arrowStream) walk(ctx context.Context, each func(b arrowBatch) error) error {
	o := s.object
	r := &windowReader{ctx: ctx, o: o, off: s.start}
	for r.off < o.Size {
		length, err := arrowLength(o, r)
		if err != nil {
			return err
		}
		if length == 0 {
			s.ended, s.end = true, r.off
			return nil
		}
		if err := s.message(r, length, each); err != nil {
			return err
		}
	}
	return nil
}

// message reads a message whose metadata has the given length, and skips its body.
func (s *arrowStream) message(r *windowReader, length int64, each func(b arrowBatch) error) error {
	giveBack, err := s.budget.take(r.ctx, length)
	if err != nil {
		return err
	}
	defer giveBack()
	o, at := s.object, r.off
	metadata := make([]byte, length)
	if _, err := io.ReadFull(r, metadata); err != nil {
		return err
	}
	f := &flatbuffer{buf: metadata}
	kind, table, body := arrowMessage(f)
	if f.err != nil {
		return corruptf(o, at, "%v", f.err)
	}
	if body < 0 || body > o.Size-r.off {
		return corruptf(o, at, "the message has a body of %d bytes, %d follow", body, o.Size-r.off)
	}
	if kind == arrowBatchMessage {
		if err := each(arrowBatch{f: f, table: table, at: at, body: r.off, length: body, unread: new(body)}); err != nil {
			return err
		}
	}
	r.off += body
	return nil
}

// arrowLength reads the 8 bytes before a message's metadata.
func arrowLength(o *Object, r *windowReader) (int64, error) {
	at := r.off
	var prefix [8]byte
	if o.Size-at < int64(len(prefix)) {
		return 0, corruptf(o, at, "%d bytes are left, a message takes at least 8", o.Size-at)
	}
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return 0, err
	}
	if mark := binary.LittleEndian.Uint32(prefix[:]); mark != arrowContinuation {
		return 0, corruptf(o, at, "a message begins with %#x, %#x is expected", mark, uint32(arrowContinuation))
	}
	length := int64(int32(binary.LittleEndian.Uint32(prefix[4:])))
	if length < 0 || length > maxArrowMetadata || length > o.Size-at-8 {
		return 0, corruptf(o, at+4, "a message has %d bytes of metadata: %d follow, at most %d are read", length, o.Size-at-8, maxArrowMetadata)
	}
	return length, nil
}

// rows returns the rows of the batch.
func (s *arrowStream) rows(b arrowBatch) (int64, error) {
	n := b.table.number(0, 8)
	if b.f.err != nil || n < 0 || n > maxArrowRows {
		return 0, corruptf(s.object, b.at, "a record batch has %d rows (%v)", n, b.f.err)
	}
	return n, nil
}

// arrowPiece is the values of a column in one batch.
type arrowPiece struct {
	rows, tokens int64
	values       int64 // where they lie in the file
	offsets      int64 // where the offsets of the rows lie; the first one is bias
	bias         int64
}

// piece finds the values of a column in a batch. An AbsentError says that they do not lie in the file as they are.
func (s *arrowStream) piece(ctx context.Context, b arrowBatch, rows int64, c *arrowColumn) (arrowPiece, error) {
	p := arrowPiece{rows: rows}
	if b.table.has(3) {
		return p, absent("the record batches are compressed: write the dataset without compression")
	}
	nodes, buffers := b.table.vector(1, 16), b.table.vector(2, 16)
	length, nulls := nodes.pair(c.node)
	items, item := length, int64(c.dtype.Size())
	for k := range c.depth {
		n, more := nodes.pair(c.node + 1 + k)
		items, nulls = n, nulls|more
	}
	values, valuesLength := buffers.pair(c.buffer + c.values)
	offsets, offsetsLength := buffers.pair(c.buffer + 1)
	if b.f.err != nil {
		return p, corruptf(s.object, b.at, "%v", b.f.err)
	}
	if nodes.n == 0 || buffers.n == 0 || length != rows || items < 0 {
		return p, corruptf(s.object, b.at, "column %q has %d rows and %d items in a batch of %d rows", c.name, length, items, rows)
	}
	if nulls != 0 {
		return p, absent("column %q has nulls", c.name)
	}
	held, counted := multiply(items, c.leaf)
	if c.leaf == 0 {
		held = valuesLength
	}
	if !b.holds(values, valuesLength) || !counted || held > valuesLength/item {
		return p, corruptf(s.object, b.at, "%d values of %d bytes are said to lie in %d bytes at %d of a body of %d", held, item, valuesLength, values, b.length)
	}
	p.values = b.body + values
	if c.width == 0 {
		p.tokens = held
		return p, s.regular(ctx, b, rows, held, c)
	}
	if rows == 0 { // the offsets may be left out
		return p, nil
	}
	width := int64(c.width)
	if !b.holds(offsets, offsetsLength) || rows > offsetsLength/width-1 {
		return p, corruptf(s.object, b.at, "%d offsets of %d bytes are said to lie in %d bytes at %d of a body of %d", rows+1, width, offsetsLength, offsets, b.length)
	}
	p.offsets = b.body + offsets
	var err error
	if p.bias, err = s.offset(ctx, p.offsets, width); err != nil {
		return p, err
	}
	last, err := s.offset(ctx, p.offsets+rows*width, width)
	if err != nil {
		return p, err
	}
	if p.bias < 0 || last < p.bias || last > held {
		return p, corruptf(s.object, p.offsets, "the lists begin at item %d and end at %d of %d", p.bias, last, held)
	}
	p.values += p.bias * item
	p.tokens = last - p.bias
	return p, nil
}

// regular checks that the rows of a batch, and the lists of an array, have as many items as the shape says.
func (s *arrowStream) regular(ctx context.Context, b arrowBatch, rows, held int64, c *arrowColumn) error {
	nodes, buffers := b.table.vector(1, 16), b.table.vector(2, 16)
	for k, width := range c.lists {
		n, _ := nodes.pair(c.node + int64(k))
		_, ok := multiply(n, c.shape[k])
		at, length := buffers.pair(c.buffer + 1 + 2*int64(k))
		if b.f.err != nil || n < 0 || !ok || !b.holds(at, length) || n > 0 && n > length/int64(width)-1 {
			return corruptf(s.object, b.at, "%d lists of %d items of column %q have offsets in %d bytes at %d (%v)", n, c.shape[k], c.name, length, at, b.f.err)
		}
		if n == 0 {
			continue // the offsets may be left out
		}
		if *b.unread -= (n + 1) * int64(width); *b.unread < 0 {
			return corruptf(s.object, b.at, "columns share the offsets of their lists")
		}
		if err := s.even(ctx, b, b.body+at, n, c, k); err != nil {
			return err
		}
	}
	if want, ok := multiply(rows, c.elements()); !ok || want != held {
		if len(c.lists) > 0 {
			return c.irregular("those of rows %d to %d of %s", b.first, b.first+rows-1, s.object.Name)
		}
		return corruptf(s.object, b.at, "%d rows of %d values hold %d", rows, c.elements(), held)
	}
	return nil
}

// even checks the offsets of all lists of a batch that are nested so deep: depth 0 are the rows.
func (s *arrowStream) even(ctx context.Context, b arrowBatch, at, lists int64, c *arrowColumn, depth int) error {
	const block = 16 << 10
	width := int64(c.lists[depth])
	for list := int64(0); list <= lists; list += block {
		n := min(block, lists+1-list)
		raw, err := readFull(ctx, s.object, at+list*width, n*width)
		if err != nil {
			return err
		}
		for i := range n {
			switch item := arrowOffsetOf(raw[i*width : (i+1)*width]); {
			case item == (list+i)*c.shape[depth]:
			case list+i == 0:
				return absent("the lists of column %q do not begin at item 0 of a batch of %s: write the file anew", c.name, s.object.Name)
			default:
				row := list + i - 1
				for _, lists := range c.shape[:depth] {
					row /= lists
				}
				return c.irregular("that of row %d of %s", b.first+row, s.object.Name)
			}
		}
	}
	return nil
}

func (c *arrowColumn) irregular(which string, args ...any) error {
	return absent("not all arrays of column %q have the shape %s: not %s", c.name, shapeText(c.shape), fmt.Sprintf(which, args...))
}

// holds reports whether the body has n bytes at off.
func (b *arrowBatch) holds(off, n int64) bool {
	return off >= 0 && n >= 0 && n <= b.length && off <= b.length-n
}

func (s *arrowStream) offset(ctx context.Context, at, width int64) (int64, error) {
	raw, err := readFull(ctx, s.object, at, width)
	if err != nil {
		return 0, err
	}
	return arrowOffsetOf(raw), nil
}

func arrowOffsetOf(raw []byte) int64 {
	if len(raw) == 4 {
		return int64(int32(binary.LittleEndian.Uint32(raw)))
	}
	return int64(binary.LittleEndian.Uint64(raw))
}

// arrowIndex reads the rows of a stream as documents, from the offsets of each batch.
type arrowIndex struct {
	wholeDocuments
	object  *Object
	width   int
	tokens  int64
	batches []arrowRows
}

// arrowRows is a batch of an arrowIndex.
type arrowRows struct {
	row, token    int64 // the first ones of the batch
	offsets, bias int64 // as in arrowPiece
}

func (x *arrowIndex) Starts(ctx context.Context, dst []int64, first int64) error {
	at := func(i int) (row, token int64) {
		if i == len(x.batches) {
			return x.documents, x.tokens
		}
		return x.batches[i].row, x.batches[i].token
	}
	return gather(dst, first, len(x.batches), at, func(i int, dst []int64, first int64) error {
		b := x.batches[i]
		nextRow, nextToken := at(i + 1)
		part := endsIndex{
			wholeDocuments: wholeDocuments{nextRow - b.row}, object: x.object, offset: b.offsets + int64(x.width), width: x.width,
			scale: 1, bias: b.bias, tokens: nextToken - b.token,
		}
		return part.Starts(ctx, dst, first)
	})
}

// add appends a batch of the stream.
func (x *arrowIndex) add(p arrowPiece) {
	if p.rows > 0 {
		x.batches = append(x.batches, arrowRows{x.documents, x.tokens, p.offsets, p.bias})
	}
	x.documents += p.rows
	x.tokens += p.tokens
}
