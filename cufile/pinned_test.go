package cufile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
	"github.com/hbmfs/hbmfs/cufile/internal/copied"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// newPinned makes n bytes of the host that a Reader's GPU sees, skew bytes beyond an aligned address.
func newPinned(t testing.TB, r *Reader, n, skew int64) callersMemory {
	t.Helper()
	data, err := unix.Mmap(-1, 0, int(driver.RoundUp(n+2*guard+skew, driver.PageSize)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	cu := r.device.CUDA
	must(t, r.device.Within(func() error { return cu.Register(data, driver.HostPortable|driver.HostDeviceMap) }))
	t.Cleanup(func() {
		must(t, r.device.Within(func() error { return cu.Unregister(data) }))
		must(t, unix.Munmap(data))
	})
	copy(data, bytes.Repeat([]byte{0xDB}, len(data)))
	at := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	return callersMemory{Memory{Pointer: at + guard + uintptr(skew), Length: n}, func() []byte { return data[skew:] }}
}

// TestPinnedMemory gathers rows of two files to pinned memory, before and after these are registered, and more than a table of the kernel holds.
func TestPinnedMemory(t *testing.T) {
	for name, change := range map[string]func(o *Options){
		"auto, again and again": func(o *Options) { o.Reuse, o.Pinned = true, 8<<20 },
		"auto, and little room": func(o *Options) { o.Reuse = true },
		"shared":                func(o *Options) { o.Reuse, o.Pinned = true, 8<<20 },
		"shared, little room":   func(o *Options) { o.Reuse = true },
		"auto, once":            func(o *Options) { o.Readers = 1 },
		"mapped":                func(o *Options) { o.Path = Mapped },
	} {
		t.Run(name, func(t *testing.T) {
			o := smallOptions(fakeLibraries(t), Auto)
			change(&o)
			r := newReader(t, o)
			r.sharing = nil
			if strings.HasPrefix(name, "shared") {
				r.sharing = &sharing{threads: copied.NewBounded(2), least: 1}
			}
			first, firstData := randomFile(t, 1<<20+77, 61)
			second, secondData := randomFile(t, 1<<20, 62)
			files, datas := []*File{openFileIn(t, r, first), openFileIn(t, r, second)}, [][]byte{firstData, secondData}
			random, total := rand.New(rand.NewPCG(61, 62)), Moved{}
			for turn := range 20 {
				b := &Batch{Files: files, Element: 1}
				var want []byte
				for range []int{3, 700, 2500}[turn%3] {
					k, n := random.IntN(2), random.Int64N([]int64{70_000, 900, 300}[turn%3])
					at := random.Int64N(int64(len(datas[k])) - n + 1)
					b.Sources, b.Starts, b.Lengths = append(b.Sources, int32(k)), append(b.Starts, at), append(b.Lengths, n)
					want = append(want, datas[k][at:at+n]...)
				}
				m := newPinned(t, r, int64(len(want))+100, int64(turn%17))
				q, err := BeginBatch(t.Context(), Target{Memory: m.Memory}, b, nil)
				must(t, err)
				result, err := q.Result()
				must(t, err)
				m.holds(t, want, true)
				if moved := result.Moved; moved.Total() != int64(len(want)) || moved.Staged > 0 {
					t.Fatalf("turn %d: %+v", turn, result)
				}
				total.Add(result.Moved)
			}
			if r.Moved() != total || total.Mapped == 0 && name != "auto, once" || total.Host == 0 && name == "shared" {
				t.Errorf("moved %+v, and the reader counts %+v", total, r.Moved())
			}
			if n := ask(t, o.Libraries.CUDA, "fake_cuda_hbm"); n != 0 {
				t.Errorf("%d bytes of HBM were used", n)
			}
		})
	}
}

// TestPinnedMemorySaysHow has the GPU bring rows that are registered, and says that they went to memory of the host.
func TestPinnedMemorySaysHow(t *testing.T) {
	name, data := randomFile(t, 1<<20, 63)
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse, o.Pinned = true, 8<<20
	r := newReader(t, o)
	f := openFileIn(t, r, name)
	m := newPinned(t, r, 2*5000, 3)
	offsets := []int64{700_001, 13}
	want := append(bytes.Clone(data[700_001:][:5000]), data[13:][:5000]...)
	for _, why := range []string{"in the page cache (100%) and will be read again" + toHost, seenWhy + toHost, seenWhy + toHost} {
		result, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, offsets, 5000)
		must(t, err)
		if (result.Moved != Moved{Mapped: 10_000}) || result.Choice != (Choice{Mapped, why}) {
			t.Errorf("%+v, want mapped: %s", result, why)
		}
		m.holds(t, want, true)
	}
	must(t, os.Truncate(name, 1<<19))
	until(t, "a gather says that the file was cut", func() bool {
		_, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, []int64{5, 13}, 5000)
		return err != nil
	})
}

