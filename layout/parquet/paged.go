package parquet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
)

const (
	maxPageValues = maxDeltas // of a column that is read by pages: a run makes any number of values of a few bytes
	maxPages      = 1 << 20   // of such a column in a row group
	levelBlock    = 1024      // levels that are decoded at once
	largePage     = 4 << 20   // bytes, stored and decompressed, for which there has to be room
	perBytes      = 20        // bytes that decoding a value of any number of bytes takes beside those: two lengths and its end
)

// ErrHoles says that lists have elements that are null: a sequence of elements has no place for them.
var ErrHoles = errors.New("lists of it have elements that are null")

// ErrUneven says that a row has other lists than each has to have.
var ErrUneven = errors.New("has another shape than the column")

// Paged is a column whose rows are elements in sequence: lists of numbers, one number, or the bytes of a text. A null has none. It
// keeps nothing else of its file: its pages are found by [Paged.Pages], and read in any order.
type Paged struct {
	Column Column
	Rows   []int64 // at which row each row group begins, and the end; all columns of a file share it
	// Elements is how many a group has, as the file's statistics say; -1 where they do not. The pages may have others.
	Elements []int64
	// Hold, if set, waits until so many bytes may be used for a large page whose elements are counted.
	Hold   func(ctx context.Context, n int64) (release func(), err error)
	Each   []int64 // how many elements each list has to have, the outermost first; nil for any number
	chunks []place
	unread error
}

// Page is a data page of such a column.
type Page struct {
	Rows     int64 // that begin in it
	Elements int64
	Values   int64 // where its values lie in the file as they are, each after its length if that is not fixed; 0 where they do not

	group           int
	values          int64 // that are no nulls
	offset, length  int64 // in the file, with the header
	plain           int64 // bytes, decompressed
	dictionary      int64 // where the page of the dictionary lies in the file, 0 for none
	dictionaryBytes int64 // bytes that reading the dictionary takes
}

// Memory is how many bytes reading a page takes, with the result: its elements, or where its rows begin.
func (c *Paged) Memory(p *Page) int64 {
	return p.length + p.plain + perBytes*p.values + 8*p.Rows + p.Elements*c.Column.Width()
}

// Mean is the bytes that a value has on average, of a column whose values have any number of them.
func (p *Page) Mean() int64 { return p.Elements / max(p.values, 1) }

// Dictionary is the values that pages of a row group name by their index.
type Dictionary struct{ of *decoded }

// Memory is how many bytes the dictionary takes.
func (d *Dictionary) Memory() int64 {
	return 8*int64(len(d.of.numbers)) + 4*int64(cap(d.of.ends)) + int64(cap(d.of.bytes))
}

// Paged returns the column with that index, whose Element is set, and which is no list of texts.
func (f *File) Paged(index int) *Paged {
	n := len(f.Groups)
	c := &Paged{Column: f.Columns[index], Rows: f.starts, Elements: make([]int64, n), chunks: make([]place, n)}
	for i := range f.Groups {
		g := &f.Groups[i]
		chunk := &g.chunks[index]
		if c.chunks[i] = chunk.place; g.Rows == 0 {
			continue
		}
		if c.Elements[i] = c.Column.promised(g.Rows, chunk); c.unread == nil {
			c.unread = c.Column.readable(chunk)
		}
	}
	return c
}

// Groups is how many row groups the file has.
func (c *Paged) Groups() int { return len(c.chunks) }

// Plain reports whether the pages of a group are not compressed.
func (c *Paged) Plain(group int) bool { return c.chunks[group].codec == codecNone }

// promised returns how many elements a group of so many rows has, as its statistics say, or -1.
func (c *Column) promised(rows int64, of *chunk) int64 {
	present := c.present(of)
	switch {
	case present < 0 || c.maxRep == 0 && of.values != rows:
		return -1
	case !c.Bytes:
		return present
	case of.encodings&(1<<encDeltaBytes) != 0: // pyarrow 22 counts less where there are nulls
		return -1
	case of.size >= MaxPage && of.encodings&(1<<encPlainDictionary|1<<encRLEDictionary) != 0: // few bytes may make a page that is too large
		return -1
	}
	return max(of.size, -1)
}

// present returns how many values of a chunk are no nulls, as its statistics say, or -1.
func (c *Column) present(of *chunk) int64 {
	if c.maxRep == 0 && of.nulls >= 0 && of.nulls <= of.values {
		return of.values - of.nulls
	}
	if len(of.defs) != c.maxDef+1 {
		return -1
	}
	left := of.values
	for level, n := range of.defs {
		if n < 0 || n > left || c.maxRep > 0 && level >= c.listDef && level < c.maxDef && n > 0 {
			return -1
		}
		left -= n
	}
	if left != 0 {
		return -1
	}
	return of.defs[c.maxDef]
}

