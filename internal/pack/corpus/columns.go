package corpus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/layout/parquet"
)

// tokenColumns are the names under which loaders look for lists of tokens.
func tokenColumns() []string { return []string{"input_ids", "tokens", "token_ids"} }

// Tokens reports whether the sources hold lists of tokens instead of texts, as the first file does: a Parquet file
// whose column is one. Without a column of the name that the options give, one that loaders know is taken.
func (c *Corpus) Tokens(ctx context.Context) (bool, error) {
	for i := range c.Files {
		f := &c.Files[i]
		if contentExt(f.Name) != ".parquet" {
			continue
		}
		file, err := f.open(ctx)
		if err != nil {
			return false, &FileError{f.Name, err}
		}
		p, err := parquet.Open(file, f.Size)
		if err := errors.Join(err, file.close()); err != nil {
			return false, &FileError{f.Name, err}
		}
		if at, why := p.Find(c.opt.Key); why == "" {
			c.tokens = p.Columns[at].Tokens
		} else {
			for _, name := range tokenColumns() {
				if at, why := p.Find(name); why == "" && p.Columns[at].Tokens && c.opt.Key == "text" {
					c.opt.Key, c.tokens = name, true
					break
				}
			}
		}
		break
	}
	return c.tokens, nil
}

// errMixed says that a source is text and another one tokens.
var errMixed = errors.New("some sources are text and some are tokens: pack them one after the other")

// parquet yields the rows of the row groups that begin in the span.
func (r *reader) parquet(ctx context.Context, f content, from Position) error {
	file, err := parquet.Open(f, r.file.Size)
	if err != nil {
		return err
	}
	column, why := file.Find(r.corpus.opt.Key)
	if why != "" {
		return errors.New(why)
	}
	c := &file.Columns[column]
	switch {
	case c.Tokens != r.corpus.tokens:
		return errMixed
	case !c.Tokens && !c.Text:
		return fmt.Errorf("column %q is %s, and no text: name the one that holds the text with --text-key", c.Name(), c.Kind)
	}
	rows := int64(0) // before the group
	for g := range file.Groups {
		start := file.Groups[g].Start
		if start < r.span.From || start >= r.span.To || int64(g) < from.At {
			rows += file.Groups[g].Rows
			continue
		}
		skip := int64(0)
		if int64(g) == from.At {
			skip = from.Item
		}
		w := &columnWriter{r: r, column: c, group: int64(g), before: rows, skip: skip}
		r.used = start
		if err := file.Values(ctx, g, column, w.value); err != nil {
			return err
		}
		if err := w.end(); err != nil {
			return err
		}
		rows += file.Groups[g].Rows
	}
	return r.emit(&Block{Next: r.over()})
}

// columnWriter makes blocks of the values of a row group.
type columnWriter struct {
	r      *reader
	column *parquet.Column
	group  int64
	before int64 // rows of the file before the group
	skip   int64 // rows of the group that are known
	rows   int64 // of the group so far
	raw    []byte
	tokens []uint32
	ends   []int
	first  int64 // row of the block
}

func (w *columnWriter) value(v parquet.Value) error {
	if v.First {
		if err := w.endRow(); err != nil {
			return err
		}
		w.rows++
	}
	row := w.before + w.rows
	if v.Hole {
		return fmt.Errorf("row %d of column %q has an element that is null, which is no token", row, w.column.Name())
	}
	if w.rows <= w.skip || v.Null {
		return nil
	}
	if w.column.Tokens {
		if v.Number < 0 || v.Number > math.MaxUint32 {
			return fmt.Errorf("row %d of column %q: %d is no token", row, w.column.Name(), v.Number)
		}
		w.tokens = append(w.tokens, uint32(v.Number))
		if 4*len(w.tokens) > w.r.corpus.limit+blockBytes {
			return fmt.Errorf("row %d of column %q has too many tokens: more than %d are not read", row, w.column.Name(), w.r.corpus.limit/4)
		}
		return nil
	}
	if len(v.Bytes) > w.r.corpus.limit {
		return fmt.Errorf("row %d of column %q has a text of %d bytes: more than %d are not read", row, w.column.Name(), len(v.Bytes), w.r.corpus.limit)
	}
	if w.raw == nil {
		w.raw = w.r.buffer()
	}
	w.raw = append(w.raw, v.Bytes...)
	return nil
}

