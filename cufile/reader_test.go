package cufile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// everyPath runs a test on each path that moves bytes, with a fake GPU where it needs one; and on GPU 0 itself where
// HBMFS_GPU is set (HBMFS_GPU_DIRECT adds the direct path, HBMFS_LIBCUFILE names a libcufile).
func everyPath(t *testing.T, test func(t *testing.T, o Options)) {
	for _, path := range []Path{Host, Staged, Mapped, Compat, Direct, Auto} {
		t.Run(string(path), func(t *testing.T) {
			if path == Host {
				o := smallOptions(driver.Libraries{}, Host)
				o.Device = HostDevice
				test(t, o)
				return
			}
			t.Setenv("FAKE_CUFILE_MOVED", "nvfs")
			test(t, smallOptions(fakeLibraries(t), path))
		})
		if path == Host || os.Getenv("HBMFS_GPU") == "" || (path == Direct && os.Getenv("HBMFS_GPU_DIRECT") == "") {
			continue
		}
		t.Run("gpu "+string(path), func(t *testing.T) {
			test(t, smallOptions(driver.Libraries{CuFile: os.Getenv("HBMFS_LIBCUFILE")}, path))
		})
	}
}

func TestReadBringsTheFilesBytes(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 3<<20+1234, 1)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		if f.Size() != int64(len(data)) {
			t.Fatalf("size %d, want %d", f.Size(), len(data))
		}
		random := rand.New(rand.NewPCG(1, 2))
		ranges := [][2]int64{{0, f.Size()}, {0, 0}, {f.Size(), 0}, {0, 1}, {f.Size() - 1, 1}, {4095, 2}, {256<<10 - 1, 2}, {1, 3 << 20}}
		for range 40 {
			offset := random.Int64N(f.Size())
			ranges = append(ranges, [2]int64{offset, random.Int64N(f.Size() - offset)})
		}
		for _, span := range ranges {
			v, err := f.Read(t.Context(), span[0], span[1])
			if err != nil {
				t.Fatalf("read %d at %d: %v", span[1], span[0], err)
			}
			if v.Moved().Total() != span[1] {
				t.Errorf("read %d at %d moved %+v", span[1], span[0], v.Moved())
			}
			if v.Choice().Why == "" {
				t.Error("no reason for the choice")
			}
			if got := content(t, v); !bytes.Equal(got, data[span[0]:span[0]+span[1]]) {
				t.Fatalf("read %d at %d by %s: wrong bytes", span[1], span[0], v.Choice().Path)
			}
		}
		if r.PinnedBytes() > o.Pinned {
			t.Errorf("%d bytes pinned, at most %d allowed", r.PinnedBytes(), o.Pinned)
		}
		if o.Path != Auto {
			var want Moved
			want.count(o.Path, f.Moved().Total())
			if f.Moved() != want {
				t.Errorf("moved %+v, all should be %s", f.Moved(), o.Path)
			}
		}
	})
}

func TestGatherBringsSpansInOrder(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 3<<20+77, 2)
		f := openFileIn(t, newReader(t, o), name)
		random := rand.New(rand.NewPCG(3, 4))
		for _, length := range []int64{1, 15, 16, 17, 1000, 4096, 8192, 300_000} {
			offsets := make([]int64, min(200, (3<<20)/length))
			var want []byte
			for i := range offsets {
				offsets[i] = random.Int64N(f.Size() - length + 1)
				want = append(want, data[offsets[i]:offsets[i]+length]...)
			}
			v, err := f.Gather(t.Context(), offsets, length)
			if err != nil {
				t.Fatalf("gather %d x %d: %v", len(offsets), length, err)
			}
			if !bytes.Equal(content(t, v), want) {
				t.Fatalf("gather %d x %d by %s: wrong bytes", len(offsets), length, v.Choice().Path)
			}
		}
	})
}

