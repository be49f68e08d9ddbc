package layout

import (
	"context"
	"fmt"
	"sync/atomic"
)

// findFields finds the values of all columns, a piece for each record batch. The offsets of the rows stay in the file.
func (s *arrowStream) findFields(ctx context.Context, schema *arrowSchema, left *atomic.Int64) (*fieldsOf, error) {
	if len(schema.columns) > maxFields {
		return nil, absent("the samples of %s have more than %d fields", s.object.Name, maxFields)
	}
	out := &fieldsOf{}
	indexes := make([]arrowIndex, len(schema.columns))
	room := arrowRoom{left: left}
	for i := range schema.columns {
		c := &schema.columns[i]
		f := &field{name: c.name, form: c.form}
		if c.dtype == DTypeUnknown {
			f.missing, f.nulls = columnNotShown(c.kind), c.kind == "null"
		}
		out.fields = append(out.fields, f)
		indexes[i] = arrowIndex{object: s.object, width: c.width}
	}
	err := s.walk(ctx, func(b arrowBatch) error {
		rows, err := s.rows(b)
		if err != nil {
			return err
		}
		if out.samples += rows; out.samples > maxArrowRows {
			return corruptf(s.object, b.at, "the record batches have more than 2^53 rows")
		}
		b.first = out.samples - rows
		for i, f := range out.fields {
			if f.missing != "" {
				continue
			}
			p, err := s.piece(ctx, b, rows, &schema.columns[i])
			if err == nil {
				err = room.take(f.ragged)
			}
			if err := f.take(err); err != nil {
				return err
			}
			if f.missing == "" {
				if f.ragged {
					indexes[i].add(p)
				}
				f.values.Add(s.object, p.values, p.tokens*int64(f.dtype.Size()))
			}
		}
		return nil
	})
	if err != nil {
		left.Add(room.taken)
	}
	for i, f := range out.fields {
		if f.ragged {
			f.index = &indexes[i]
		}
	}
	return out, err
}

// columnNotShown says why a column of a table is no field.
func columnNotShown(kind string) string {
	return fmt.Sprintf("it is a column of %s: numbers, bytes, texts, and lists of numbers are shown", kind)
}

// arrowRoom counts the runs that the batches of a stream take of those that are left to the set.
type arrowRoom struct {
	left  *atomic.Int64
	taken int64
}

func (r *arrowRoom) take(ragged bool) error {
	runs := int64(1)
	if ragged {
		runs = arrowBatchRuns
	}
	r.taken += runs
	if r.left.Add(-runs) < 0 {
		return absent("the values of the fields of the set lie in more than %d record batches: write them in larger ones", maxRuns/arrowBatchRuns)
	}
	return nil
}
