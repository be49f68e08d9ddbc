package volume_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// change is a way to change something published: NAME/file with the text "bytes", and NAME/sub/file.
type change struct {
	name string
	do   func(published string) error
}

func openThen(path string, flags int, then func(fd int) error) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // nothing may have been written
	return then(fd)
}

func done(int) error { return nil }

var changes = []change{
	{"open for writing", func(p string) error { return openThen(p+"/file", unix.O_WRONLY, done) }},
	{"open for both", func(p string) error { return openThen(p+"/file", unix.O_RDWR, done) }},
	{"open to append", func(p string) error { return openThen(p+"/file", unix.O_WRONLY|unix.O_APPEND, done) }},
	{"open and cut", func(p string) error { return openThen(p+"/file", unix.O_WRONLY|unix.O_TRUNC, done) }},
	{"open read-only and cut", func(p string) error { return openThen(p+"/file", unix.O_RDONLY|unix.O_TRUNC, done) }},
	{"truncate", func(p string) error { return unix.Truncate(p+"/file", 1) }},
	{"truncate to its size", func(p string) error { return unix.Truncate(p+"/file", 5) }},
	{"chmod", func(p string) error { return unix.Chmod(p+"/file", 0o777) }},
	{"chmod the checkpoint", func(p string) error { return unix.Chmod(p, 0o777) }},
	{"chown", func(p string) error { return unix.Lchown(p+"/file", os.Getuid(), os.Getgid()) }},
	{"utimes", func(p string) error { return unix.Utimes(p+"/file", make([]unix.Timeval, 2)) }},
	{"touch", func(p string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, p+"/file", nil, 0) }},
	{"unlink", func(p string) error { return unix.Unlink(p + "/file") }},
	{"unlink deep", func(p string) error { return unix.Unlink(p + "/sub/file") }},
	{"unlink the manifest", func(p string) error { return unix.Unlink(p + "/.hbmfs-manifest.json") }},
	{"rmdir below", func(p string) error { return unix.Rmdir(p + "/sub") }},
	{"create", func(p string) error { return openThen(p+"/new", unix.O_WRONLY|unix.O_CREAT, done) }},
	{"create over it", func(p string) error { return openThen(p+"/file", unix.O_WRONLY|unix.O_CREAT, done) }},
	{"create without a name", func(p string) error { return openThen(p, unix.O_WRONLY|unix.O_TMPFILE, done) }},
	{"mkdir", func(p string) error { return unix.Mkdir(p+"/new", 0o755) }},
	{"mknod", func(p string) error { return unix.Mknod(p+"/new", unix.S_IFREG|0o644, 0) }},
	{"mkfifo", func(p string) error { return unix.Mkfifo(p+"/new", 0o644) }},
	{"symlink", func(p string) error { return unix.Symlink("file", p+"/new") }},
	{"link", func(p string) error { return unix.Link(p+"/file", p+"/new") }},
	{"link out", func(p string) error { return unix.Link(p+"/file", filepath.Dir(p)+"/new") }},
	{"rename within", func(p string) error { return unix.Rename(p+"/file", p+"/new") }},
	{"rename over", func(p string) error { return unix.Rename(p+"/sub/file", p+"/file") }},
	{"exchange", func(p string) error {
		return unix.Renameat2(unix.AT_FDCWD, p+"/file", unix.AT_FDCWD, p+"/sub/file", unix.RENAME_EXCHANGE)
	}},
	{"rename out", func(p string) error { return unix.Rename(p+"/file", filepath.Dir(p)+"/new") }},
	{"rename the checkpoint", func(p string) error { return unix.Rename(p, p+"2") }},
	{"rename the checkpoint to a draft", func(p string) error { return unix.Rename(p, p+".tmp") }},
	{"setxattr", func(p string) error { return unix.Setxattr(p+"/file", "user.x", []byte("y"), 0) }},
	{"removexattr", func(p string) error { return unix.Removexattr(p+"/file", "user.x") }},
	{"make the name again", func(p string) error { return unix.Mkdir(p, 0o755) }},
	{"map and write", func(p string) error {
		return openThen(p+"/file", unix.O_RDONLY, func(fd int) error {
			_, err := unix.Mmap(fd, 0, 5, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			return err
		})
	}},
	{"map, and allow writes", func(p string) error {
		return openThen(p+"/file", unix.O_RDONLY, func(fd int) error {
			m, err := unix.Mmap(fd, 0, 5, unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Munmap(m) }()
			return unix.Mprotect(m, unix.PROT_READ|unix.PROT_WRITE)
		})
	}},
}

