package uncached_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/uncached"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "slab"), os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	must(t, f.Truncate(16<<20))
	return f
}

// cached is how many bytes of a file the page cache has.
func cached(t *testing.T, f *os.File, n int) (sum int) {
	t.Helper()
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(b)) }()
	pages := make([]byte, n/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(n), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	for _, p := range pages {
		sum += int(p&1) * os.Getpagesize()
	}
	return sum
}

// TestBytesOfAnyMemoryAndLength writes and reads from memory of any alignment, and compares with what the page cache says.
func TestBytesOfAnyMemoryAndLength(t *testing.T) {
	for _, through := range []bool{false, true} {
		t.Run(fmt.Sprint(through), func(t *testing.T) {
			f := create(t, t.TempDir())
			other, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
			must(t, err)
			defer func() { must(t, other.Close()) }()
			u := uncached.Through(f, "of a test")
			if !through {
				u = uncached.Open(f)
			}
			t.Logf("buffered: %q", u.Buffered())
			r := rand.New(rand.NewPCG(1, 2))
			for range 60 {
				n, at := 1+r.IntN(3<<20), int64(r.IntN(3000))*uncached.Align
				memory := make([]byte, n+8192)
				skip := r.IntN(2) * r.IntN(4096)
				p := memory[skip : skip+n]
				for i := 0; i < n; i += 97 {
					p[i] = byte(r.Uint32())
				}
				var want [8192]byte
				end := (at + int64(n) + 4095) &^ 4095
				_, err := other.ReadAt(want[:4096], end)
				must(t, err)
				must(t, u.WriteAt(p, at))
				got := make([]byte, n)
				_, err = other.ReadAt(got, at)
				must(t, err)
				if !bytes.Equal(got, p) {
					t.Fatalf("%d bytes at %d are written wrong", n, at)
				}
				_, err = other.ReadAt(want[4096:], end)
				must(t, err)
				if !bytes.Equal(want[:4096], want[4096:]) {
					t.Fatalf("a write of %d bytes at %d changes the slot behind it", n, at)
				}
				back := make([]byte, n+8192)
				skip = r.IntN(4096)
				must(t, u.ReadAt(back[skip:skip+n], at))
				if !bytes.Equal(back[skip:skip+n], p) || !bytes.Equal(back[skip+n:], make([]byte, len(back)-skip-n)) {
					t.Fatalf("%d bytes at %d are read wrong", n, at)
				}
			}
			if err := u.ReadAt(make([]byte, 8192), 16<<20-4096); !errors.Is(err, io.EOF) {
				t.Errorf("beyond the end: %v", err)
			}
		})
	}
}

// TestThePageCacheStaysEmpty where the filesystem allows it, and a reason is there where not.
func TestThePageCacheStaysEmpty(t *testing.T) {
	f := create(t, t.TempDir())
	u := uncached.Open(f)
	must(t, u.WriteAt(make([]byte, 5<<20-7), 0))
	must(t, u.ReadAt(make([]byte, 5<<20-7), 0))
	if got := cached(t, f, 16<<20); (got > 0) != (u.Buffered() != "") {
		t.Errorf("the page cache has %d bytes; buffered: %q", got, u.Buffered())
	}
}

// TestAFilesystemWithoutIt: what does not allow O_DIRECT is read and written nevertheless, and that is said.
func TestAFilesystemWithoutIt(t *testing.T) {
	f, err := os.Open("/proc/self/cmdline")
	must(t, err)
	u := uncached.Open(f)
	defer func() { must(t, u.Close()) }()
	one := make([]byte, 1)
	if err := u.ReadAt(one, 0); err != nil || one[0] == 0 || u.Buffered() == "" {
		t.Errorf("%v, %v; buffered: %q", one, err, u.Buffered())
	}
}

// TestOnceLeavesNoPages where the kernel knows how. The bytes are the same where it does not.
func TestOnceLeavesNoPages(t *testing.T) {
	f := create(t, t.TempDir())
	want := bytes.Repeat([]byte("once"), 4<<20)
	_, err := f.WriteAt(want, 0)
	must(t, errors.Join(err, f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)))
	before, got := cached(t, f, 16<<20), make([]byte, len(want))
	var o uncached.Once
	for at := 0; at < len(got); {
		n, err := o.Pread(int(f.Fd()), got[at:min(len(got), at+1<<20)], int64(at))
		if err != nil || n <= 0 {
			t.Fatal(n, err)
		}
		at += n
	}
	after := cached(t, f, 16<<20)
	if !bytes.Equal(got, want) {
		t.Error("other bytes")
	}
	if _, err := unix.Preadv2(int(f.Fd()), [][]byte{got}, 0, 0x80); err == nil && before == 0 && after > 1<<20 {
		t.Errorf("%d bytes are in the page cache", after)
	}
}
