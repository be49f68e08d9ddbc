package cufile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/sequences"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// beginParts begins a batch of spans of bytes, those of each part.
func beginParts(ctx context.Context, to Target, parts []part, sequences *Sequences) (*Request, error) {
	b := &Batch{Element: 1}
	for k, p := range parts {
		b.Files = append(b.Files, p.file)
		for _, s := range p.spans {
			b.Sources, b.Starts, b.Lengths, b.Places = append(b.Sources, int32(k)), append(b.Starts, s.Offset), append(b.Lengths, s.N), append(b.Places, s.To)
		}
	}
	return BeginBatch(ctx, to, b, sequences)
}

// sequencesErr gives the error of a request without spans, of its begin or of its end.
func sequencesErr(t *testing.T, f *File, to Memory, s *Sequences) error {
	t.Helper()
	q, err := beginParts(t.Context(), Target{Memory: to}, []part{{file: f}}, s)
	if err == nil {
		_, err = q.Result()
	}
	return err
}

// TestScatter brings spans of any length, in any order, to places of their own. Bytes between these stay.
func TestScatter(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 1<<20+301_234, 12)
		r := newReader(t, o)
		f, other := openFileIn(t, r, name), openFileIn(t, r, name)
		random := rand.New(rand.NewPCG(12, 2))
		gap := int64(0)
		if isFake(o) { // whose memory begins as 0xDB
			gap = 1
		}
		for trial := range 8 {
			var spans []source.Span
			size := 1 << 20 // more than a quarter of the arena
			if trial < 2 {
				size >>= 3 - trial // of the smallest spans, there are thousands all the same
			}
			want, moved := bytes.Repeat([]byte{0xDB}, size), int64(0)
			for at := int64(0); at < int64(len(want)); at += gap {
				n := min(random.Int64N(2<<(4+2*trial)), int64(len(want))-at)
				offset := random.Int64N(f.Size() - n)
				copy(want[at:], data[offset:offset+n])
				spans = append(spans, source.Span{Offset: offset, N: n, To: at})
				at, moved = at+n, moved+n
			}
			random.Shuffle(len(spans), func(i, j int) { spans[i], spans[j] = spans[j], spans[i] })
			m := newMemory(t, r, int64(len(want)), int64(trial))
			q, err := beginParts(t.Context(), Target{Memory: m.Memory}, []part{{file: f, spans: spans[:len(spans)/3]}, {file: other, spans: spans[len(spans)/3:]}, {file: f}}, nil)
			must(t, err)
			result, err := q.Result()
			must(t, err)
			if result.Moved.Total() != moved || result.Choice.Why == "" {
				t.Errorf("%d bytes: %+v", moved, result)
			}
			m.holds(t, want, isFake(o))
		}
		m := newMemory(t, r, 100, 0)
		for _, c := range []struct {
			span source.Span
			want error
		}{
			{source.Span{Offset: -2, N: 1}, ErrOutOfRange},
			{source.Span{Offset: f.Size(), N: 1}, ErrOutOfRange},
			{source.Span{N: -1}, ErrMemory},
			{source.Span{N: 101}, ErrMemory},
			{source.Span{N: 1, To: 100}, ErrMemory},
			{source.Span{N: 1, To: -1}, ErrMemory},
			{source.Span{N: 1, To: 1<<63 - 1}, ErrMemory},
		} {
			q, err := beginParts(t.Context(), Target{Memory: m.Memory}, []part{{file: f, spans: []source.Span{c.span}}}, nil)
			must(t, err)
			if _, err := q.Result(); !errors.Is(err, c.want) {
				t.Errorf("%+v: %v, want %v", c.span, err, c.want)
			}
		}
	})
}