// heldChanges are changes by a descriptor of the file that was open for reading before it was published.
var heldChanges = []struct {
	name string
	do   func(fd int) error
}{
	{"write", func(fd int) error { _, err := unix.Write(fd, []byte("x")); return err }},
	{"pwrite", func(fd int) error { _, err := unix.Pwrite(fd, []byte("x"), 0); return err }},
	{"ftruncate", func(fd int) error { return unix.Ftruncate(fd, 0) }},
	{"fallocate", func(fd int) error { return unix.Fallocate(fd, 0, 0, 100) }},
	{"punch", func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4)
	}},
	{"fchmod", func(fd int) error { return unix.Fchmod(fd, 0o777) }},
	{"fchown", func(fd int) error { return unix.Fchown(fd, os.Getuid(), os.Getgid()) }},
	{"futimens", func(fd int) error { return unix.Futimes(fd, make([]unix.Timeval, 2)) }},
	{"fsetxattr", func(fd int) error { return unix.Fsetxattr(fd, "user.x", []byte("y"), 0) }},
	{"open again for writing", func(fd int) error {
		return openThen("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDWR, done)
	}},
	{"open again and cut", func(fd int) error {
		return openThen("/proc/self/fd/"+strconv.Itoa(fd), unix.O_WRONLY|unix.O_TRUNC, done)
	}},
	{"truncate by it", func(fd int) error { return unix.Truncate("/proc/self/fd/"+strconv.Itoa(fd), 0) }},
	{"map writable", func(fd int) error {
		_, err := unix.Mmap(fd, 0, 5, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		return err
	}},
	{"copy into", func(fd int) error {
		from, err := unix.Open("/proc/self/exe", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(from) }()
		_, err = unix.CopyFileRange(from, nil, fd, nil, 3, 0)
		return err
	}},
	{"link it", func(fd int) error {
		return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, os.TempDir()+"/hbmfs-link", unix.AT_SYMLINK_FOLLOW)
	}},
}

// TestPublishedNeverChanges tries each way to change a published file, as root, as its owner and as another user.
func TestPublishedNeverChanges(t *testing.T) {
	v := mount(t)
	dir := v.Draft(t, "step", map[string]string{"file": "bytes", "sub/file": "below"})
	blackbox.Must(t, filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		if err == nil {
			err = os.Chown(path, volumetest.Nobody, volumetest.Nobody)
		}
		return err
	}))
	before, err := unix.Open(dir+"/file", unix.O_RDONLY, 0)
	blackbox.Must(t, err)
	defer func() { _ = unix.Close(before) }()
	inDir, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	blackbox.Must(t, err)
	defer func() { _ = unix.Close(inDir) }()
	mapped, err := unix.Mmap(before, 0, 5, unix.PROT_READ, unix.MAP_SHARED)
	blackbox.Must(t, err)
	defer func() { _ = unix.Munmap(mapped) }()
	blackbox.Must(t, v.Publish("step"))
	same := func(how string) {
		t.Helper()
		for _, path := range []string{v.Path("step", "file"), filepath.Join(v.Dir, "step", "file")} {
			if text, err := os.ReadFile(path); err != nil || string(text) != "bytes" || string(mapped) != "bytes" {
				t.Fatalf("after %s %s has %q, %v, and the mapping %q", how, path, text, err, mapped)
			}
		}
		if names := volumetest.Listed(t, v.Path("step")); !slices.Equal(names, []string{".hbmfs-manifest.json", "file", "sub"}) {
			t.Fatalf("after %s there are %q", how, names)
		}
	}
	for _, c := range changes {
		if err := c.do(v.Path("step")); err == nil {
			t.Errorf("%s was done", c.name)
		}
		same(c.name)
	}
	for _, c := range heldChanges {
		if err := c.do(before); err == nil {
			t.Errorf("%s by an older descriptor was done", c.name)
		}
		same(c.name)
	}
	for _, name := range []string{"file", "sub/file", "new"} { // by a directory that was open when it was a draft
		if fd, err := unix.Openat(inDir, name, unix.O_RDWR|unix.O_CREAT, 0o644); err == nil {
			_ = unix.Close(fd)
			t.Errorf("%s was opened for writing by an older directory", name)
		}
	}
	volumetest.Want(t, "unlink by an older directory", unix.Unlinkat(inDir, "file", 0), unix.EROFS)
	volumetest.Want(t, "mkdir by an older directory", unix.Mkdirat(inDir, "new", 0o755), unix.EROFS)
	volumetest.Want(t, "rename by an older directory", unix.Renameat(inDir, "file", inDir, "new"), unix.EROFS)
	volumetest.Want(t, "chmod an older directory", unix.Fchmod(inDir, 0o777), unix.EROFS)
	if err := unix.Mprotect(mapped, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("an older mapping was made writable")
	}
	same("all of them")
	for _, user := range []uint32{volumetest.Nobody, volumetest.Other} {
		if said := volumetest.As(t, user, nil, "changes", v.Path("step")); said != "ok" {
			t.Errorf("as user %d: %s", user, said)
		}
		same("another user")
	}
	v.Kill(t)
	for _, c := range changes {
		if err := c.do(v.Path("step")); err == nil {
			t.Errorf("%s was done after a hand-over", c.name)
		}
	}
	same("a hand-over")
}

