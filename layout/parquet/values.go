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
	encDelta            = 5
	encDeltaLengthBytes = 6
	encDeltaBytes       = 7
	encRLEDictionary    = 8
)

// Value is one entry of a column.
type Value struct {
	Bytes  []byte // of a text; valid until the next value
	Number int64
	Null   bool // no text, or a list without elements
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

// values is what lasts from page to page.
type values struct {
	*pages
	max, seen, rows int64
	dictionary      *decoded
}

// decoded are values without their nulls.
type decoded struct {
	bytes   []byte
	ends    []int32 // of texts, in bytes
	numbers []int64
}

func (d *decoded) value(i int, v *Value) {
	if d.numbers != nil {
		v.Number = d.numbers[i]
		return
	}
	start := int32(0)
	if i > 0 {
		start = d.ends[i-1]
	}
	v.Bytes = d.bytes[start:d.ends[i]]
}

func (d *decoded) len() int { return max(len(d.ends), len(d.numbers)) }

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
	cut := func(most int) *hybrid {
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
	reps = cut(c.maxRep)
	defs = cut(c.maxDef)
	return reps, defs, body, err
}

func width(most int) int { return bits.Len(uint(most)) }

// merge yields the entries of a page: its values, and its nulls where the levels say so.
func (v *values) merge(h *pageHeader, reps, defs *hybrid, body []byte, yield func(Value) error) error {
	var d *decoded
	var indices *hybrid
	switch h.encoding {
	case encPlainDictionary, encRLEDictionary:
		if v.dictionary == nil {
			return v.broken("a page has no dictionary")
		}
		d = v.dictionary
		indices = newHybrid(nil, 0)
		if len(body) > 0 {
			if body[0] > 32 {
				return v.broken("the indices of a page have %d bits", body[0])
			}
			indices = newHybrid(body[1:], int(body[0]))
		}
	default:
		var err error
		if d, err = v.decode(body, h.encoding, h.values); err != nil {
			return err
		}
	}
	at := 0
	for range h.values {
		rep, ok1 := reps.next()
		def, ok2 := defs.next()
		if !ok1 || !ok2 || rep > uint32(v.column.maxRep) || def > uint32(v.column.maxDef) {
			return v.broken("the levels of a page are cut off or too large")
		}
		value := Value{First: rep == 0, Null: def < uint32(v.column.maxDef)}
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
	case v.column.physical == typeInt32 && encoding == encPlain:
		d := &decoded{numbers: []int64{}}
		for ; len(body) >= 4 && int64(len(d.numbers)) < n; body = body[4:] {
			d.numbers = append(d.numbers, int64(int32(binary.LittleEndian.Uint32(body))))
		}
		return d, nil
	case v.column.physical == typeInt64 && encoding == encPlain:
		d := &decoded{numbers: []int64{}}
		for ; len(body) >= 8 && int64(len(d.numbers)) < n; body = body[8:] {
			d.numbers = append(d.numbers, int64(binary.LittleEndian.Uint64(body)))
		}
		return d, nil
	case !isText && encoding == encDelta:
		numbers, _, err := deltas(body, n)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", v.column.Name(), err)
		}
		for i := range numbers {
			if v.column.physical == typeInt32 {
				numbers[i] = int64(int32(numbers[i]))
			}
		}
		return &decoded{numbers: numbers}, nil
	}
	return nil, fmt.Errorf("%w: column %q has encoding %d, which is not known for %s: write it with plain or dictionary encoding", ErrUnread,
		v.column.Name(), encoding, v.column.Kind)
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
	shared, body, err := deltas(body, n)
	if err != nil {
		return nil, fmt.Errorf("column %q: %w", v.column.Name(), err)
	}
	lengths, body, err := deltas(body, n)
	if err != nil {
		return nil, fmt.Errorf("column %q: %w", v.column.Name(), err)
	}
	if len(shared) != len(lengths) {
		return nil, v.broken("%d starts and %d ends of texts", len(shared), len(lengths))
	}
	d := &decoded{}
	var last []byte
	for i, own := range lengths {
		if shared[i] < 0 || shared[i] > int64(len(last)) || own < 0 || own > int64(len(body)) {
			return nil, v.broken("a text is longer than its page")
		}
		if int64(len(d.bytes))+shared[i]+own > MaxPage {
			return nil, fmt.Errorf("%w: a page of column %q holds texts of more than %d bytes: write it with smaller pages", ErrUnread, v.column.Name(), MaxPage)
		}
		start := len(d.bytes)
		d.bytes = append(append(d.bytes, last[:shared[i]]...), body[:own]...)
		last, body = d.bytes[start:], body[own:]
		d.ends = append(d.ends, int32(len(d.bytes)))
	}
	return d, nil
}

