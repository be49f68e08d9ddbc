package checkpoint

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/tests/blackbox/thin"
)

// pastDraft begins a draft that is written past FUSE, in a directory.
func pastDraft(t *testing.T, dir string) *Draft {
	t.Helper()
	h, err := OpenHome(dir)
	must(t, err)
	defer func() { must(t, h.Close()) }()
	d, err := h.Begin(t.Context(), "step_1", Part{Of: 1}, Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Mode: 0o750})
	must(t, err)
	must(t, d.Past(nil))
	return d
}

// made makes a file of a draft, fills it and links it, and gives what Publish is told of it.
func made(t *testing.T, d *Draft, name string, data []byte, named bool) File {
	t.Helper()
	m, err := d.Make(name, int64(len(data)), named)
	must(t, err)
	_, err = m.Pen.WriteAt(data, 0)
	must(t, errors.Join(err, m.Pen.Truncate(int64(len(data))), m.Pen.Close()))
	f := File{Name: name, Size: int64(len(data))}
	if len(data) > 0 {
		f.Sums = []uint32{crc32.Checksum(data, castagnoli())}
	}
	must(t, d.Link(m, f.Sums))
	return f
}

func TestFilesWithoutNamesAreACheckpoint(t *testing.T) {
	for _, named := range []bool{false, true} {
		dir := t.TempDir()
		d := pastDraft(t, dir)
		files := []File{made(t, d, "a", []byte("text"), named), made(t, d, "sub/b", nil, named), made(t, d, "sub/c", make([]byte, 5000), named)}
		must(t, d.Publish(t.Context(), files))
		report, err := Verify(t.Context(), filepath.Join(dir, "step_1"), VerifyOptions{})
		if err != nil || report.Damaged > 0 || report.Files != 3 {
			t.Errorf("named %v: %+v, %v", named, report, err)
		}
		for name, want := range map[string]fs.FileMode{"": 0o750, "a": 0o440, "sub/b": 0o440, ManifestName: 0o440} {
			info, err := os.Stat(filepath.Join(dir, "step_1", name))
			must(t, err)
			if info.Mode().Perm() != want {
				t.Errorf("named %v: %q has mode %o, want %o", named, name, info.Mode().Perm(), want)
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("named %v: %v, %v", named, left, err)
		}
	}
}

// A pen is any way to write into a file later. All are taken while the file has one, and then it is published.
func TestNobodyKeepsAPen(t *testing.T) {
	type pen struct {
		keep func(t *testing.T, m *Making) (end func())
		name bool // the refusal names the file
	}
	dup := func(t *testing.T, f *os.File) func() {
		fd, err := unix.Dup(int(f.Fd()))
		must(t, err)
		return func() { must(t, unix.Close(fd)) }
	}
	pens := map[string]pen{
		"a descriptor": {func(t *testing.T, m *Making) func() { return dup(t, m.Pen) }, true},
		"a shared writable mapping": {func(t *testing.T, m *Making) func() {
			p, err := unix.Mmap(int(m.Pen.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			return func() { must(t, unix.Munmap(p)) }
		}, true},
		"a mapping that could be made writable": {func(t *testing.T, m *Making) func() {
			p, err := unix.Mmap(int(m.Pen.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			must(t, err)
			return func() { must(t, unix.Munmap(p)) }
		}, true},
		"a descriptor on its way in a socket": {func(t *testing.T, m *Making) func() {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			must(t, err)
			must(t, unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(int(m.Pen.Fd())), nil, 0))
			return func() { must(t, errors.Join(unix.Close(pair[0]), unix.Close(pair[1]))) }
		}, true},
	}
	for what, p := range pens {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			d := pastDraft(t, dir)
			m, err := d.Make("weights", 4096, false)
			must(t, err)
			end := p.keep(t, m)
			must(t, m.Pen.Close())
			must(t, d.Link(m, nil))
			files := []File{{"weights", 4096, []uint32{crc32.Checksum(make([]byte, 4096), castagnoli())}}}
			err = d.Publish(t.Context(), files)
			if !errors.Is(err, ErrOpen) || p.name && !strings.Contains(err.Error(), `"weights"`) {
				t.Errorf("while it is kept: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "step_1")); err == nil {
				t.Error("it is published")
			}
			end()
			must(t, d.Publish(t.Context(), files))
		})
	}
}

// A file of the draft that was never linked is no part of the checkpoint, but its pen would keep the mount writable.
func TestAPenWithoutANameIsSeen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root may mount")
	}
	d := pastDraft(t, t.TempDir())
	f := made(t, d, "a", []byte("a"), false)
	m, err := d.Make("b", 4096, false)
	must(t, err)
	if err := d.Publish(t.Context(), []File{f}); !errors.Is(err, ErrOpen) {
		t.Errorf("%v, want ErrOpen", err)
	}
	must(t, errors.Join(m.Pen.Close(), m.Read.Close()))
	must(t, d.Publish(t.Context(), []File{f}))
}

// Descriptors that are no pens stay, but nothing can be made of them: not by the owner, and not by root.
func TestWhatStaysOpenCannotBecomeAPen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root may mount")
	}
	dir := t.TempDir()
	user := asuser.User{UID: 4711, GID: 4711}
	h, err := OpenHome(dir)
	must(t, err)
	defer func() { must(t, h.Close()) }()
	d, err := h.Begin(t.Context(), "step_1", Part{Of: 1}, Owner{UID: 4711, GID: 4711, Mode: 0o755})
	must(t, err)
	must(t, d.Past(nil))
	mine, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	defer func() { must(t, unix.Close(mine)) }()
	must(t, os.Chmod(dir, 0o777))
	var reader, place int
	must(t, asuser.Do(user, func() error {
		m, err := d.Make("a", 4096, false)
		if err != nil {
			return err
		}
		if reader, err = unix.Open(pathOf(m.Pen), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		if place, err = unix.Open(pathOf(m.Pen), unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.Linkat(unix.AT_FDCWD, pathOf(m.Pen), mine, "mine", unix.AT_SYMLINK_FOLLOW); !errors.Is(err, unix.EXDEV) {
			t.Errorf("a name of the client's own: %v, want EXDEV", err)
		}
		return errors.Join(m.Pen.Close(), d.Link(m, nil))
	}))
	must(t, d.Publish(t.Context(), []File{{"a", 4096, []uint32{crc32.Checksum(make([]byte, 4096), castagnoli())}}}))
	defer func() { must(t, errors.Join(unix.Close(reader), unix.Close(place))) }()
	for _, u := range []asuser.User{user, {Capable: true}} {
		must(t, asuser.Do(u, func() error {
			for _, fd := range []int{reader, place} {
				for how, name := range map[int]string{unix.O_RDWR: "O_RDWR", unix.O_WRONLY | unix.O_TRUNC: "O_TRUNC"} {
					fd, err := unix.Open(pathOf(os.NewFile(uintptr(mustDup(t, fd)), "")), how|unix.O_CLOEXEC, 0)
					if err == nil {
						_ = unix.Close(fd)
						t.Errorf("user %d opens it with %s", u.UID, name)
					}
				}
			}
			if err := unix.Fchmod(reader, 0o666); !errors.Is(err, unix.EROFS) {
				t.Errorf("user %d: fchmod: %v", u.UID, err)
			}
			if err := unix.Ftruncate(reader, 0); err == nil {
				t.Errorf("user %d cuts it", u.UID)
			}
			if _, err := unix.Mmap(reader, 0, 4096, unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
				t.Errorf("user %d maps it for writing", u.UID)
			}
			return nil
		}))
	}
}

func mustDup(t *testing.T, fd int) int {
	t.Helper()
	other, err := unix.Dup(fd)
	must(t, err)
	return other
}

// Another process goes on with what was kept of a draft: its lock, its mount, and files without names.
func TestADraftIsAdoptedWithItsFiles(t *testing.T) {
	dir := t.TempDir()
	h, err := OpenHome(dir)
	must(t, err)
	defer func() { must(t, h.Close()) }()
	first := pastDraft(t, dir)
	f := made(t, first, "a", []byte("a"), false)
	m, err := first.Make("b", 1, false)
	must(t, err)
	lock, err := first.Lock()
	must(t, err)
	var tree *os.File
	if kept := first.Tree(); kept != nil {
		tree = os.NewFile(uintptr(mustDup(t, int(kept.Fd()))), "tree")
	}
	if _, err := Begin(t.Context(), filepath.Join(dir, "step_1"), Part{Of: 1}); !errors.Is(err, ErrBusy) {
		t.Errorf("another writer: %v", err)
	}
	d, err := h.Adopt("step_1", Part{Of: 1}, Owner{Mode: 0o755}, lock) // the first one's process would be dead
	must(t, err)
	must(t, d.Past(tree))
	pen, err := d.Again(m)
	must(t, err)
	_, err = pen.WriteAt([]byte("b"), 0)
	must(t, errors.Join(err, pen.Truncate(1), pen.Close(), m.Pen.Close(), d.Link(m, nil)))
	id, err := d.ID()
	must(t, err)
	must(t, d.Publish(t.Context(), []File{f, {"b", 1, []uint32{crc32.Checksum([]byte("b"), castagnoli())}}}))
	if found, err := h.Find("step_1"); err != nil || found.ID != id {
		t.Errorf("published as %+v, %v, want %d", found, err, id)
	}
	first.lock = nil // the name is another's now
	first.end()
}

func TestMakeRefuses(t *testing.T) {
	d := pastDraft(t, t.TempDir())
	defer func() { must(t, d.Drop()) }()
	for _, name := range []string{"", ".", "..", "../a", "/a", "a/../b", "a//b", "a/", ManifestName, "a\x00b", "a\nb", strings.Repeat("a", 256)} {
		if m, err := d.Make(name, 1, false); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v, %v", name, m, err)
		}
	}
	for _, size := range []int64{-1, 1<<63 - 1, 1<<63 - 4096} {
		if m, err := d.Make("a", size, false); err == nil {
			t.Errorf("%d bytes: %v", size, m)
		}
	}
	m, err := d.Make("a", 100, false)
	must(t, err)
	if err := d.Link(m, nil); !errors.Is(err, ErrInvalid) { // it has a page, as it was allocated
		t.Errorf("a file of another size is linked: %v", err)
	}
	must(t, errors.Join(m.Pen.Close(), m.Read.Close()))
}