// TestNobodyKeepsAPen: whoever can still write a file keeps it from being published, and the answer names the file.
func TestNobodyKeepsAPen(t *testing.T) {
	v := mount(t)
	cases := map[string]func(path string) (release func()){
		"a descriptor": func(path string) func() {
			fd, err := unix.Open(path, unix.O_WRONLY, 0)
			blackbox.Must(t, err)
			return func() { _ = unix.Close(fd) }
		},
		"a descriptor to append": func(path string) func() {
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_APPEND, 0)
			blackbox.Must(t, err)
			return func() { _ = unix.Close(fd) }
		},
		"a direct descriptor": func(path string) func() {
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT, 0)
			blackbox.Must(t, err)
			return func() { _ = unix.Close(fd) }
		},
		"a mapping": func(path string) func() {
			fd, err := unix.Open(path, unix.O_RDWR, 0)
			blackbox.Must(t, err)
			m, err := unix.Mmap(fd, 0, 5, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			blackbox.Must(t, err)
			_ = unix.Close(fd)
			return func() { _ = unix.Munmap(m) }
		},
		"a mapping that may become writable": func(path string) func() {
			fd, err := unix.Open(path, unix.O_RDWR, 0)
			blackbox.Must(t, err)
			m, err := unix.Mmap(fd, 0, 5, unix.PROT_READ, unix.MAP_SHARED)
			blackbox.Must(t, err)
			_ = unix.Close(fd)
			return func() { _ = unix.Munmap(m) }
		},
		"a descriptor under way": func(path string) func() {
			fd, err := unix.Open(path, unix.O_RDWR, 0)
			blackbox.Must(t, err)
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			blackbox.Must(t, err)
			blackbox.Must(t, unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(fd), nil, 0))
			_ = unix.Close(fd)
			return func() { _ = unix.Close(pair[0]); _ = unix.Close(pair[1]) }
		},
	}
	release := map[string]func(){}
	for name, hold := range cases {
		file := name + "/weights"
		release[name] = hold(filepath.Join(v.Draft(t, name, map[string]string{"first": "closed", file: "bytes"}), file))
	}
	for _, name := range []string{"a descriptor", "a mapping"} { // the daemon waits two seconds for each pen, and the kernel renames one at a time
		volumetest.Want(t, "rename with "+name, v.Publish(name), unix.EBUSY)
	}
	var all sync.WaitGroup
	for name := range cases {
		all.Go(func() {
			out, err := suite.Command(t.Context(), "publish", v.Path(name+".tmp")).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || !bytes.Contains(out, []byte(strconv.Quote(name+"/weights")+" is still open for writing, or mapped")) {
				t.Errorf("%s: hbmfs publish: %v, and it says %q", name, err, out)
			}
		})
	}
	all.Wait()
	for name, release := range release {
		v.Said(t, strconv.Quote(name+"/weights"))
		blackbox.Must(t, os.WriteFile(v.Path(name+".tmp", "later"), []byte("it goes on"), 0o644))
		release()
		blackbox.Must(t, v.Publish(name))
		blackbox.Must(t, os.Remove(v.Path(name)))
	}
}

