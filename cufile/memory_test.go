package cufile

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// callersMemory is memory as another allocator gives it: with a stretch before and behind that must not change.
type callersMemory struct {
	Memory
	read func() []byte // all of it, the stretches too
}

const guard = 64

// newMemory makes n bytes, skew bytes beyond an aligned address.
func newMemory(t testing.TB, r *Reader, n, skew int64) callersMemory {
	t.Helper()
	whole := n + 2*guard + skew
	if r.device.CUDA == nil {
		data, err := unix.Mmap(-1, 0, int(whole), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(data) })
		copy(data, bytes.Repeat([]byte{0xDB}, len(data)))
		at := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
		return callersMemory{Memory{Pointer: at + guard + uintptr(skew), Length: n}, func() []byte { return data[skew:] }}
	}
	a, err := r.Alloc(whole)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Free(); err != nil {
			t.Error(err)
		}
	})
	return callersMemory{Memory{Pointer: a.Memory().Pointer + guard + uintptr(skew), Length: n}, func() []byte {
		p := make([]byte, whole-skew)
		if err := a.CopyTo(p, skew); err != nil {
			t.Fatal(err)
		}
		return p
	}}
}

// holds fails unless the memory begins with want and nothing around it was written. The fake's HBM and ours begin as
// 0xDB; a real GPU's does not, and there only the bytes are compared.
func (m *callersMemory) holds(t testing.TB, want []byte, fake bool) {
	t.Helper()
	got := m.read()
	if !bytes.Equal(got[guard:guard+len(want)], want) {
		t.Fatal("wrong bytes")
	}
	rest := append(bytes.Clone(got[:guard]), got[guard+len(want):]...)
	if fake && !bytes.Equal(rest, bytes.Repeat([]byte{0xDB}, len(rest))) {
		t.Fatal("bytes around the destination were written")
	}
}

func isFake(o Options) bool { return o.Device == HostDevice || o.Libraries.CUDA != "" }

func TestIntoMemoryOfTheCaller(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 1<<20+301_234, 11)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		random := rand.New(rand.NewPCG(11, 2))
		// The whole file is larger than a quarter of the arena, so that what goes by way of it goes in parts.
		ranges := [][2]int64{{0, f.Size()}, {1, 1 << 20}, {0, 0}, {f.Size() - 1, 1}, {4095, 2}}
		for range 6 {
			offset := random.Int64N(f.Size())
			ranges = append(ranges, [2]int64{offset, random.Int64N(f.Size() - offset)})
		}
		for i, span := range ranges {
			m := newMemory(t, r, span[1]+100, int64(i%5)*3)
			result, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, []int64{span[0]}, span[1])
			if err != nil {
				t.Fatalf("read %d at %d: %v", span[1], span[0], err)
			}
			if result.Moved.Total() != span[1] || result.Choice.Why == "" {
				t.Errorf("read %d at %d: %+v", span[1], span[0], result)
			}
			m.holds(t, data[span[0]:span[0]+span[1]], isFake(o))
		}
	})
}

// TestColumnsOfAMatrix gathers some columns of rows that begin anywhere in the file: its last ones, one byte of each row, all but one.
func TestColumnsOfAMatrix(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		const before, rows = 1235, 301
		r := newReader(t, o)
		for _, c := range []struct{ width, skip, run int64 }{{4096, 0, 2048}, {4097, 2048, 2049}, {8192, 1, 8190}, {777, 776, 1}, {9000, 0, 100}, {33, 5, 17}} {
			name, data := randomFile(t, int(before+rows*c.width), 35)
			f := openFileIn(t, r, name)
			var offsets []int64
			var want []byte
			for i := range int64(rows) {
				at := before + i*c.width + c.skip
				offsets, want = append(offsets, at), append(want, data[at:at+c.run]...)
			}
			m := newMemory(t, r, int64(len(want)), 3)
			got, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, offsets, c.run)
			must(t, err)
			if n := int64(len(want)); got.Moved.Total() != n {
				t.Errorf("%+v: moved %+v, want %d bytes", c, got.Moved, n)
			}
			m.holds(t, want, isFake(o))
		}
	})
}

func TestGatherIntoWidens(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 1<<20+77, 12)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		random := rand.New(rand.NewPCG(12, 4))
		for kind := WidenNone; kind <= WidenI32ToI64; kind++ {
			form := formOf(t, kind, 1)
			for _, rows := range []int{1, 7, 150} {
				length := form.From * (1 + random.Int64N(1500))
				offsets := make([]int64, rows)
				var want []byte
				for i := range offsets {
					offsets[i] = random.Int64N(f.Size() - length + 1) // at odd places too
					want = append(want, widenedByHand(data[offsets[i]:offsets[i]+length], form)...)
				}
				m := newMemory(t, r, int64(len(want)), 0)
				if _, err := f.GatherInto(t.Context(), Target{Memory: m.Memory, Widen: kind}, offsets, length); err != nil {
					t.Fatalf("widen %d: gather %d x %d: %v", kind, rows, length, err)
				}
				m.holds(t, want, isFake(o))
			}
		}
	})
}

