// Package thin is a disk that runs full below a filesystem with room left, as a thinly provisioned disk does: the kernel takes a program's
// bytes into the page cache, and their write-back fails later.
//
//	d := thin.New(t, "ext4", t.TempDir(), t.TempDir())
//	...               // a file with its blocks allocated, below d.Dir
//	d.Starve(t, file) // the disk gives up the file's blocks, and has no others
//	...               // writes to the file succeed, and are lost
//	d.Feed(t)         // the disk has blocks again
package thin

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Disk is a mounted filesystem on a loop device, whose file lies on a tmpfs that can run full.
type Disk struct {
	Dir    string // where the filesystem is mounted
	memory string // the tmpfs
}

// Kinds are the filesystems that New makes.
func Kinds() []string { return []string{"ext4", "xfs"} }

// New makes a filesystem of a kind. Two empty directories become mount points.
func New(t testing.TB, kind, memory, dir string) *Disk {
	t.Helper()
	size, options := 32<<20, []string{"-q", "-b", "4096", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"}
	if kind == "xfs" {
		size, options = 304<<20, []string{"-q", "-K"} // mkfs makes no smaller one
	}
	if err := unix.Mount("tmpfs", memory, "tmpfs", 0, "size="+strconv.Itoa(size+(1<<20))); err != nil {
		t.Skip("needs root, to mount a tmpfs: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(memory, unix.MNT_DETACH) }) // the loop device lets its file go a moment later
	d := &Disk{dir, memory}
	image := filepath.Join(memory, "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, int64(size))); err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{append(append([]string{"mkfs." + kind}, options...), image), {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs a loop device and mkfs.%s: %v: %s", kind, err, out)
		}
	}
	t.Cleanup(func() {
		d.Feed(t)
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return d
}

// Starve takes the blocks of a file from the disk. Writes to them from now on are lost.
func (d *Disk) Starve(t testing.TB, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	image, err := os.OpenFile(filepath.Join(d.memory, "image"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = image.Close() }()                                                                    // no bytes were written
	if info, err := image.Stat(); err != nil || unix.Fallocate(int(image.Fd()), 0, 0, info.Size()) != nil { // all others stay
		t.Fatal("the disk is not had as a whole: ", err)
	}
	for _, e := range extents(t, f) {
		if err := unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(e.Physical), int64(e.Length)); err != nil {
			t.Fatal(err)
		}
	}
	filler, err := os.Create(filepath.Join(d.memory, "filler"))
	for err == nil {
		_, err = filler.Write(make([]byte, os.Getpagesize()))
	}
	if err := filler.Close(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// Lose has a disk lose n bytes of a file, from an offset on, which lie in one piece. image is the file behind the disk.
func Lose(t testing.TB, image, file string, offset, n uint64) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	disk, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = disk.Close() }() // no bytes were written
	for _, e := range extents(t, f) {
		if e.Logical <= offset && offset+n <= e.Logical+e.Length {
			if err := unix.Fallocate(int(disk.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(e.Physical+offset-e.Logical), int64(n)); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("%s has no piece of %d bytes at %d", file, n, offset)
}

// Feed has the disk get blocks again. Lost writes stay lost.
func (d *Disk) Feed(t testing.TB) {
	t.Helper()
	if err := os.Remove(filepath.Join(d.memory, "filler")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

// extent is struct fiemap_extent of linux/fiemap.h.
type extent struct {
	Logical, Physical, Length uint64
	_                         [2]uint64
	Flags                     uint32
	_                         [3]uint32
}

// extents gives where a file lies on the disk.
func extents(t testing.TB, f *os.File) []extent {
	t.Helper()
	const (
		most    = 64
		request = 0xc020660b // FS_IOC_FIEMAP
		sync    = 1          // FIEMAP_FLAG_SYNC
	)
	var m struct {
		Start, Length                   uint64
		Flags, Mapped, Count, Undefined uint32
		Extents                         [most]extent
	}
	m.Length, m.Flags, m.Count = 1<<62, sync, most
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&m))); errno != 0 {
		t.Fatal(errno)
	}
	if m.Mapped == 0 || m.Mapped == most {
		t.Fatalf("%s has %d extents, and some must be known", f.Name(), m.Mapped)
	}
	return m.Extents[:m.Mapped]
}

// Forget has the kernel write all back, and drop cached pages and inodes of files that are not open.
func (d *Disk) Forget(t testing.TB) {
	t.Helper()
	f, err := os.Open(d.Dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Syncfs(int(f.Fd())) // it tells of lost bytes
	_ = f.Close()                // opened for reading
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Fatal(err)
	}
}
