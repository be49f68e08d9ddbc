package parquet

import (
	"context"
	"fmt"
	"io"
	"sync"
)

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

// measure counts a page's elements, once there is room for it. The dictionary stays until the end of the walk, as does the room for it.
func (c *Paged) measure(ctx context.Context, v *values, r io.ReaderAt, h *pageHeader, p *Page, header int64) error {
	need := h.stored + h.plain
	switch {
	case v.looksUp(h) || v.dictionary != nil:
		need += v.dictionaryBytes
	case v.column.Bytes && (h.encoding != encPlain || v.column.padded):
		need += perBytes * min(h.values, maxPageValues)
	}
	if c.Hold != nil && need > largePage {
		if err := v.hold(ctx, c.Hold, need); err != nil {
			return err
		}
		defer func() {
			if v.raw, v.plain = nil, nil; v.dictionary == nil {
				v.giveBack()
			}
		}()
	}
	return v.measure(r, h, p, header)
}

// hold sees to it that there is room for n bytes. A walk that waits for more room has none meanwhile, since others may wait for its room.
// It takes twice as much each time, so that it seldom reads its dictionary again.
func (v *values) hold(ctx context.Context, take func(ctx context.Context, n int64) (release func(), err error), n int64) (err error) {
	if n <= v.held {
		return nil
	}
	n = max(n, 2*v.held)
	v.giveBack()
	v.raw, v.plain, v.dictionary = nil, nil, nil
	if v.release, err = take(ctx, n); err == nil {
		v.held = n
	}
	return err
}

// giveBack leaves the room that is held to others.
func (v *values) giveBack() {
	if v.held > 0 {
		v.release()
		v.held = 0
	}
}

// looksUp reports whether it takes the dictionary to tell how many bytes the values of a page have.
func (v *values) looksUp(h *pageHeader) bool {
	return v.column.Bytes && (h.encoding == encPlainDictionary || h.encoding == encRLEDictionary)
}

// measure counts the rows and elements of a page whose header has so many bytes.
func (v *values) measure(r io.ReaderAt, h *pageHeader, p *Page, header int64) error {
	switch {
	case h.values > v.max-v.seen:
		return v.broken("its pages have more than its %d values", v.max)
	case h.values > maxPageValues:
		return fmt.Errorf("%w: a page of column %q has %d values, at most %d are read: write it with smaller pages", ErrUnread, v.column.Name(), h.values, maxPageValues)
	}
	at := p.offset + header
	if v.column.Bytes && (h.encoding != encPlain || v.column.padded) {
		return v.measureBytes(r, h, p, at)
	}
	reps, defs, levels, err := v.levelsAt(r, h, at)
	if err != nil {
		return err
	}
	if p.Rows, p.values, err = v.lists(h, reps, defs, nil); err != nil {
		return err
	}
	if p.Elements = p.values; p.values > MaxPage/max(v.column.Width(), 1) && !v.column.Bytes {
		return fmt.Errorf("%w: a page of column %q has %d values of %d bytes, at most %d bytes are read: write it with smaller pages", ErrUnread,
			v.column.Name(), p.values, v.column.Width(), MaxPage)
	}
	item, size := int64(v.column.size), h.plain-levels
	asStored := v.chunk.codec == codecNone || h.kind == pageDataV2 && h.isPlain
	if asStored {
		size = h.stored - levels
	}
	switch {
	case v.column.Bytes:
		if p.Elements = size - 4*p.values; p.Elements < 0 {
			return v.broken("the lengths of %d texts take more than a page of %d bytes", p.values, size)
		}
	case asStored && h.encoding == encPlain && p.values*item > size:
		return v.broken("a page has %d values and needs %d", size/item, p.values)
	}
	if asStored && h.encoding == encPlain && v.column.bits == 8*v.column.size {
		p.Values = at + levels
	}
	return nil
}

// measureBytes decodes a page at off to learn how many bytes its values have.
func (v *values) measureBytes(r io.ReaderAt, h *pageHeader, p *Page, off int64) (err error) {
	if v.looksUp(h) && v.dictionary == nil && p.dictionary > 0 {
		if v.dictionary, err = v.dictionaryAt(r, p.dictionary); err != nil {
			return err
		}
	}
	raw, err := v.read(r, off, h.stored)
	if err == nil {
		err = v.sum(h, raw)
	}
	if err != nil {
		return err
	}
	reps, defs, body, err := v.levels(h, raw)
	if err != nil {
		return err
	}
	if p.Rows, p.values, err = v.lists(h, reps, defs, nil); err != nil {
		return err
	}
	return v.lengths(h, body, p.values, func(n int64) error {
		if p.Elements += n; p.Elements > MaxPage {
			return fmt.Errorf("%w: a page of column %q holds texts of more than %d bytes: write it with smaller pages", ErrUnread, v.column.Name(), MaxPage)
		}
		return nil
	})
}

