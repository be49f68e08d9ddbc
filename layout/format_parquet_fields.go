package layout

import (
	"context"
	"encoding/base64"
	"errors"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/layout/parquet"
)

// findParquetFields finds the values of all columns of a file. The columns of a structure are fields of their own. A broken column is a
// field that is missing: the others are shown.
func findParquetFields(ctx context.Context, v *Volume, o *Object, left *atomic.Int64) (*fieldsOf, error) {
	out := &fieldsOf{}
	var shards []*parquetShard // of the fields that are shown
	err := parquetOpen(ctx, v, o, func(f *parquet.File) error {
		if len(f.Columns) > maxFields {
			return absent("the samples of %s have more than %d fields", o.Name, maxFields)
		}
		shapes := parquetShapes(f)
		out.samples = f.Rows
		for i := range f.Columns {
			c, x := &f.Columns[i], &parquetShard{object: o, volume: v}
			of := &field{name: c.Field(), form: parquetForm(c, shapes[c.Path[0]])}
			if of.dtype == DTypeUnknown {
				of.missing, of.nulls = columnNotShown(c.Kind), c.Kind == "null"
			} else if err := x.take(f, i); err != nil {
				return err
			}
			of.leave = x.leave
			out.fields, shards = append(out.fields, of), append(shards, x)
		}
		return nil
	})
	err = parquetOpenError(o, err)
	var broken []error
	for i, of := range out.fields {
		x := shards[i]
		if err != nil || x.column == nil {
			continue
		}
		err = of.take(parquetError(o, of.findParquet(ctx, out.samples, x, left)))
		if bad, ok := errors.AsType[*corrupt](err); ok {
			of.missing, err, broken = bad.Error(), nil, append(broken, bad)
		}
		if of.missing != "" {
			x.leave()
		}
	}
	if err != nil {
		for _, x := range shards {
			left.Add(x.taken)
			x.leave()
		}
		return nil, err
	}
	for _, err := range broken {
		v.report(o, err)
	}
	return out, nil
}

// parquetShapes returns the forms of columns whose values have a fixed shape in Arrow, by name. Parquet itself has lists of any length.
// Arrow's libraries put their schema into the footer: a message as in a stream (apache/arrow, cpp/src/parquet/arrow/writer.cc).
func parquetShapes(f *parquet.File) map[string]form {
	if len(f.Arrow) > maxArrowMetadata {
		return nil
	}
	message, err := base64.StdEncoding.AppendDecode(nil, f.Arrow)
	if err != nil || len(message) < 8 {
		return nil
	}
	schema, err := parseArrowSchema(message[8:])
	if err != nil {
		return nil
	}
	shapes := map[string]form{}
	for i := range schema.columns {
		if c := &schema.columns[i]; !c.ragged && len(c.shape) > 0 {
			shapes[c.name] = c.form
		}
	}
	return shapes
}

// parquetForm is the form of a column's values, without a type where they are not shown. shape is their form in Arrow, if that is fixed.
func parquetForm(c *parquet.Column, shape form) form {
	f := form{dtype: shortDType(c.Element), ragged: c.Lists > 0}
	item := form{shape: shape.shape[min(c.Lists, len(shape.shape)):]} // of the lists
	switch {
	case c.Bytes && c.Lists == 0 && c.Element != "":
		return bytesForm()
	case c.Bytes:
		return form{}
	case c.Lists > 0 && f.dtype != DTypeUnknown && shape.dtype == f.dtype && len(shape.shape) >= c.Lists && item.elements()*int64(f.dtype.Size()) == c.Width():
		return shape
	case c.Lists > 1:
		return form{}
	case f.dtype == U8 && c.Width() > 1 && !f.ragged:
		f.shape = []int64{c.Width()}
	}
	return f
}

// findParquet finds the values of a column. A null has no elements: where there is one, the field is ragged.
func (f *field) findParquet(ctx context.Context, rows int64, x *parquetShard, left *atomic.Int64) error {
	c := &x.column.Column
	scale := c.Width() / int64(f.dtype.Size())
	if !f.ragged {
		x.column.Each = f.shape[:c.Lists]
	}
	err := x.open(ctx, left)
	uneven, why := errors.Is(err, parquet.ErrUneven), err
	if err == nil && !f.ragged {
		if want, ok := multiply(rows, f.elements()/scale); !ok || x.elements() != want {
			uneven, why = true, errors.New("some are null, or of another length")
		}
	}
	switch {
	case uneven && c.Lists > 1:
		return absent("not all arrays of column %q have the shape %s in %s: %v", f.name, shapeText(f.shape), x.object.Name, why)
	case uneven && err != nil:
		x.column.Each = nil
		err = x.open(ctx, left)
	}
	if err != nil {
		return err
	}
	if c.Lists > 1 {
		f.checks = append(f.checks, func(ctx context.Context) error {
			if err := x.check(ctx); err != nil {
				return x.failed(err)
			}
			return nil
		})
	}
	if f.values = x.data; uneven || f.ragged {
		x.column.Each, f.ragged, f.shape = nil, true, nil
		f.index = &parquetIndex{wholeDocuments{rows}, x, scale}
		for g := range x.column.Groups() {
			f.costly = f.costly || !x.column.Plain(g)
		}
	}
	return nil
}
