package writer

import (
	"context"
	"fmt"
)

// choose gives the path of a write.
func (q *Write) choose(_ context.Context) (Choice, error) {
	o := &q.w.opt
	switch {
	case o.Path == Direct || o.Path == Mapped:
		if o.Require {
			return Choice{}, fmt.Errorf("write to %s: %w: %s", q.dir.path, ErrUnavailable, o.Path)
		}
	case o.Path == Buffered:
		return Choice{Buffered, "asked for"}, nil
	case q.dir.inMemory():
		if o.Path == Staged && o.Require {
			return Choice{}, fmt.Errorf("write to %s: %w: staged writes past the page cache, and these files lie in it", q.dir.path, ErrUnavailable)
		}
		return Choice{Buffered, "the files lie in memory"}, nil
	}
	return Choice{Staged, "the files lie on storage"}, nil
}
