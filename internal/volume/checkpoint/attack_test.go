package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// as makes a path another user's.
func as(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make files of others")
	}
	must(t, os.Lchown(path, 4711, 4711))
}

// TestWhatIsInTheWay has something in each place that Begin needs. It is refused in a sentence, and stays as it is.
func TestWhatIsInTheWay(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, dir, at string)
		kind error
		want string
	}{
		"a checkpoint": {func(t *testing.T, _, at string) { publish(t, at) }, ErrExists, "is complete already, and is never overwritten"},
		"a checkpoint whose manifest is damaged": {func(t *testing.T, _, at string) {
			publish(t, at)
			must(t, os.Truncate(filepath.Join(at, ManifestName), 10))
		}, ErrExists, "hbmfs checkpoint rm"},
		"a directory of files": {func(t *testing.T, _, at string) {
			must(t, os.Mkdir(at, 0o755))
			must(t, os.WriteFile(filepath.Join(at, "precious"), nil, 0o644))
		}, ErrExists, "not empty, and no checkpoint of hbmfs's"},
		"a file":              {func(t *testing.T, _, at string) { must(t, os.WriteFile(at, []byte("precious"), 0o644)) }, ErrExists, "a file is there"},
		"a link":              {func(t *testing.T, dir, at string) { must(t, os.Symlink(filepath.Join(dir, "outside"), at)) }, ErrExists, "a link is there"},
		"a link to nothing":   {func(t *testing.T, _, at string) { must(t, os.Symlink("nothing", at)) }, ErrExists, "a link is there"},
		"another's directory": {func(t *testing.T, _, at string) { must(t, os.Mkdir(at, 0o777)); as(t, at) }, ErrExists, "of another user"},
		"a mount point": {func(t *testing.T, _, at string) {
			must(t, os.Mkdir(at, 0o777))
			if err := unix.Mount("tmpfs", at, "tmpfs", 0, ""); err != nil {
				t.Skip("needs the right to mount: ", err)
			}
			t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
		}, ErrExists, "a filesystem is mounted there"},
		"a link as draft": {func(t *testing.T, dir, _ string) {
			must(t, os.Symlink(filepath.Join(dir, "outside"), filepath.Join(dir, ".step.hbmfs.tmp")))
		}, ErrForeign, "is a link, and is not followed"},
		"a file as draft": {func(t *testing.T, dir, _ string) {
			must(t, os.WriteFile(filepath.Join(dir, ".step.hbmfs.tmp"), nil, 0o600))
		}, ErrForeign, "is no directory"},
		"another's draft": {func(t *testing.T, dir, _ string) {
			must(t, os.MkdirAll(filepath.Join(dir, ".step.hbmfs.tmp", "sub"), 0o700))
			as(t, filepath.Join(dir, ".step.hbmfs.tmp"))
		}, ErrForeign, "belongs to another user"},
		"a link as leftover": {func(t *testing.T, dir, _ string) {
			must(t, os.Symlink(filepath.Join(dir, "outside"), filepath.Join(dir, ".step.hbmfs.old")))
		}, ErrForeign, "is a link, and is not followed"},
		"a link as lock": {func(t *testing.T, dir, _ string) {
			must(t, os.Symlink(filepath.Join(dir, "outside", "precious"), filepath.Join(dir, ".step.hbmfs.lock")))
		}, ErrForeign, "is a link, and is not followed"},
		"a pipe as lock": {func(t *testing.T, dir, _ string) {
			must(t, unix.Mkfifo(filepath.Join(dir, ".step.hbmfs.lock"), 0o600))
		}, ErrForeign, "is no regular file"},
		"another's lock": {func(t *testing.T, dir, _ string) {
			must(t, os.WriteFile(filepath.Join(dir, ".step.hbmfs.lock"), nil, 0o666))
			as(t, filepath.Join(dir, ".step.hbmfs.lock"))
		}, ErrForeign, "belongs to another user"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := filepath.Join(dir, "step")
			must(t, os.Mkdir(filepath.Join(dir, "outside"), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "outside", "precious"), []byte("precious"), 0o644))
			c.make(t, dir, at)
			before := tree(t, dir)
			d, err := Begin(t.Context(), at, Part{0, 1})
			if err == nil {
				must(t, d.Drop())
			}
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, c.want)
			}
			if errors.Is(c.kind, ErrForeign) {
				if removed, err := Clean(t.Context(), dir); err != nil || len(removed) > 0 {
					t.Errorf("cleaning removes %q, %v", removed, err)
				}
				if _, err := List(dir); err != nil {
					t.Error(err)
				}
			}
			if after := tree(t, dir); !maps.Equal(before, after) {
				t.Errorf("there was %v, and now %v", before, after)
			}
		})
	}
}

