package files_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// onCache mounts a source behind a cache of small segments.
func onCache(t *testing.T, source, dir string) *mounted {
	t.Helper()
	return mount(t, source, "--cache-dir", dir, "--cache-segment", fmt.Sprint(mounttest.Mebibyte), "--cache-size", fmt.Sprint(64*mounttest.Mebibyte), "--cache-min-free", "1")
}

// parsed runs a command that must succeed, and reads the JSON that it prints.
func parsed[T any](t *testing.T, args ...string) (out T) {
	t.Helper()
	r := run(t, args...)
	if r.Code != 0 {
		t.Fatalf("hbmfs %q: exit code %d: %s", args, r.Code, r.Stderr)
	}
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		t.Fatalf("hbmfs %q: %v:\n%s", args, err, r.Stdout)
	}
	return out
}

type warmed struct {
	Files                                                 int
	Bytes, Local, Fetched, Left, Advised, InMount, Second int64
}

func (m *mounted) compare(t *testing.T, files map[string][]byte) {
	t.Helper()
	for name, want := range files {
		got, err := os.ReadFile(m.Path(name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, or wrong bytes", name, err)
		}
	}
}

// TestWarmARemoteDataset brings all of it once, and nothing again after a remount.
func TestWarmARemoteDataset(t *testing.T) {
	w, dir := mounttest.NewWeb(t), suite.NewDir(t)
	m := onCache(t, w.URL, dir)
	// A source that does not answer: the command ends when it is told to. Formats are recognized before, for which the
	// daemon reads by itself.
	if !blackbox.Within(patience, func() bool { return !m.Status(t).Indexing }) {
		t.Error("formats are not recognized")
	}
	gate := make(chan struct{})
	w.Gate.Store(&gate)
	stopped := suite.Command(t.Context(), "warm", m.Point)
	must(t, stopped.Start())
	if !blackbox.Within(patience, func() bool { return w.Waits.Load() > 0 }) {
		t.Error("nothing was asked for")
	}
	must(t, stopped.Process.Signal(syscall.SIGINT))
	if err := stopped.Wait(); stopped.ProcessState.ExitCode() != 130 {
		t.Errorf("after SIGINT: %v", err)
	}
	w.Gate.Store(nil)
	close(gate)
	total := w.Size()
	if got := parsed[warmed](t, "warm", "--json", m.Point); got.Files != 4 || got.Bytes != total || got.Local+got.Fetched != total || got.Left != 0 {
		t.Errorf("first: %+v, want %d bytes", got, total)
	}
	given := w.Bytes.Load()
	if got := parsed[warmed](t, "warm", "--json", m.Path("more"), m.Path("second.dat")); got.Files != 2 || got.Fetched != 0 || got.Local != got.Bytes {
		t.Errorf("again: %+v", got)
	}
	must(t, m.Close())
	m = onCache(t, w.URL, dir)
	if got := parsed[warmed](t, "warm", "--json", m.Point); got.Local != total || got.Fetched != 0 {
		t.Errorf("after a remount: %+v", got)
	}
	m.compare(t, w.Files)
	if more := w.Bytes.Load() - given; more > int64(len(w.Files["model.safetensors.index.json"])) { // it lists the others
		t.Errorf("%d bytes were fetched again", more)
	}
	if r := run(t, "warm", m.Point); r.Code != 0 || !strings.Contains(r.Stdout, "were in the cache already") {
		t.Errorf("%+v", r)
	}
	if r := run(t, "warm", "../../data/testdata/nanogpt"); r.Code != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, "name files or directories of a mount") {
		t.Errorf("files of no mount: %+v", r)
	}
}

// TestWarmMoreThanTheCacheHolds fails, and says how much did not stay.
func TestWarmMoreThanTheCacheHolds(t *testing.T) {
	w, dir := mounttest.NewWeb(t), suite.NewDir(t)
	m := mount(t, w.URL, "--cache-dir", dir, "--cache-segment", fmt.Sprint(mounttest.Mebibyte), "--cache-size", fmt.Sprint(4*mounttest.Mebibyte), "--cache-min-free", "1")
	r := run(t, "warm", "--json", m.Point)
	var got warmed
	must(t, json.Unmarshal([]byte(r.Stdout), &got))
	if r.Code != 1 || got.Left < w.Size()-4*mounttest.Mebibyte || !strings.Contains(r.Stderr, "did not stay in the cache") {
		t.Errorf("%+v: %+v", r, got)
	}
	m.compare(t, w.Files)
}

