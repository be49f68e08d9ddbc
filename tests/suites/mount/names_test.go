package mount_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

func TestStrangeNames(t *testing.T) {
	source := filepath.Join(suite.NewDir(t), "a source, with \\ a comma")
	names := map[string]string{}
	for _, name := range []string{
		"with space", "line\nbreak", "tab\there", "größe-数据-🦊", "not utf-8 \xff\xfe", "back\\slash", `quote"s'`, "-dash", "#hash",
		"..dots", "...", ".hidden", "a,b=c", "%2F", "glob*[x]?", strings.Repeat("n", 255), "deep/er/and deeper\n/file",
	} {
		names[name] = "in " + name
	}
	mounttest.WriteFiles(t, source, names)
	point := filepath.Join(suite.NewDir(t), "a mount\tpoint, too")
	must(t, os.Mkdir(point, 0o755))
	m := mountOn(t, source, point, "--show-views")
	for name, content := range names {
		if err := mounttest.CompareFile(m.Path(name), []byte(content)); err != nil {
			t.Error(err)
		}
	}
	if s := m.Status(t); s.Source != source || s.MountPoint != point {
		t.Errorf("status says %q on %q, want %q on %q", s.Source, s.MountPoint, source, point)
	}
	must(t, m.Close())
	if r := run(t, "inspect", "--json", source); r.Code != 0 {
		t.Errorf("inspect ended with %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// A source that has a .hbmfs of its own, such as another mount with --show-views, does not hide ours.
func TestSourceHasControlDirectory(t *testing.T) {
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{".hbmfs/status": "not ours", ".hbmfs/views/tokens.bin": "nor this", "below/.hbmfs/kept": "kept", "file": "1"})
	m := mount(t, source)
	if s := m.Status(t); s.PID != m.PID {
		t.Errorf("status is of process %d, the daemon is %d", s.PID, m.PID)
	}
	mounttest.WantAbsent(t, m.Path(".hbmfs", "views", "tokens.bin"))
	names, err := mounttest.ListTree(m.Point)
	must(t, err)
	if want := []string{".", "below", "below/.hbmfs", "below/.hbmfs/kept", "file"}; !slices.Equal(names, want) {
		t.Errorf("the mount lists %q, want %q", names, want)
	}
}

func TestSymbolicLinks(t *testing.T) {
	outside := suite.NewDir(t)
	mounttest.WriteFiles(t, outside, map[string]string{"secret": "secret"})
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"data/shard": "tokens", "data/inner/deep": "deep"})
	for link, target := range map[string]string{
		"file":           "data/shard",
		"data/up":        "../data/shard",
		"dir":            "data",
		"data/parent":    "..",
		"out-file":       filepath.Join("..", filepath.Base(outside), "secret"),
		"out-dir":        filepath.Join("..", filepath.Base(outside)),
		"absolute":       filepath.Join(outside, "secret"),
		"absolute-here":  filepath.Join(source, "data/shard"),
		"dangling":       "nowhere",
		"loop":           "pool",
		"pool":           "loop",
		"self":           "self",
		"out-and-in":     filepath.Join("..", filepath.Base(source), "data/shard"),
		"etc":            "../../../../../../../../etc/passwd",
		"through":        "out-dir/secret",
		"data/inner/far": "../../../" + filepath.Base(outside),
	} {
		must(t, os.Symlink(target, filepath.Join(source, link)))
	}
	m := mount(t, source)
	for _, name := range []string{"file", "data/up", "data/shard", "dir/shard", "data/parent/data/shard", "absolute-here"} {
		if err := mounttest.CompareFile(m.Path(name), []byte("tokens")); err != nil {
			t.Error(err)
		}
	}
	if target, err := os.Readlink(m.Path("dir")); err != nil || target != "data" {
		t.Errorf("the link dir leads to %q, %v", target, err)
	}
	// A link to a file appears as the file, so that its size is what loaders read.
	if info, err := os.Lstat(m.Path("file")); err != nil || !info.Mode().IsRegular() || info.Size() != 6 {
		t.Errorf("the link file is %v, %v", info, err)
	}
	for _, name := range []string{
		"out-file", "out-dir", "absolute", "dangling", "loop", "pool", "self", "out-and-in", "etc", "through", "data/inner/far",
	} {
		mounttest.WantAbsent(t, m.Path(name))
		if log := m.LogText(t); !strings.Contains(log, "object="+name+" ") {
			t.Errorf("the log does not say that %s is left out:\n%s", name, log)
		}
	}
}

