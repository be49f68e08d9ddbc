package cufile

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// many is files of one reader, of which rows are read in random order.
type many struct {
	files  []*File
	datas  [][]byte
	m      callersMemory
	random *rand.Rand
}

func newMany(t *testing.T, r *Reader, count, size int) *many {
	t.Helper()
	s := &many{m: newMemory(t, r, 200*1000, 0), random: rand.New(rand.NewPCG(uint64(count), uint64(size)))}
	for i := range count {
		name, data := randomFile(t, size+i, uint64(100+i))
		s.files, s.datas = append(s.files, openFileIn(t, r, name)), append(s.datas, data)
	}
	return s
}

// batch brings 200 rows of 1000 bytes of random files.
func (s *many) batch(t *testing.T) Result {
	t.Helper()
	parts := make([]part, len(s.files))
	var want []byte
	for i, f := range s.files {
		parts[i].file = f
	}
	for k := range int64(200) {
		i := s.random.IntN(len(s.files))
		offset := s.random.Int64N(int64(len(s.datas[i])) - 999)
		parts[i].spans = append(parts[i].spans, source.Span{Offset: offset, N: 1000, To: 1000 * k})
		want = append(want, s.datas[i][offset:][:1000]...)
	}
	q, err := beginParts(t.Context(), Target{Memory: s.m.Memory}, parts, nil)
	must(t, err)
	result, err := q.Result()
	must(t, err)
	if got := s.m.read()[guard:][:len(want)]; !bytes.Equal(got, want) {
		t.Fatalf("wrong bytes by %+v", result)
	}
	return result
}

// TestMoreDataThanPinned reads rows of four times as much as may be registered, in random order: what is registered stays so, and the rest of each batch comes
// by reads.
func TestMoreDataThanPinned(t *testing.T) {
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse, o.Window, o.Pinned = true, 64<<10, 1<<20
	r := newReader(t, o)
	s := newMany(t, r, 16, 256<<10-100)
	for range 5 {
		s.batch(t)
	}
	before := ask(t, o.Libraries.CUDA, "fake_cuda_registrations")
	for range 30 {
		if moved := s.batch(t).Moved; moved.Mapped < 20_000 || moved.Mapped+moved.Staged != 200_000 {
			t.Errorf("%+v", moved)
		}
	}
	if n := ask(t, o.Libraries.CUDA, "fake_cuda_registrations") - before; n > 0 {
		t.Errorf("%d windows were registered in the place of others", n)
	}
}

// TestOtherDataTakesTheRoom reads other files from some time on. They are registered in the end, in the place of those that are no longer read.
func TestOtherDataTakesTheRoom(t *testing.T) {
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse, o.Window, o.Pinned = true, 64<<10, 512<<10
	r := newReader(t, o)
	for range 2 {
		s := newMany(t, r, 4, 128<<10-100)
		batches := 0
		for s.batch(t).Moved.Staged > 0 {
			if batches++; batches > 100 {
				t.Fatal("100 batches came by reads, and nothing of them is registered")
			}
		}
	}
}

// TestMoreFilesThanMappings reads rows of more files than may be mapped: small ones are copied into pinned memory, and read there once they are.
func TestMoreFilesThanMappings(t *testing.T) {
	for _, path := range []Path{Auto, Mapped} {
		t.Run(string(path), func(t *testing.T) {
			o := smallOptions(fakeLibraries(t), path)
			o.Reuse, o.Window = true, 64<<10
			r := newReader(t, o)
			r.mapped.LimitFiles(4)
			s := newMany(t, r, 60, 3000)
			for range 5 {
				s.batch(t)
			}
			before := ask(t, o.Libraries.CUDA, "fake_cuda_launches")
			if result := s.batch(t); result.Moved.Mapped != 200_000 || result.Choice.Why != seenWhy {
				t.Errorf("%+v", result)
			}
			if n := ask(t, o.Libraries.CUDA, "fake_cuda_launches") - before; n != 1 {
				t.Errorf("%d launches, want 1", n)
			}
			if n := r.mapped.Files(); n != 4 {
				t.Errorf("%d files are mapped, want 4", n)
			}
			if n := r.PinnedBytes(); n > 4*4096+4*o.Window {
				t.Errorf("%d bytes are pinned", n)
			}
		})
	}
}