// endRow closes the row that was read, if there is one, and yields the rows if they are enough for a block.
func (w *columnWriter) endRow() error {
	if w.rows <= w.skip {
		w.first = w.rows
		return nil
	}
	w.ends = append(w.ends, len(w.raw)+len(w.tokens))
	if len(w.raw)+4*len(w.tokens) < blockBytes && len(w.ends) < blockDocuments {
		return nil
	}
	return w.flush(false)
}

func (w *columnWriter) end() error {
	if w.rows > w.skip {
		w.ends = append(w.ends, len(w.raw)+len(w.tokens))
	}
	return w.flush(true)
}

// flush yields a block.
func (w *columnWriter) flush(last bool) error {
	if len(w.ends) == 0 {
		return nil
	}
	b := w.r.block(w.raw)
	if w.raw == nil {
		b.free = nil
	}
	b.tokens = len(w.tokens)
	b.Next = Position{File: w.r.span.File, At: w.group, Item: w.rows}
	if last {
		b.Next = Position{File: w.r.span.File, At: w.group + 1}
	}
	texts := texts{column: w.column.Name(), first: w.before + w.first, ends: w.ends, doubtful: w.column.Kind == "binary"}
	tokens, isTokens := w.tokens, w.column.Tokens
	b.parse = func(yield func(Document) error) error {
		if isTokens {
			return yieldTokens(tokens, texts.ends, yield)
		}
		return texts.yield(b.raw, yield)
	}
	w.raw, w.tokens, w.ends, w.first = nil, nil, nil, w.rows
	return w.r.emit(b)
}

func yieldTokens(tokens []uint32, ends []int, yield func(Document) error) error {
	start := 0
	for _, end := range ends {
		if err := yield(Document{Tokens: tokens[start:end]}); err != nil {
			return err
		}
		start = end
	}
	return nil
}

// texts are the values of a block of a column.
type texts struct {
	column   string
	first    int64 // row of the file
	ends     []int
	doubtful bool // nobody says that they are text
}

func (t *texts) yield(raw []byte, yield func(Document) error) error {
	start := 0
	for i, end := range t.ends {
		text := raw[start:end]
		if t.doubtful && (!utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0) {
			return fmt.Errorf("row %d of column %q is binary, and no text: name another column, or write it as a string", t.first+int64(i)+1, t.column)
		}
		if err := yield(Document{Text: text}); err != nil {
			return err
		}
		start = end
	}
	return nil
}

// arrow yields the rows of the record batches that begin in the span.
func (r *reader) arrow(ctx context.Context, f content, from Position) error {
	o := r.file.object
	if o == nil {
		o = &layout.Object{Name: r.file.Name, Size: r.file.Size, Origin: originOf{f}}
	}
	table, err := layout.OpenArrowTexts(ctx, o, r.corpus.opt.Key)
	if errors.Is(err, layout.ErrNoColumn) {
		return errors.New(strings.TrimPrefix(err.Error(), layout.ErrNoColumn.Error()+": "))
	}
	if err != nil {
		return err
	}
	if r.corpus.tokens {
		return errMixed
	}
	rows := int64(0)
	err = table.Batches(ctx, func(b *layout.ArrowBatch) error {
		before := rows
		rows += b.Rows
		if b.Start < r.span.From || b.Start >= r.span.To || b.Start < from.At {
			return nil
		}
		first := int64(0)
		if b.Start == from.At {
			first = from.Item
		}
		r.used = b.Start
		return r.arrowBatch(ctx, b, before, first)
	})
	if err != nil {
		return err
	}
	return r.emit(&Block{Next: r.over()})
}

func (r *reader) arrowBatch(ctx context.Context, b *layout.ArrowBatch, before, first int64) error {
	for first < b.Rows {
		raw, ends, err := b.Read(ctx, r.buffer(), nil, first, blockBytes, blockDocuments, r.corpus.limit)
		if err != nil {
			return err
		}
		block := r.block(raw)
		t := texts{column: r.corpus.opt.Key, first: before + first, ends: ends}
		first += int64(len(ends))
		block.Next = Position{File: r.span.File, At: b.Start, Item: first}
		block.parse = func(yield func(Document) error) error { return t.yield(block.raw, yield) }
		if err := r.emit(block); err != nil {
			return err
		}
	}
	return nil
}

// originOf reads objects out of an open file.
type originOf struct{ io.ReaderAt }

// ReadAt implements [layout.Origin].
func (f originOf) ReadAt(ctx context.Context, _ *layout.Object, p []byte, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return f.ReaderAt.ReadAt(p, off)
}