// TestPinnedMemoryWithoutKernels is written by threads.
func TestPinnedMemoryWithoutKernels(t *testing.T) {
	name, data := randomFile(t, 300_000, 64)
	l := fakeLibraries(t)
	l.CUDA = fakes.Copy(t, fakegpu.CUDAWithoutKernels)
	o := smallOptions(l, Auto)
	o.Reuse = true
	r := newReader(t, o)
	f := openFileIn(t, r, name)
	for range 3 {
		m := newPinned(t, r, f.Size(), 5)
		result, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, []int64{0}, f.Size())
		must(t, err)
		if (result.Moved != Moved{Host: f.Size()}) || !strings.Contains(result.Choice.Why, "no kernel") {
			t.Errorf("%+v", result)
		}
		m.holds(t, data, true)
	}
}

// TestPinnedMemoryWaitsForTheCallersStream, both the GPU and the threads.
func TestPinnedMemoryWaitsForTheCallersStream(t *testing.T) {
	for _, by := range []string{"threads", "the GPU", "both"} {
		name, data := randomFile(t, 200_000, 65)
		o := smallOptions(fakeLibraries(t), Auto)
		o.Reuse = by != "threads"
		if by == "threads" {
			o.Pinned = 2 * o.Window
		}
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		m, stream := newPinned(t, r, f.Size(), 0), uintptr(0)
		if by == "both" {
			shareSeen(t, r, f)
		}
		ask(t, o.Libraries.CUDA, "fake_cuda_hold")
		q, err := f.BeginGather(t.Context(), Target{Memory: m.Memory, Stream: &stream}, []int64{0, f.Size() / 2}, f.Size()/2)
		must(t, err)
		m.holds(t, nil, true) // the caller's stream may still use it
		ask(t, o.Libraries.CUDA, "fake_cuda_go_on")
		result, err := q.Result()
		must(t, err)
		m.holds(t, data, true)
		if by == "both" && (result.Moved != Moved{Mapped: f.Size() / 2, Host: f.Size() / 2}) {
			t.Errorf("%+v", result)
		}
	}
}

// shareSeen registers a file with the GPU, and has two threads share the requests that follow.
func shareSeen(t *testing.T, r *Reader, f *File) {
	t.Helper()
	r.sharing = nil
	_, err := f.GatherInto(t.Context(), Target{Memory: newPinned(t, r, f.Size(), 0).Memory}, []int64{0}, f.Size())
	must(t, err)
	r.sharing = evenly()
}

// evenly is half and half, for the first request.
func evenly() *sharing {
	return &sharing{threads: copied.NewBounded(2), least: 1, cpu: rate{1, 1, time.Time{}}, gpu: rate{1, 1, time.Time{}}}
}

// TestSharedPinnedMemorySaysHow counts what threads and the GPU have moved. A file that was cut in the threads' share is an error at once.
func TestSharedPinnedMemorySaysHow(t *testing.T) {
	name, data := randomFile(t, 1<<20, 67)
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse, o.Pinned = true, 8<<20
	r := newReader(t, o)
	f := openFileIn(t, r, name)
	shareSeen(t, r, f)
	before, m := r.Moved(), newPinned(t, r, 4*5000, 3)
	offsets, want := []int64{1_000_001, 900_000, 13, 70_000}, []byte(nil)
	for _, at := range offsets {
		want = append(want, data[at:][:5000]...)
	}
	result, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, offsets, 5000)
	must(t, err)
	if (result.Moved != Moved{Mapped: 10_000, Host: 10_000}) || result.Choice != (Choice{Mapped, seenWhy + toHost}) {
		t.Errorf("%+v", result)
	}
	before.Add(result.Moved)
	if r.Moved() != before || r.sharing.cpu.ended.IsZero() || r.sharing.gpu.ended.IsZero() {
		t.Errorf("the reader counts %+v, want %+v: %+v", r.Moved(), before, r.sharing)
	}
	m.holds(t, want, true)
	must(t, os.Truncate(name, 1<<19))
	r.sharing = evenly() // the fake GPU would end the process with SIGBUS for rows that are gone
	if _, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, offsets, 5000); !errors.Is(err, ErrShort) {
		t.Errorf("%v", err)
	}
	until(t, "the reader's watch has seen it", func() bool {
		_, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, []int64{13}, 1)
		return err != nil
	})
}

// TestSharedPinnedMemoryFails where the GPU's half does, once nothing is under way, and counts nothing.
func TestSharedPinnedMemoryFails(t *testing.T) {
	t.Setenv("FAKE_CUDA_DELAY_US", "20000")
	name, _ := randomFile(t, 200_000, 68)
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse = true
	r := newReader(t, o)
	f := openFileIn(t, r, name)
	m := newPinned(t, r, f.Size(), 0)
	shareSeen(t, r, f)
	before := f.Moved()
	ask(t, o.Libraries.CUDA, "fake_cuda_no_record")
	if _, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, []int64{0, f.Size() / 2}, f.Size()/2); err == nil || f.Moved() != before {
		t.Errorf("%v, and %+v moved", err, f.Moved())
	}
	if n := ask(t, o.Libraries.CUDA, "fake_cuda_pending"); n != 0 {
		t.Errorf("it ended while %d steps were under way", n)
	}
	if r.sharing.cpu.ended.IsZero() {
		t.Error("threads copied nothing")
	}
}

