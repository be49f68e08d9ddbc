package cufile

import (
	"bytes"
	"context"
	"testing"
)

// halved is a source whose bytes move once: before, they lie in one piece, and after that the second half is in the mount.
type halved struct{ *restless }

func (s *halved) runs(ctx context.Context, offset, n int64) ([]run, error) {
	if s.moves.Load() == 0 {
		return s.restless.runs(ctx, offset, n)
	}
	half := s.size() / 2
	return []run{{length: half, count: 1, object: 1}, {logical: half, length: s.size() - half, offset: half, count: 1, object: inlineObject}}, nil
}

// TestCuFileWhereOnePieceBecameTwo reads what is no longer the one piece that the view's place in a page was made for.
func TestCuFileWhereOnePieceBecameTwo(t *testing.T) {
	name, data := randomFile(t, 300_000, 21)
	for _, offset := range []int64{0, 333} {
		r := newReader(t, smallOptions(fakeLibraries(t), Compat))
		plain, err := openPlain(name, 100)
		must(t, err)
		plain.file.inline = true
		s := &halved{&restless{plainFile: plain, away: &backing{id: 101, name: "away", fd: -1, object: 1, cached: true}}}
		s.away.lender = s
		f := &File{r: r, name: name, source: s}
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

// fillGone reads from offset on; the file goes between the plan and the move.
func (f *File) fillGone(t *testing.T, s *halved, offset int64) (*View, error) {
	v, w, err := f.prepare(t.Context(), []int64{offset}, f.Size()-offset)
	if err != nil {
		return nil, err
	}
	f.r.handles.drop([]*backing{s.away}) // closed, as if others had needed its place
	s.away.left = false
	s.gone.Store(1)
	return f.fill(t.Context(), v, w)
}
