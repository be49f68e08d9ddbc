package writer

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// layout makes a file of random parts: on the host, on the device, at pages and anywhere, with and without gaps.
func layout(random *rand.Rand, name string, memory []byte, put func(p []byte) Memory) (File, model) {
	f, at, pieces := File{Name: name}, 0, [][]byte(nil)
	for range random.IntN(12) {
		gap := []int{0, 0, 1, 4096, random.IntN(3 << 20)}[random.IntN(5)]
		n := []int{0, 1, 4096, random.IntN(9000), random.IntN(9 << 20), ChunkSize}[random.IntN(6)]
		first := random.IntN(len(memory) - n)
		if random.IntN(2) == 0 {
			first &^= 4095
		}
		if random.IntN(3) == 0 {
			gap += -(at + gap) & 4095
		}
		p := memory[first : first+n]
		m := Memory{Host: p}
		if random.IntN(2) == 0 {
			m = put(p)
		}
		at += gap
		f.Parts, pieces = append(f.Parts, Part{int64(at), m}), append(pieces, p)
		at += n
	}
	if random.IntN(2) == 0 {
		at += random.IntN(5 << 20)
	}
	f.Size = int64(at)
	bytes := make([]byte, at)
	for i, p := range pieces {
		copy(bytes[f.Parts[i].Offset:], p)
	}
	return f, model{name, bytes}
}

// TestRandomFiles writes files of random parts by every path, and compares them and their sums with a model.
func TestRandomFiles(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, put func(t *testing.T, w *Writer, p []byte) Memory) {
		memory := pages(t, 12<<20, 7)
		for _, path := range []Path{Auto, Staged, Buffered, Mapped} {
			for _, root := range []string{t.TempDir(), shm(t)} {
				onTmpfs := strings.HasPrefix(root, "/dev/shm")
				if path == Mapped && !onTmpfs || path == Staged && onTmpfs {
					continue
				}
				t.Run(string(path)+strings.ReplaceAll(root, "/", "_"), func(t *testing.T) {
					o := o
					o.Path, o.Require = path, path != Auto
					w := newWriter(t, o)
					random := rand.New(rand.NewPCG(uint64(len(path)), 3))
					var files []File
					var models []model
					for _, name := range []string{"a", "b", "c", "d", "e"} {
						f, m := layout(random, name, memory, func(p []byte) Memory { return put(t, w, p) })
						files, models = append(files, f), append(models, m)
					}
					q, err := w.Write(root, files, nil)
					must(t, err)
					r, err := q.Result()
					must(t, err)
					checkFiles(t, root, models, r)
					if path != Auto && r.Choice.Path != path {
						t.Errorf("%+v, want %s", r.Choice, path)
					}
					if written, total := q.Progress(); written != total || total != r.Moved.Total() {
						t.Errorf("%d of %d bytes, moved %d", written, total, r.Moved.Total())
					}
					t.Logf("%+v %+v", r.Choice, r.Moved)
				})
			}
		}
	})
}

// TestBorders writes files whose sizes are next to borders of pages and chunks.
func TestBorders(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, put func(t *testing.T, w *Writer, p []byte) Memory) {
		w := newWriter(t, o)
		memory := pages(t, 2*ChunkSize+1, 9)
		for _, root := range []string{t.TempDir(), shm(t)} {
			var files []File
			var models []model
			for i, n := range []int{0, 1, 4095, 4096, 4097, ChunkSize - 1, ChunkSize, ChunkSize + 1, 2*ChunkSize - 4096, 2 * ChunkSize, 2*ChunkSize + 1} {
				name := string(rune('a' + i))
				files = append(files, File{Name: name, Size: int64(n), Parts: []Part{{0, put(t, w, memory[:n])}}})
				models = append(models, model{name, memory[:n]})
			}
			q, err := w.Write(root, files, nil)
			must(t, err)
			r, err := q.Result()
			must(t, err)
			checkFiles(t, root, models, r)
		}
	})
}

func TestPlansThatCannotBe(t *testing.T) {
	w := newWriter(t, Options{Device: HostDevice})
	part := func(offset int64, n int) Part { return Part{offset, Memory{Host: make([]byte, n)}} }
	for name, files := range map[string][]File{
		"no name":            {{Name: ""}},
		"a path":             {{Name: "a/b"}},
		"the parent":         {{Name: ".."}},
		"a zero byte":        {{Name: "a\x00b"}},
		"twice":              {{Name: "a"}, {Name: "a"}},
		"a negative size":    {{Name: "a", Size: -1}},
		"too large":          {{Name: "a", Size: 1 << 62}},
		"before the file":    {{Name: "a", Size: 10, Parts: []Part{part(-1, 1)}}},
		"behind the file":    {{Name: "a", Size: 10, Parts: []Part{part(10, 1)}}},
		"overflow":           {{Name: "a", Size: 10, Parts: []Part{{1<<63 - 1, Memory{Host: make([]byte, 2)}}}}},
		"overlapping":        {{Name: "a", Size: 10, Parts: []Part{part(0, 5), part(4, 2)}}},
		"out of order":       {{Name: "a", Size: 10, Parts: []Part{part(5, 1), part(0, 1)}}},
		"a negative length":  {{Name: "a", Size: 10, Parts: []Part{{0, Memory{N: -1, HBM: 1}}}}},
		"HBM without a GPU":  {{Name: "a", Size: 10, Parts: []Part{{0, Memory{N: 1, HBM: 4096}}}}},
		"an address beyond":  {{Name: "a", Size: 10, Parts: []Part{{0, Memory{N: 10, HBM: ^uintptr(0)}}}}},
		"bytes at address 0": {{Name: "a", Size: 10, Parts: []Part{{0, Memory{N: 10}}}}},
	} {
		dir := t.TempDir()
		if _, err := w.Write(dir, files, nil); !errors.Is(err, ErrPlan) && !errors.Is(err, ErrMemory) {
			t.Errorf("%s: %v, want that it cannot be", name, err)
		}
	}
}