// TestWarmADirectory has the kernel read ahead, and refuses what is in no mount.
func TestWarmADirectory(t *testing.T) {
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"a": strings.Repeat("a", 100_000), "b/c": strings.Repeat("c", 5000)})
	m := mount(t, source)
	if got := parsed[warmed](t, "warm", "--json", "--rate-limit", "50MB/s", m.Point); got.Files != 2 || got.Advised != 105_000 {
		t.Errorf("%+v", got)
	}
	if r := run(t, "warm", m.Point); r.Code != 0 || !strings.Contains(r.Stdout, "asked to read them into its page cache") {
		t.Errorf("%+v", r)
	}
	for want, args := range map[string][]string{
		m.Path("missing"):            {"warm", m.Path("missing")},
		filepath.Join(source, "b/c"): {"warm", m.Point, filepath.Join(source, "b")},
	} {
		if r := run(t, args...); r.Code != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%q: %+v", args, r)
		}
	}
	for _, args := range [][]string{{"warm"}, {"warm", "--rate-limit", "fast", m.Point}} {
		if r := run(t, args...); r.Code != 2 {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

type listed struct {
	Segments []struct{ File, Source, Object, Damage string }
}

type verified struct {
	Segments, Removed int
	Bytes             int64
	Damaged           []struct{ File, Object string }
}

// TestCacheCommands lists, verifies and empties a cache, damaged on the way, which a mount then fills again.
func TestCacheCommands(t *testing.T) {
	w, dir := mounttest.NewWeb(t), suite.NewDir(t)
	m := onCache(t, w.URL, dir)
	if got := parsed[warmed](t, "warm", "--json", "--rate-limit", "200MB/s", m.Point); got.Local+got.Fetched != w.Size() || got.Left != 0 {
		t.Fatalf("warm: %+v", got)
	}
	must(t, m.Close())
	const pieces = 3 + 1 + 2 + 1
	all := parsed[listed](t, "cache", "ls", "--json", dir)
	if len(all.Segments) != pieces {
		t.Fatalf("%+v", all)
	}
	if r := run(t, "cache", "ls", dir); r.Code != 0 || strings.Count(r.Stdout, "100%") != 4 || !strings.Contains(r.Stdout, "more/third.dat") {
		t.Errorf("%+v", r)
	}
	totals := parsed[struct {
		Segments int
		Bytes    int64
		Sources  []struct{ Objects, Segments int }
	}](t, "cache", "stats", "--json", dir)
	if totals.Segments != pieces || totals.Bytes != w.Size() || len(totals.Sources) != 1 || totals.Sources[0].Objects != 4 {
		t.Errorf("%+v", totals)
	}
	if r := run(t, "cache", "stats", dir); r.Code != 0 || !strings.Contains(r.Stdout, w.URL) {
		t.Errorf("%+v", r)
	}
	if got := parsed[verified](t, "cache", "verify", "--json", dir); got.Segments != pieces || got.Bytes != w.Size() || len(got.Damaged) != 0 {
		t.Errorf("%+v", got)
	}

	// A byte changes.
	var hurt string
	for _, g := range all.Segments {
		if g.Object == "second.dat" {
			hurt = g.File
		}
	}
	path := filepath.Join(dir, "segments", hurt)
	must(t, os.Chmod(path, 0o600))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte{^w.Files["second.dat"][1000]}, 1000)
	must(t, err)
	must(t, f.Close())
	for _, c := range []struct {
		code int
		args []string
	}{{3, []string{"cache", "verify", dir}}, {3, []string{"cache", "verify", "--remove", dir}}, {0, []string{"cache", "verify", dir}}} {
		r := run(t, c.args...)
		if r.Code != c.code || strings.Contains(r.Stdout, "second.dat") != (c.code == 3) {
			t.Errorf("%q: %+v", c.args, r)
		}
	}
	m = onCache(t, w.URL, dir)
	if got := parsed[warmed](t, "warm", "--json", m.Point); got.Fetched != mounttest.Mebibyte || got.Left != 0 {
		t.Errorf("what was damaged: %+v", got)
	}
	m.compare(t, w.Files)
	must(t, m.Close())

	// Freeing space.
	for _, c := range []struct {
		left int
		args []string
	}{
		{pieces, []string{"--object", "*.bin"}}, {pieces - 2, []string{"--object", "*third*"}}, {pieces - 2, []string{"--source", "s3://*", "--object", "*"}},
		{pieces - 5, []string{"--source", w.URL + "*", "--object", "firs?.dat"}}, {0, []string{"--all"}},
	} {
		r := run(t, append([]string{"cache", "rm", dir}, c.args...)...)
		if left := len(parsed[listed](t, "cache", "ls", "--json", dir).Segments); r.Code != 0 || left != c.left || !strings.Contains(r.Stdout, "freed") {
			t.Errorf("%q: %+v, %d segments are left, want %d", c.args, r, left, c.left)
		}
	}
}

// Somebody else's cache is refused for what it is, and not for its disk.
func TestCacheOfAnotherUser(t *testing.T) {
	blackbox.NeedRoot(t)
	dir := suite.NewDir(t)
	must(t, os.Mkdir(filepath.Join(dir, "segments"), 0o755))
	cmd := suite.Command(t.Context(), "cache", "verify", dir)
	cmd.Dir, cmd.SysProcAttr = "/", blackbox.AsNobody()
	if r := suite.RunCommand(t, cmd); r.Code != 1 || !strings.Contains(r.Stderr, "cannot be written to (permission denied)") {
		t.Errorf("%+v", r)
	}
}

// TestCacheThatOthersCanForge has nobody prepare a cache with a forged segment, in each of the ways that let him. Root's
// commands refuse it, and say what to do.
func TestCacheThatOthersCanForge(t *testing.T) {
	blackbox.NeedRoot(t)
	w := mounttest.NewWeb(t)
	good := filepath.Join(suite.NewDir(t), "way", "cache")
	m := onCache(t, w.URL, good)
	if got := parsed[warmed](t, "warm", "--json", m.Point); got.Left != 0 {
		t.Errorf("%+v", got)
	}
	must(t, m.Close())
	for name, k := range map[string]struct {
		prepare func(t *testing.T, dir string) // dir has a good cache
		says    string
	}{
		"another's directory":            {func(t *testing.T, dir string) { must(t, os.Chown(dir, nobody, nobody)) }, "belongs to user 65534"},
		"a directory open to all":        {func(t *testing.T, dir string) { must(t, os.Chmod(dir, 0o777)) }, "chmod go-w"},
		"a directory open to a group":    {func(t *testing.T, dir string) { must(t, os.Chmod(dir, 0o770)) }, "chmod go-w"},
		"a way open to all":              {func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Dir(dir), 0o777)) }, "chmod go-w"},
		"another's segments":             {func(t *testing.T, dir string) { must(t, os.Chown(filepath.Join(dir, "segments"), nobody, nobody)) }, "belongs to user 65534"},
		"segments open to all":           {func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "segments"), 0o777)) }, "chmod go-w"},
		"another's part of the segments": {func(t *testing.T, dir string) { must(t, os.Chown(someDir(t, dir), nobody, nobody)) }, "belongs to user 65534"},
		"a part open to all":             {func(t *testing.T, dir string) { must(t, os.Chmod(someDir(t, dir), 0o777)) }, "may be written to by others"},
		"a link in place of a part": {func(t *testing.T, dir string) {
			part := someDir(t, dir)
			must(t, os.Rename(part, filepath.Join(dir, "elsewhere")))
			must(t, os.Symlink("../elsewhere", part))
		}, "not a directory"},
		"a link in place of segments": {func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, "segments"), filepath.Join(dir, "elsewhere")))
			must(t, os.Symlink("elsewhere", filepath.Join(dir, "segments")))
		}, "is a link to elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(suite.NewDir(t), "way", "cache")
			must(t, os.Mkdir(filepath.Dir(dir), 0o755))
			if r := suite.RunCommand(t, exec.Command("cp", "-a", good, dir)); r.Code != 0 {
				t.Fatalf("copy a cache: %+v", r)
			}
			segments := filesBelow(t, dir)
			k.prepare(t, dir)
			for _, args := range [][]string{
				{"mount", w.URL, suite.NewDir(t), "--cache-dir", dir}, {"cache", "ls", dir}, {"cache", "stats", dir}, {"cache", "verify", dir}, {"cache", "rm", "--all", dir},
			} {
				if r := run(t, args...); r.Code == 0 || !strings.Contains(r.Stderr, k.says) {
					t.Errorf("%q: %+v, want a refusal that says %q", args, r, k.says)
				}
			}
			if left := filesBelow(t, dir); left != segments {
				t.Errorf("%d of %d segments are left", left, segments)
			}
		})
	}
}

