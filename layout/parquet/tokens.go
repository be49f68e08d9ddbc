package parquet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

const (
	maxPageValues = maxDeltas // of a column of tokens: a run makes any number of values of a few bytes
	maxPages      = 1 << 20   // of a column of tokens in a row group
	levelBlock    = 1024      // levels that are decoded at once
	largePage     = 4 << 20   // bytes, stored and decompressed, for which there has to be room
)

// ErrHoles says that lists have elements that are null, which are no tokens.
var ErrHoles = errors.New("lists of it have elements that are null, which are no tokens")

// TokenColumn is a column of lists of integers. It keeps nothing else of its file: its pages are found by
// [TokenColumn.Pages], and read in any order.
type TokenColumn struct {
	Groups []TokenGroup
	// Hold, if set, waits until so many bytes may be used for a large page whose tokens are counted.
	Hold   func(ctx context.Context, n int64) (release func(), err error)
	column Column
}

// TokenGroup is a row group of such a column.
type TokenGroup struct {
	Rows   int64
	Tokens int64 // as the file's statistics say, which nobody has compared with its pages; -1 where they do not
	Stored bool  // its pages are not compressed

	chunk chunk
}

// Page is a data page of such a column.
type Page struct {
	Rows   int64 // that begin in it
	Tokens int64
	Values int64 // where its tokens lie in the file as they are; 0 where they do not

	group          int
	offset, length int64 // in the file, with the header
	plain          int64 // bytes, decompressed
	dictionary     int64 // where the page of the dictionary lies in the file, 0 for none
}

// Memory is how many bytes reading the page takes, with the result.
func (p *Page) Memory() int64 { return p.length + p.plain + 16*p.Tokens }

// Dictionary is the values that pages of a row group name by their index.
type Dictionary struct{ numbers []int64 }

// Memory is how many bytes the dictionary takes.
func (d *Dictionary) Memory() int64 { return 8 * int64(len(d.numbers)) }

// TokenColumn returns the column with that index, whose Tokens is set.
func (f *File) TokenColumn(index int) *TokenColumn {
	c := &TokenColumn{column: f.Columns[index]}
	for _, g := range f.Groups {
		one := TokenGroup{Rows: g.Rows, Tokens: -1, chunk: g.chunks[index]}
		one.Stored = one.chunk.codec == codecNone
		if one.Tokens = c.column.promised(&one.chunk); g.Rows == 0 {
			one.Tokens = 0
		}
		one.chunk.defs = nil
		c.Groups = append(c.Groups, one)
	}
	return c
}

