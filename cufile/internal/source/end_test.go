package source

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// mappedFile maps a file of n bytes, of which all but the last zeros are 7.
func mappedFile(t *testing.T, n, zeros int) (name string, memory []byte) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "shard")
	content := append(slices.Repeat([]byte{7}, n-zeros), make([]byte, zeros)...)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	memory, err = unix.Mmap(int(f.Fd()), 0, (n+4095)/4096*4096, unix.PROT_READ, unix.MAP_SHARED)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) }) // the process ends
	return name, memory
}

// TestEndsOfCutFiles cuts files where that makes zeros of bytes, and where it does not.
func TestEndsOfCutFiles(t *testing.T) {
	const n = 10_000
	var names []string
	var ends []*End
	var want []int
	for i, c := range []struct {
		zeros, cut int
		found      bool
	}{
		{0, n, false}, {0, n - 1, true}, {0, 8193, true}, {0, 8192, true}, {0, 1, true}, {0, 0, true},
		{100, n - 100, false}, {100, n - 101, true}, {n - 8192, 8192, true}, {n - 8192, 8100, true}, {n, 8192, true}, {n, 8193, false},
	} {
		name, memory := mappedFile(t, n, c.zeros)
		end, err := EndOf(memory)
		if err != nil {
			t.Fatal(err)
		}
		names, ends = append(names, name), append(ends, end)
		if c.found {
			want = append(want, i)
		}
		if err := os.Truncate(name, int64(c.cut)); err != nil {
			t.Fatal(err)
		}
	}
	if got := cut(ends); !slices.Equal(got, want) {
		t.Errorf("cut are %v of %v, want %v", got, names, want)
	}
	if got := cut(nil); got != nil {
		t.Errorf("of no ends are cut %v", got)
	}
}

// TestEndOfAFileThatWasCut cannot be had.
func TestEndOfAFileThatWasCut(t *testing.T) {
	name, memory := mappedFile(t, 10_000, 0)
	if err := os.Truncate(name, 100); err != nil {
		t.Fatal(err)
	}
	if end, err := EndOf(memory); err == nil {
		t.Errorf("%+v", end)
	}
}
