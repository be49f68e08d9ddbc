package cufile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/source"
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

// TestSmallBatchesOnTheHostWakeNoThread begins requests of a file whose rows were found in the page cache: they are done at once. One that is large, or
// behind a cold one, is left to other threads.
func TestSmallBatchesOnTheHostWakeNoThread(t *testing.T) {
	file, data := randomFile(t, 4<<20, 53)
	r := newReader(t, Options{Device: HostDevice, Threads: 2, Arena: 1 << 20})
	f := openFileIn(t, r, file)
	to := newMemory(t, r, 2*quickBytes, 0)
	_, err := f.GatherInto(t.Context(), Target{Memory: Memory{Pointer: to.Pointer, Length: 1000}}, []int64{0}, 1000) // which maps the file
	must(t, err)
	for _, c := range []struct {
		rows   int64
		cold   bool
		atOnce bool
	}{{64, false, false}, {64, false, true}, {2 * quickBytes >> 12, false, false}, {64, true, false}} {
		if c.cold {
			f.cold.Store(1)
			f.seen.Store(false)
		}
		offsets := make([]int64, c.rows)
		for i := range offsets {
			offsets[i] = int64(i) << 12
		}
		target := Target{Memory: Memory{Pointer: to.Pointer, Length: c.rows << 12}}
		if at := (&scattering{r: r, files: []*File{f}, to: r.memory(target.Memory)}).copiedAtOnce(); at != c.atOnce {
			t.Errorf("%+v: at once: %v", c, at)
		}
		q, err := f.BeginGather(t.Context(), target, offsets, 1<<12)
		must(t, err)
		done := false
		select {
		case <-q.Done():
			done = true
		default:
		}
		if c.atOnce && !done {
			t.Errorf("%+v: it is under way", c)
		}
		_, err = q.Result()
		must(t, err)
		to.holds(t, data[:c.rows<<12], false)
	}
}

// TestRowsOnTheHostOfTwoReaders reads files of two readers in one batch. Each reader keeps its own mappings while its rows are copied: where the second
// one has unmapped its file, and other memory has that address by now, the batch has the bytes of the file.
func TestRowsOnTheHostOfTwoReaders(t *testing.T) {
	var parts []part
	var want []byte
	for i := range int64(2) {
		name, data := randomFile(t, 1<<20, uint64(54+i))
		f := openFileIn(t, newReader(t, Options{Device: HostDevice, Threads: 2, Arena: 1 << 20}), name)
		parts = append(parts, part{file: f, spans: []source.Span{{Offset: 5000, N: 3000, To: 3000 * i}}})
		want = append(want, data[5000:8000]...)
	}
	second := parts[1].file
	to := newMemory(t, parts[0].file.r, 6000, 0)
	read := func() {
		t.Helper()
		q, err := beginParts(t.Context(), Target{Memory: to.Memory}, parts, nil)
		must(t, err)
		_, err = q.Result()
		must(t, err)
		to.holds(t, want, true)
	}
	for done := false; !done; { // a look at the file, which a busy machine makes meanwhile, has its place found anew
		turn := second.r.descriptors.Watch().Turn()
		read() // which maps the files
		read() // and finds their places
		at := uintptr(second.source.Backing(nil).Seen.Load().At[0].Load())
		_, err := second.Uncache(t.Context(), KeepPageCache)
		must(t, err)
		other, _, errno := unix.Syscall6(unix.SYS_MMAP, at, 1<<20, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
		done = errno == 0 && turn == second.r.descriptors.Watch().Turn()
		read()
		if errno == 0 {
			_, _, errno = unix.Syscall(unix.SYS_MUNMAP, other, 1<<20, 0)
			if errno != 0 {
				t.Fatal(errno)
			}
		}
	}
}