// segmentFiles are the segments in a cache.
func segmentFiles(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", "??", "*"))
	must(t, err)
	return found
}

// filesBelow counts the files of a directory and of all below.
func filesBelow(t *testing.T, dir string) (n int) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			n++
		}
		return err
	}))
	return n
}

func someDir(t *testing.T, dir string) string {
	t.Helper()
	return filepath.Dir(segmentFiles(t, dir)[0])
}

// TestForgedSegment puts a segment of nobody's in root's own cache: with a good header, and wrong bytes. It is not served,
// verify names it, and it is fetched again.
func TestForgedSegment(t *testing.T) {
	blackbox.NeedRoot(t)
	w := mounttest.NewWeb(t)
	for name, forge := range map[string]func(t *testing.T, path string){
		"another's":   func(t *testing.T, path string) { must(t, os.Chown(path, nobody, nobody)) },
		"open to all": func(t *testing.T, path string) { must(t, os.Chmod(path, 0o606)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(suite.NewDir(t), "cache")
			m := onCache(t, w.URL, dir)
			if got := parsed[warmed](t, "warm", "--json", m.Point); got.Left != 0 {
				t.Errorf("%+v", got)
			}
			must(t, m.Close())
			for _, path := range segmentFiles(t, dir) {
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				must(t, err)
				_, err = f.WriteAt([]byte("forged"), 0)
				must(t, errors.Join(err, f.Close()))
				forge(t, path)
			}
			if r := run(t, "cache", "verify", dir); r.Code != 3 || !strings.Contains(r.Stdout, "another's work") {
				t.Errorf("%+v", r)
			}
			m = onCache(t, w.URL, dir)
			m.compare(t, w.Files)
			must(t, m.Close())
		})
	}
}