// tree is all that lies below a directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		st, _ := info.Sys().(*syscall.Stat_t)
		all[path] = fmt.Sprint(info.Mode(), st.Uid, st.Ino)
		return err
	}))
	return all
}

func TestNamesThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"/", dir + "/.hidden", dir + "/" + strings.Repeat("x", 244), dir + "/new\nline", dir + "/\xff", dir + "/a/\x00"} {
		if _, err := Begin(t.Context(), path, Part{0, 1}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", path, err)
		}
		if err := Remove(t.Context(), path); !errors.Is(err, ErrInvalid) {
			t.Errorf("remove %q: %v", path, err)
		}
	}
	for _, part := range []Part{{}, {-1, 1}, {1, 1}, {0, mostParts + 1}} {
		if _, err := Begin(t.Context(), dir+"/a", part); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", part, err)
		}
	}
	publish(t, dir+"/"+strings.Repeat("x", 243))
	publish(t, dir+"/ümlaut und mehr/")
	must(t, os.Chdir(dir)) // the tests of this package use absolute paths
	publish(t, "relative")
	sound(t, dir, "relative", strings.Repeat("x", 243), "ümlaut und mehr")
}

// An empty directory is no obstacle: Hugging Face's Trainer makes one before it saves.
func TestEmptyDirectoryIsReplaced(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "step"), 0o755))
	d, err := Begin(t.Context(), filepath.Join(dir, "step"), Part{0, 1})
	must(t, err)
	files := written(t, d.Dir(), some)
	stray := filepath.Join(dir, "step", "precious")
	must(t, os.WriteFile(stray, nil, 0o644))
	if err := d.Publish(t.Context(), files); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("published over a file: %v", err)
	}
	sound(t, dir)
	must(t, os.Remove(stray))
	must(t, d.Publish(t.Context(), files)) // once more
	sound(t, dir, "step")
	if err := d.Publish(t.Context(), files); !errors.Is(err, os.ErrClosed) {
		t.Errorf("published twice: %v", err)
	}
	must(t, d.Drop())
	sound(t, dir, "step")
}

// TestFilesThatAreNotThoseOfTheDraft is refused by Publish, which can be tried again.
func TestFilesThatAreNotThoseOfTheDraft(t *testing.T) {
	dir := t.TempDir()
	d, err := Begin(t.Context(), filepath.Join(dir, "step"), Part{0, 1})
	must(t, err)
	defer func() { must(t, d.Drop()) }()
	files := written(t, d.Dir(), some)
	at := func(name string) string { return filepath.Join(d.Dir(), name) }
	for name, c := range map[string]struct {
		harm, repair func() error
		want         string
	}{
		"extra file":      {func() error { return os.WriteFile(at("sub/extra"), nil, 0o644) }, func() error { return os.Remove(at("sub/extra")) }, `"sub/extra" is in the draft, and not among its files`},
		"extra directory": {func() error { return os.Mkdir(at("extra"), 0o755) }, func() error { return os.Remove(at("extra")) }, `"extra" is in the draft`},
		"extra link":      {func() error { return os.Symlink("/etc/passwd", at("extra")) }, func() error { return os.Remove(at("extra")) }, `"extra" is in the draft`},
		"missing file":    {func() error { return os.Rename(at("a"), filepath.Join(dir, "a")) }, func() error { return os.Rename(filepath.Join(dir, "a"), at("a")) }, `"a" is not in the draft`},
		"missing below":   {func() error { return os.Rename(at("sub"), filepath.Join(dir, "sub")) }, func() error { return os.Rename(filepath.Join(dir, "sub"), at("sub")) }, `"sub/deep/c" is not in the draft`},
		"longer file":     {func() error { return os.Truncate(at("b.bin"), 101) }, func() error { return os.Truncate(at("b.bin"), 100) }, `"b.bin" has 101 bytes, and should have 100`},
		"link to a file": {func() error {
			return errors.Join(os.Rename(at("a"), filepath.Join(dir, "a")), os.Symlink("../a", at("a")))
		}, func() error { return errors.Join(os.Remove(at("a")), os.Rename(filepath.Join(dir, "a"), at("a"))) }, `"a" is no regular file`},
		"link to a folder": {func() error {
			return errors.Join(os.Rename(at("sub"), filepath.Join(dir, "sub")), os.Symlink("../sub", at("sub")))
		}, func() error {
			return errors.Join(os.Remove(at("sub")), os.Rename(filepath.Join(dir, "sub"), at("sub")))
		}, `"sub" is in the draft`},
		"pipe": {func() error {
			return errors.Join(os.Rename(at("a"), filepath.Join(dir, "a")), unix.Mkfifo(at("a"), 0o600))
		}, func() error { return errors.Join(os.Remove(at("a")), os.Rename(filepath.Join(dir, "a"), at("a"))) }, `"a" is no regular file`},
	} {
		must(t, c.harm())
		if err := d.Publish(t.Context(), files); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		must(t, c.repair())
		sound(t, dir)
	}
	for _, change := range []func([]File) []File{
		func(f []File) []File { return append(f, f[0]) },
		func(f []File) []File { f[0].Name = "../" + f[0].Name; return f },
		func(f []File) []File { f[0].Name = ManifestName; return f },
		func(f []File) []File { f[0].Sums = append(slices.Clone(f[0].Sums), 1); return f },
	} {
		if err := d.Publish(t.Context(), change(slices.Clone(files))); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	}
	must(t, d.Publish(t.Context(), files))
	sound(t, dir, "step")
}

