package source

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// missingByPage gives the parts of a range without pages, page by page.
func missingByPage(t *testing.T, b *Backing, offset, n int64) (ranges []control.Range) {
	t.Helper()
	for at := offset; at < offset+n; {
		length := min(driver.PageSize-at%driver.PageSize, offset+n-at)
		_, cached, known := residentPages(b, at, length)
		if !known {
			t.Skip("needs a kernel that says what is in the page cache")
		}
		if k := len(ranges) - 1; cached == 0 && k >= 0 && ranges[k].Offset+ranges[k].Length == at {
			ranges[k].Length += length
		} else if cached == 0 {
			ranges = append(ranges, control.Range{Offset: at, Length: length})
		}
		at += length
	}
	return ranges
}

// TestMissing finds what the kernel has no pages of, for ranges of all kinds.
func TestMissing(t *testing.T) {
	const size = 1 << 20
	name := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(name, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // it is a test's
	if err := errors.Join(file.Sync(), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_RANDOM)); err != nil {
		t.Fatal(err)
	}
	plain, err := OpenPlain(name, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }() // it was only looked at
	r := rand.New(rand.NewPCG(1, 77))
	for range 40 { // pages that are there, among those that are not
		if _, err := file.ReadAt(make([]byte, 1+r.IntN(3*driver.PageSize)), r.Int64N(size-3*driver.PageSize)); err != nil {
			t.Fatal(err)
		}
	}
	for range 500 {
		offset, n := r.Int64N(size), 1+r.Int64N(1<<r.IntN(21))
		n = min(n, size-offset)
		want := missingByPage(t, plain.Backing(nil), offset, n)
		got := appendMissing(nil, plain.Backing(nil), offset, n)
		if !slices.Equal(got, want) && slices.Equal(want, missingByPage(t, plain.Backing(nil), offset, n)) { // nothing came or went meanwhile
			t.Fatalf("%d bytes at %d: %v are missing, page by page %v", n, offset, got, want)
		}
	}
}