// lengths calls each for the bytes of every value of a page. Texts that share their starts are not put together for it.
func (v *values) lengths(h *pageHeader, body []byte, n int64, each func(n int64) error) error {
	if h.encoding == encDeltaBytes {
		t, err := v.sharing(body, n)
		if err == nil && int64(len(t.own)) < n {
			err = v.broken("a page has %d values and needs %d", len(t.own), n)
		}
		for i := int64(0); i < n && err == nil; i++ {
			err = each(t.shared[i] + t.own[i])
		}
		return err
	}
	return v.blocks(h, body, n, func(d *decoded, block []uint32) error {
		for _, i := range block {
			if err := each(int64(d.end(int(i)+1) - d.end(int(i)))); err != nil {
				return err
			}
		}
		return nil
	})
}

// blocks calls yield for the n values of a page, many at a time: where they are among the values of d, which are the page's or its
// dictionary's.
func (v *values) blocks(h *pageHeader, body []byte, n int64, yield func(d *decoded, block []uint32) error) error {
	if h.encoding == encPlain { // what follows its values is none
		own := *h
		own.values, h = n, &own
	}
	d, indices, err := v.body(h, body)
	if err != nil {
		return err
	}
	if indices == nil && int64(d.len()) < n {
		return v.broken("a page has %d values and needs %d", d.len(), n)
	}
	var block [levelBlock]uint32
	for at := int64(0); at < n; at += levelBlock {
		some := block[:min(levelBlock, n-at)]
		if indices != nil && indices.fill(some) < len(some) {
			return v.broken("the indices of a page are cut off")
		}
		for i := range some {
			if indices == nil {
				some[i] = uint32(at) + uint32(i)
			} else if int64(some[i]) >= int64(d.len()) {
				return v.broken("an index leads out of the dictionary of %d", d.len())
			}
		}
		if err := yield(d, some); err != nil {
			return err
		}
	}
	return nil
}

// levelsAt reads the levels of a page whose bytes begin at off, and no more of it than it must. size is that of the levels,
// decompressed.
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
	if err != nil {
		return nil, nil, 0, err
	}
	reps, defs, body, err := v.levels(h, raw)
	return reps, defs, h.plain - int64(len(body)), err
}

// read reads n bytes, which are valid until the next call.
func (p *pages) read(r io.ReaderAt, off, n int64) ([]byte, error) {
	if int64(cap(p.raw)) < n {
		p.raw = scratchOf(n)
	}
	p.raw = p.raw[:n]
	return p.raw, readFull(r, p.raw, off)
}

// scratches are memory that pages were read and decompressed into. Nearly every row that is read at random needs another page.
var scratches sync.Pool //nolint:gochecknoglobals // a pool, as in the standard library

func scratchOf(n int64) []byte {
	if b, ok := scratches.Get().(*[]byte); ok && int64(cap(*b)) >= n {
		return (*b)[:0]
	}
	return make([]byte, 0, n)
}

// done leaves the memory of pages to others: nothing that was decoded may lie in it.
func (p *pages) done() {
	for _, b := range []*[]byte{&p.raw, &p.plain} {
		if n := cap(*b); n > 0 && n <= largePage {
			was := *b
			scratches.Put(&was)
		}
		*b = nil
	}
}

// lists goes through the levels of a page. begin, which may be nil, hears at which value of the page each row begins.
func (v *values) lists(h *pageHeader, reps, defs *hybrid, begin func(value int64)) (rows, present int64, err error) {
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
			case len(v.each) > 0 && rep[i] != v.expected(h.values-left+int64(i)):
				return 0, 0, v.uneven(rows)
			case rep[i] == 0:
				rows++
				if begin != nil {
					begin(present)
				}
			case v.rows+rows == 0 && begin == nil:
				return 0, 0, v.broken("it begins within a row")
			}
			switch {
			case def[i] == maxDef:
				present++
			case maxRep > 0 && def[i] >= listDef:
				return 0, 0, fmt.Errorf("column %q: %w", v.column.Name(), ErrHoles)
			case len(v.each) > 0:
				return 0, 0, v.uneven(rows)
			}
		}
	}
	v.rows += rows
	v.seen += h.values
	return rows, present, nil
}

// expected is the repetition level of element n of a page, where all lists have their lengths.
func (v *values) expected(n int64) uint32 {
	level := len(v.each)
	if v.inner == 0 {
		level, v.inner = v.level(v.seen+n), v.each[level-1]
	}
	v.inner--
	return uint32(level)
}

// level is that of element n of a chunk: 0 where a row begins.
func (v *values) level(n int64) int {
	k := len(v.each)
	for ; k > 0 && n%v.each[k-1] == 0; k-- {
		n /= v.each[k-1]
	}
	return k
}

// uneven is the error of the last of so many rows of a page.
func (v *values) uneven(rows int64) error {
	return fmt.Errorf("row %d of column %q %w", v.first+max(v.rows+rows-1, 0), v.column.Name(), ErrUneven)
}
