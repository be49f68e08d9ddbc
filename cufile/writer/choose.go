package writer

import (
	"context"
	"fmt"
)

// choose gives the path of a write.
func (q *Write) choose(ctx context.Context) (Choice, error) {
	o := &q.w.opt
	wish := o.Path
	why := "asked for"
	switch wish {
	case Buffered:
		return Choice{Buffered, why}, nil
	case Mapped:
		if q.dir.inMemory() {
			return Choice{Mapped, why}, nil
		}
		why = "mapped: the files do not lie in memory (tmpfs)"
	case Staged:
		if !q.dir.inMemory() {
			return Choice{Staged, why}, nil
		}
		why = "staged: the files lie in memory, and cannot be written past it"
	case Direct, Auto:
		proof, ok, err := q.proveDirect(ctx)
		if err != nil || ok {
			return Choice{Direct, proof}, err
		}
		why = "direct: " + proof
	}
	switch {
	case o.Require:
		return Choice{}, fmt.Errorf("write to %s: %w: %s", q.dir.path, ErrUnavailable, why)
	case wish == Staged:
		return Choice{Buffered, why}, nil
	case q.dir.inMemory():
		return Choice{Mapped, "the files lie in memory; " + why}, nil
	case wish == Auto:
		return Choice{Staged, "the files lie on storage; " + why}, nil
	}
	return Choice{Staged, why}, nil
}

func (q *Write) proveDirect(_ context.Context) (why string, ok bool, err error) {
	return "not yet", false, nil
}