// Name is the column's path with dots.
func (c *Paged) Name() string { return c.Column.Name() }

// Integer returns the bits of a token, and whether it has no sign.
func (c *Paged) Integer() (bits int, unsigned bool) { return c.Column.bits, c.Column.unsigned }

// Readable says, with [ErrUnread], why the column's pages cannot be read, as far as the footer tells.
func (c *Paged) Readable() error { return c.unread }

// readable says why the pages of a chunk cannot be read.
func (c *Column) readable(of *chunk) error {
	known := 1<<encPlain | 1<<encPlainDictionary | 1<<encRLE | 1<<encBitPacked | 1<<encRLEDictionary
	switch {
	case c.Bytes:
		known |= 1<<encDeltaLengthBytes | 1<<encDeltaBytes
	case c.physical == typeInt32 || c.physical == typeInt64:
		known |= 1<<encDelta | 1<<encByteStreamSplit
	default:
		known |= 1 << encByteStreamSplit
	}
	if err := of.readable(c); err != nil {
		return err
	}
	switch of.codec {
	case codecNone, codecSnappy, codecGzip, codecZstd, codecLZ4:
	default:
		return of.unknownCodec(c)
	}
	if others := uint64(of.encodings) &^ uint64(known); others != 0 {
		return c.unknownEncoding(int64(bits.TrailingZeros64(others)))
	}
	return nil
}

// values returns the decoder of a group's pages.
func (c *Paged) values(group int) *values {
	chunk := &c.chunks[group]
	return &values{pages: &pages{column: &c.Column, chunk: chunk}, max: chunk.values}
}

// Pages returns the data pages of a row group that [Paged.Walk] finds.
func (c *Paged) Pages(ctx context.Context, r io.ReaderAt, group int) (out []Page, err error) {
	err = c.Walk(ctx, r, group, func(p *Page) error {
		out = append(out, *p)
		return nil
	})
	return out, err
}

// Walk calls each for the data pages of a row group, whose elements it counts. It reads no more than headers and levels where these are not
// compressed, unless dictionaries and differences have to tell how long texts are.
func (c *Paged) Walk(ctx context.Context, r io.ReaderAt, group int, each func(p *Page) error) error {
	chunk, rows, promised := &c.chunks[group], c.Rows[group+1]-c.Rows[group], c.Elements[group]
	if rows == 0 {
		return nil
	}
	if err := chunk.readable(&c.Column); err != nil {
		return err
	}
	r = cancelReaderAt{ctx, r}
	v := c.values(group)
	v.each, v.first = c.Each, c.Rows[group]
	defer v.giveBack()
	defer v.done()
	found, elements, dictionary := 0, int64(0), int64(0)
	for at, end := chunk.start, chunk.start+chunk.bytes; at < end; {
		h, n, err := v.headerAt(r, at, end)
		if err != nil {
			return err
		}
		p := Page{group: group, offset: at, length: n + h.stored, plain: h.plain, dictionary: dictionary, dictionaryBytes: v.dictionaryBytes}
		at += p.length
		switch h.kind {
		case pageIndex:
			continue
		case pageDictionary:
			if dictionary > 0 {
				return v.broken("it has two dictionaries in a row group")
			}
			dictionary, v.dictionaryBytes = p.offset, h.stored+3*h.plain
			continue
		case pageData, pageDataV2:
		default:
			return v.broken("a page of type %d", h.kind)
		}
		if err := c.measure(ctx, v, r, h, &p, n); err != nil {
			return err
		}
		if found++; found > maxPages {
			return fmt.Errorf("%w: column %q has more than %d pages in a row group: write it with larger ones", ErrUnread, c.Name(), maxPages)
		}
		elements += p.Elements
		if err := each(&p); err != nil {
			return err
		}
	}
	switch {
	case v.rows != rows || v.seen != v.max:
		return v.broken("it has %d values in %d rows, its row group %d in %d", v.seen, v.rows, v.max, rows)
	case len(v.each) > 0 && v.level(v.seen) > 0:
		return v.uneven(0)
	case promised >= 0 && elements != promised:
		return v.broken("it has %d elements in a row group, whose statistics say %d", elements, promised)
	}
	return nil
}