// filesOfTwoReaders opens a file in each of two readers of a fake GPU, which give everything back.
func filesOfTwoReaders(t *testing.T, o Options, size int) (files []*File, datas [][]byte) {
	t.Helper()
	var readers []*Reader
	for i := range 2 {
		r, err := New(t.Context(), o)
		must(t, err)
		name, data := randomFile(t, size, uint64(13+i))
		f, err := r.Open(t.Context(), name)
		must(t, err)
		files, datas, readers = append(files, f), append(datas, data), append(readers, r)
	}
	t.Cleanup(func() {
		for _, r := range readers {
			must(t, r.Close())
		}
		for _, name := range []string{"fake_cuda_violations", "fake_cuda_pinned", "fake_cuda_events"} {
			if n := ask(t, o.Libraries.CUDA, name); n != 0 {
				t.Errorf("%s is %d after both were closed", name, n)
			}
		}
	})
	return files, datas
}

// TestFilesOfSeveralReadersComeTogether brings files of two readers by one launch, once their windows are registered.
func TestFilesOfSeveralReadersComeTogether(t *testing.T) {
	o := smallOptions(fakeLibraries(t), Mapped)
	o.Pinned = 2 << 20 // of both
	files, datas := filesOfTwoReaders(t, o, 600_000)
	m := newMemory(t, files[0].r, 2*9000, 0)
	for trial := range 3 {
		before, want := ask(t, o.Libraries.CUDA, "fake_cuda_launches"), make([]byte, 0, 2*9000)
		var parts []part
		for i, f := range files {
			spans := make([]source.Span, 9)
			for k := range spans {
				spans[k] = source.Span{Offset: int64(k*66_000 + trial), N: 1000, To: int64(9000*i + 1000*k)}
				want = append(want, datas[i][spans[k].Offset:][:1000]...)
			}
			parts = append(parts, part{file: f, spans: spans})
		}
		q, err := beginParts(t.Context(), Target{Memory: m.Memory}, parts, nil)
		must(t, err)
		result, err := q.Result()
		must(t, err)
		m.holds(t, want, true)
		if n := ask(t, o.Libraries.CUDA, "fake_cuda_launches") - before; n == 0 || (trial > 0) != (n == 1) || result.Moved.Mapped != 18_000 {
			t.Errorf("trial %d: %d launches; %+v", trial, n, result)
		}
		for _, f := range files {
			if moved := f.Moved(); moved.Mapped != int64(trial+1)*9000 {
				t.Errorf("trial %d: %+v of a file", trial, moved)
			}
		}
	}
}

