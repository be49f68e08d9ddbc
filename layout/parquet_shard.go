package layout

import (
	"context"
	"fmt"
	"sort"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/layout/parquet"
)

// parquetShard is the elements of a column of one file: its tokens, or the values of a field. Those of plain pages lie in the file as
// they are. Others are decoded when they are read, a page at a time, and kept for a while in the volume's memory.
type parquetShard struct {
	object *Object
	volume *Volume
	column *parquet.Paged

	// Set by open.
	texts  bool    // its elements are bytes of values of any number of them
	item   int64   // bytes of an element
	tokens []int64 // tokens[i] is where group i begins, in elements; one more entry for the end
	data   Body
	all    *Object // the elements of the whole file, decoded
	taken  int64   // runs that data takes of those that are left
}

// find takes the column of the tokens.
func (x *parquetShard) find(f *parquet.File, want *parquetTokens) error {
	index, why := parquetColumn(f)
	if why != "" || f.Columns[index].Path[0] != want.name || parquetDType(f, index) != want.dtype {
		return absent("the tokens of other files of the set are a column %.80q, %s: of this one they are not", want.name, want.kind)
	}
	return x.take(f, index)
}

// take takes a column, if there is room for the places of its row groups.
func (x *parquetShard) take(f *parquet.File, index int) error {
	err := x.volume.places.take(int64(len(f.Groups)))
	if err == nil {
		x.column = f.Paged(index)
	}
	return err
}

// leave leaves the room for its column to others.
func (x *parquetShard) leave() {
	if x.column != nil {
		x.volume.places.giveBack(int64(x.column.Groups()))
		x.column = nil
	}
}

// resolve finds the tokens of a file, which has so many rows.
func (x *parquetShard) resolve(ctx context.Context, h *Shard, rows int64) error {
	left := new(atomic.Int64)
	left.Store(maxRuns / 4)
	if err := x.open(ctx, left); err != nil {
		x.leave()
		return err
	}
	h.Tokens, h.Documents, h.Data = x.elements(), rows, x.data
	h.Index = &parquetIndex{wholeDocuments{rows}, x, 1}
	return nil
}

// elements returns how many the file has.
func (x *parquetShard) elements() int64 { return x.tokens[len(x.tokens)-1] }

// open learns how many elements each row group has: from its statistics, or by a walk over its pages. Pages that are not compressed are
// always walked over, since their values may lie in the file as they are. left is how many runs the body may take.
func (x *parquetShard) open(ctx context.Context, left *atomic.Int64) (err error) {
	c := x.column
	if err := c.Readable(); err != nil {
		return err
	}
	c.Hold = x.volume.headers.take
	x.texts, x.item, x.tokens = c.Column.Bytes, c.Column.Width(), make([]int64, 1, c.Groups()+1)
	x.all = computed(0, int(x.item), x.fill)
	body := parquetBody{shard: x, left: left}
	defer func() {
		if err != nil {
			body.giveUp()
		}
	}()
	for g := range c.Groups() {
		n := c.Elements[g]
		if c.Plain(g) || n < 0 {
			n = 0
			err := c.Walk(ctx, x.object.Reader(ctx), g, func(p *parquet.Page) error {
				err := body.page(ctx, x.tokens[g]+n, p)
				n += p.Elements
				return err
			})
			if err != nil {
				return err
			}
		}
		if most := maxArrowRows / x.item; n > most || x.tokens[g] > most {
			return fmt.Errorf("%w: column %q has more than 2^53 bytes", parquet.ErrBroken, c.Name())
		}
		x.tokens = append(x.tokens, x.tokens[g]+n)
	}
	x.data, x.taken = body.done(x.elements()), body.taken
	return nil
}

// parquetBody puts together the elements of a file: those of plain pages as they lie there, and those between them decoded.
type parquetBody struct {
	shard *parquetShard
	left  *atomic.Int64
	taken int64
	full  bool // there were too many runs
	data  Body
}