func TestGatherOfSpansOfAnyLength(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 3<<20+77, 2)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		random := rand.New(rand.NewPCG(5, 6))
		for range 10 {
			var spans []Span
			var want []byte
			for range random.IntN(100) {
				at := random.Int64N(f.Size())
				spans = append(spans, Span{at, random.Int64N(min(20_000, f.Size()-at+1))})
				want = append(want, data[at:at+spans[len(spans)-1].Length]...)
			}
			v, err := f.GatherSpans(t.Context(), spans)
			if err != nil {
				t.Fatalf("gather %d spans: %v", len(spans), err)
			}
			if !bytes.Equal(content(t, v), want) {
				t.Fatalf("gather %d spans by %s: wrong bytes", len(spans), v.Choice().Path)
			}
		}
		if _, err := f.GatherSpans(t.Context(), slices.Repeat([]Span{{0, f.Size()}}, int(r.arena.Size()/f.Size())+1)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("more than the arena: %v", err)
		}
	})
}

func TestStreamKeepsThePlansOrder(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 9<<20+5, 3) // larger than the arena and than what may be pinned
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		var plan []Span
		for at := int64(0); at < f.Size(); at += 300_001 {
			plan = append(plan, Span{at, min(300_001, f.Size()-at)})
		}
		s := f.Stream(t.Context(), plan, 3)
		defer s.Close()
		for _, span := range plan {
			v, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(content(t, v), data[span.Offset:span.Offset+span.Length]) {
				t.Fatalf("wrong bytes at %d", span.Offset)
			}
		}
		if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last span: %v, want EOF", err)
		}
		if o.Libraries.CUDA != "" {
			slots := int64(o.Threads+1) * crew.SlotsPerWorker * (o.Slot + 2*driver.PageSize)
			if peak := int64(ask(t, o.Libraries.CUDA, "fake_cuda_pinned_peak")); peak > slots+o.Pinned {
				t.Errorf("%d bytes were pinned at once, at most %d for slots and %d for windows are allowed", peak, slots, o.Pinned)
			}
		}
	})
}

func TestStreamThatIsGivenUp(t *testing.T) {
	name, _ := randomFile(t, 4<<20, 3)
	o := smallOptions(driver.Libraries{}, Host)
	o.Device = HostDevice
	r := newReader(t, o)
	f := openFileIn(t, r, name)
	ctx, cancel := context.WithCancel(t.Context())
	s := f.Stream(ctx, []Span{{0, 1 << 20}, {1 << 20, 1 << 20}, {2 << 20, 1 << 20}, {5 << 20, 1}}, 2)
	v, err := s.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
	cancel()
	for err == nil {
		if v, err = s.Next(context.Background()); err == nil {
			v.Release()
		}
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a plan that was not finished ends with %v, want context.Canceled", err)
	}
	s.Close()
	// Everything was given back: the whole arena can be had.
	v, err = f.Read(t.Context(), 0, f.Size())
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
}

// TestStreamWhoseContextHasACause gives the context's error, as reads do, and not its cause.
func TestStreamWhoseContextHasACause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupt signal received"))
	s := (&File{}).Stream(ctx, nil, 1)
	defer s.Close()
	for range 2 {
		if _, err := s.Next(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("Next: %v, want that the context was cancelled", err)
		}
	}
}

// TestStreamSkipsNothing gives up waiting for a span whose successor is there already.
func TestStreamSkipsNothing(t *testing.T) {
	s := &Stream{ctx: t.Context(), cancel: func() {}, ready: make(chan chan fetched, 2)}
	slow, quick := make(chan fetched, 1), make(chan fetched, 1)
	s.ready <- slow
	s.ready <- quick
	close(s.ready)
	quick <- fetched{view: &View{}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	slow <- fetched{view: &View{}}
	if v, err := s.Next(t.Context()); v != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("after an error: %v, and a view: %v", err, v != nil)
	}
	s.Close()
}

