package parquet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
)

// The encodings.
const (
	encPlain            = 0
	encPlainDictionary  = 2
	encRLE              = 3
	encBitPacked        = 4
	encDelta            = 5
	encDeltaLengthBytes = 6
	encDeltaBytes       = 7
	encRLEDictionary    = 8
	encByteStreamSplit  = 9
)

// Value is one entry of a column.
type Value struct {
	Bytes  []byte // of a text; valid until the next value
	Number int64
	Null   bool // no text, no element, or a list without elements
	Hole   bool // an element of a list that is null
	First  bool // of a row
}

// Values calls yield for every value of a column in a row group, in the order of the rows.
func (f *File) Values(ctx context.Context, group, column int, yield func(Value) error) error {
	if f.Groups[group].Rows == 0 {
		return nil
	}
	p, err := f.newPages(ctx, group, column)
	if err != nil {
		return err
	}
	v := &values{pages: p, max: p.chunk.values}
	for {
		h, raw, err := p.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := v.page(h, raw, yield); err != nil {
			return err
		}
	}
	if v.rows != f.Groups[group].Rows || v.seen != v.max {
		return fmt.Errorf("%w: column %q has %d values in %d rows, its row group %d in %d", ErrBroken, p.column.Name(), v.seen, v.rows, v.max, f.Groups[group].Rows)
	}
	return nil
}

// values is the state that lasts from page to page.
type values struct {
	*pages
	max, seen, rows int64
	dictionary      *decoded

	// Of a column that is read by pages.
	dictionaryBytes int64   // that reading its dictionary takes
	each            []int64 // as Paged.Each
	inner           int64   // elements that are left of the innermost list
	first           int64   // row of the file
	held            int64   // bytes for which there is room, until release
	release         func()
}

// decoded are values without their nulls.
type decoded struct {
	bytes   []byte
	ends    []int32 // of texts, in bytes
	size    int     // of each value, where all have one and these are no integers
	numbers []int64
}

func (d *decoded) value(i int, v *Value) {
	if d.numbers != nil {
		v.Number = d.numbers[i]
		return
	}
	v.Bytes = d.bytes[d.end(i):d.end(i+1)]
}

// end returns where the first n values end in bytes.
func (d *decoded) end(n int) int {
	if d.size > 0 || n == 0 {
		return n * d.size
	}
	return int(d.ends[n-1])
}

func (d *decoded) len() int {
	if d.size > 0 {
		return len(d.bytes) / d.size
	}
	return max(len(d.ends), len(d.numbers))
}

func (v *values) broken(format string, args ...any) error {
	return fmt.Errorf("%w: column %q: %s", ErrBroken, v.column.Name(), fmt.Sprintf(format, args...))
}

// page yields the values of one page.
func (v *values) page(h *pageHeader, raw []byte, yield func(Value) error) error {
	switch h.kind {
	case pageIndex:
		return nil
	case pageDictionary:
		plain, err := v.decompress(raw, h.plain)
		if err != nil {
			return err
		}
		if v.dictionary != nil {
			return v.broken("it has two dictionaries in a row group")
		}
		d, err := v.decode(append([]byte(nil), plain...), encPlain, h.values)
		v.dictionary = d
		return err
	case pageData, pageDataV2:
	default:
		return v.broken("a page of type %d", h.kind)
	}
	if h.values > v.max-v.seen {
		return v.broken("its pages have more than its %d values", v.max)
	}
	reps, defs, body, err := v.levels(h, raw)
	if err != nil {
		return err
	}
	return v.merge(h, reps, defs, body, yield)
}

// levels splits a page into its levels and its values, decompressed.
func (v *values) levels(h *pageHeader, raw []byte) (reps, defs *hybrid, body []byte, err error) {
	c := v.column
	if h.kind == pageDataV2 {
		if h.repBytes < 0 || h.defBytes < 0 || h.repBytes > int64(len(raw)) || h.defBytes > int64(len(raw))-h.repBytes {
			return nil, nil, nil, v.broken("the levels of a page are longer than the page")
		}
		levels := h.repBytes + h.defBytes
		reps = newHybrid(raw[:h.repBytes], width(c.maxRep))
		defs = newHybrid(raw[h.repBytes:levels], width(c.maxDef))
		body = raw[levels:]
		if !h.isPlain && len(body) > 0 {
			body, err = v.decompress(body, h.plain-levels)
		}
		return reps, defs, body, err
	}
	if body, err = v.decompress(raw, h.plain); err != nil {
		return nil, nil, nil, err
	}
	return v.cut(body)
}

