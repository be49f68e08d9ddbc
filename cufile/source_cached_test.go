package cufile

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// restless is a source whose backing file is gone each time that it is opened, as often as it is told.
type restless struct {
	*plainFile
	gone  atomic.Int64
	moves atomic.Int64
	away  *backing
}

func (s *restless) runs(context.Context, int64, int64) ([]run, error) {
	return []run{{length: s.size(), count: 1, object: 1}}, nil
}

func (s *restless) backing(r *run) *backing {
	if r.object == inlineObject {
		return s.file
	}
	return s.away
}

func (s *restless) leave() []*backing { return []*backing{s.away} }

func (s *restless) relocate(context.Context) error {
	s.moves.Add(1)
	return nil
}

func (s *restless) open(_ context.Context, files []*backing) ([]*backing, error) {
	if s.gone.Add(-1) >= 0 {
		return nil, errMoved
	}
	for _, b := range files {
		fd, err := openFile(s.file.name)
		if err != nil {
			return nil, err
		}
		if err := b.adopt(fd); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (s *restless) release(context.Context, []*backing) {}

// TestFollow reads what moves, few times and again and again, into a view, by a stream, and into memory of the caller.
func TestFollow(t *testing.T) {
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
			plain, err := openPlain(name, 100)
			if err != nil {
				t.Fatal(err)
			}
			plain.file.inline = true
			s := &restless{plainFile: plain, away: &backing{id: 101, name: "away", fd: -1, object: 1, cached: true}}
			s.away.lender = s
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

// TestPlaces says when it must be asked again where bytes lie.
func TestPlaces(t *testing.T) {
	runs := []run{{length: 100, count: 1, object: 7}, {logical: 100, length: 50, count: 1, object: pendingObject}, {logical: 150, length: 10, count: 5, object: 8}}
	p := newPlaces(runs, time.Hour)
	if !p.hold(100, 50) {
		t.Error("it is asked again at once")
	}
	p.again = time.Time{}
	for span, want := range map[[2]int64]bool{{0, 100}: true, {0, 101}: false, {120, 1}: false, {150, 50}: true, {149, 2}: false} {
		if got := p.hold(span[0], span[1]); got != want {
			t.Errorf("%d bytes at %d: %v, want %v", span[1], span[0], got, want)
		}
	}
	p = newPlaces(runs[:1], 0)
	p.again = time.Time{}
	if !p.hold(0, 100) {
		t.Error("what is here is asked for again")
	}
	if (&places{}).hold(0, 1) {
		t.Error("nothing is known, and it is not asked for")
	}
}

// TestShed gives back what was not used for a while, and nothing else.
func TestShed(t *testing.T) {
	s := newShelf(t, 5)
	h := newHandles(5, letNothing)
	take := func(b *backing) {
		if err := h.take(t.Context(), []*backing{b}); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range s.files {
		b.cached = i > 0 // the first is local
		take(b)
		if i < 4 { // the last is in use
			h.give([]*backing{b})
		}
	}
	if h.shed(t.Context(), time.Hour); s.now.Load() != 5 {
		t.Errorf("%d of 5 are open, all of which were used just now", s.now.Load())
	}
	for _, b := range s.files[:3] {
		b.used = b.used.Add(-2 * time.Hour)
	}
	if h.shed(t.Context(), time.Hour); s.now.Load() != 3 || s.files[1].fd >= 0 || s.files[2].fd >= 0 {
		t.Errorf("%d are open, want all but two", s.now.Load())
	}
	take(s.files[1]) // it can be had again
	s.check(s.files[1])
	h.give([]*backing{s.files[1], s.files[4]})
	h.drop(s.files)
}