func TestManyGatherIntoMemoryAtOnce(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		// More than may be registered at once: windows move while others plan with them.
		name, data := randomFile(t, 5<<20, 13)
		o.Reuse = true
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		var wg sync.WaitGroup
		for n := range 6 {
			const length = 3000
			m := newMemory(t, r, 60*length, 0)
			random := rand.New(rand.NewPCG(13, uint64(n)))
			wg.Go(func() {
				for range 3 {
					offsets := make([]int64, 60)
					var want []byte
					for i := range offsets {
						offsets[i] = random.Int64N(f.Size() - length)
						want = append(want, data[offsets[i]:offsets[i]+length]...)
					}
					if _, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, offsets, length); err != nil {
						t.Error(err)
						return
					}
					if got := m.read(); !bytes.Equal(got[guard:guard+len(want)], want) {
						t.Error("wrong bytes")
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestMemoryThatCannotBe(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, _ := randomFile(t, 10_000, 14)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		m := newMemory(t, r, 8000, 0)
		ordinary := make([]byte, 100)
		for _, c := range []struct {
			what    string
			to      Target
			offsets []int64
			length  int64
			want    error
		}{
			{"too little room", Target{Memory: Memory{Pointer: m.Pointer, Length: 99}}, []int64{0}, 100, ErrMemory},
			{"room for one of two", Target{Memory: Memory{Pointer: m.Pointer, Length: 199}}, []int64{0, 0}, 100, ErrMemory},
			{"no room for what is widened", Target{Memory: Memory{Pointer: m.Pointer, Length: 399}, Widen: WidenU16ToI64}, []int64{0}, 100, ErrMemory},
			{"half an element", Target{Memory: m.Memory, Widen: WidenU16ToI64}, []int64{0}, 101, ErrMemory},
			{"unaligned and widened", Target{Memory: Memory{Pointer: m.Pointer + 4, Length: 7000}, Widen: WidenU32ToI64}, []int64{0}, 100, ErrMemory},
			{"an unknown widening", Target{Memory: m.Memory, Widen: 11}, []int64{0}, 100, ErrMemory},
			{"no address", Target{Memory: Memory{Pointer: 0, Length: 100}}, []int64{0}, 100, ErrMemory},
			{"an address beyond all", Target{Memory: Memory{Pointer: ^uintptr(0) - 50, Length: 100}}, []int64{0}, 100, ErrMemory},
			{"before the file", Target{Memory: m.Memory}, []int64{0, -1}, 100, ErrOutOfRange},
			{"behind the file", Target{Memory: m.Memory}, []int64{9901}, 100, ErrOutOfRange},
			{"a negative length", Target{Memory: m.Memory}, []int64{0}, -1, ErrOutOfRange},
			{"a negative length of no spans", Target{Memory: m.Memory}, nil, -1, ErrOutOfRange},
			{"memory of the host", Target{Memory: Memory{Pointer: uintptr(unsafe.Pointer(&ordinary[0])), Length: 100}}, []int64{0}, 100, ErrMemory},
		} {
			if o.Device == HostDevice && c.what == "memory of the host" {
				continue
			}
			if _, err := f.GatherInto(t.Context(), c.to, c.offsets, c.length); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", c.what, err, c.want)
			}
		}
		m.holds(t, nil, isFake(o))
	})
}

// An address that is no memory is an error on the host too, not the end of the process.
func TestHostMemoryThatIsNone(t *testing.T) {
	name, _ := randomFile(t, 10_000, 15)
	o := smallOptions(driver.Libraries{}, Host)
	o.Device = HostDevice
	f := openFileIn(t, newReader(t, o), name)
	const nothing = 4096 // the first pages are never mapped
	for _, kind := range []Widen{WidenNone, WidenU16ToI64} {
		if _, err := f.GatherInto(t.Context(), Target{Memory: Memory{Pointer: nothing, Length: 1 << 20}, Widen: kind}, []int64{0}, 1000); err == nil {
			t.Errorf("widening %d: no error", kind)
		}
	}
}

// Auto learns only on the way that a file goes by cuFile. Then it is told so before anything is written, and File.run
// begins again by way of the arena.
func TestCuFileDoesNotWriteToMemoryOfTheCaller(t *testing.T) {
	name, data := randomFile(t, 300_000, 18)
	r := newReader(t, smallOptions(fakeLibraries(t), Compat))
	f := openFileIn(t, r, name)
	m := newMemory(t, r, int64(len(data)), 0)
	straight := transfer{f: f, to: r.memory(m.Memory)}
	if err := straight.run(t.Context(), []source.Span{{N: f.Size()}}); !errors.Is(err, errArena) {
		t.Errorf("straight by cuFile: %v, want %v", err, errArena)
	}
	m.holds(t, nil, true)
}

// onFakeGPU runs a test on the paths of a fake GPU.
func onFakeGPU(t *testing.T, test func(t *testing.T, o Options)) {
	for _, path := range []Path{Staged, Mapped, Compat} {
		t.Run(string(path), func(t *testing.T) { test(t, smallOptions(fakeLibraries(t), path)) })
	}
}

func TestWritesWaitForTheCallersStream(t *testing.T) {
	onFakeGPU(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 200_000, 16)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		var stream driver.Handle
		must(t, r.device.Within(func() (err error) { stream, err = r.device.CUDA.NewStream(); return err }))
		defer func() { must(t, r.device.Within(func() error { return r.device.CUDA.DestroyStream(stream) })) }()
		m := newMemory(t, r, int64(len(data)), 0)
		other := newMemory(t, r, int64(len(data)), 0)
		for _, s := range []uintptr{uintptr(stream), 0} {
			// The caller's stream still writes the memory when the read begins: copies that are slow, since each
			// step of the fake is. Whoever does not wait for them finds their bytes at the end.
			must(t, r.device.Within(func() (err error) {
				for range 20 {
					err = errors.Join(err, r.device.CUDA.CopyWithin(driver.Pointer(m.Pointer), driver.Pointer(other.Pointer), m.Length, driver.Handle(s)))
				}
				return err
			}))
			if _, err := f.GatherInto(t.Context(), Target{Memory: m.Memory, Stream: &s}, []int64{0}, f.Size()); err != nil {
				t.Fatal(err)
			}
			m.holds(t, data, true)
		}
	})
}