// open reads a page that Pages has found.
func (c *Paged) open(ctx context.Context, r io.ReaderAt, p *Page) (v *values, h *pageHeader, raw []byte, err error) {
	v = c.values(p.group)
	raw, err = v.read(cancelReaderAt{ctx, r}, p.offset, p.length)
	if err != nil {
		return nil, nil, nil, err
	}
	t := &thrift{buf: raw}
	h = readPageHeader(t)
	if t.err != nil || int64(t.at)+h.stored != p.length || h.plain != p.plain {
		return nil, nil, nil, v.otherHeader()
	}
	raw = raw[t.at:]
	return v, h, raw, v.sum(h, raw)
}

// Starts returns at which element of a page each row begins that begins in it. It wants the page's dictionary where a value has any
// number of bytes.
func (c *Paged) Starts(ctx context.Context, r io.ReaderAt, p *Page, dictionary *Dictionary) ([]int64, error) {
	starts := make([]int64, 0, p.Rows)
	v, h, reps, defs, body, err := c.levels(ctx, r, p)
	if err != nil {
		return nil, err
	}
	defer v.done()
	rows, n, err := v.lists(h, reps, defs, func(value int64) { starts = append(starts, value) })
	if err == nil && (rows != p.Rows || n != p.values) {
		err = v.broken("a page has %d values in %d rows and had %d in %d", n, rows, p.values, p.Rows)
	}
	if err != nil || !c.Column.Bytes {
		return starts, err
	}
	done, value, end := 0, int64(0), int64(0) // the starts are those of values until here
	next := func(n int64) error {
		for ; done < len(starts) && starts[done] == value; done++ {
			starts[done] = end
		}
		value, end = value+1, end+n
		return nil
	}
	if p.Values > 0 {
		err = c.Stored(ctx, r, p, func(_, n int64) error { return next(n) })
	} else {
		if dictionary != nil {
			v.dictionary = dictionary.of
		}
		err = v.lengths(h, body, p.values, next)
	}
	if err == nil && end != p.Elements {
		err = v.broken("the values of a page have %d bytes and had %d", end, p.Elements)
	}
	if err == nil {
		err = next(0) // for rows behind the last value
	}
	return starts, err
}

// levels reads a page: its levels, and its values where these do not lie in the file as they are.
func (c *Paged) levels(ctx context.Context, r io.ReaderAt, p *Page) (v *values, h *pageHeader, reps, defs *hybrid, body []byte, err error) {
	if p.Values == 0 {
		var raw []byte
		if v, h, raw, err = c.open(ctx, r, p); err == nil {
			reps, defs, body, err = v.levels(h, raw)
		}
		return v, h, reps, defs, body, err
	}
	v, r = c.values(p.group), cancelReaderAt{ctx, r}
	h, n, err := v.headerAt(r, p.offset, p.offset+p.length)
	if err == nil && (n+h.stored != p.length || h.plain != p.plain) {
		err = v.otherHeader()
	}
	if err == nil {
		reps, defs, _, err = v.levelsAt(r, h, p.offset+n)
	}
	return v, h, reps, defs, nil, err
}

func (v *values) otherHeader() error { return v.broken("a page has another header than it had") }

// Stored calls each for the values of a page of any number of bytes, which lie in the file as they are. It reads their lengths only,
// where they are long.
func (c *Paged) Stored(ctx context.Context, r io.ReaderAt, p *Page, each func(offset, length int64) error) error {
	const far, window = 16 << 10, 64 << 10
	v, ahead := c.values(p.group), int64(window)
	if p.Mean() > far {
		ahead = 4
	}
	r = cancelReaderAt{ctx, r}
	var buf []byte
	at, end, begin := p.Values, p.Values+p.Elements+4*p.values, int64(0) // of buf
	for range p.values {
		if end-at < 4 {
			return v.broken("a text is longer than its page")
		}
		if at < begin || at+4 > begin+int64(len(buf)) {
			var err error
			if buf, err = v.read(r, at, min(ahead, end-at)); err != nil {
				return err
			}
			begin = at
		}
		n := int64(binary.LittleEndian.Uint32(buf[at-begin:]))
		if at += 4; n > end-at {
			return v.broken("a text is longer than its page")
		}
		if err := each(at, n); err != nil {
			return err
		}
		at += n
	}
	if at != end {
		return v.broken("%d bytes of a page are in none of its values", end-at)
	}
	return nil
}