// TestSharedPinnedMemoryOfManyFiles has the GPU and threads share rows, one of each file. A share that is smaller than a row begins nothing, and is measured anew.
func TestSharedPinnedMemoryOfManyFiles(t *testing.T) {
	const row, many = 5000, 8
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse, o.Pinned = true, 8<<20
	r := newReader(t, o)
	m, b, want := newPinned(t, r, many*row, 3), &Batch{Element: 1, Length: row}, []byte(nil)
	for i := range int32(many) {
		name, data := randomFile(t, 100_000, uint64(70+i))
		b.Files, b.Sources, b.Starts = append(b.Files, openFileIn(t, r, name)), append(b.Sources, i), append(b.Starts, 1000*int64(i))
		want = append(want, data[1000*i:][:row]...)
	}
	for _, c := range []struct {
		sharing *sharing
		want    int64 // bytes of threads
	}{
		{nil, 0},
		{evenly(), many / 2 * row},
		{&sharing{threads: copied.NewBounded(2), least: 1}, row},
		{&sharing{threads: copied.NewBounded(2), least: 1, gpu: rate{bytes: 15, seconds: 1}, cpu: rate{bytes: 1, seconds: 1}}, 0},
	} {
		r.sharing = c.sharing
		q, err := BeginBatch(t.Context(), Target{Memory: m.Memory}, b, nil)
		must(t, err)
		result, err := q.Result()
		must(t, err)
		m.holds(t, want, true)
		if (result.Moved != Moved{Mapped: many*row - c.want, Host: c.want}) {
			t.Errorf("%+v, want %d by threads", result, c.want)
		}
		if h := c.sharing; h != nil && (h.cpu.ended.IsZero() != (c.want == 0) || h.gpu.ended.IsZero() != (c.want == 0) || (h.cpu.bytes == 0) != (c.want == 0)) {
			t.Errorf("%d bytes by threads: %+v", c.want, h)
		}
	}
}

// TestShare follows the rates of both halves, also where the ends of two requests are seen at once. Threads whose CPUs are busy rest.
func TestShare(t *testing.T) {
	h := &sharing{}
	if first := h.share(); first != firstShare {
		t.Errorf("first %v", first)
	}
	for _, c := range []struct{ cpu, gpu, want float64 }{{1, 3, 0.25}, {3, 1, mostShare}, {1, 40, 0}} {
		h.cpu, h.gpu = rate{bytes: c.cpu, seconds: 1}, rate{bytes: 2 * c.gpu, seconds: 2}
		if got := h.share(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	for range restShared {
		if got := h.share(); got != 0 {
			t.Fatalf("threads do not rest: %v", got)
		}
	}
	if got := h.share(); got != firstShare {
		t.Errorf("after the rest: %v", got)
	}
	var r rate
	for began := time.Now().Add(-time.Second); r.bytes < 2; {
		r.moved(1, began)
	}
	if r.seconds < 0.9 || r.seconds > 100 {
		t.Errorf("two requests that ended at once: %+v", r)
	}
	for _, c := range []struct{ cpus, readers, want int }{{2, 1, 0}, {4, 1, 1}, {16, 1, 4}, {64, 1, 4}, {16, 2, 2}, {16, 8, 0}} {
		if got := sharingThreads(c.cpus, c.readers); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// TestPinnedMemoryThatIsRefused: only bytes as they are go there, by the paths that write there.
func TestPinnedMemoryThatIsRefused(t *testing.T) {
	name, _ := randomFile(t, 10_000, 66)
	for _, path := range []Path{Auto, Staged, Compat} {
		r := newReader(t, smallOptions(fakeLibraries(t), path))
		f := openFileIn(t, r, name)
		m := newPinned(t, r, 1000, 0)
		if path != Auto {
			if _, err := f.GatherInto(t.Context(), Target{Memory: m.Memory}, []int64{0}, 100); !errors.Is(err, ErrMemory) {
				t.Errorf("%s: %v", path, err)
			}
			continue
		}
		rows := &Batch{Files: []*File{f}, Element: 2, Starts: []int64{0, 9}, Length: 10}
		for what, begin := range map[string]func() (*Request, error){
			"widened": func() (*Request, error) {
				return f.BeginGather(t.Context(), Target{Memory: m.Memory, Widen: WidenU16ToI64}, []int64{0}, 100)
			},
			"with targets": func() (*Request, error) {
				return BeginBatch(t.Context(), Target{Memory: m.Memory, Targets: newMemory(t, r, 1000, 0).Memory}, rows, nil)
			},
			"with sequences": func() (*Request, error) {
				return BeginBatch(t.Context(), Target{Memory: m.Memory}, rows, &Sequences{Tokens: 20, Lengths: []int64{20}, Documents: []int64{0}})
			},
			"beyond what is pinned": func() (*Request, error) {
				return BeginBatch(t.Context(), Target{Memory: Memory{Pointer: m.Pointer, Length: 1 << 20}}, rows, nil)
			},
		} {
			if _, err := begin(); !errors.Is(err, ErrMemory) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}