// TestReadersUseEachOthersWindows has requests of two readers, together and apart, want more windows than each has room for.
func TestReadersUseEachOthersWindows(t *testing.T) {
	o := smallOptions(fakeLibraries(t), Mapped)
	o.Pinned, o.Window = 512<<10, 64<<10
	files, datas := filesOfTwoReaders(t, o, 900_000)
	var wg sync.WaitGroup
	for g := range 6 {
		m := newMemory(t, files[0].r, 40*500, 0)
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			for range 60 {
				want, parts := make([]byte, 0, 40*500), []part{{file: files[g%2]}, {file: files[1-g%2]}}
				near := random.Int64N(800_000) // so that both happen: windows that are registered, and others
				for k := range 40 {
					i, offset := random.IntN(1+g%3)%2, near+random.Int64N(1+int64(g)*15_000)
					parts[i].spans = append(parts[i].spans, source.Span{Offset: offset, N: 500, To: int64(500 * k)})
					want = append(want, datas[(g+i)%2][offset:][:500]...)
				}
				q, err := beginParts(t.Context(), Target{Memory: m.Memory}, parts, nil)
				if err == nil {
					_, err = q.Result()
				}
				if err != nil {
					t.Error(err)
					return
				}
				if got := m.read()[guard:]; !bytes.Equal(got[:len(want)], want) {
					t.Error("wrong bytes")
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestSequences has each token's place and document written, for sequences of which some are empty, and for none at all.
func TestSequences(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 300_000, 17)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		for _, count := range []int{0, 1, 300, 20_000} { // the last one's table is longer than a slot
			random := rand.New(rand.NewPCG(uint64(count), 3))
			s := &Sequences{}
			begins, positions, numbers := []byte{}, []byte{}, []byte{}
			for i := range count {
				n := random.Int64N(9)
				s.Lengths, s.Documents = append(s.Lengths, n), append(s.Documents, int64(i)-1)
				begins = binary.NativeEndian.AppendUint32(begins, uint32(s.Tokens))
				for p := range n {
					positions = binary.NativeEndian.AppendUint64(positions, uint64(p))
					numbers = binary.NativeEndian.AppendUint64(numbers, uint64(int64(i)-1))
				}
				s.Tokens += n
			}
			begins = binary.NativeEndian.AppendUint32(begins, uint32(s.Tokens))
			tokens := newMemory(t, r, 1000, 0)
			var made []callersMemory
			for _, want := range [][]byte{begins, positions, numbers} {
				made = append(made, newMemory(t, r, int64(len(want)), 0))
			}
			s.Begins, s.Positions, s.Numbers = made[0].Memory, made[1].Memory, made[2].Memory
			q, err := beginParts(t.Context(), Target{Memory: tokens.Memory}, []part{{file: f, spans: []source.Span{{Offset: 7, N: 1000}}}}, s)
			must(t, err)
			_, err = q.Result()
			must(t, err)
			tokens.holds(t, data[7:1007], isFake(o))
			for i, want := range [][]byte{begins, positions, numbers} {
				made[i].holds(t, want, isFake(o))
			}
			if count < 300 {
				continue
			}
			for _, wrong := range []func(s *Sequences){
				func(s *Sequences) { s.Tokens++ },
				func(s *Sequences) { s.Documents = s.Documents[1:] },
				func(s *Sequences) { s.Positions.Length-- },
				func(s *Sequences) { s.Numbers.Pointer += 4 },
				func(s *Sequences) { s.Begins.Pointer = 0 },
			} {
				other := *s
				wrong(&other)
				if err := sequencesErr(t, f, tokens.Memory, &other); !errors.Is(err, ErrMemory) {
					t.Errorf("%d sequences: %v", count, err)
				}
			}
			for _, length := range []int64{-1, 9, math.MaxInt64} { // the arrays are changed behind the check
				var also *sequences.Writing
				must(t, r.device.Within(func() (err error) { also, err = r.sequences.Prepare(s, tokens.Memory); return err }))
				last := s.Lengths[count-1]
				s.Lengths[count-1] = length
				if err := also.Finish(t.Context(), 0); !errors.Is(err, ErrMemory) {
					t.Errorf("%d sequences, the last of %d tokens: %v", count, length, err)
				}
				s.Lengths[count-1] = last
			}
		}
	})
}

// TestPadding has spans with padding between them, of tokens of each size, with what is said of tokens and without.
func TestPadding(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 300_000, 18)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		for trial, element := range []int64{1, 2, 4, 8, 2} {
			random := rand.New(rand.NewPCG(uint64(trial), 4))
			s := &Sequences{Element: element, Pad: 0x8182838485868788}
			pad := binary.NativeEndian.AppendUint64(nil, s.Pad)[:element]
			var spans []source.Span
			var want []byte
			for i := range []int{1, 9, 700, 20_000, 700}[trial] { // a table of 20,000 is longer than a slot
				n, document := random.Int64N(9), int64(i)
				if i%3 == 0 {
					document = -1 - int64(i)
					want = append(want, bytes.Repeat(pad, int(n))...)
				} else {
					offset := random.Int64N(f.Size() - n*element)
					spans = append(spans, source.Span{Offset: offset, N: n * element, To: int64(len(want))})
					want = append(want, data[offset:offset+n*element]...)
				}
				s.Lengths, s.Documents, s.Tokens = append(s.Lengths, n), append(s.Documents, document), s.Tokens+n
			}
			if trial%2 == 0 {
				s.Begins, s.Positions, s.Numbers = newMemory(t, r, 4*int64(len(s.Lengths)+1), 0).Memory, newMemory(t, r, 8*s.Tokens, 0).Memory, newMemory(t, r, 8*s.Tokens, 0).Memory
			}
			m := newMemory(t, r, int64(len(want)), 0)
			q, err := beginParts(t.Context(), Target{Memory: m.Memory}, []part{{file: f, spans: spans}}, s)
			must(t, err)
			_, err = q.Result()
			must(t, err)
			m.holds(t, want, isFake(o))
			for _, wrong := range []func(s *Sequences, to *Memory){
				func(s *Sequences, _ *Memory) { s.Element = 3 },
				func(s *Sequences, _ *Memory) { s.Element, s.Begins = 0, Memory{} },
				func(_ *Sequences, to *Memory) { to.Length-- },
				func(_ *Sequences, to *Memory) { to.Pointer = 0 },
			} {
				other, to := *s, m.Memory
				if wrong(&other, &to); s.Tokens > 0 {
					if err := sequencesErr(t, f, to, &other); !errors.Is(err, ErrMemory) {
						t.Errorf("trial %d: %v", trial, err)
					}
				}
			}
		}
	})
}

