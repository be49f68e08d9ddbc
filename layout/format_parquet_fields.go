package layout

import (
	"context"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/layout/parquet"
)

// findParquetFields finds the values of all columns of a file. The columns of a structure are fields of their own.
func findParquetFields(ctx context.Context, v *Volume, o *Object, left *atomic.Int64) (*fieldsOf, error) {
	f, err := parquetOpen(ctx, v, o)
	if err != nil {
		return nil, parquetOpenError(o, err)
	}
	if len(f.Columns) > maxFields {
		return nil, absent("the samples of %s have more than %d fields", o.Name, maxFields)
	}
	out := &fieldsOf{samples: f.Rows}
	for i := range f.Columns {
		of := &field{name: f.Columns[i].Field, form: parquetForm(&f.Columns[i])}
		if of.dtype == DTypeUnknown {
			of.missing = columnNotShown(f.Columns[i].Kind)
		} else {
			err = of.take(parquetError(o, of.findParquet(ctx, f, i, &parquetShard{object: o, volume: v}, left)))
		}
		if err != nil {
			return nil, err
		}
		out.fields = append(out.fields, of)
	}
	return out, nil
}

// parquetForm is the form of a column's values, without a type where they are not shown.
func parquetForm(c *parquet.Column) form {
	switch {
	case c.Lists > 1 || c.Bytes && c.Lists > 0:
		return form{}
	case c.Bytes && c.Element != "":
		return bytesForm()
	}
	f := form{dtype: shortDType(c.Element), ragged: c.Lists > 0}
	if f.dtype == U8 && c.Width() > 1 && !f.ragged {
		f.shape = []int64{c.Width()}
	}
	return f
}

// findParquet finds the values of a column. A null has no elements: where there is one, the field is ragged.
func (f *field) findParquet(ctx context.Context, file *parquet.File, column int, x *parquetShard, left *atomic.Int64) error {
	if err := x.open(ctx, file, column, left); err != nil {
		return err
	}
	f.values = x.data
	if !f.ragged && x.elements() == file.Rows {
		return nil
	}
	f.ragged, f.shape = true, nil
	f.index = &parquetIndex{wholeDocuments{file.Rows}, x, x.item / int64(f.dtype.Size())}
	return nil
}
