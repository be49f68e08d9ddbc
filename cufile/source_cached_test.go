package cufile

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/internal/source"
)

// restless is a source whose backing file is gone each time that it is opened, as often as it is told.
type restless struct {
	source.File
	gone  atomic.Int64
	moves atomic.Int64
	away  *source.Backing
}

func newRestless(plain source.File) *restless {
	plain.Backing(nil).Inline = true
	s := &restless{File: plain}
	s.away = source.Lent(s, 101, "away", 1, 0, true)
	return s
}

func (s *restless) Runs(context.Context, int64, int64) ([]source.Run, error) {
	return []source.Run{{Length: s.Size(), Count: 1, Object: 1}}, nil
}

func (s *restless) Backing(r *source.Run) *source.Backing {
	if r.Object == source.InlineObject {
		return s.File.Backing(nil)
	}
	return s.away
}

func (s *restless) Unshare() []*source.Backing { return []*source.Backing{s.away} }

func (s *restless) Relocate(context.Context) error {
	s.moves.Add(1)
	return nil
}

func (s *restless) Open(_ context.Context, files []*source.Backing) ([]*source.Backing, error) {
	if s.gone.Add(-1) >= 0 {
		return nil, source.ErrMoved
	}
	for _, b := range files {
		fd, err := source.OpenFile(s.File.Backing(nil).Name)
		if err != nil {
			return nil, err
		}
		if err := b.Adopt(fd); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (s *restless) Release(context.Context, []*source.Backing) {}

// TestRetryMoved reads what moves, few times and again and again, into a view, by a stream, and into memory of the caller.
func TestRetryMoved(t *testing.T) {
	name, data := randomFile(t, 300_000, 3)
	for _, gone := range []int64{0, 2, 3, 1000} {
		for verb, read := range map[string]func(*File) (*View, error){
			"read":   func(f *File) (*View, error) { return f.Read(t.Context(), 1, f.Size()-1) },
			"gather": func(f *File) (*View, error) { return f.Gather(t.Context(), []int64{1}, f.Size()-1) },
			"stream": func(f *File) (*View, error) {
				s := f.Stream(t.Context(), []Span{{1, f.Size() - 1}}, 1)
				defer s.Close()
				return s.Next(t.Context())
			},
		} {
			r := newReader(t, Options{Device: HostDevice, Threads: 2, Arena: 1 << 20})
			plain, err := source.OpenPlain(name, 100)
			if err != nil {
				t.Fatal(err)
			}
			s := newRestless(plain)
			s.gone.Store(gone)
			f := &File{r: r, name: name, source: s}
			v, err := read(f)
			if err != nil {
				t.Fatalf("%s, %d times gone: %v", verb, gone, err)
			}
			inMount := strings.Contains(v.Choice().Why, "through the mount")
			if !bytes.Equal(v.Bytes(), data[1:]) || inMount != (gone > 2) || s.moves.Load() != min(gone, 3) {
				t.Errorf("%s, %d times gone: chosen %+v, asked again %d times, or wrong bytes", verb, gone, v.Choice(), s.moves.Load())
			}
			v.Release()
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
