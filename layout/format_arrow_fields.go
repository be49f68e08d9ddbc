package layout

import (
	"context"
	"fmt"
	"sync/atomic"
)

// findFields finds the values of all columns, a piece for each record batch. The offsets of the rows stay in the file.
func (s *arrowStream) findFields(ctx context.Context, schema *arrowSchema, left *atomic.Int64) (*fieldsOf, error) {
	out := &fieldsOf{}
	indexes := make([]arrowIndex, len(schema.columns))
	taken := int64(0) // of left
	for i := range schema.columns {
		c := &schema.columns[i]
		f := &field{name: c.name, form: c.form}
		if c.dtype == DTypeUnknown {
			f.missing = fmt.Sprintf("it is a column of %s: numbers, bytes, texts, and lists of numbers are shown", c.kind)
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
		for i, f := range out.fields {
			if f.missing != "" {
				continue
			}
			p, err := s.piece(ctx, b, rows, &schema.columns[i])
			runs := int64(1)
			if f.ragged {
				runs = arrowBatchRuns
			}
			taken += runs
			if left.Add(-runs) < 0 && err == nil {
				err = absent("the values of the fields of the set lie in more than %d record batches: write them in larger ones", maxRuns/arrowBatchRuns)
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
		left.Add(taken)
	}
	for i, f := range out.fields {
		if f.ragged {
			f.index = &indexes[i]
		}
	}
	return out, err
}