// TestReadersKeepNothing: readers do not keep a draft from being published, and go on.
func TestReadersKeepNothing(t *testing.T) {
	v := mount(t)
	dir := v.Draft(t, "step", map[string]string{"file": "bytes"})
	f, err := os.Open(dir + "/file")
	blackbox.Must(t, err)
	defer func() { _ = f.Close() }()
	copyOnWrite, err := unix.Mmap(int(f.Fd()), 0, 5, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	blackbox.Must(t, err)
	defer func() { _ = unix.Munmap(copyOnWrite) }()
	blackbox.Must(t, v.Publish("step"))
	copyOnWrite[0] = 'B'
	text := make([]byte, 5)
	if _, err := f.ReadAt(text, 0); err != nil || string(text) != "bytes" {
		t.Errorf("an older reader reads %q, %v", text, err)
	}
	if text, err := os.ReadFile(v.Path("step", "file")); err != nil || string(text) != "bytes" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

// TestRemoval: a published checkpoint is removed as a whole, by its owner or root.
func TestRemoval(t *testing.T) {
	v := mount(t)
	v.Draft(t, "step", map[string]string{"file": "bytes", "sub/deep/file": "below"})
	blackbox.Must(t, v.Publish("step"))
	f, err := os.Open(v.Path("step", "file"))
	blackbox.Must(t, err)
	defer func() { _ = f.Close() }()
	if said := volumetest.As(t, volumetest.Nobody, nil, "rmdir", v.Path("step")); said != "EPERM" {
		t.Errorf("another user's rmdir: %s", said)
	}
	volumetest.Want(t, "rm of one file", os.Remove(v.Path("step", "file")), unix.EROFS)
	v.Said(t, "hbmfs checkpoint rm "+v.Point+"/NAME")
	blackbox.Must(t, os.Remove(v.Path("step")))
	if names := volumetest.Listed(t, v.Dir); len(names) != 0 {
		t.Errorf("%q are left", names)
	}
	if _, err := os.Stat(v.Path("step")); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	text := make([]byte, 5)
	if _, err := f.ReadAt(text, 0); err != nil || string(text) != "bytes" {
		t.Errorf("a reader that has it open reads %q, %v", text, err)
	}
	v.Draft(t, "step", map[string]string{"file": "again"})
	blackbox.Must(t, v.Publish("step"))
	if text, err := os.ReadFile(v.Path("step", "file")); err != nil || string(text) != "again" {
		t.Errorf("the next one has %q, %v", text, err)
	}
	// As shutil.rmtree(ignore_errors=True) does, with which trainers rotate checkpoints.
	_ = os.Remove(v.Path("step", "file"))
	blackbox.Must(t, syscall.Rmdir(v.Path("step")))
	v.Draft(t, "step", map[string]string{"file": "and again"})
	blackbox.Must(t, v.Publish("step"))
	v.Draft(t, "next", map[string]string{"file": "a draft"})
	if code, out, said := run(t, "checkpoint", "rm", v.Path("next.tmp")); code != 1 || !strings.Contains(said, "is no checkpoint") {
		t.Errorf("checkpoint rm of a draft: exit code %d, %s%s", code, out, said)
	}
	if code, out, said := run(t, "checkpoint", "rm", v.Path("step")); code != 0 || out != "removed "+v.Path("step")+"\n" {
		t.Errorf("checkpoint rm: exit code %d, %s%s", code, out, said)
	}
	if names := strings.Join(volumetest.Listed(t, v.Dir), " "); strings.Contains(names, "step") || !strings.Contains(names, "next") {
		t.Errorf("%q are left", names)
	}
}

// TestOthersOfTheMachine: each user has drafts of their own, with their own rights.
func TestOthersOfTheMachine(t *testing.T) {
	v := mount(t)
	for _, step := range []struct {
		uid  uint32
		verb string
		args []string
		want string
	}{
		{volumetest.Nobody, "mkdir", []string{v.Path("a.tmp")}, "ok"},
		{volumetest.Nobody, "write", []string{v.Path("a.tmp/file"), "bytes"}, "ok"},
		{volumetest.Other, "list", []string{v.Path("a.tmp")}, "EACCES"},
		{volumetest.Other, "write", []string{v.Path("a.tmp/other"), "x"}, "EACCES"},
		{volumetest.Other, "read", []string{v.Path("a.tmp/file")}, "EACCES"},
		{volumetest.Other, "rename", []string{v.Path("a.tmp"), v.Path("b")}, "EPERM"},
		{volumetest.Other, "rmdir", []string{v.Path("a.tmp")}, "EPERM"},
		{volumetest.Other, "mkdir", []string{v.Path("a")}, "EEXIST"},
		{volumetest.Nobody, "rename", []string{v.Path("a.tmp"), v.Path("a")}, "ok"},
		{volumetest.Other, "read", []string{v.Path("a/file")}, "EACCES"}, // 0640
		{volumetest.Nobody, "read", []string{v.Path("a/file")}, "ok"},
		{volumetest.Other, "list", []string{v.Path("a")}, "ok"}, // 0755
		{volumetest.Other, "rmdir", []string{v.Path("a")}, "EPERM"},
		{volumetest.Nobody, "rmdir", []string{v.Path("a")}, "ok"},
	} {
		if said := volumetest.As(t, step.uid, nil, step.verb, step.args...); said != step.want {
			t.Errorf("as %d: %s %q: %s, want %s", step.uid, step.verb, step.args, said, step.want)
		}
	}
	// The directory's own permissions decide who may begin.
	blackbox.Must(t, os.Chmod(v.Dir, 0o775))
	blackbox.Must(t, os.Chown(v.Dir, 0, 4712))
	if !blackbox.Within(volumetest.Patience, func() bool { return volumetest.As(t, volumetest.Nobody, nil, "mkdir", v.Path("c")) == "EACCES" }) {
		t.Error("who may not write to the directory may begin a draft")
	}
	if said := volumetest.As(t, volumetest.Nobody, []uint32{4712}, "mkdir", v.Path("c")); said != "ok" {
		t.Errorf("a member of the directory's group: %s", said)
	}
}