// A container may have no CAP_LEASE. Then the lease is taken as the owner.
func TestALeaseNeedsNoCapability(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root has files of others")
	}
	dir := t.TempDir()
	h, err := OpenHome(dir)
	must(t, err)
	defer func() { must(t, h.Close()) }()
	d, err := h.Begin(t.Context(), "step_1", Part{Of: 1}, Owner{UID: 4711, GID: 4711, Mode: 0o755})
	must(t, err)
	must(t, d.Past(nil))
	var f File
	must(t, asuser.Do(asuser.User{UID: 4711, GID: 4711}, func() error {
		m, err := d.Make("a", 1, false)
		if err != nil {
			return err
		}
		f = File{"a", 1, []uint32{crc32.Checksum([]byte("a"), castagnoli())}}
		_, err = m.Pen.Write([]byte("a"))
		return errors.Join(err, m.Pen.Truncate(1), m.Pen.Close(), d.Link(m, nil))
	}))
	said := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&head, &caps[0]); err != nil {
			said <- err
			return
		}
		caps[0].Effective &^= 1 << unix.CAP_LEASE
		if err := unix.Capset(&head, &caps[0]); err != nil {
			said <- err
			return
		}
		said <- d.Publish(t.Context(), []File{f})
	}()
	must(t, <-said)
}

