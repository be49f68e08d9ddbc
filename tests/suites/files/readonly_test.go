package files_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

func TestWritesAreRefused(t *testing.T) {
	blackbox.NeedRoot(t) // permissions would stop anybody else before the filesystem is asked
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"file": "content", "dir/inner": "more"})
	m := mount(t, source)
	file, dir, fresh := m.Path("file"), m.Path("dir"), m.Path("fresh")
	open := func(path string, flags int) func() error {
		return func() error {
			fd, err := unix.Open(path, flags, 0o644)
			if err == nil {
				return errors.Join(errors.New("it opened"), unix.Close(fd))
			}
			return err
		}
	}
	view := m.Path(".hbmfs", "status")
	for what, try := range map[string]func() error{
		"open O_WRONLY":          open(file, unix.O_WRONLY),
		"open O_RDWR":            open(file, unix.O_RDWR),
		"open O_TRUNC":           open(file, unix.O_RDONLY|unix.O_TRUNC),
		"open O_WRONLY|O_TRUNC":  open(file, unix.O_WRONLY|unix.O_TRUNC),
		"open O_WRONLY|O_APPEND": open(file, unix.O_WRONLY|unix.O_APPEND),
		"open O_CREAT":           open(fresh, unix.O_WRONLY|unix.O_CREAT),
		"open O_CREAT|O_RDONLY":  open(fresh, unix.O_RDONLY|unix.O_CREAT),
		"open O_TMPFILE":         open(dir, unix.O_RDWR|unix.O_TMPFILE),
		"open status to write":   open(view, unix.O_WRONLY),
		"create in .hbmfs/views": open(m.Path(".hbmfs", "views", "x"), unix.O_WRONLY|unix.O_CREAT),
		"mkdir":                  func() error { return unix.Mkdir(fresh, 0o755) },
		"rmdir":                  func() error { return unix.Rmdir(dir) },
		"unlink":                 func() error { return unix.Unlink(file) },
		"rename":                 func() error { return unix.Rename(file, fresh) },
		"rename over":            func() error { return unix.Rename(file, m.Path("dir", "inner")) },
		"link":                   func() error { return unix.Link(file, fresh) },
		"symlink":                func() error { return unix.Symlink("file", fresh) },
		"mknod":                  func() error { return unix.Mknod(fresh, unix.S_IFIFO|0o644, 0) },
		"chmod":                  func() error { return unix.Chmod(file, 0o600) },
		"chown":                  func() error { return unix.Chown(file, 1, 1) },
		"utimes":                 func() error { return unix.Utimes(file, make([]unix.Timeval, 2)) },
		"truncate":               func() error { return unix.Truncate(file, 1) },
		"truncate to more":       func() error { return unix.Truncate(file, 100) },
	} {
		if err := try(); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v, want EROFS", what, err)
		}
	}
	if err := mounttest.CompareTrees(source, m.Point); err != nil {
		t.Error(err)
	}
	if err := open(file, unix.O_RDONLY|unix.O_CREAT)(); err == nil || err.Error() != "it opened" {
		t.Errorf("O_CREAT of a file that is there, to read it: %v", err)
	}
}

// Questions of loaders about a file, beside its bytes.
func TestQuestionsToAFile(t *testing.T) {
	m := mount(t, mounttest.Golden(t, "nanogpt"))
	path := m.Path("train.bin")
	f, err := os.Open(path)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	fd := int(f.Fd())
	if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("isatty: %v, want ENOTTY", err)
	}
	var value [16]byte
	if _, err := unix.Getxattr(path, "user.anything", value[:]); !errors.Is(err, unix.ENOTSUP) {
		t.Errorf("getxattr: %v, want ENOTSUP", err)
	}
	if _, err := unix.Listxattr(path, value[:]); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Errorf("listxattr: %v, want an empty list or ENOTSUP", err)
	}
	if os.Geteuid() == 0 {
		if err := unix.Setxattr(path, "user.anything", value[:], 0); !errors.Is(err, unix.EROFS) {
			t.Errorf("setxattr: %v, want EROFS", err)
		}
	}
	var st unix.Statfs_t
	must(t, unix.Statfs(m.Point, &st))
	if st.Type != unix.FUSE_SUPER_MAGIC || st.Blocks != 3 || st.Bfree != 3 || st.Bavail != 3 || st.Files != 2 || st.Ffree != 2 || st.Bsize != 4096 {
		t.Errorf("statfs says %+v, want a FUSE filesystem of 2 files in 3 blocks of 4096, none of them used", st)
	}
	for _, advice := range []int{unix.FADV_WILLNEED, unix.FADV_SEQUENTIAL, unix.FADV_RANDOM, unix.FADV_DONTNEED} {
		if err := unix.Fadvise(fd, 0, 0, advice); err != nil {
			t.Errorf("fadvise %d: %v", advice, err)
		}
	}
	if err := unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB); err != nil {
		t.Errorf("flock: %v", err)
	}
	for _, name := range []string{"absent", "absent/deeper", ".hbmfs/absent", ".hbmfs/views/absent", ".hbmfs/views/train/absent"} {
		mounttest.WantAbsent(t, m.Path(name))
	}
	if _, err := os.Stat(m.Path("train.bin", "below")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a name below a file: %v, want ENOTDIR", err)
	}
}