// TestAReaderWaitsForWindowsThatAreLent has a reader need room while one launch of another reader uses all of its windows.
func TestAReaderWaitsForWindowsThatAreLent(t *testing.T) {
	o := smallOptions(fakeLibraries(t), Mapped)
	o.Pinned, o.Window = 9*64<<10, 64<<10
	files, datas := filesOfTwoReaders(t, o, 900_000)
	m, other := newMemory(t, files[0].r, 9000, 0), newMemory(t, files[0].r, 1000, 0)
	gather := func(f *File, at int64) {
		t.Helper()
		q, err := f.BeginGather(t.Context(), Target{Memory: other.Memory}, []int64{at}, 1000)
		must(t, err)
		_, err = q.Result()
		must(t, err)
	}
	gather(files[0], 0)
	parts := []part{{file: files[0], spans: []source.Span{{N: 1000}}}, {file: files[1]}}
	for k := range int64(8) { // not in order: for a reader that reads on, older windows would go, or the next one be registered
		window := (3*k + 1) % 8 * 65_536
		gather(files[1], window)
		parts[1].spans = append(parts[1].spans, source.Span{Offset: window, N: 1000, To: 1000 * (k + 1)})
	}
	launches := ask(t, o.Libraries.CUDA, "fake_cuda_launches")
	ask(t, o.Libraries.CUDA, "fake_cuda_hold")
	together, err := beginParts(t.Context(), Target{Memory: m.Memory}, parts, nil)
	must(t, err)
	eventually(t, "nothing is moved", func() bool { return ask(t, o.Libraries.CUDA, "fake_cuda_pending") > 0 })
	late, err := files[1].BeginGather(t.Context(), Target{Memory: other.Memory}, []int64{700_000}, 1000)
	must(t, err)
	eventually(t, "it waits for room, or ends", func() bool {
		select {
		case <-late.Done():
			return true
		default: // nothing else tells that it waits
			stacks := make([]byte, 1<<20)
			return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("mapped.(*Windows).makeRoom("))
		}
	})
	select {
	case <-late.Done():
		_, err := late.Result()
		t.Errorf("it came without room: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	ask(t, o.Libraries.CUDA, "fake_cuda_go_on")
	_, err = late.Result()
	must(t, err)
	other.holds(t, datas[1][700_000:701_000], true)
	_, err = together.Result()
	must(t, err)
	if n := ask(t, o.Libraries.CUDA, "fake_cuda_launches") - launches; n != 2 {
		t.Errorf("%d launches, want one for both readers and one for the late request", n)
	}
}