// Dictionary reads the dictionary of a page, nil where it has none.
func (c *Paged) Dictionary(ctx context.Context, r io.ReaderAt, p *Page) (*Dictionary, error) {
	if p.dictionary == 0 {
		return nil, nil
	}
	v := c.values(p.group)
	defer v.done()
	d, err := v.dictionaryAt(cancelReaderAt{ctx, r}, p.dictionary)
	return &Dictionary{d}, err
}

// dictionaryAt reads the page of a dictionary.
func (v *values) dictionaryAt(r io.ReaderAt, at int64) (*decoded, error) {
	h, n, err := v.headerAt(r, at, v.chunk.start+v.chunk.bytes)
	if err != nil {
		return nil, err
	}
	raw, err := v.read(r, at+n, h.stored)
	if err == nil {
		err = v.sum(h, raw)
	}
	if err == nil {
		raw, err = v.decompress(raw, h.plain)
	}
	if err != nil {
		return nil, err
	}
	d, err := v.decode(raw, encPlain, h.values)
	if err == nil {
		d.bytes = bytes.Clone(d.bytes) // which lie in raw
	}
	return d, err
}

// DictionaryMemory is how many bytes reading the page's dictionary takes, with the result.
func (p *Page) DictionaryMemory() int64 { return p.dictionaryBytes }

// DictionaryOf tells dictionaries of a column apart: pages of the same number share one. 0 is none.
func (p *Page) DictionaryOf() int64 { return p.dictionary }

// Read returns the elements of a page, little-endian. It wants the page's dictionary.
func (c *Paged) Read(ctx context.Context, r io.ReaderAt, p *Page, dictionary *Dictionary) ([]byte, error) {
	v, h, raw, err := c.open(ctx, r, p)
	if err != nil {
		return nil, err
	}
	_, _, body, err := v.levels(h, raw)
	if err != nil {
		return nil, err
	}
	if dictionary != nil {
		v.dictionary = dictionary.of
	}
	item := int(c.Column.Width())
	size := int(p.Elements) * item
	if h.encoding == encPlain && c.Column.bits == 8*c.Column.size && !c.Column.Bytes {
		if len(body) < size {
			return nil, v.broken("a page has %d values and needs %d", len(body)/item, p.Elements)
		}
		if held := max(p.length, p.plain, int64(cap(body))); held > 2*int64(size) { // what is kept must not keep much more
			return bytes.Clone(body[:size]), nil
		}
		return body[:size], nil
	}
	defer v.done()
	if h.encoding == encDeltaBytes {
		d, err := v.deltaBytes(body, p.values)
		if err == nil && len(d.bytes) != size {
			err = v.broken("the values of a page have %d bytes and had %d", len(d.bytes), size)
		}
		if err != nil {
			return nil, err
		}
		return d.bytes, nil
	}
	out := make([]byte, 0, size)
	var numbers [levelBlock]int64
	err = v.blocks(h, body, p.values, func(d *decoded, block []uint32) error {
		if at := len(out); d.numbers != nil {
			for i, k := range block {
				numbers[i] = d.numbers[k]
			}
			out = out[:at+len(block)*item]
			return c.Column.store(out[at:], numbers[:len(block)])
		}
		for _, k := range block {
			value := d.bytes[d.end(int(k)):d.end(int(k)+1)]
			if len(value) > size-len(out) {
				return v.broken("the values of a page have more than %d bytes", size)
			}
			out = append(out, value...)
		}
		return nil
	})
	if err == nil && len(out) != size {
		err = v.broken("the values of a page have %d bytes and had %d", len(out), size)
	}
	return out, err
}

// store writes numbers as wide as the column's.
func (c *Column) store(out []byte, numbers []int64) error {
	narrow := c.bits < 64 && (c.physical == typeInt64 || c.bits < 32)
	for i, n := range numbers {
		if narrow && !c.fits(n) {
			return fmt.Errorf("%w: column %q is %s and has the value %d", ErrBroken, c.Name(), c.Kind, n)
		}
		switch c.bits {
		case 8:
			out[i] = byte(n)
		case 16:
			binary.LittleEndian.PutUint16(out[2*i:], uint16(n))
		case 32:
			binary.LittleEndian.PutUint32(out[4*i:], uint32(n))
		default:
			binary.LittleEndian.PutUint64(out[8*i:], uint64(n))
		}
	}
	return nil
}

// fits reports whether a number is one of the column's narrower integers.
func (c *Column) fits(n int64) bool {
	if c.unsigned {
		return n >= 0 && n < 1<<c.bits
	}
	return n >= -1<<(c.bits-1) && n < 1<<(c.bits-1)
}
