package layout

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/layout/parquet"
)

// findParquetFields finds the values of all columns of a file. The columns of a structure are fields of their own. A broken column is a
// field that is missing: the others are shown.
func findParquetFields(ctx context.Context, v *Volume, o *Object, left *atomic.Int64) (*fieldsOf, error) {
	f, err := parquetOpen(ctx, v, o)
	if err != nil {
		return nil, parquetOpenError(o, err)
	}
	if len(f.Columns) > maxFields {
		return nil, absent("the samples of %s have more than %d fields", o.Name, maxFields)
	}
	out, shapes := &fieldsOf{samples: f.Rows}, parquetShapes(f)
	var broken []error
	taken := int64(0)
	for i := range f.Columns {
		c := &f.Columns[i]
		of := &field{name: c.Field(), form: parquetForm(c, shapes[c.Path[0]])}
		if of.dtype == DTypeUnknown {
			of.missing = columnNotShown(c.Kind)
		} else {
			x := &parquetShard{object: o, volume: v}
			err = of.take(parquetError(o, of.findParquet(ctx, f, i, x, left)))
			if bad, ok := errors.AsType[*corrupt](err); ok {
				of.missing, err, broken = bad.Error(), nil, append(broken, bad)
			}
			taken += x.taken
		}
		if err != nil {
			left.Add(taken)
			return nil, err
		}
		out.fields = append(out.fields, of)
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
	switch {
	case c.Bytes && c.Lists == 0 && c.Element != "":
		return bytesForm()
	case c.Bytes:
		return form{}
	case c.Lists > 0 && f.dtype != DTypeUnknown && shape.dtype == f.dtype && shape.elements() > 0 && shape.elements()*int64(f.dtype.Size())%c.Width() == 0:
		return shape
	case c.Lists > 1:
		return form{}
	case f.dtype == U8 && c.Width() > 1 && !f.ragged:
		f.shape = []int64{c.Width()}
	}
	return f
}

// findParquet finds the values of a column. A null has no elements: where there is one, the field is ragged.
func (f *field) findParquet(ctx context.Context, file *parquet.File, column int, x *parquetShard, left *atomic.Int64) error {
	c := &file.Columns[column]
	scale := c.Width() / int64(f.dtype.Size())
	if c.Lists > 0 && !f.ragged {
		x.each = f.elements() / scale
	}
	err := x.open(ctx, file, column, left)
	uneven := errors.Is(err, parquet.ErrUneven)
	if err == nil && !f.ragged {
		want, ok := multiply(file.Rows, max(x.each, 1))
		uneven = !ok || x.elements() != want
	}
	switch {
	case uneven && c.Lists > 1:
		return absent("not all arrays of column %q have the shape %s: some are null, or of another length", f.name, shapeText(f.shape))
	case uneven && err != nil:
		x.each = 0
		err = x.open(ctx, file, column, left)
	}
	if err != nil {
		return err
	}
	if f.values = x.data; uneven || f.ragged {
		x.column.Each, f.ragged, f.shape = 0, true, nil
		f.index = &parquetIndex{wholeDocuments{file.Rows}, x, scale}
		f.costly = slices.ContainsFunc(x.column.Groups, func(g parquet.PagedGroup) bool { return !g.Stored })
	}
	return nil
}
