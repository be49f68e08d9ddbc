package cufile

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// restless is a source whose backing file is gone each time that it is opened, as often as it is told. With full its daemon lends no more.
type restless struct {
	source.File
	full  bool
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

func (s *restless) Runs(context.Context, []source.Span) ([]source.Run, error) {
	return []source.Run{{Length: s.Size(), Count: 1, Object: 1}}, nil
}

func (s *restless) Backing(r *source.Run) *source.Backing {
	if r.Object == source.InlineObject {
		return s.File.Backing(nil)
	}
	return s.away
}

func (s *restless) Backings() []*source.Backing { return []*source.Backing{s.away} }

func (s *restless) Unshare() []*source.Backing { return s.Backings() }

func (s *restless) Relocate(context.Context) error {
	s.moves.Add(1)
	return nil
}

func (s *restless) Open(_ context.Context, files []*source.Backing) ([]*source.Backing, error) {
	if s.gone.Add(-1) >= 0 {
		return nil, source.ErrMoved
	}
	if s.full {
		return nil, source.ErrCrowded
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

// TestRetryMoved reads what moves, few times and again and again, or is not lent, into a view, by a stream, and into memory of the caller.
func TestRetryMoved(t *testing.T) {
	name, data := randomFile(t, 300_000, 3)
	bring := func(v *View, err error) ([]byte, Choice, error) {
		if err != nil {
			return nil, Choice{}, err
		}
		defer v.Release()
		return bytes.Clone(v.Bytes()), v.Choice(), nil
	}
	for gone, full := range map[int64]bool{0: false, 1: false, 2: false, 3: false, 1000: false, -1: true} {
		for verb, read := range map[string]func(*File) ([]byte, Choice, error){
			"read":   func(f *File) ([]byte, Choice, error) { return bring(f.Read(t.Context(), 1, f.Size()-1)) },
			"gather": func(f *File) ([]byte, Choice, error) { return bring(f.Gather(t.Context(), []int64{1}, f.Size()-1)) },
			"stream": func(f *File) ([]byte, Choice, error) {
				s := f.Stream(t.Context(), []Span{{1, f.Size() - 1}}, 1)
				defer s.Close()
				return bring(s.Next(t.Context()))
			},
			"batch": func(f *File) ([]byte, Choice, error) {
				m := newMemory(t, f.r, f.Size()-1, 0)
				b := Batch{Files: []*File{f}, Begins: []int64{0}, Element: 1, Starts: []int64{1}, Lengths: []int64{f.Size() - 1}}
				q, err := BeginBatch(t.Context(), Target{Memory: m.Memory}, &b, nil)
				if err != nil {
					return nil, Choice{}, err
				}
				result, err := q.Result()
				return m.read()[guard : guard+f.Size()-1], result.Choice, err
			},
		} {
			r := newReader(t, Options{Device: HostDevice, Threads: 2, Arena: 1 << 20})
			plain, err := source.OpenPlain(name, 100)
			if err != nil {
				t.Fatal(err)
			}
			s := newRestless(plain)
			s.gone.Store(gone)
			s.full = full
			f := r.add(name, s, "")
			got, choice, err := read(f)
			if err != nil {
				t.Fatalf("%s, %d times gone: %v", verb, gone, err)
			}
			inMount := strings.Contains(choice.Why, "through the mount")
			if !bytes.Equal(got, data[1:]) || inMount != (gone > 2 || full) || s.moves.Load() != min(max(gone, 0), 3) {
				t.Errorf("%s, %d times gone: chosen %+v, asked again %d times, or wrong bytes", verb, gone, choice, s.moves.Load())
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
