package writer

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pages is memory that begins with a page, filled with random bytes.
func pages(t testing.TB, n int64, seed uint64) []byte {
	t.Helper()
	if n == 0 {
		return nil
	}
	p, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(p) })
	if _, err := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(p); err != nil {
		t.Fatal(err)
	}
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// model is what a file must be.
type model struct {
	name  string
	bytes []byte
}

// checkBytes compares a file with its model by way of a small buffer: the race detector watches over each byte of a new one.
func checkBytes(t testing.TB, path string, m model) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	part, at := make([]byte, 256<<10), 0
	for {
		n, err := f.Read(part)
		if rest := m.bytes[at:]; n > len(rest) || !bytes.Equal(part[:n], rest[:n]) {
			t.Errorf("%s has other bytes from %d to %d, want %d", m.name, at, at+n, len(m.bytes))
			return
		}
		at += n
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
	}
	if at != len(m.bytes) {
		t.Errorf("%s: wrong bytes, it ends at %d of %d", m.name, at, len(m.bytes))
	}
}

// checkFiles compares files and sums with their models.
func checkFiles(t testing.TB, dir string, models []model, r Result) {
	t.Helper()
	if len(r.Files) != len(models) {
		t.Fatalf("%d files were written, want %d", len(r.Files), len(models))
	}
	total := int64(0)
	for i, m := range models {
		checkBytes(t, filepath.Join(dir, m.name), m)
		f := r.Files[i]
		if f.Name != m.name || f.Size != int64(len(m.bytes)) {
			t.Errorf("it says %s of %d bytes, want %s of %d", f.Name, f.Size, m.name, len(m.bytes))
		}
		var sums []uint32
		for at := 0; at < len(m.bytes); at += ChunkSize {
			sums = append(sums, crc32.Checksum(m.bytes[at:min(at+ChunkSize, len(m.bytes))], crc32.MakeTable(crc32.Castagnoli)))
		}
		if fmt.Sprint(sums) != fmt.Sprint(f.Sums) {
			t.Errorf("%s: sums %x, want %x", m.name, f.Sums, sums)
		}
		total += f.Size
	}
	if r.Moved.Total() != total {
		t.Errorf("%+v were counted, want %d bytes", r.Moved, total)
	}
}

func TestHostFiles(t *testing.T) {
	w, err := New(Options{Device: HostDevice, Arena: 16 << 20})
	must(t, err)
	defer func() { must(t, closed(w)) }()
	data := pages(t, 13<<20, 1)
	s, err := w.Snapshot(t.Context(), []Memory{{Host: data[:5000]}, {Host: data[8192:]}}, nil)
	must(t, err)
	_, err = s.Result()
	must(t, err)
	for _, dir := range []string{t.TempDir(), shm(t)} {
		files := []File{
			{Name: "whole", Size: int64(len(data)), Parts: []Part{{0, Memory{Host: data}}}},
			{Name: "empty"},
			{Name: "holes", Size: 6 << 20, Parts: []Part{{3, Memory{Host: s.Copies[0]}}, {1 << 20, Memory{Host: data[:4<<20+1]}}}},
			{Name: "arena", Size: int64(len(data)) - 8192, Parts: []Part{{0, Memory{Host: s.Copies[1]}}}},
		}
		q, err := w.Write(dir, files, nil)
		must(t, err)
		r, err := q.Result()
		must(t, err)
		holes := make([]byte, 6<<20)
		copy(holes[3:], data[:5000])
		copy(holes[1<<20:], data[:4<<20+1])
		checkFiles(t, dir, []model{{"whole", data}, {"empty", nil}, {"holes", holes}, {"arena", data[8192:]}}, r)
		t.Logf("%+v %+v %v", r.Choice, r.Moved, r.Took)
	}
	must(t, s.Release())
	_ = unsafe.Pointer(nil)
}

func shm(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hbmfs-writer-")
	if err != nil {
		t.Skip("there is no tmpfs at /dev/shm: ", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