func TestManyReadersAtOnce(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 2<<20, 4)
		f := openFileIn(t, newReader(t, o), name)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(5, uint64(i)))
				for range 12 {
					n := random.Int64N(600_000)
					offsets := []int64{random.Int64N(f.Size() - n), random.Int64N(f.Size() - n)}
					v, err := f.Gather(t.Context(), offsets, n)
					if err != nil {
						t.Error(err)
						return
					}
					got := make([]byte, v.Len())
					if err := v.CopyTo(t.Context(), got, 0); err != nil {
						t.Error(err)
					}
					v.Release()
					if !bytes.Equal(got[:n], data[offsets[0]:offsets[0]+n]) || !bytes.Equal(got[n:], data[offsets[1]:offsets[1]+n]) {
						t.Error("wrong bytes")
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestReadRefusesWhatIsNotInTheFile(t *testing.T) {
	name, _ := randomFile(t, 10_000, 5)
	o := smallOptions(driver.Libraries{}, Host)
	o.Device = HostDevice
	f := openFileIn(t, newReader(t, o), name)
	const huge = 1<<63 - 1
	for _, c := range []struct{ offset, n int64 }{{-1, 1}, {0, 10_001}, {10_001, 0}, {10_000, 1}, {1, huge}, {huge, huge}, {0, -1}} {
		if v, err := f.Read(t.Context(), c.offset, c.n); err == nil {
			v.Release()
			t.Errorf("read %d at %d: no error", c.n, c.offset)
		}
	}
	if _, err := f.Gather(t.Context(), make([]int64, 5000), 8000); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a gather of 40 MB into 4 MiB: %v, want ErrTooLarge", err)
	}
}

func TestFullArenaWaitsForARelease(t *testing.T) {
	name, _ := randomFile(t, 4<<20, 6)
	o := smallOptions(driver.Libraries{}, Host)
	o.Device = HostDevice
	f := openFileIn(t, newReader(t, o), name)
	first, err := f.Read(t.Context(), 0, 3<<20)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := f.Read(ctx, 0, 2<<20); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("read into a full arena: %v, want a deadline", err)
	}
	time.AfterFunc(20*time.Millisecond, first.Release)
	second, err := f.Read(t.Context(), 0, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	second.Release()
	second.Release() // twice does nothing
}

func TestTruncatedFileIsAnErrorNotZeros(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		r := newReader(t, o)
		for _, size := range []int64{100_000, 1<<20 - 1} { // in the last page the rest becomes zeros
			name, _ := randomFile(t, 1<<20, 7)
			f := openFileIn(t, r, name)
			if size > 1<<19 { // from pages that are registered already
				v, err := f.Read(t.Context(), 50_000, 1<<20-50_000)
				must(t, err)
				v.Release()
			}
			must(t, os.Truncate(name, size))
			if v, err := f.Read(t.Context(), 50_000, 1<<20-50_000); !errors.Is(err, ErrShort) {
				t.Errorf("cut to %d: %v %v, want ErrShort", size, v, err)
			}
		}
	})
}

func TestWithoutKernelsGatherCopies(t *testing.T) {
	l := fakeLibraries(t)
	l.CUDA = fakes.Copy(t, fakegpu.CUDAWithoutKernels)
	name, data := randomFile(t, 1<<20, 9)
	f := openFileIn(t, newReader(t, smallOptions(l, Mapped)), name)
	v, err := f.Gather(t.Context(), []int64{5, 500_000, 262_140}, 100)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Join([][]byte{data[5:105], data[500_000:500_100], data[262_140:262_240]}, nil)
	if !bytes.Equal(content(t, v), want) {
		t.Error("wrong bytes")
	}
}

func TestGatherOnKeptMappingsLaunchesTheKernel(t *testing.T) {
	l := fakeLibraries(t)
	name, _ := randomFile(t, 1<<20, 10)
	f := openFileIn(t, newReader(t, smallOptions(l, Mapped)), name)
	for range 3 {
		v, err := f.Gather(t.Context(), []int64{1, 2, 3, 700_000}, 4096)
		if err != nil {
			t.Fatal(err)
		}
		v.Release()
	}
	if n := ask(t, l.CUDA, "fake_cuda_launches"); n != 3 {
		t.Errorf("%d launches, want 3", n)
	}
}