func TestCancelWaitsUntilNothingIsWritten(t *testing.T) {
	onFakeGPU(t, func(t *testing.T, o Options) {
		name, _ := randomFile(t, 2<<20, 17)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		m := newMemory(t, r, 2<<20, 0)
		ask(t, o.Libraries.CUDA, "fake_cuda_hold")
		stream := uintptr(0)
		q, err := f.BeginGather(t.Context(), Target{Memory: m.Memory, Stream: &stream}, []int64{0}, 2<<20)
		if err != nil {
			ask(t, o.Libraries.CUDA, "fake_cuda_go_on")
			t.Fatal(err)
		}
		// The mark of the caller's stream, and behind it a wait, a copy or kernel, and its end.
		eventually(t, "something hangs", func() bool { return ask(t, o.Libraries.CUDA, "fake_cuda_pending") >= 4 })
		q.Cancel()
		select {
		case <-q.Done():
			t.Error("it ended although it may still write")
		case <-time.After(2 * crew.Grace):
		}
		ask(t, o.Libraries.CUDA, "fake_cuda_go_on")
		if _, err := q.Result(); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		before := m.read()
		if _, err := f.GatherInto(t.Context(), Target{Memory: newMemory(t, r, 1000, 0).Memory}, []int64{0}, 1000); err != nil {
			t.Errorf("after a cancelled request: %v", err)
		}
		if !bytes.Equal(before, m.read()) {
			t.Error("a cancelled request wrote after it had ended")
		}
	})
}

func TestAllocation(t *testing.T) {
	t.Setenv("FAKE_CUDA_MEMORY", "8388608")
	o := smallOptions(fakeLibraries(t), Staged)
	r := newReader(t, o)
	if _, err := r.Alloc(1 << 30); err == nil {
		t.Error("more memory than there is")
	}
	if _, err := r.Alloc(0); !errors.Is(err, ErrMemory) {
		t.Errorf("no bytes: %v", err)
	}
	a, err := r.Alloc(1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.CopyTo(make([]byte, 2), 999); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("copy beyond the end: %v", err)
	}
	must(t, a.CopyTo(make([]byte, 1000), 0))
	must(t, a.Free())
	must(t, a.Free())
	if err := a.CopyTo(make([]byte, 1), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("copy of what is free: %v", err)
	}
	if n := ask(t, o.Libraries.CUDA, "fake_cuda_retained"); n != 2 {
		t.Errorf("%d references to the context, want the Reader's and its registrations'", n)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for what another goroutine or process brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
