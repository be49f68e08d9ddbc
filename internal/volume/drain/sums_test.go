package drain

import (
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

func TestCombine(t *testing.T) {
	c, table := newCombiner(), crc32.MakeTable(crc32.Castagnoli)
	for _, size := range []int{0, 1, 7, checkpoint.Chunk - 1, checkpoint.Chunk, checkpoint.Chunk + 1, 3 * checkpoint.Chunk, 3*checkpoint.Chunk + 12345} {
		data := content("combine", size)
		var sums []uint32
		for at := 0; at < size; at += checkpoint.Chunk {
			sums = append(sums, crc32.Checksum(data[at:min(size, at+checkpoint.Chunk)], table))
		}
		if got, want := c.of(sums, int64(size)), crc32.Checksum(data, table); got != want {
			t.Errorf("%d bytes: %08x, want %08x", size, got, want)
		}
	}
}

func TestPartSize(t *testing.T) {
	for _, c := range [][3]int64{{1, 32 * mib, 32 * mib}, {1 << 40, 32 * mib, 108 * mib}, {5 << 40, 32 * mib, 528 * mib}, {10 * mib, 5 * mib, 8 * mib}} {
		got := partSize(c[0], c[1])
		if got != c[2] || (c[0]+got-1)/got > mostParts {
			t.Errorf("%d bytes in parts of %d: %d, want %d", c[0], c[1], got, c[2])
		}
	}
}

// TestDisk has others write, and stop.
func TestDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stat")
	sectors := 0
	write := func(bytes int) {
		sectors += bytes / sectorSize
		must(t, os.WriteFile(path, fmt.Appendf(nil, "1 2 3 4 5 6 %d 8 9 10 11\n", sectors), 0o600))
	}
	write(0)
	d := &disk{stat: path, looked: time.Now()}
	if d.bound() != busyLeast {
		t.Errorf("before it knows, the bound is %d", d.bound())
	}
	pass := func(n time.Duration) { d.looked = d.looked.Add(-n) }
	pass(time.Second)
	if d.bound() != 0 {
		t.Errorf("nobody writes, and the bound is %d", d.bound())
	}
	write(2000 * mib)
	pass(time.Second)
	if got := d.bound(); got < 90*mib || got > 110*mib {
		t.Errorf("others write 2,000 MiB/s, and the bound is %d", got)
	}
	pass(5 * time.Second)
	if got := d.bound(); got != 0 {
		t.Errorf("nobody writes any more, and the bound is %d", got)
	}
	if d := openDisk(filepath.Join(path, "none")); d.bound() != blindBound {
		t.Errorf("nobody can tell, and the bound is %d", d.bound())
	}
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pace{rate: func() int64 { return 64 * mib }}
		began := time.Now()
		for range 33 { // the first waits for none
			must(t, p.take(t.Context(), mib, func() {}))
		}
		if took := time.Since(began); took != time.Second/2 {
			t.Errorf("32 MiB at 64 MiB/s took %v", took)
		}
	})
}

// FuzzJournal reads journals of any text. What was good of one reads the same again, and nothing behind it counts.
func FuzzJournal(f *testing.F) {
	f.Add([]byte("{\"head\":{\"manifest\":\"a\",\"destination\":\"b\",\"volume\":\"c\"}}\n{\"name\":\"x\",\"begun\":{\"upload\":\"u\",\"part\":1}}\n{\"name\":\"x\",\"stored\":{\"size\":1,\"etag\":\"e\"}}\n{\"remote\":{\"size\":3}}\n{\"na"))
	f.Fuzz(func(t *testing.T, text []byte) {
		read := func(text []byte) (*journal, int) {
			j := &journal{done: map[string]stored{}, open: map[string]begun{}}
			return j, j.read(text)
		}
		a, good := read(text)
		if good > len(text) {
			t.Fatalf("%d of %d bytes are good", good, len(text))
		}
		b, again := read(text[:good])
		if again != good || a.head != b.head || !maps.Equal(a.done, b.done) || !maps.Equal(a.open, b.open) || (a.end == nil) != (b.end == nil) {
			t.Fatal("what is good of a journal reads otherwise")
		}
	})
}