// TestPathsThatAreSwapped moves the draft away and puts something else in its place. Nothing happens to that.
func TestPathsThatAreSwapped(t *testing.T) {
	for name, swap := range map[string]func(t *testing.T, draft, outside string){
		"by a link":      func(t *testing.T, draft, outside string) { must(t, os.Symlink(outside, draft)) },
		"by a directory": func(t *testing.T, draft, outside string) { must(t, os.Rename(outside, draft)) },
		"by nothing":     func(*testing.T, string, string) {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			outside := filepath.Join(dir, "outside")
			d, err := Begin(t.Context(), filepath.Join(dir, "in", "step"), Part{0, 1})
			must(t, err)
			files := written(t, d.Dir(), some)
			_ = written(t, outside, some)
			must(t, os.Rename(d.Dir(), filepath.Join(dir, "elsewhere")))
			swap(t, d.Dir(), outside)
			before := len(tree(t, dir))
			if err := d.Publish(t.Context(), files); !errors.Is(err, ErrForeign) {
				t.Errorf("publish: %v", err)
			}
			if err := d.Drop(); !errors.Is(err, ErrForeign) {
				t.Errorf("drop: %v", err)
			}
			sound(t, filepath.Join(dir, "in"))
			if after := len(tree(t, dir)); after != before-1 { // the lock goes
				t.Errorf("there were %d files, and now %d", before, after)
			}
		})
	}
	// The directory that checkpoints lie in may be moved: the draft is published where it lies.
	dir := t.TempDir()
	d, err := Begin(t.Context(), filepath.Join(dir, "in", "step"), Part{0, 1})
	must(t, err)
	files := written(t, d.Dir(), some)
	must(t, os.Rename(filepath.Join(dir, "in"), filepath.Join(dir, "moved")))
	must(t, os.Mkdir(filepath.Join(dir, "in"), 0o755))
	must(t, d.Publish(t.Context(), files))
	sound(t, filepath.Join(dir, "moved"), "step")
	sound(t, filepath.Join(dir, "in"))
}

// TestModes has a checkpoint get the mode that mkdir would give: of the umask, and of the directory around it.
func TestModes(t *testing.T) {
	dir := t.TempDir()
	for umask, want := range map[int]fs.FileMode{0o022: 0o755, 0o027: 0o750, 0o002: 0o775, 0o777: 0} {
		if umask == 0o777 && os.Geteuid() != 0 {
			continue // nobody else could write there
		}
		for _, setgid := range []fs.FileMode{0, fs.ModeSetgid} {
			in := filepath.Join(dir, fmt.Sprint(umask, setgid))
			must(t, os.Mkdir(in, 0o755))
			must(t, os.Chmod(in, 0o755|setgid))
			at := filepath.Join(in, "step")
			before := unix.Umask(umask)
			d, err := Begin(t.Context(), at, Part{0, 1})
			unix.Umask(before)
			must(t, err)
			if info, err := os.Stat(d.Dir()); err != nil || info.Mode() != fs.ModeDir|0o700|setgid {
				t.Errorf("umask %03o: the draft has %v, %v", umask, info.Mode(), err)
			}
			must(t, d.Publish(t.Context(), written(t, d.Dir(), some)))
			if info, err := os.Stat(at); err != nil || info.Mode() != fs.ModeDir|want|setgid {
				t.Errorf("umask %03o: %v, %v, want %v", umask, info.Mode(), err, want|setgid)
			}
		}
	}
}