// TestCacheCommandsRefuse checks that nothing is made where nothing is, and nothing removed that was not named.
func TestCacheCommandsRefuse(t *testing.T) {
	dir := filepath.Join(suite.NewDir(t), "cache")
	for _, verb := range []string{"ls", "stats", "verify"} {
		if r := run(t, "cache", verb, dir); r.Code != 1 || !strings.Contains(r.Stderr, dir) {
			t.Errorf("%s: %+v", verb, r)
		}
	}
	for _, args := range [][]string{{"cache", "rm", dir}, {"cache", "rm", "--all", "--object", "x", dir}, {"cache", "ls"}, {"cache", "polish", dir}} {
		if r := run(t, args...); r.Code != 2 {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("there is a %s now: %v", dir, err)
	}
}

// The cache of another user is a cache, too.
func TestCacheOfAnotherUserIsACache(t *testing.T) {
	blackbox.NeedRoot(t)
	dir := filepath.Join(suite.NewDir(t), "cache")
	must(t, os.MkdirAll(filepath.Join(dir, "segments"), 0o700))
	must(t, os.Chmod(dir, 0o700))
	for _, command := range []string{"ls", "stats", "verify"} {
		if r := suite.RunAsNobody(t, "cache", command, dir); r.Code != 1 || !strings.Contains(r.Stderr, "permission denied") || strings.Contains(r.Stderr, "no cache") {
			t.Errorf("cache %s: exit code %d: %s", command, r.Code, r.Stderr)
		}
	}
}

// TestUsersHaveCaches has an ordinary user mount with a cache, fill it, and check it.
func TestUsersHaveCaches(t *testing.T) {
	blackbox.NeedRoot(t)
	mounttest.MakeFUSEPublic(t)
	source, point, cached := suite.NewDir(t), suite.NewDir(t), suite.NewDir(t)
	must(t, errors.Join(os.CopyFS(source, os.DirFS(mounttest.Golden(t, "mds-zstd"))), os.Chown(point, nobody, nobody), os.Chown(cached, nobody, nobody)))
	as := func(cmd *exec.Cmd) string {
		t.Helper()
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		r := suite.RunCommand(t, cmd)
		if r.Code != 0 {
			t.Fatalf("%q of a user: exit code %d: %s", cmd.Args, r.Code, r.Stderr)
		}
		return r.Stdout
	}
	m := &mounted{&blackbox.Mounted{Mount: suite.At(point), Source: source, Point: point, Log: cached + "/log"}}
	as(suite.Command(t.Context(), "mount", "--log-file", m.Log, "--cache-dir", cached, "--cache-min-free=1MiB", source, point))
	var err error
	m.PID, err = m.DaemonPID()
	must(t, err)
	as(exec.CommandContext(t.Context(), "cat", m.Path("shard.00000.mds")))
	if !blackbox.Within(patience, func() bool {
		return !strings.HasPrefix(as(suite.Command(t.Context(), "cache", "stats", cached)), cached+": 0 B")
	}) {
		t.Errorf("a file was read, and nothing is in the cache; the log says:\n%s", m.LogText(t))
	}
	as(suite.Command(t.Context(), "cache", "verify", cached))
	m.End(t)
}