// parquetLong is from how many bytes on texts of a plain page are worth an extent each. Their lengths lie between them.
const parquetLong = 1 << 10

// page adds a page that begins at an element, if its values lie in the file as they are.
func (b *parquetBody) page(ctx context.Context, element int64, p *parquet.Page) error {
	x := b.shard
	switch {
	case p.Values == 0 || p.Elements == 0 || x.texts && p.Mean() < parquetLong:
		return nil
	case !x.texts:
		b.add(element, p.Values, p.Elements)
		return nil
	}
	return x.column.Stored(ctx, x.object.Reader(ctx), p, func(offset, length int64) error {
		b.add(element, offset, length)
		element += length
		return nil
	})
}

// add adds n elements from element on, which lie at offset, and those before them decoded.
func (b *parquetBody) add(element, offset, n int64) {
	if n == 0 || b.full {
		return
	}
	b.decoded(element)
	b.data.Add(b.shard.object, offset, n*b.shard.item)
	more := int64(b.data.Runs()) - b.taken
	b.taken += more
	if b.full = b.left.Add(-more) < 0; b.full {
		b.giveUp()
	}
}

// giveUp leaves the runs to others: all elements are decoded.
func (b *parquetBody) giveUp() {
	b.left.Add(b.taken)
	b.taken, b.data = 0, Body{}
}

// decoded adds the elements until one.
func (b *parquetBody) decoded(until int64) {
	all, item := b.shard.all, b.shard.item
	all.Size = until * item
	b.data.Add(all, b.data.Size(), all.Size-b.data.Size())
}

// done returns the body of so many elements.
func (b *parquetBody) done(elements int64) Body {
	b.decoded(elements)
	b.data.clip()
	return b.data
}

