package cufile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// TestRowsOnTheHostOfAFileThatIsCut copies rows from a mapping while the file is cut, to the middle of a page, and to nothing: an error names it,
// and no SIGBUS ends the process.
func TestRowsOnTheHostOfAFileThatIsCut(t *testing.T) {
	for _, size := range []int64{1<<20 - 1, 0} {
		for _, kind := range []Widen{WidenNone, WidenU16ToI64} {
			file, data := randomFile(t, 1<<20, 51)
			r := newReader(t, Options{Device: HostDevice, Threads: 2, Arena: 1 << 20})
			f, err := r.Open(t.Context(), file)
			must(t, err)
			const rows, length = 20, 3000
			memory := newMemory(t, r, 4*rows*length, 0)
			target := Target{Memory: memory.Memory, Widen: kind}
			random := rand.New(rand.NewPCG(1, 2))
			gather := func() error {
				offsets := make([]int64, rows)
				for i := range offsets {
					offsets[i] = 2 * random.Int64N((1<<20-length)/2)
				}
				_, err := f.GatherInto(t.Context(), target, offsets, length)
				if err == nil && kind == WidenNone && size > 0 {
					for i, offset := range offsets {
						if offset+length < size && !bytes.Equal(memory.read()[guard+i*length:][:length], data[offset:][:length]) {
							t.Fatalf("wrong bytes of row %d", i)
						}
					}
				}
				return err
			}
			must(t, gather())
			must(t, gather())
			if f.source.Backing(nil).Seen.Load() == nil {
				t.Fatal("a file that was read is not mapped")
			}
			must(t, os.Truncate(file, size))
			until(t, "a gather says that the file was cut", func() bool { err = gather(); return err != nil })
			if !errors.Is(err, ErrShort) || !strings.Contains(err.Error(), file) {
				t.Errorf("cut to %d: %v, want ErrShort that names the file", size, err)
			}
			must(t, f.Close())
			maps, err := os.ReadFile("/proc/self/maps")
			must(t, err)
			if strings.Contains(string(maps), file) {
				t.Error("a file that was closed is mapped")
			}
		}
	}
}

// TestRowsOnTheHostThatComeFromTheDisk has threads read the requests behind one whose rows were not in the page cache, and then looks again.
func TestRowsOnTheHostThatComeFromTheDisk(t *testing.T) {
	file, data := randomFile(t, 1<<20, 52)
	r := newReader(t, Options{Device: HostDevice, Threads: 2, Arena: 1 << 20})
	f := openFileIn(t, r, file)
	to := newMemory(t, r, 1000, 0)
	f.cold.Store(coldRequests)
	for i := range int64(coldRequests + 2) {
		_, err := f.GatherInto(t.Context(), Target{Memory: to.Memory}, []int64{1000 * i}, 1000)
		must(t, err)
		to.holds(t, data[1000*i:][:1000], true)
		if f.seen.Load() != (i >= coldRequests) {
			t.Errorf("read %d: from a mapping: %v", i, f.seen.Load())
		}
	}
}