// cut splits the bytes of a page of version 1 into levels and values.
func (v *values) cut(plain []byte) (reps, defs *hybrid, body []byte, err error) {
	body = plain
	one := func(most int) *hybrid {
		if most == 0 {
			return newHybrid(nil, 0)
		}
		if len(body) < 4 || uint64(binary.LittleEndian.Uint32(body)) > uint64(len(body)-4) {
			err = v.broken("the levels of a page are longer than the page")
			return newHybrid(nil, 0)
		}
		n := binary.LittleEndian.Uint32(body)
		levels := body[4 : 4+n]
		body = body[4+n:]
		return newHybrid(levels, width(most))
	}
	reps = one(v.column.maxRep)
	defs = one(v.column.maxDef)
	return reps, defs, body, err
}

func width(most int) int { return bits.Len(uint(most)) }

// body returns the values of a page, or the dictionary and the indices of them.
func (v *values) body(h *pageHeader, body []byte) (d *decoded, indices *hybrid, err error) {
	switch h.encoding {
	case encPlainDictionary, encRLEDictionary:
		if v.dictionary == nil {
			return nil, nil, v.broken("a page has no dictionary")
		}
		d = v.dictionary
		indices = newHybrid(nil, 0)
		if len(body) > 0 {
			if body[0] > 32 {
				return nil, nil, v.broken("the indices of a page have %d bits", body[0])
			}
			indices = newHybrid(body[1:], int(body[0]))
		}
	default:
		d, err = v.decode(body, h.encoding, h.values)
	}
	return d, indices, err
}

// merge yields the entries of a page: its values, and its nulls where the levels say so.
func (v *values) merge(h *pageHeader, reps, defs *hybrid, body []byte, yield func(Value) error) error {
	d, indices, err := v.body(h, body)
	if err != nil {
		return err
	}
	at := 0
	for range h.values {
		rep, ok1 := reps.next()
		def, ok2 := defs.next()
		if !ok1 || !ok2 || rep > uint32(v.column.maxRep) || def > uint32(v.column.maxDef) {
			return v.broken("the levels of a page are cut off or too large")
		}
		value := Value{First: rep == 0, Null: def < uint32(v.column.maxDef)}
		value.Hole = value.Null && v.column.maxRep > 0 && def >= uint32(v.column.listDef)
		v.seen++
		if value.First {
			v.rows++
		} else if v.rows == 0 {
			return v.broken("it begins within a row")
		}
		if !value.Null {
			i := at
			if at++; indices != nil {
				index, ok := indices.next()
				if i = int(index); !ok || i >= d.len() {
					return v.broken("an index is cut off, or leads out of the dictionary of %d", d.len())
				}
			} else if i >= d.len() {
				return v.broken("a page has %d values and needs more", d.len())
			}
			d.value(i, &value)
		}
		if err := yield(value); err != nil {
			return err
		}
	}
	return nil
}

// decode decodes up to n values.
func (v *values) decode(body []byte, encoding, n int64) (*decoded, error) {
	isText := v.column.physical == typeBytes
	isNumber := v.column.physical == typeInt32 || v.column.physical == typeInt64
	isOther := v.column.size > 0 && !isNumber
	switch {
	case isText && encoding == encPlain:
		return v.plainBytes(body, n)
	case isText && encoding == encDeltaLengthBytes:
		lengths, rest, err := deltas(body, n)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", v.column.Name(), err)
		}
		return v.cutBytes(rest, lengths)
	case isText && encoding == encDeltaBytes:
		return v.deltaBytes(body, n)
	case isOther && encoding == encByteStreamSplit:
		body = v.joined(body)
		fallthrough
	case isOther && encoding == encPlain:
		n = min(n, int64(len(body)/v.column.size))
		return &decoded{bytes: body[:n*int64(v.column.size)], size: v.column.size}, nil
	case isNumber && encoding == encPlain:
		return &decoded{numbers: v.plainNumbers(body, n)}, nil
	case isNumber && encoding == encByteStreamSplit:
		return &decoded{numbers: v.plainNumbers(v.joined(body), n)}, nil
	case isNumber && encoding == encDelta:
		numbers, _, err := deltas(body, n)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", v.column.Name(), err)
		}
		for i := range numbers {
			if v.column.physical == typeInt32 {
				numbers[i] = v.column.of32(uint32(numbers[i]))
			}
		}
		return &decoded{numbers: numbers}, nil
	}
	return nil, v.column.unknownEncoding(encoding)
}

