package cufile

import (
	"bytes"
	"context"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// halved is a source whose bytes move once: before, they lie in one piece, and after that the second half is in the mount.
type halved struct{ *restless }

func (s *halved) Runs(ctx context.Context, spans []source.Span) ([]source.Run, error) {
	if s.moves.Load() == 0 {
		return s.restless.Runs(ctx, spans)
	}
	half := s.Size() / 2
	return []source.Run{{Length: half, Count: 1, Object: 1}, {Logical: half, Length: s.Size() - half, Offset: half, Count: 1, Object: source.InlineObject}}, nil
}

// TestCuFileWhereOnePieceBecameTwo reads what is no longer the one piece that the view's place in a page was made for.
func TestCuFileWhereOnePieceBecameTwo(t *testing.T) {
	name, data := randomFile(t, 300_000, 21)
	for _, offset := range []int64{0, 333} {
		r := newReader(t, smallOptions(fakeLibraries(t), Compat))
		plain, err := source.OpenPlain(name, 100)
		must(t, err)
		s := &halved{newRestless(plain)}
		f := r.add(name, s, "")
		v, err := f.fillGone(t, s, offset)
		must(t, err)
		if moved := v.Moved(); moved.Compat != 150_000-offset || moved.Staged != 150_000 {
			t.Errorf("from %d: %+v", offset, moved)
		}
		if !bytes.Equal(content(t, v), data[offset:]) {
			t.Errorf("from %d: wrong bytes", offset)
		}
		must(t, f.Close())
	}
}

// fillGone reads from offset on; the file goes before it is opened.
func (f *File) fillGone(t *testing.T, s *halved, offset int64) (*View, error) {
	spans := []source.Span{{Offset: offset, N: f.Size() - offset}}
	v, err := f.reserve(t.Context(), spans)
	if err != nil {
		return nil, err
	}
	s.gone.Store(1)
	return f.fill(t.Context(), v, spans)
}
