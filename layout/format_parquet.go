package layout

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hbmfs/hbmfs/layout/parquet"
)

// parquetHead is a file that begins as Parquet does.
type parquetHead struct{}

func parquetProbe(o *Object, head []byte) any {
	if bytes.HasPrefix(head, []byte(parquet.Magic)) || bytes.HasPrefix(head, []byte(parquet.MagicEncrypted)) && strings.Contains(o.Name, ".parquet") {
		return parquetHead{}
	}
	return nil
}

// parquetLooks bounds how many footers of a directory are read before its sets are formed, to find one that is sound.
const parquetLooks = 8

// parquetAssemble makes a set of each split of a directory. The first file that is sound tells which column has the tokens: the other
// footers are read when the set is resolved.
func parquetAssemble(ctx context.Context, d *directory, members []member) {
	for split, of := range bySplit(members) {
		column, why := parquetFirst(ctx, d, of)
		parquetSet(d, split, of, column, why)
	}
}

// parquetFirst returns the column of tokens in the first sound file, or says why there is none.
func parquetFirst(ctx context.Context, d *directory, members []member) (*parquetTokens, string) {
	bad := ""
	for _, m := range members[:min(len(members), parquetLooks)] {
		var tokens *parquetTokens
		var why string
		if err := parquetOpen(ctx, d.volume, m.object, func(f *parquet.File) error {
			var index int
			if index, why = parquetColumn(f); why == "" {
				tokens = &parquetTokens{f.Columns[index].Path[0], parquetDType(f, index), f.Columns[index].Kind}
			}
			return nil
		}); err != nil {
			bad = cmp.Or(bad, err.Error())
			continue
		}
		return tokens, why
	}
	return nil, "no file can be read: " + bad
}

// parquetTokens is the column in which the files of a set have their tokens.
type parquetTokens struct {
	name  string
	dtype DType
	kind  string
}

// parquetOpen reads a footer. There is room for it until use returns, which keeps nothing of it, and does not wait for room of its own.
func parquetOpen(ctx context.Context, v *Volume, o *Object, use func(f *parquet.File) error) error {
	n, err := parquet.FooterSize(o.Reader(ctx), o.Size)
	if err != nil {
		return err
	}
	giveBack, err := v.headers.take(ctx, parquet.FooterMemory(n))
	if err != nil {
		return err
	}
	defer giveBack()
	f, err := parquet.Open(o.Reader(ctx), o.Size)
	if err != nil {
		return err
	}
	return use(f)
}

// parquetColumn returns the index of the column that holds the tokens, or says why there is none. It has the name that loaders
// expect, or is the only list of integers. A list is all that there is below a column of the table.
func parquetColumn(f *parquet.File) (int, string) {
	leaves := map[string]int{}
	for i := range f.Columns {
		leaves[f.Columns[i].Path[0]]++
	}
	var lists []int
	var names, all []string
	for i := range f.Columns {
		c := &f.Columns[i]
		if c.Tokens && leaves[c.Path[0]] == 1 {
			lists, names = append(lists, i), append(names, c.Path[0])
		}
		if len(all) < 10 {
			all = append(all, fmt.Sprintf("%.40q is %s", c.Name(), c.Kind))
		}
	}
	for _, name := range tokenColumns() {
		if i := slices.Index(names, name); i >= 0 {
			return lists[i], ""
		}
	}
	switch len(lists) {
	case 0:
		return -1, "no column holds lists of integers: " + strings.Join(all, ", ")
	case 1:
		return lists[0], ""
	}
	return -1, severalLists(names)
}

// parquetDType is the type of a column's elements.
func parquetDType(f *parquet.File, index int) DType { return shortDType(f.Columns[index].Element) }

// parquetSet adds a set of files that have their tokens in a column, or none for the reason why.
func parquetSet(d *directory, split string, members []member, column *parquetTokens, why string) {
	var shards []*Shard
	left := newPieces()
	abouts := make([]string, len(members)) // each written by its own shard's resolve
	for i, m := range members {
		s := newShard(m.object)
		x := &parquetShard{object: m.object, volume: d.volume}
		s.resolve = func(ctx context.Context, h *Shard) error {
			if err := parquetOpen(ctx, d.volume, m.object, func(f *parquet.File) error {
				h.Samples, abouts[i] = f.Rows, parquetTexts(f)
				if column == nil {
					return nil
				}
				return x.find(f, column)
			}); err != nil || column == nil {
				return parquetOpenError(m.object, err)
			}
			return parquetError(m.object, x.resolve(ctx, h, h.Samples))
		}
		s.check = func(ctx context.Context, h *Shard) error {
			if h.NoTokens != "" {
				return nil
			}
			return parquetError(m.object, x.check(ctx))
		}
		s.findFields = func(ctx context.Context, _ *Shard) (*fieldsOf, error) {
			return findParquetFields(ctx, d.volume, m.object, left)
		}
		shards = append(shards, s)
	}
	if column == nil {
		d.add(split, DTypeUnknown, shards).NoTokens = why
	} else {
		d.add(split, column.dtype, shards).note(fmt.Sprintf("the tokens are the column %.80q, %s", column.name, column.kind))
	}
	set := d.volume.Sets[len(d.volume.Sets)-1]
	set.summarize = func(s *Set) {
		for _, about := range abouts {
			if about != "" {
				s.note(about)
			}
		}
	}
}

// parquetOpenError translates an error of package parquet for a file whose footer is not read.
func parquetOpenError(o *Object, err error) error {
	if errors.Is(err, parquet.ErrBroken) || errors.Is(err, parquet.ErrUnread) {
		return corruptf(o, 0, "%v", err)
	}
	return err
}

// parquetError translates an error of package parquet for a shard: it is broken, or its tokens make no stream.
func parquetError(o *Object, err error) error {
	switch {
	case errors.Is(err, parquet.ErrBroken):
		return corruptf(o, 0, "%v", err)
	case errors.Is(err, parquet.ErrUnread), errors.Is(err, parquet.ErrHoles):
		return absent("%v", err)
	}
	return err
}

// parquetTexts says how to use columns of texts.
func parquetTexts(f *parquet.File) string {
	var texts []string
	for i := range f.Columns {
		if c := &f.Columns[i]; c.Kind == "text" && len(texts) < 5 {
			texts = append(texts, fmt.Sprintf("%.40q", c.Name()))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return "hbmfs pack --text-key tokenizes the texts in column " + strings.Join(texts, ", ")
}