// TestAFileThatLostBytesGetsNoName: a writer that ignores its failed fsync seals nothing, however the daemon comes to know of it.
func TestAFileThatLostBytesGetsNoName(t *testing.T) {
	for _, kind := range thin.Kinds() {
		t.Run(kind, func(t *testing.T) {
			disk := thin.New(t, kind, t.TempDir(), t.TempDir())
			for what, c := range map[string]struct{ named, doubt, synced bool }{
				"with a descriptor": {false, false, true}, "never synced": {false, false, false}, "with a name": {true, false, true}, "after another daemon": {false, true, true},
			} {
				t.Run(what, func(t *testing.T) {
					d := pastDraft(t, disk.Dir)
					data := bytes.Repeat([]byte("data"), 5<<18+3)
					var sums []uint32
					for chunk := range slices.Chunk(data, Chunk) {
						sums = append(sums, crc32.Checksum(chunk, castagnoli()))
					}
					m, err := d.Make("a", int64(len(data)), c.named)
					must(t, err)
					must(t, m.Pen.Truncate(m.Size))
					disk.Starve(t, pathOf(m.Pen))
					_, err = m.Pen.WriteAt(data, 0)
					must(t, err)
					if err := m.Pen.Sync(); c.synced && err == nil {
						t.Error("fsync did not fail")
					}
					if m.Doubt = c.doubt; c.doubt {
						_ = m.Read.Sync() // as another daemon did
					}
					must(t, m.Pen.Close())
					disk.Forget(t)
					disk.Feed(t)
					for range 2 {
						if err := d.Link(m, sums); err == nil || !strings.Contains(err.Error(), `"a"`) {
							t.Errorf("it is sealed: %v", err)
						}
					}
					whole, err := d.Make("b", int64(len(data)), c.named)
					must(t, err)
					_, err = whole.Pen.WriteAt(data, 0)
					whole.Doubt = c.doubt
					must(t, errors.Join(err, whole.Pen.Truncate(whole.Size), whole.Pen.Close(), d.Link(whole, sums)))
					if m.Read != nil {
						must(t, m.Read.Close())
					}
					must(t, d.Drop())
				})
			}
		})
	}
}
