package checkpoint

import (
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
)

// TestSumsOfZeros: a hole has the sum of as many zero bytes, whatever is before it.
func TestSumsOfZeros(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 4095, 4096, 1<<20 + 3, Chunk} {
		zeros := make([]byte, n)
		for _, before := range []string{"", "x", "some bytes"} {
			sum := crc32.Checksum([]byte(before), castagnoli())
			if got, want := sumOfZeros(sum, int64(n)), crc32.Update(sum, castagnoli(), zeros); got != want {
				t.Errorf("%d zeros behind %q have the sum %08x, want %08x", n, before, got, want)
			}
		}
	}
}

// TestSumsOfHoles: a file has the sums of its bytes, wherever it has holes.
func TestSumsOfHoles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	const size = 3*Chunk + 12345
	for _, at := range []int64{0, 4096, Chunk - 1, 2*Chunk + 1<<20, size - 1} {
		if _, err := f.WriteAt([]byte{1}, at); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	for at := int64(0); at < size; at += Chunk {
		n := min(Chunk, size-at)
		got, err := sumOf(f, at, n, buf)
		if want := crc32.Checksum(whole[at:at+n], castagnoli()); err != nil || got != want {
			t.Errorf("the chunk at %d has the sum %08x, %v, want %08x", at, got, err, want)
		}
	}
	if _, err := sumOf(f, size-10, 20, buf); err == nil {
		t.Error("bytes behind the end have a sum")
	}
}