func TestGatherOfLargeSamplesBeginsCopiesTogether(t *testing.T) {
	l := fakeLibraries(t)
	name, data := randomFile(t, 4<<20, 11)
	o := smallOptions(l, Mapped)
	o.Window, o.Pinned = 4<<20, 8<<20 // the end of a window is the end of a copy
	f := openFileIn(t, newReader(t, o), name)
	const length = 600_000
	var want []byte
	starts := []int64{1, 900_000, 2_700_001}
	for _, start := range starts {
		want = append(want, data[start:start+length]...)
	}
	for range 3 {
		v, err := f.Gather(t.Context(), starts, length)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(content(t, v), want) {
			t.Error("wrong bytes")
		}
		v.Release()
	}
	if launches, calls := ask(t, l.CUDA, "fake_cuda_launches"), ask(t, l.CUDA, "fake_cuda_batches"); launches != 0 || calls != 3 {
		t.Errorf("%d launches, %d calls that began several copies; want 0 and 3", launches, calls)
	}
}

func TestBaselines(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, _ := randomFile(t, 1<<20, 12)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		if err := f.Plain(t.Context(), 100, 900_000); err != nil {
			t.Error(err)
		}
		if f.Moved().Total() != 0 {
			t.Errorf("a plain read counts as %+v", f.Moved())
		}
		rate, err := r.Wall(t.Context(), time.Millisecond)
		if onHost := o.Device == HostDevice; onHost != errors.Is(err, ErrUnavailable) || onHost != (rate == 0) {
			t.Errorf("wall %v, %v", rate, err)
		}
	})
}

func TestAutoSaysWhy(t *testing.T) {
	l := fakeLibraries(t)
	name, _ := randomFile(t, 1<<20, 11)
	o := smallOptions(l, Auto)
	o.Reuse = true
	f := openFileIn(t, newReader(t, o), name)
	for i, part := range []string{"will be read again", "registered with the GPU already"} {
		v, err := f.Read(t.Context(), 0, 100_000)
		if err != nil {
			t.Fatal(err)
		}
		if c := v.Choice(); c.Path != Mapped || !strings.Contains(c.Why, part) {
			t.Errorf("read %d: %+v, want mapped because %q", i, c, part)
		}
		v.Release()
	}
}

func TestPathThatIsNotThereIsAnError(t *testing.T) {
	missing := driver.Libraries{CUDA: "libcuda-that-is-not-there.so", CuFile: "libcufile-that-is-not-there.so"}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no libcuda":       {Options{Path: Auto, Libraries: missing}, "install the NVIDIA driver"},
		"host on a GPU":    {Options{Path: Host, Libraries: missing}, "host ends in host memory"},
		"staged on a host": {Options{Path: Staged, Device: HostDevice}, "needs a GPU"},
		"device -2":        {Options{Device: -2}, "-1 for the host"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want one that says %q", err, c.want)
			}
		})
	}
}

// endsLater is a context that ends when it has been asked a number of times.
type endsLater struct {
	context.Context
	left int
}

func (c *endsLater) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestNewEndsWithItsContext has the context end at every step: New gives everything back.
func TestNewEndsWithItsContext(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		steps := 0
		for ; ; steps++ {
			r, err := New(&endsLater{t.Context(), steps}, o)
			if err == nil {
				must(t, r.Close())
				break
			}
			if r != nil || !errors.Is(err, context.Canceled) {
				t.Fatalf("step %d: %v", steps, err)
			}
			if o.Libraries.CUDA == "" {
				continue
			}
			for _, name := range []string{"fake_cuda_violations", "fake_cuda_pinned", "fake_cuda_hbm", "fake_cuda_retained"} {
				if n := ask(t, o.Libraries.CUDA, name); n != 0 {
					t.Errorf("step %d: %s is %d", steps, name, n)
				}
			}
		}
		if steps < 2 || o.Device != HostDevice && steps < 4 {
			t.Errorf("it looked %d times", steps)
		}
	})
}
