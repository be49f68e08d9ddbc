package trust

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// place makes a directory that is trusted, in a directory with a sticky bit.
func place(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	dir, err := filepath.EvalSymlinks(dir)
	must(t, err)
	for at := filepath.Dir(dir); ; at = filepath.Dir(at) {
		if err := directory(at, unix.S_ISVTX); err != nil {
			t.Skipf("the tests' temporary directory is not one to trust: %v", err)
		}
		if at == "/" {
			break
		}
	}
	dir = filepath.Join(dir, "own")
	must(t, os.Mkdir(dir, 0o700))
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make directories of others")
	}
}

// refused checks that err is a refusal that says all of says.
func refused(t *testing.T, err error, says ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("got %v, want a refusal that says %q", err, says)
		return
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}

func TestDirMakesWhatIsMissing(t *testing.T) {
	dir := place(t)
	must(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	must(t, os.Symlink(filepath.Join(dir, "link"), filepath.Join(dir, "again")))
	for path, want := range map[string]string{
		"a/b/c": "a/b/c", "real": "real", "link/x": "real/x", "again": "real", "again/../real/./y/": "real/y",
	} {
		got, err := Dir(dir + "/" + path)
		info, statErr := os.Lstat(filepath.Join(dir, want))
		if err != nil || got != filepath.Join(dir, want) || statErr != nil || !info.IsDir() {
			t.Errorf("%s: %q, %v, %v", path, got, err, statErr)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("what was made has %v, %v", info.Mode(), err)
	}
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	if _, err := Dir(filepath.Join(dir, "loop")); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a loop: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for _, path := range []string{"file", "file/x"} {
		if _, err := Dir(filepath.Join(dir, path)); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestWritableByOthers(t *testing.T) {
	for _, mode := range []os.FileMode{0o770, 0o707, 0o777, 0o720} {
		dir := place(t)
		for _, at := range []string{"cache", "above/cache"} {
			path := filepath.Join(dir, at)
			must(t, os.MkdirAll(path, 0o700))
			open := filepath.Join(dir, strings.Split(at, "/")[0])
			must(t, os.Chmod(open, mode))
			_, err := Dir(path)
			refused(t, err, open+" may be written to by others", "chmod go-w "+open)
		}
		// With the sticky bit what lies in it cannot be replaced.
		must(t, os.Chmod(filepath.Join(dir, "above"), mode|os.ModeSticky))
		if _, err := Dir(filepath.Join(dir, "above/cache")); err != nil {
			t.Error(err)
		}
		_, err := Below(dir, "above")
		refused(t, err, "may be written to")
	}
}

func TestOfAnotherUser(t *testing.T) {
	needRoot(t)
	dir := place(t)
	theirs := filepath.Join(dir, "theirs")
	must(t, os.MkdirAll(filepath.Join(theirs, "below"), 0o755))
	must(t, os.Lchown(theirs, 4711, 0))
	for _, path := range []string{"theirs", "theirs/below", "theirs/not/there"} {
		_, err := Dir(filepath.Join(dir, path))
		refused(t, err, theirs+" belongs to user 4711", "chown 0 "+theirs)
	}
	if _, err := os.Stat(filepath.Join(theirs, "not")); !os.IsNotExist(err) {
		t.Errorf("something was made in it: %v", err)
	}
	must(t, os.Mkdir(filepath.Join(dir, "mine"), 0o755))
	link := filepath.Join(dir, "link")
	must(t, os.Symlink("mine", link))
	must(t, os.Lchown(link, 4711, 0))
	_, err := Dir(link)
	refused(t, err, link+" is a link that belongs to user 4711")
	must(t, os.Lchown(theirs, 0, 4711)) // a group that may not write
	if _, err := Dir(theirs); err != nil {
		t.Error(err)
	}
}

func TestBelowFollowsNoLink(t *testing.T) {
	dir := place(t)
	must(t, os.Mkdir(filepath.Join(dir, "elsewhere"), 0o700))
	must(t, os.Symlink("elsewhere", filepath.Join(dir, "segments")))
	_, err := Below(dir, "segments")
	refused(t, err, "is a link to elsewhere")
	must(t, os.Remove(filepath.Join(dir, "segments")))
	path, err := Below(dir, "segments")
	if info, statErr := os.Lstat(path); err != nil || statErr != nil || info.Mode() != os.ModeDir|0o700 {
		t.Errorf("%v, %v, %v", err, info, statErr)
	}
	must(t, os.Chmod(path, 0o770))
	_, err = Below(dir, "segments")
	refused(t, err, "may be written to by others")
}

func TestFile(t *testing.T) {
	me := uint32(os.Geteuid())
	for _, k := range []struct {
		uid, mode uint32
		good      bool
	}{{me, 0o400, true}, {0, 0o644, true}, {me, 0o420, false}, {me, 0o402, false}, {me + 1, 0o400, false}, {me, 0o1402, false}} {
		if err := File(&unix.Stat_t{Uid: k.uid, Mode: k.mode}); (err == nil) != k.good {
			t.Errorf("a file of user %d with mode %o: %v", k.uid, k.mode, err)
		}
	}
}