func TestDirectIO(t *testing.T) {
	blackbox.NeedFUSE(t)
	source, stream := mounttest.ShardedTokens(t, suite, 2, 300_000)
	shard := filepath.Join(source, "shard_000000.bin")
	probe, err := unix.Open(shard, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		t.Skipf("the filesystem of %s has no O_DIRECT itself: %v", source, err)
	}
	must(t, unix.Close(probe))
	content, err := os.ReadFile(shard)
	must(t, err)
	m := mount(t, source)
	for path, want := range map[string][]byte{
		m.Path("shard_000000.bin"):              content,
		m.Path(".hbmfs", "views", "tokens.bin"): stream,
	} {
		if err := readDirect(path, want); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func readDirect(path string, want []byte) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // opened for reading: nothing is lost
	// A mapping is aligned as O_DIRECT wants it.
	buf, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(buf) }() // of this process alone
	for _, off := range []int{0, 4096, 512 << 10, len(want) &^ 4095} {
		n, err := unix.Pread(fd, buf, int64(off))
		if size := min(len(buf), len(want)-off); err != nil || n != size || !bytes.Equal(buf[:n], want[off:off+n]) {
			return fmt.Errorf("at %d: %d bytes of %d, %w; or they are wrong", off, n, size, err)
		}
	}
	return nil
}

func TestEmptyFileAndEmptyDataset(t *testing.T) {
	source := suite.NewDir(t)
	m := mount(t, source)
	if entries, err := os.ReadDir(m.Point); err != nil || len(entries) != 0 {
		t.Errorf("an empty dataset lists %v, %v", entries, err)
	}
	mounttest.WriteFiles(t, source, map[string]string{"empty.bin": "", "one": "1"})
	mounttest.WantAbsent(t, m.Path("empty.bin")) // a mount shows what was there when it was made
	again := mount(t, source)
	if err := mounttest.CompareTrees(source, again.Point); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(again.Path("empty.bin")); err != nil || len(data) != 0 {
		t.Errorf("an empty file reads %q, %v", data, err)
	}
	if _, err := mounttest.MapFile(again.Path("empty.bin")); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("mapping an empty file: %v, want EINVAL as anywhere", err)
	}
}

// A single file can be mounted, too.
func TestOneFileAsSource(t *testing.T) {
	m := mount(t, filepath.Join(mounttest.Golden(t, "modded"), "fineweb_train_000001.bin"))
	names, err := mounttest.ListTree(m.Point)
	must(t, err)
	if fmt.Sprint(names) != "[. fineweb_train_000001.bin]" {
		t.Errorf("the mount lists %q", names)
	}
	want, err := os.ReadFile(filepath.Join(mounttest.Golden(t, "modded"), "fineweb_train_000001.bin"))
	must(t, err)
	if err := mounttest.CompareFile(m.Path("fineweb_train_000001.bin"), want); err != nil {
		t.Error(err)
	}
	tokens, err := os.ReadFile(m.Path(".hbmfs", "views", "tokens.bin"))
	if err != nil || !bytes.Equal(tokens, want[1024:]) {
		t.Errorf("tokens.bin: %d bytes, %v; want the %d after the header", len(tokens), err, len(want)-1024)
	}
}

// A directory read in small pieces shows every name once, in one order.
func TestListingInPieces(t *testing.T) {
	source := suite.NewDir(t)
	const files = 3000
	name := func(i int) string {
		return filepath.Join(source, fmt.Sprintf("shard-%05d-a-longer-name-so-that-many-replies-are-needed.bin", i*7919%files))
	}
	must(t, os.WriteFile(name(0), nil, 0o644))
	for i := range files - 1 {
		must(t, os.Link(name(0), name(i+1)))
	}
	m := mount(t, source)
	var lists [2][]string
	for i := range lists {
		d, err := os.Open(m.Point)
		must(t, err)
		for err == nil {
			var part []string
			part, err = d.Readdirnames(97)
			lists[i] = append(lists[i], part...)
		}
		if err != io.EOF {
			t.Error(err)
		}
		must(t, d.Close())
	}
	if len(lists[0]) != files {
		t.Fatalf("%d names of %d", len(lists[0]), files)
	}
	for i, name := range lists[0] {
		if i > 0 && name <= lists[0][i-1] {
			t.Fatalf("%q comes after %q", name, lists[0][i-1])
		}
		if lists[1][i] != name {
			t.Fatalf("the second listing has %q where the first has %q", lists[1][i], name)
		}
	}
}
