package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout"
)

// forOthers lists dir and opens its file "a" for others. The descriptor is closed with the test.
func forOthers(t *testing.T, d *Dir, change func()) (*layout.Object, int, error) {
	t.Helper()
	l, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	change()
	for _, o := range l.Objects {
		if filepath.Base(o.Name) != "a" {
			continue
		}
		fd, err := d.OpenForOthers(o)
		if err == nil {
			t.Cleanup(func() { _ = unix.Close(fd) }) // opened for reading
		}
		return o, fd, err
	}
	t.Fatal("a is not listed")
	return nil, -1, nil
}

func newReadOnlyDir(t *testing.T) (*Dir, string) {
	t.Helper()
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "a"), []byte("content"), 0o666); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(source, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, source
}

func TestOthersCannotWriteThroughADescriptor(t *testing.T) {
	for _, dir := range []string{"", strings.Repeat(strings.Repeat("0", 255)+"/", 20)} { // in one call, and too long for one
		d, source := newReadOnlyDir(t)
		if err := d.ReadOnlyMount(); err != nil {
			t.Skipf("needs root (CAP_SYS_ADMIN): %v", err)
		}
		root, err := os.OpenRoot(source)
		if err != nil {
			t.Fatal(err)
		}
		if dir != "" {
			err = errors.Join(root.MkdirAll(strings.TrimSuffix(dir, "/"), 0o755), root.Rename("a", dir+"a"))
		}
		if err != nil {
			t.Fatal(err)
		}
		_, fd, err := forOthers(t, d, func() {})
		if err != nil {
			t.Fatal(err)
		}
		cannotWrite(t, fd)
		if got, err := root.ReadFile(dir + "a"); string(got) != "content" {
			t.Errorf("the source now has %q, %v", got, err)
		}
		if err := root.Close(); err != nil {
			t.Error(err)
		}
	}
}

// cannotWrite checks that a descriptor of "content" cannot be opened again for writing.
func cannotWrite(t *testing.T, fd int) {
	t.Helper()
	p := make([]byte, 7)
	if n, err := unix.Pread(fd, p, 0); n != 7 || string(p) != "content" {
		t.Errorf("%q, %v", p[:max(n, 0)], err)
	}
	again := fmt.Sprintf("/proc/self/fd/%d", fd)
	for what, flags := range map[string]int{"for writing": unix.O_WRONLY, "for both": unix.O_RDWR, "to cut it": unix.O_WRONLY | unix.O_TRUNC} {
		if fd, err := unix.Open(again, flags, 0); !errors.Is(err, unix.EROFS) {
			t.Errorf("opened again %s: descriptor %d, %v, want EROFS", what, fd, err)
		}
	}
	if err := unix.Ftruncate(fd, 0); err == nil {
		t.Error("it can be truncated")
	}
	if err := os.Truncate(again, 0); !errors.Is(err, unix.EROFS) {
		t.Errorf("truncate by its path: %v, want EROFS", err)
	}
	if fd, err := unix.Open(again, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		t.Errorf("opened again for reading, as libcufile may: %v", err)
	} else if err := unix.Close(fd); err != nil {
		t.Error(err)
	}
}

func TestOthersGetTheListedVersionOnly(t *testing.T) {
	d, source := newReadOnlyDir(t)
	_, _, err := forOthers(t, d, func() {
		if err := os.WriteFile(filepath.Join(source, "a"), []byte("other content"), 0o666); err != nil {
			t.Fatal(err)
		}
	})
	if !errors.Is(err, ErrChanged) {
		t.Errorf("err %v, want ErrChanged", err)
	}
}

func TestOthersGetNothingOfAnotherMount(t *testing.T) {
	d, source := newReadOnlyDir(t)
	if err := d.ReadOnlyMount(); err != nil {
		t.Skipf("needs root (CAP_SYS_ADMIN): %v", err)
	}
	sub := filepath.Join(source, "0-sub") // listed before a itself
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", sub, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(sub, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(sub, "a"), []byte("there"), 0o644); err != nil {
		t.Fatal(err)
	}
	o, _, err := forOthers(t, d, func() {})
	if o.Name != "0-sub/a" || !errors.Is(err, ErrOtherMount) {
		t.Errorf("%s: err %v, want ErrOtherMount", o.Name, err)
	}
}