// promised returns how many values a chunk has that are no nulls, as its statistics say, or -1.
func (c *Column) promised(of *chunk) int64 {
	if len(of.defs) != c.maxDef+1 {
		return -1
	}
	left := of.values
	for level, n := range of.defs {
		if n < 0 || n > left || level >= c.listDef && level < c.maxDef && n > 0 {
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
func (c *TokenColumn) Name() string { return c.column.Name() }

// Integer returns the bits of a token, and whether it has no sign.
func (c *TokenColumn) Integer() (bits int, unsigned bool) { return c.column.bits, c.column.unsigned }

// Readable says, with [ErrUnread], why the column's pages cannot be read, as far as the footer tells.
func (c *TokenColumn) Readable() error {
	known := []int64{encPlain, encPlainDictionary, encRLE, encBitPacked, encDelta, encRLEDictionary, encByteStreamSplit}
	for i := range c.Groups {
		g := &c.Groups[i]
		if g.Rows == 0 {
			continue
		}
		if err := g.chunk.readable(&c.column); err != nil {
			return err
		}
		switch g.chunk.codec {
		case codecNone, codecSnappy, codecGzip, codecZstd, codecLZ4:
		default:
			return g.chunk.unknownCodec(&c.column)
		}
		for e := range int64(64) {
			if g.chunk.encodings&(1<<e) != 0 && !slices.Contains(known, e) {
				return c.column.unknownEncoding(e)
			}
		}
	}
	return nil
}

// values returns the decoder of a group's pages.
func (c *TokenColumn) values(group int) *values {
	chunk := &c.Groups[group].chunk
	return &values{pages: &pages{column: &c.column, chunk: chunk}, max: chunk.values}
}

// Pages finds the data pages of a row group and counts their values. It reads no more than headers and levels where
// these are not compressed.
func (c *TokenColumn) Pages(ctx context.Context, r io.ReaderAt, group int) ([]Page, error) {
	g := &c.Groups[group]
	if g.Rows == 0 {
		return nil, nil
	}
	if err := g.chunk.readable(&c.column); err != nil {
		return nil, err
	}
	r = cancelReaderAt{ctx, r}
	v := c.values(group)
	var out []Page
	tokens, dictionary := int64(0), int64(0)
	for at, end := g.chunk.start, g.chunk.start+g.chunk.bytes; at < end; {
		h, n, err := v.headerAt(r, at, end)
		if err != nil {
			return nil, err
		}
		p := Page{group: group, offset: at, length: n + h.stored, plain: h.plain, dictionary: dictionary}
		at += p.length
		switch h.kind {
		case pageIndex:
			continue
		case pageDictionary:
			if dictionary > 0 {
				return nil, v.broken("it has two dictionaries in a row group")
			}
			dictionary = p.offset
			continue
		case pageData, pageDataV2:
		default:
			return nil, v.broken("a page of type %d", h.kind)
		}
		if err := c.measure(ctx, v, r, h, &p, n); err != nil {
			return nil, err
		}
		if out = append(out, p); len(out) > maxPages {
			return nil, fmt.Errorf("%w: column %q has more than %d pages in a row group: write it with larger ones", ErrUnread, c.Name(), maxPages)
		}
		tokens += p.Tokens
	}
	switch {
	case v.rows != g.Rows || v.seen != v.max:
		return nil, v.broken("it has %d values in %d rows, its row group %d in %d", v.seen, v.rows, v.max, g.Rows)
	case g.Tokens >= 0 && tokens != g.Tokens:
		return nil, v.broken("it has %d tokens in a row group, whose statistics say %d", tokens, g.Tokens)
	}
	return out, nil
}

// headerAt reads the header of a page that ends before end, and returns how long it is.
func (p *pages) headerAt(r io.ReaderAt, at, end int64) (*pageHeader, int64, error) {
	for n := int64(512); ; n *= 8 {
		n = min(n, end-at)
		buf := make([]byte, n)
		if err := readFull(r, buf, at); err != nil {
			return nil, 0, err
		}
		t := &thrift{buf: buf}
		h := readPageHeader(t)
		if t.err == nil {
			p.left = end - at - int64(t.at)
			return h, int64(t.at), p.check(h)
		}
		if n == end-at || n >= maxPageHeader {
			return nil, 0, fmt.Errorf("%w: the header of a page of column %q: %w", ErrBroken, p.column.Name(), t.err)
		}
	}
}

// measure counts a page's values, once there is room for it.
func (c *TokenColumn) measure(ctx context.Context, v *values, r io.ReaderAt, h *pageHeader, p *Page, header int64) error {
	if need := h.stored + h.plain; c.Hold != nil && need > largePage {
		release, err := c.Hold(ctx, need)
		if err != nil {
			return err
		}
		defer release()
		defer func() { v.raw, v.plain = nil, nil }()
	}
	return v.measure(r, h, p, header)
}

// measure counts the rows and tokens of a page whose header has so many bytes.
func (v *values) measure(r io.ReaderAt, h *pageHeader, p *Page, header int64) error {
	switch {
	case h.values > v.max-v.seen:
		return v.broken("its pages have more than its %d values", v.max)
	case h.values > maxPageValues:
		return fmt.Errorf("%w: a page of column %q has %d values, at most %d are read: write it with smaller pages", ErrUnread, v.column.Name(), h.values, maxPageValues)
	}
	reps, defs, levels, err := v.levelsAt(r, h, p.offset+header)
	if err != nil {
		return err
	}
	if p.Rows, p.Tokens, err = v.lists(h, reps, defs, nil); err != nil {
		return err
	}
	item := int64(v.numberBytes())
	asStored := v.chunk.codec == codecNone || h.kind == pageDataV2 && h.isPlain
	if asStored && h.encoding == encPlain {
		if p.Tokens*item > h.stored-levels {
			return v.broken("a page has %d values and needs %d", (h.stored-levels)/item, p.Tokens)
		}
		if int64(v.column.bits) == 8*item {
			p.Values = p.offset + header + levels
		}
	}
	return nil
}

// levelsAt reads the levels of a page whose bytes begin at off, and no more of it than it must. size is that of the levels, where
// they are not compressed.
func (v *values) levelsAt(r io.ReaderAt, h *pageHeader, off int64) (reps, defs *hybrid, size int64, err error) {
	isV2 := h.kind == pageDataV2
	if isV2 && h.repBytes >= 0 && h.defBytes >= 0 && h.defBytes <= h.stored && h.repBytes <= h.stored-h.defBytes {
		raw, err := v.read(r, off, h.repBytes+h.defBytes)
		if err != nil {
			return nil, nil, 0, err
		}
		only := *h
		only.isPlain = true // there are no values among these bytes
		reps, defs, _, err = v.levels(&only, raw)
		return reps, defs, int64(len(raw)), err
	}
	if !isV2 && v.chunk.codec == codecNone {
		for n := int64(16 << 10); ; n *= 8 {
			raw, err := v.read(r, off, min(n, h.stored))
			if err != nil {
				return nil, nil, 0, err
			}
			reps, defs, body, err := v.cut(raw)
			if err == nil || n >= h.stored {
				return reps, defs, int64(len(raw) - len(body)), err
			}
		}
	}
	raw, err := v.read(r, off, h.stored)
	if err == nil {
		err = v.sum(h, raw)
	}
	if err == nil {
		reps, defs, _, err = v.levels(h, raw)
	}
	return reps, defs, 0, err
}

// read reads n bytes, which are valid until the next call.
func (p *pages) read(r io.ReaderAt, off, n int64) ([]byte, error) {
	if int64(cap(p.raw)) < n {
		p.raw = make([]byte, n)
	}
	p.raw = p.raw[:n]
	return p.raw, readFull(r, p.raw, off)
}

// lists goes through the levels of a page. begin, which may be nil, hears at which token of the page each row begins.
func (v *values) lists(h *pageHeader, reps, defs *hybrid, begin func(token int64)) (rows, tokens int64, err error) {
	var rep, def [levelBlock]uint32
	maxRep, maxDef, listDef := uint32(v.column.maxRep), uint32(v.column.maxDef), uint32(v.column.listDef)
	for left := h.values; left > 0; left -= levelBlock {
		n := int(min(left, levelBlock))
		if reps.fill(rep[:n]) < n || defs.fill(def[:n]) < n {
			return 0, 0, v.broken("the levels of a page are cut off or too large")
		}
		for i := range n {
			switch {
			case rep[i] > maxRep || def[i] > maxDef:
				return 0, 0, v.broken("the levels of a page are cut off or too large")
			case rep[i] == 0:
				rows++
				if begin != nil {
					begin(tokens)
				}
			case v.rows+rows == 0 && begin == nil:
				return 0, 0, v.broken("it begins within a row")
			}
			switch {
			case def[i] == maxDef:
				tokens++
			case def[i] >= listDef:
				return 0, 0, fmt.Errorf("column %q: %w", v.column.Name(), ErrHoles)
			}
		}
	}
	v.rows += rows
	v.seen += h.values
	return rows, tokens, nil
}

// open reads a page that Pages has found.
func (c *TokenColumn) open(ctx context.Context, r io.ReaderAt, p *Page) (v *values, h *pageHeader, raw []byte, err error) {
	v = c.values(p.group)
	raw, err = v.read(cancelReaderAt{ctx, r}, p.offset, p.length)
	if err != nil {
		return nil, nil, nil, err
	}
	t := &thrift{buf: raw}
	h = readPageHeader(t)
	if t.err != nil || int64(t.at)+h.stored != p.length || h.plain != p.plain {
		return nil, nil, nil, v.broken("a page has another header than it had")
	}
	raw = raw[t.at:]
	return v, h, raw, v.sum(h, raw)
}

// Starts returns at which token of a page each row begins that begins in it.
func (c *TokenColumn) Starts(ctx context.Context, r io.ReaderAt, p *Page) ([]int64, error) {
	v, h, raw, err := c.open(ctx, r, p)
	if err != nil {
		return nil, err
	}
	reps, defs, _, err := v.levels(h, raw)
	if err != nil {
		return nil, err
	}
	out := make([]int64, 0, p.Rows)
	rows, tokens, err := v.lists(h, reps, defs, func(token int64) { out = append(out, token) })
	if err == nil && (rows != p.Rows || tokens != p.Tokens) {
		err = v.broken("a page has %d tokens in %d rows and had %d in %d", tokens, rows, p.Tokens, p.Rows)
	}
	return out, err
}

// Dictionary reads the dictionary of a page, nil where it has none.
func (c *TokenColumn) Dictionary(ctx context.Context, r io.ReaderAt, p *Page) (*Dictionary, error) {
	if p.dictionary == 0 {
		return nil, nil
	}
	v := c.values(p.group)
	r = cancelReaderAt{ctx, r}
	h, n, err := v.headerAt(r, p.dictionary, v.chunk.start+v.chunk.bytes)
	if err != nil {
		return nil, err
	}
	raw, err := v.read(r, p.dictionary+n, h.stored)
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
	if err != nil {
		return nil, err
	}
	return &Dictionary{d.numbers}, nil
}

// DictionaryOf tells dictionaries of a column apart: pages of the same number share one. 0 is none.
func (p *Page) DictionaryOf() int64 { return p.dictionary }

// Read returns the tokens of a page, little-endian, as wide as Integer says. It wants the page's dictionary.
func (c *TokenColumn) Read(ctx context.Context, r io.ReaderAt, p *Page, dictionary *Dictionary) ([]byte, error) {
	v, h, raw, err := c.open(ctx, r, p)
	if err != nil {
		return nil, err
	}
	_, _, body, err := v.levels(h, raw)
	if err != nil {
		return nil, err
	}
	item := int64(c.column.bits / 8)
	out := make([]byte, p.Tokens*item)
	switch h.encoding {
	case encPlainDictionary, encRLEDictionary:
		return out, v.look(out, body, dictionary)
	case encPlain:
		if n := p.Tokens * int64(v.numberBytes()); n > int64(len(body)) {
			return nil, v.broken("a page has %d values and needs %d", len(body)/v.numberBytes(), p.Tokens)
		} else if int64(c.column.bits) == 8*int64(v.numberBytes()) {
			copy(out, body[:n])
			return out, nil
		}
	}
	d, err := v.decode(body, h.encoding, h.values)
	if err != nil {
		return nil, err
	}
	if int64(len(d.numbers)) < p.Tokens {
		return nil, v.broken("a page has %d values and needs %d", len(d.numbers), p.Tokens)
	}
	return out, c.column.store(out, d.numbers[:p.Tokens])
}

// look fills out with the values that indices name.
func (v *values) look(out, body []byte, d *Dictionary) error {
	if d == nil {
		return v.broken("a page has no dictionary")
	}
	if len(out) == 0 {
		return nil
	}
	if len(body) == 0 || body[0] > 32 {
		return v.broken("a page has no indices, or such of more than 32 bits")
	}
	indices := newHybrid(body[1:], int(body[0]))
	item := v.column.bits / 8
	var block [levelBlock]uint32
	var numbers [levelBlock]int64
	for at := 0; at < len(out); {
		n := min(levelBlock, (len(out)-at)/item)
		if indices.fill(block[:n]) < n {
			return v.broken("the indices of a page are cut off")
		}
		for i, k := range block[:n] {
			if int64(k) >= int64(len(d.numbers)) {
				return v.broken("an index leads out of the dictionary of %d", len(d.numbers))
			}
			numbers[i] = d.numbers[k]
		}
		if err := v.column.store(out[at:at+n*item], numbers[:n]); err != nil {
			return err
		}
		at += n * item
	}
	return nil
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