func TestSpecialFilesAreLeftOut(t *testing.T) {
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"file": "1"})
	must(t, syscall.Mkfifo(filepath.Join(source, "pipe"), 0o644)) // opening it would wait for a writer
	m := mount(t, source)
	mounttest.WantAbsent(t, m.Path("pipe"))
	if err := mounttest.CompareFile(m.Path("file"), []byte("1")); err != nil {
		t.Error(err)
	}
	if r := run(t, "inspect", source); r.Code != 3 || !strings.Contains(r.Stdout, "pipe") {
		t.Errorf("inspect ended with %d, want 3 and a word about the pipe: %s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// A user who may not read a file at the source may not read it in the mount, wherever the mount shows it.
func TestPermissionsForOthers(t *testing.T) {
	blackbox.NeedRoot(t)
	t.Run("asked", func(t *testing.T) { checkPermissionsForOthers(t) })
	t.Run("frozen", func(t *testing.T) { checkPermissionsForOthers(t, "--frozen") })
}

func checkPermissionsForOthers(t *testing.T, flags ...string) {
	t.Helper()
	source := suite.NewDir(t)
	golden := mounttest.Golden(t, "llmc-gpt2")
	shard, err := os.ReadFile(filepath.Join(golden, "edu_fineweb_train_000001.bin"))
	must(t, err)
	for _, name := range []string{"open/shard.bin", "private/shard.bin", "closed/shard.bin", "mixed/shard_0.bin", "mixed/shard_1.bin", "none/shard.bin"} {
		mounttest.WriteFiles(t, source, map[string]string{name: string(shard)})
	}
	for name, perm := range map[string]os.FileMode{
		"private/shard.bin": 0o600, "mixed/shard_1.bin": 0o640, "none/shard.bin": 0, "closed": 0o700,
	} {
		must(t, os.Chmod(filepath.Join(source, name), perm))
	}
	m := mount(t, source, append(flags, "--allow-other")...)
	for name, want := range map[string]string{
		"open/shard.bin":                  "ok",
		".hbmfs/status":                   "ok",
		".hbmfs/views/open/tokens.bin":    "ok",
		"private/shard.bin":               "EACCES",
		".hbmfs/views/private/tokens.bin": "EACCES",
		".hbmfs/views/private/tokens.npy": "EACCES",
		"mixed/shard_0.bin":               "ok",
		"mixed/shard_1.bin":               "EACCES",
		".hbmfs/views/mixed/tokens.bin":   "EACCES",
		"none/shard.bin":                  "EACCES",
		".hbmfs/views/none/tokens.bin":    "EACCES",
		"closed/shard.bin":                "EACCES",
		".hbmfs/views/closed/tokens.bin":  "EACCES",
	} {
		if got := mounttest.ReadAs(t, true, m.Path(name)); got != want {
			t.Errorf("nobody reads %s: %s, want %s", name, got, want)
		}
		if got := mounttest.ReadAs(t, false, m.Path(name)); got != "ok" {
			t.Errorf("root reads %s: %s", name, got)
		}
	}
	// Names and sizes are as closed as at the source, in the status, too.
	text, err := os.ReadFile(m.Path(".hbmfs", "status"))
	must(t, err)
	if bytes.Contains(text, []byte(`"closed"`)) || !bytes.Contains(text, []byte(`"open"`)) || !bytes.Contains(text, []byte("not for everybody")) {
		t.Errorf("the status names a closed directory, or no open one:\n%s", text)
	}
	for _, name := range []string{"closed", ".hbmfs/views/closed"} {
		if said, ok := mounttest.Child(t, true, "list", m.Path(name)); ok {
			t.Errorf("nobody lists %s: %s", name, said)
		}
	}
}

func TestWithoutAllowOtherNobodyGetsIn(t *testing.T) {
	blackbox.NeedRoot(t)
	m := mount(t, mounttest.Golden(t, "nanogpt"))
	for _, name := range []string{"train.bin", ".hbmfs/status"} {
		if got := mounttest.ReadAs(t, true, m.Path(name)); got != "EACCES" {
			t.Errorf("nobody reads %s of root's mount: %s, want EACCES", name, got)
		}
	}
}

func TestOwnerAndUmask(t *testing.T) {
	blackbox.NeedRoot(t)
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"dir/file": "1"})
	must(t, os.Chmod(filepath.Join(source, "dir/file"), 0o666))
	m := mount(t, source, "--allow-other", "--uid", "65534", "--gid", "4242", "--umask", "027")
	for name, mode := range map[string]uint32{"": 0o550, "dir": 0o550, "dir/file": 0o440, ".hbmfs": 0o550, ".hbmfs/status": 0o440} {
		st := mounttest.Lstat(t, m.Path(name))
		if st.Uid != nobody || st.Gid != 4242 || st.Mode&0o7777 != mode {
			t.Errorf("%q belongs to %d:%d with mode %o, want 65534:4242 with %o", name, st.Uid, st.Gid, st.Mode&0o7777, mode)
		}
	}
	if got := mounttest.ReadAs(t, true, m.Path("dir/file")); got != "ok" {
		t.Errorf("the owner reads its file: %s", got)
	}
	as := mount(t, source, "-o", "ro,allow_other,uid=65534,umask=0077,nofail,x-systemd.automount")
	if st := mounttest.Lstat(t, as.Path("dir/file")); st.Uid != nobody || st.Mode&0o7777 != 0o400 {
		t.Errorf("-o: the file belongs to %d with mode %o, want 65534 with 400", st.Uid, st.Mode&0o7777)
	}
}