func (c *Column) unknownEncoding(encoding int64) error {
	return fmt.Errorf("%w: column %q has encoding %d, which is not known for %s: write it with plain or dictionary encoding", ErrUnread, c.Name(), encoding, c.Kind)
}

// of32 returns the number that four bytes are.
func (c *Column) of32(n uint32) int64 {
	if c.unsigned && c.bits == 32 {
		return int64(n)
	}
	return int64(int32(n))
}

func (v *values) plainNumbers(body []byte, n int64) []int64 {
	numbers := make([]int64, min(n, int64(len(body)/v.column.size)))
	for i := range numbers {
		if v.column.size == 4 {
			numbers[i] = v.column.of32(binary.LittleEndian.Uint32(body[4*i:]))
		} else {
			numbers[i] = int64(binary.LittleEndian.Uint64(body[8*i:]))
		}
	}
	return numbers
}

// joined puts the bytes of values side by side that BYTE_STREAM_SPLIT has in streams: the first bytes of all, the second ones, ...
func (v *values) joined(body []byte) []byte {
	w := v.column.size
	n := len(body) / w
	out := make([]byte, n*w)
	for k := range w {
		for i, b := range body[k*n : (k+1)*n] {
			out[i*w+k] = b
		}
	}
	return out
}

func (v *values) plainBytes(body []byte, n int64) (*decoded, error) {
	d := &decoded{bytes: body[:0]} // in place: lengths go, texts move down
	for len(body) > 0 && int64(len(d.ends)) < n {
		if len(body) < 4 || uint64(binary.LittleEndian.Uint32(body)) > uint64(len(body)-4) {
			return nil, v.broken("a text is longer than its page")
		}
		size := binary.LittleEndian.Uint32(body)
		d.bytes = append(d.bytes, body[4:4+size]...)
		d.ends = append(d.ends, int32(len(d.bytes)))
		body = body[4+size:]
	}
	return d, nil
}

func (v *values) cutBytes(body []byte, lengths []int64) (*decoded, error) {
	d := &decoded{bytes: body}
	end := int64(0)
	for _, n := range lengths {
		if n < 0 || n > int64(len(body))-end {
			return nil, v.broken("a text is longer than its page")
		}
		end += n
		d.ends = append(d.ends, int32(end))
	}
	return d, nil
}

// deltaBytes decodes texts that share their starts with the ones before.
func (v *values) deltaBytes(body []byte, n int64) (*decoded, error) {
	t, err := v.sharing(body, n)
	if err != nil {
		return nil, err
	}
	d := &decoded{bytes: make([]byte, 0, t.size), ends: make([]int32, 0, len(t.own))}
	start := 0 // of the text before
	for i, own := range t.own {
		shared := d.bytes[start:][:t.shared[i]]
		start = len(d.bytes)
		d.bytes = append(append(d.bytes, shared...), t.rest[:own]...)
		d.ends = append(d.ends, int32(len(d.bytes)))
		t.rest = t.rest[own:]
	}
	return d, nil
}

// sharing is texts that share their starts with the ones before: how many bytes each shares, and how many of rest are its own.
type sharing struct {
	shared, own []int64
	rest        []byte
	size        int64 // bytes of all texts, which a few of rest may make
}

func (v *values) sharing(body []byte, n int64) (t sharing, err error) {
	if t.shared, t.rest, err = deltas(body, n); err == nil {
		t.own, t.rest, err = deltas(t.rest, n)
	}
	if err != nil {
		return t, fmt.Errorf("column %q: %w", v.column.Name(), err)
	}
	if len(t.shared) != len(t.own) {
		return t, v.broken("%d starts and %d ends of texts", len(t.shared), len(t.own))
	}
	last, left := int64(0), int64(len(t.rest))
	for i, own := range t.own {
		if t.shared[i] < 0 || t.shared[i] > last || own < 0 || own > left {
			return t, v.broken("a text is longer than its page")
		}
		last, left = t.shared[i]+own, left-own
		if t.size += last; t.size > MaxPage {
			return t, fmt.Errorf("%w: a page of column %q holds texts of more than %d bytes: write it with smaller pages", ErrUnread, v.column.Name(), MaxPage)
		}
	}
	return t, nil
}