// maxDeltas bounds the values of a page in this encoding, which can make much of nothing.
const maxDeltas = 1 << 25

var errDelta = fmt.Errorf("%w: the delta encoding of a page", ErrBroken)

// deltas decodes up to n integers of DELTA_BINARY_PACKED, and returns what follows them.
func deltas(body []byte, n int64) ([]int64, []byte, error) {
	next := func() uint64 {
		v, k := binary.Uvarint(body)
		if k <= 0 {
			body = nil
			return 0
		}
		body = body[k:]
		return v
	}
	zigzag := func() int64 { v := next(); return int64(v>>1) ^ -int64(v&1) }
	if len(body) == 0 {
		return []int64{}, nil, errDelta
	}
	block, minis, total := next(), next(), next()
	value := zigzag()
	if total > maxDeltas {
		return nil, nil, fmt.Errorf("%w: a page has %d values, at most %d are read: write it with smaller pages", ErrUnread, total, maxDeltas)
	}
	if body == nil || minis == 0 || minis > 1<<10 || block%minis != 0 || block/minis%32 != 0 || block > 1<<16 || block == 0 || total > uint64(n) {
		return nil, nil, errDelta
	}
	out := make([]int64, 0, min(total, 1<<16))
	if total > 0 {
		out = append(out, value)
	}
	for uint64(len(out)) < total {
		least := zigzag()
		if uint64(len(body)) < minis {
			return nil, nil, errDelta
		}
		widths := body[:minis]
		body = body[minis:]
		for _, w := range widths {
			if uint64(len(out)) >= total {
				break // writers leave out what is not needed
			}
			size := int(block / minis * uint64(w) / 8)
			if w > 64 || size > len(body) {
				return nil, nil, errDelta
			}
			packed := body[:size]
			body = body[size:]
			for i := uint64(0); i < block/minis && uint64(len(out)) < total; i++ {
				value += least + int64(unpack(packed, i*uint64(w), uint(w)))
				out = append(out, value)
			}
		}
	}
	return out, body, nil
}

// unpack returns w bits from bit at on.
func unpack(packed []byte, at uint64, w uint) uint64 {
	v := uint64(0)
	for i := uint(0); i < w; {
		b := uint64(packed[(at+uint64(i))/8]) >> ((at + uint64(i)) % 8)
		v |= b << i
		i += 8 - uint((at+uint64(i))%8)
	}
	if w < 64 {
		v &= 1<<w - 1
	}
	return v
}

// hybrid decodes the encoding of levels and indices: runs, and groups of eight that are packed.
type hybrid struct {
	src    []byte
	width  int
	run    uint64 // values that are left of a run
	value  uint32
	packed []byte // or of a pack
	at     uint64 // bits of it
	left   uint64
}

// newHybrid gives zeros for ever where width is 0.
func newHybrid(src []byte, width int) *hybrid { return &hybrid{src: src, width: width} }

func (h *hybrid) next() (uint32, bool) {
	if h.width == 0 {
		return 0, true
	}
	for h.run == 0 && h.left == 0 {
		if !h.begin() {
			return 0, false
		}
	}
	if h.run > 0 {
		h.run--
		return h.value, true
	}
	h.left--
	v := unpack(h.packed, h.at, uint(h.width))
	h.at += uint64(h.width)
	return uint32(v), true
}

// begin reads the head of a run or pack.
func (h *hybrid) begin() bool {
	head, n := binary.Uvarint(h.src)
	if n <= 0 {
		return false
	}
	h.src = h.src[n:]
	if head&1 == 0 {
		size := (h.width + 7) / 8
		if len(h.src) < size {
			return false
		}
		h.value = 0
		for i := range size {
			h.value |= uint32(h.src[i]) << (8 * i)
		}
		h.src, h.run = h.src[size:], head>>1
		return true
	}
	size := head >> 1 * uint64(h.width)
	if head>>1 > uint64(len(h.src)) || size > uint64(len(h.src)) {
		// A last pack may be cut short: its values that are there count.
		if head>>1 > 1<<32 {
			return false
		}
		size = uint64(len(h.src))
	}
	h.packed, h.src, h.at = h.src[:size], h.src[size:], 0
	h.left = min(head>>1*8, size*8/uint64(h.width))
	return h.left > 0
}
