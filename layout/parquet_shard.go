package layout

import (
	"context"
	"fmt"
	"sort"

	"github.com/hbmfs/hbmfs/layout/parquet"
)

// parquetShard is the tokens of one file. Those of plain pages lie in the file as they are. Others are decoded when they are read, a
// page at a time, and kept for a while in the volume's memory.
type parquetShard struct {
	object *Object
	volume *Volume

	// Set by resolve.
	column *parquet.TokenColumn
	item   int64   // bytes of a token
	rows   []int64 // rows[i] is where group i begins, in rows; one more entry for the end. The same for the next.
	tokens []int64
	all    *Object // the tokens of the whole file, decoded
}

// resolve learns how many tokens each row group has: from its statistics, or by a walk over its pages. Pages that are not compressed
// are always walked over, since their tokens may lie in the file as they are.
func (x *parquetShard) resolve(ctx context.Context, h *Shard, f *parquet.File, want *parquetTokens) error {
	index, why := parquetColumn(f)
	if why != "" || f.Columns[index].Path[0] != want.name || parquetDType(f.TokenColumn(index)) != want.dtype {
		return absent("the tokens of other files of the set are a column %.80q, %s: of this one they are not", want.name, want.kind)
	}
	c := f.TokenColumn(index)
	if err := c.Readable(); err != nil {
		return err
	}
	c.Hold = x.volume.headers.take
	x.column, x.item = c, int64(want.dtype.Size())
	x.rows, x.tokens = []int64{0}, []int64{0}
	var plain []parquetPiece
	for g := range c.Groups {
		n := c.Groups[g].Tokens
		if c.Groups[g].Stored || n < 0 {
			pages, err := c.Pages(ctx, x.object.Reader(ctx), g)
			if err != nil {
				return err
			}
			n = 0
			for i := range pages {
				p := &pages[i]
				if p.Values > 0 && p.Tokens > 0 {
					plain = append(plain, parquetPiece{x.tokens[g] + n, p.Tokens, p.Values})
				}
				n += p.Tokens
			}
		}
		if n > maxArrowRows || x.tokens[g] > maxArrowRows {
			return fmt.Errorf("%w: it has more than 2^53 tokens", parquet.ErrBroken)
		}
		x.rows, x.tokens = append(x.rows, x.rows[g]+c.Groups[g].Rows), append(x.tokens, x.tokens[g]+n)
	}
	h.Tokens, h.Documents = x.tokens[len(c.Groups)], f.Rows
	x.all = computed(h.Tokens, int(x.item), x.fill)
	h.Data = x.body(plain)
	h.Index = &parquetIndex{wholeDocuments{f.Rows}, x}
	return nil
}

// parquetPiece is tokens that lie in the file as they are.
type parquetPiece struct{ token, tokens, offset int64 }

// body has the plain pieces as they lie in the file, and the tokens between them decoded. Pieces are not worth more than maxRuns of
// them.
func (x *parquetShard) body(plain []parquetPiece) Body {
	var b Body
	if len(plain) > maxRuns/4 {
		plain = nil
	}
	decoded := func(to int64) { b.Add(x.all, b.Size(), to*x.item-b.Size()) }
	for _, p := range plain {
		decoded(p.token)
		b.Add(x.object, p.offset, p.tokens*x.item)
	}
	decoded(x.tokens[len(x.tokens)-1])
	return b
}

// check compares the statistics with all pages.
func (x *parquetShard) check(ctx context.Context) error {
	if x.column == nil {
		return nil
	}
	for g := range x.column.Groups {
		if _, err := x.column.Pages(ctx, x.object.Reader(ctx), g); err != nil {
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
			p.rows, p.tokens = append(p.rows, p.rows[i]+page.Rows), append(p.tokens, p.tokens[i]+page.Tokens)
		}
		return p, int64(len(list)) * 88, err
	})
	if err != nil {
		return nil, x.failed(err)
	}
	p := v.(*parquetPages)
	if n := len(p.list); p.tokens[n] != x.tokens[group+1]-x.tokens[group] {
		return nil, corruptf(x.object, 0, "row group %d has %d tokens now and had %d", group, p.tokens[n], x.tokens[group+1]-x.tokens[group])
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
		giveBack, err := x.volume.headers.take(ctx, p.Memory())
		if err != nil {
			return nil, 0, err
		}
		defer giveBack()
		raw, err := x.column.Read(ctx, x.object.Reader(ctx), p, d)
		return raw, int64(len(raw)), err
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
			if p.Tokens == 0 {
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
}

func (x *parquetIndex) Starts(ctx context.Context, dst []int64, first int64) error {
	s := x.shard
	at := func(i int) (row, token int64) { return s.rows[i], s.tokens[i] }
	return gather(dst, first, len(s.column.Groups), at, func(g int, dst []int64, first int64) error {
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
}

// starts returns where the rows begin that begin in a page.
func (x *parquetShard) starts(ctx context.Context, group, number int, p *parquet.Page) ([]int64, error) {
	v, err := x.volume.decoded.get(ctx, keptKey{x, "starts", int64(group)<<32 | int64(number)}, func(ctx context.Context) (any, int64, error) {
		giveBack, err := x.volume.headers.take(ctx, p.Memory())
		if err != nil {
			return nil, 0, err
		}
		defer giveBack()
		starts, err := x.column.Starts(ctx, x.object.Reader(ctx), p)
		return starts, 8 * int64(cap(starts)), err
	})
	if err != nil {
		return nil, x.failed(err)
	}
	return v.([]int64), nil
}