// check compares the statistics with all pages.
func (x *parquetShard) check(ctx context.Context) error {
	if x.column == nil {
		return nil
	}
	for g := range x.column.Groups() {
		if err := x.column.Walk(ctx, x.object.Reader(ctx), g, func(*parquet.Page) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// parquetPages is the pages of a row group, by the rows and tokens of the group that come before each; one more entry for the end.
type parquetPages struct {
	list         []parquet.Page
	rows, tokens []int64
}

// pages returns the pages of a row group.
func (x *parquetShard) pages(ctx context.Context, group int) (*parquetPages, error) {
	v, err := x.volume.decoded.get(ctx, keptKey{x, "pages", int64(group)}, func(ctx context.Context) (any, int64, error) {
		list, err := x.column.Pages(ctx, x.object.Reader(ctx), group)
		p := &parquetPages{list, make([]int64, 1, len(list)+1), make([]int64, 1, len(list)+1)}
		for i, page := range list {
			p.rows, p.tokens = append(p.rows, p.rows[i]+page.Rows), append(p.tokens, p.tokens[i]+page.Elements)
		}
		return p, int64(len(list)) * 96, err
	})
	if err != nil {
		return nil, x.failed(err)
	}
	p := v.(*parquetPages)
	if n := len(p.list); p.tokens[n] != x.tokens[group+1]-x.tokens[group] {
		return nil, corruptf(x.object, 0, "row group %d has %d elements now and had %d", group, p.tokens[n], x.tokens[group+1]-x.tokens[group])
	}
	return p, nil
}

// failed names the file in an error of package parquet.
func (x *parquetShard) failed(err error) error { return fmt.Errorf("read %q: %w", x.object.Name, err) }

// page returns the decoded tokens of a page.
func (x *parquetShard) page(ctx context.Context, group, number int, p *parquet.Page) ([]byte, error) {
	v, err := x.volume.decoded.get(ctx, keptKey{x, "tokens", int64(group)<<32 | int64(number)}, func(ctx context.Context) (any, int64, error) {
		d, err := x.dictionary(ctx, p)
		if err != nil {
			return nil, 0, err
		}
		giveBack, err := x.volume.headers.take(ctx, x.column.Memory(p))
		if err != nil {
			return nil, 0, err
		}
		defer giveBack()
		raw, err := x.column.Read(ctx, x.object.Reader(ctx), p, d)
		return raw, int64(cap(raw)), err
	})
	if err != nil {
		return nil, x.failed(err)
	}
	return v.([]byte), nil
}

func (x *parquetShard) dictionary(ctx context.Context, p *parquet.Page) (*parquet.Dictionary, error) {
	if p.DictionaryOf() == 0 {
		return nil, nil
	}
	v, err := x.volume.decoded.get(ctx, keptKey{x, "dictionary", p.DictionaryOf()}, func(ctx context.Context) (any, int64, error) {
		giveBack, err := x.volume.headers.take(ctx, p.DictionaryMemory())
		if err != nil {
			return nil, 0, err
		}
		defer giveBack()
		d, err := x.column.Dictionary(ctx, x.object.Reader(ctx), p)
		if err != nil {
			return nil, 0, err
		}
		return d, d.Memory(), nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*parquet.Dictionary), nil
}

// fill writes the tokens first, first+1, ... of the file to dst.
func (x *parquetShard) fill(ctx context.Context, dst []byte, first int64) error {
	for g := sort.Search(len(x.tokens), func(i int) bool { return x.tokens[i] > first }) - 1; len(dst) > 0; g++ {
		pages, err := x.pages(ctx, g)
		if err != nil {
			return err
		}
		at := first - x.tokens[g]
		for i := sort.Search(len(pages.tokens), func(i int) bool { return pages.tokens[i] > at }) - 1; len(dst) > 0 && i < len(pages.list); i++ {
			p := &pages.list[i]
			if p.Elements == 0 {
				continue
			}
			raw, err := x.page(ctx, g, i, p)
			if err != nil {
				return err
			}
			n := copy(dst, raw[(at-pages.tokens[i])*x.item:])
			dst, at = dst[n:], at+int64(n)/x.item
		}
		first = x.tokens[g] + at
	}
	return nil
}

// parquetIndex has the rows of a file as documents.
type parquetIndex struct {
	wholeDocuments
	shard *parquetShard
	scale int64 // what an element counts
}

func (x *parquetIndex) Starts(ctx context.Context, dst []int64, first int64) error {
	s := x.shard
	at := func(i int) (row, token int64) { return s.column.Rows[i], s.tokens[i] }
	err := gather(dst, first, s.column.Groups(), at, func(g int, dst []int64, first int64) error {
		pages, err := s.pages(ctx, g)
		if err != nil {
			return err
		}
		at := func(i int) (row, token int64) { return pages.rows[i], pages.tokens[i] }
		return gather(dst, first, len(pages.list), at, func(i int, dst []int64, first int64) error {
			starts, err := s.starts(ctx, g, i, &pages.list[i])
			if err == nil {
				copy(dst, starts[first:])
			}
			return err
		})
	})
	for i := range dst {
		dst[i] *= x.scale
	}
	return err
}

// starts returns where the rows begin that begin in a page.
func (x *parquetShard) starts(ctx context.Context, group, number int, p *parquet.Page) ([]int64, error) {
	v, err := x.volume.decoded.get(ctx, keptKey{x, "starts", int64(group)<<32 | int64(number)}, func(ctx context.Context) (any, int64, error) {
		var d *parquet.Dictionary
		if x.texts {
			var err error
			if d, err = x.dictionary(ctx, p); err != nil {
				return nil, 0, err
			}
		}
		giveBack, err := x.volume.headers.take(ctx, x.column.Memory(p))
		if err != nil {
			return nil, 0, err
		}
		defer giveBack()
		starts, err := x.column.Starts(ctx, x.object.Reader(ctx), p, d)
		return starts, 8 * int64(cap(starts)), err
	})
	if err != nil {
		return nil, x.failed(err)
	}
	return v.([]int64), nil
}
