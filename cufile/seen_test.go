package cufile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// gatherer gathers random rows of a file to memory of the caller, and compares them.
type gatherer struct {
	f      *File
	data   []byte
	to     *Allocation
	random *rand.Rand
	length int64
}

func newGatherer(t *testing.T, r *Reader, f *File, data []byte, rows, length int64) *gatherer {
	t.Helper()
	to, err := r.Alloc(rows * length)
	must(t, err)
	t.Cleanup(func() { must(t, to.Free()) })
	return &gatherer{f, data, to, rand.New(rand.NewPCG(uint64(rows), uint64(length))), length}
}

func (g *gatherer) gather(t *testing.T) (Result, error) {
	t.Helper()
	offsets := make([]int64, g.to.Memory().Length/g.length)
	var want []byte
	for i := range offsets {
		offsets[i] = g.random.Int64N(int64(len(g.data)) - g.length + 1)
		want = append(want, g.data[offsets[i]:offsets[i]+g.length]...)
	}
	result, err := g.f.GatherInto(t.Context(), Target{Memory: g.to.Memory()}, offsets, g.length)
	got := make([]byte, len(want))
	must(t, g.to.CopyTo(got, 0))
	if err == nil && !bytes.Equal(got, want) {
		t.Fatalf("wrong bytes by %+v", result)
	}
	return result, err
}

// TestRowsThatAreRegistered gathers rows of registered windows, more than one table of the kernel holds, and of more windows than may be registered.
func TestRowsThatAreRegistered(t *testing.T) {
	for name, pinned := range map[string]int64{"all": 8 << 20, "a quarter": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			file, data := randomFile(t, 4<<20+77, 31)
			o := smallOptions(fakeLibraries(t), Auto)
			o.Reuse, o.Pinned = true, pinned
			r := newReader(t, o)
			g := newGatherer(t, r, openFileIn(t, r, file), data, 3000, 700)
			seen := 0
			for range 30 {
				result, err := g.gather(t)
				must(t, err)
				if result.Choice.Path != Mapped || result.Moved.Total() != 3000*700 {
					t.Fatalf("%+v", result)
				}
				if result.Choice.Why == seenWhy {
					seen++
				}
			}
			if all := pinned >= int64(len(data)); all && seen < 25 {
				t.Errorf("%d of 30 gathers found their rows registered", seen)
			}
		})
	}
}

// TestRegisteredRowsOfManyReaders has gathers of two files at once, while windows of both are registered and given up.
func TestRegisteredRowsOfManyReaders(t *testing.T) {
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse, o.Pinned = true, 1<<20
	r := newReader(t, o)
	var wg sync.WaitGroup
	for seed := range uint64(2) {
		file, data := randomFile(t, 1<<20, 40+seed)
		f := openFileIn(t, r, file)
		for range 2 {
			g := newGatherer(t, r, f, data, 20, 3000)
			wg.Go(func() {
				for range 60 {
					if _, err := g.gather(t); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
}

// TestRegisteredRowsOfAFileThatIsCut says so, at a request that comes later or when the file is closed.
func TestRegisteredRowsOfAFileThatIsCut(t *testing.T) {
	for _, late := range []string{"by a request", "by closing"} {
		t.Run(late, func(t *testing.T) {
			file, data := randomFile(t, 1<<20, 50)
			o := smallOptions(fakeLibraries(t), Mapped)
			r := newReader(t, o)
			f, err := r.Open(t.Context(), file)
			must(t, err)
			g := newGatherer(t, r, f, data, 20, 3000)
			for range 3 {
				_, err := g.gather(t)
				must(t, err)
			}
			must(t, os.Truncate(file, 1<<20-1))
			g.data = data[:1<<19] // the other pages are as they were
			if late == "by a request" {
				until(t, "a gather says that the file was cut", func() bool { _, err = g.gather(t); return err != nil })
				must(t, f.Close())
			} else {
				if _, err = g.gather(t); err == nil {
					err = f.Close()
				}
			}
			if !errors.Is(err, ErrShort) || !strings.Contains(err.Error(), file) {
				t.Errorf("%v, want ErrShort that names the file", err)
			}
		})
	}
}

// TestRegisteredRowsAreWidened compares tokens that were widened behind a gather of registered rows.
func TestRegisteredRowsAreWidened(t *testing.T) {
	file, data := randomFile(t, 1<<20, 60)
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse, o.Pinned = true, 4<<20
	r := newReader(t, o)
	f := openFileIn(t, r, file)
	const rows, length = 300, 500
	to, err := r.Alloc(rows * length * 4)
	must(t, err)
	defer func() { must(t, to.Free()) }()
	random := rand.New(rand.NewPCG(5, 6))
	var result Result
	for range 8 {
		offsets := make([]int64, rows)
		for i := range offsets {
			offsets[i] = 2 * random.Int64N((1<<20-length)/2)
		}
		result, err = f.GatherInto(t.Context(), Target{Memory: to.Memory(), Widen: WidenU16ToI64}, offsets, length)
		must(t, err)
		got := make([]byte, rows*length*4)
		must(t, to.CopyTo(got, 0))
		for i, offset := range offsets {
			for k := range length / 2 {
				token := binary.LittleEndian.Uint16(data[offset+2*int64(k):])
				if n := binary.LittleEndian.Uint64(got[8*(i*length/2+k):]); n != uint64(token) {
					t.Fatalf("token %d of row %d is %d, want %d", k, i, n, token)
				}
			}
		}
	}
	if result.Choice.Why != seenWhy {
		t.Errorf("the last gather: %+v", result)
	}
}

// TestPackedRowsWaitForTheCallersStream has the caller's stream write the memory of a batch when the batch begins: slowly, so that rows that did not
// wait would be overwritten.
func TestPackedRowsWaitForTheCallersStream(t *testing.T) {
	file, data := randomFile(t, 200_000, 33)
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse = true
	r := newReader(t, o)
	f := openFileIn(t, r, file)
	g := newGatherer(t, r, f, data, 300, 700)
	until(t, "all rows are registered", func() bool { result, err := g.gather(t); must(t, err); return result.Choice.Why == seenWhy })
	var stream driver.Handle
	must(t, r.device.Within(func() (err error) { stream, err = r.device.CUDA.NewStream(); return err }))
	defer func() { must(t, r.device.Within(func() error { return r.device.CUDA.DestroyStream(stream) })) }()
	const n = 100_000
	m, other := newMemory(t, r, n, 0), newMemory(t, r, n, 0)
	begins, positions, numbers := newMemory(t, r, 12, 0), newMemory(t, r, 8*n, 0), newMemory(t, r, 8*n, 0)
	must(t, r.device.Within(func() (err error) {
		for range 20 {
			err = errors.Join(err, r.device.CUDA.CopyWithin(driver.Pointer(m.Pointer), driver.Pointer(other.Pointer), n, stream))
		}
		return err
	}))
	s := &Sequences{Lengths: []int64{1, n - 1}, Documents: []int64{3, 4}, Tokens: n, Begins: begins.Memory, Positions: positions.Memory, Numbers: numbers.Memory}
	busy := uintptr(stream)
	q, err := BeginBatch(t.Context(), Target{Memory: m.Memory, Stream: &busy}, &Batch{Files: []*File{f}, Element: 1, Starts: []int64{5, 70_000}, Length: n / 2}, s)
	must(t, err)
	result, err := q.Result()
	must(t, err)
	if result.Choice.Why != seenWhy {
		t.Fatalf("%+v", result)
	}
	m.holds(t, append(bytes.Clone(data[5:5+n/2]), data[70_000:70_000+n/2]...), true)
}
