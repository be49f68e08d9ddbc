package files_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// changes are what can happen to a shard under the mount. Each leaves the other shards alone.
var changes = map[string]func(path string) error{
	"truncated": func(path string) error { return os.Truncate(path, 5000) },
	"emptied":   func(path string) error { return os.Truncate(path, 0) },
	"grown": func(path string) error {
		return edit(path, os.O_APPEND, func(f *os.File) error { _, err := f.WriteString("more"); return err })
	},
	"rewritten in place": func(path string) error {
		return edit(path, 0, func(f *os.File) error {
			_, err := f.WriteAt(bytes.Repeat([]byte{0xff}, 200_000), 1024)
			return err
		})
	},
	"replaced": func(path string) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i := 1024; i < len(content); i++ {
			content[i] = 0xff
		}
		return errors.Join(os.WriteFile(path+".new", content, 0o644), os.Rename(path+".new", path))
	},
	"deleted": os.Remove,
	"made a directory": func(path string) error {
		return errors.Join(os.Remove(path), os.Mkdir(path, 0o755))
	},
	"made a link out": func(path string) error {
		return errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path))
	},
	"made a pipe": func(path string) error { // which must not be waited for
		return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o644))
	},
}

func edit(path string, flags int, change func(*os.File) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|flags, 0)
	if err != nil {
		return err
	}
	return errors.Join(change(f), f.Close())
}

// settle waits until a write gets another modification time than what was written before. Kernels before 6.13 count
// in ticks of up to 10 ms.
func settle() { time.Sleep(25 * time.Millisecond) }

// A file that changed under the mount is an error from then on, and never other bytes, neither when it is opened nor
// through a view that was open before. Bytes of the old version that the kernel or the daemon still has may be given out.
func TestShardChangesUnderTheMount(t *testing.T) {
	blackbox.NeedFUSE(t)
	for what, change := range changes {
		t.Run(what, func(t *testing.T) {
			const shards, tokens = 3, 200_000
			source, stream := mounttest.ShardedTokens(t, suite, shards, tokens)
			m := mount(t, source)
			name := "shard_000001.bin" // the middle one
			old, err := os.ReadFile(filepath.Join(source, name))
			must(t, err)
			view, err := os.Open(m.Path(".hbmfs", "views", "tokens.bin"))
			must(t, err)
			defer func() { must(t, view.Close()) }()
			settle()
			must(t, change(filepath.Join(source, name)))

			if got, err := os.ReadFile(m.Path(name)); !stale(err) {
				t.Errorf("opening the shard gave %d bytes and %v, want ESTALE or EIO", len(got), err)
			}
			// The page that a border lies in has bytes of the changed shard, so that it cannot be had.
			page := os.Getpagesize()
			checkPart(t, view, stream[:2*tokens-page], 0)
			checkPart(t, view, stream[4*tokens+page:], 4*tokens+int64(page))
			checkChanged(t, view, old[1024:], 2*tokens)
			for _, other := range []string{"shard_000000.bin", "shard_000002.bin"} {
				want, err := os.ReadFile(filepath.Join(source, other))
				must(t, err)
				if err := mounttest.CompareFile(m.Path(other), want); err != nil {
					t.Error(err)
				}
			}
			if log := m.LogText(t); !strings.Contains(log, name) || !strings.Contains(log, "level=ERROR") {
				t.Errorf("the log has no line about %s:\n%s", name, log)
			}
		})
	}
}

func stale(err error) bool { return errors.Is(err, unix.ESTALE) || errors.Is(err, unix.EIO) }

// checkPart reads a part of a view whose shard has not changed.
func checkPart(t *testing.T, view *os.File, want []byte, off int64) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := view.ReadAt(got, off); (err != nil && err != io.EOF) || !bytes.Equal(got, want) {
		t.Errorf("an untouched shard's part of the view, at %d: %v, or it is wrong", off, err)
	}
}

// checkChanged reads the part of a view whose shard has changed, in pieces, so that each is an error or old.
func checkChanged(t *testing.T, view *os.File, old []byte, off int64) {
	t.Helper()
	failed := 0
	for at := 0; at < len(old); at += 30_000 {
		want := old[at:min(at+30_000, len(old))]
		got := make([]byte, len(want))
		n, err := view.ReadAt(got, off+int64(at))
		if !bytes.Equal(got[:n], want[:n]) {
			t.Fatalf("%d bytes at %d of the shard are not those that were mounted", n, at)
		}
		if err != nil {
			failed++
			if !stale(err) {
				t.Fatalf("%d bytes at %d of the shard: %v, want ESTALE or EIO", n, at, err)
			}
		}
	}
	t.Logf("%d of %d reads failed", failed, (len(old)+29_999)/30_000)
}

// A file that is read through the daemon, and open while it changes, gives an error too: it is not cut short.
func TestOpenFileChangesWithoutPassthrough(t *testing.T) {
	blackbox.NeedRoot(t)
	mounttest.MakeFUSEPublic(t)
	for _, what := range []string{"truncated", "grown", "rewritten in place"} {
		source := suite.NewDir(t)
		want := bytes.Repeat([]byte("old tokens"), 100_000)
		must(t, os.WriteFile(filepath.Join(source, "shard.bin"), want, 0o644))
		m := &mounted{suite.MountAsNobody(t, source)}
		said := changeUnderReader(t, m, func() {
			settle()
			must(t, changes[what](filepath.Join(source, "shard.bin")))
		})
		if said != "ESTALE" && said != "EIO" {
			t.Errorf("%s: nobody's open file ends with %q, want ESTALE or EIO", what, said)
		}
	}
}

// A mapped page that cannot be had kills the reader with SIGBUS, which is all that the kernel can say; so the reader
// is a child.
func TestMappedPageOfAChangedShard(t *testing.T) {
	blackbox.NeedFUSE(t)
	source, _ := mounttest.ShardedTokens(t, suite, 2, 2_000_000)
	m := mount(t, source)
	view := m.Path(".hbmfs", "views", "tokens.bin")
	if said, ok := mounttest.Child(t, false, "touch", view, "100"); !ok {
		t.Fatalf("a page of a sound shard: %s", said)
	}
	settle()
	must(t, os.Truncate(filepath.Join(source, "shard_000001.bin"), 1024))
	if said, ok := mounttest.Child(t, false, "touch", view, strconv.Itoa(6_000_000)); ok || !strings.Contains(said, "SIGBUS") {
		t.Errorf("a page of a shard that was cut: %s, want SIGBUS", said)
	}
	if said, ok := mounttest.Child(t, false, "touch", view, "3000000"); !ok {
		t.Errorf("a page of the other shard: %s", said)
	}
}

// Files that come after the mount are not there, and those that are stay, wherever in the tree.
func TestFilesComeAfterTheMount(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"dir/a": "1"})
	m := mount(t, source)
	mounttest.WriteFiles(t, source, map[string]string{"dir/b": "2", "new/c": "3"})
	names, err := mounttest.ListTree(m.Point)
	must(t, err)
	if fmt.Sprint(names) != "[. dir dir/a]" {
		t.Errorf("the mount lists %q", names)
	}
	mounttest.WantAbsent(t, m.Path("dir", "b"))
	mounttest.WantAbsent(t, m.Path("new"))
}

// A shard that somebody has open since before it changed does not open again: with passthrough the kernel would show
// the second reader what it shows the first.
func TestChangedShardDoesNotOpenBesideAnOldReader(t *testing.T) {
	blackbox.NeedFUSE(t)
	for what, change := range changes {
		t.Run(what, func(t *testing.T) {
			source, _ := mounttest.ShardedTokens(t, suite, 1, 200_000)
			m := mount(t, source)
			const name = "shard_000000.bin"
			old, err := os.Open(m.Path(name))
			must(t, err)
			defer func() { must(t, old.Close()) }()
			settle()
			must(t, change(filepath.Join(source, name)))
			if got, err := os.ReadFile(m.Path(name)); !stale(err) {
				t.Errorf("opening the shard gave %d bytes and %v, want ESTALE or EIO", len(got), err)
			}
		})
	}
}

// changeUnderReader runs change while nobody has shard.bin of the mount open, and returns how its reading ends then.
func changeUnderReader(t *testing.T, m *mounted, change func()) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", m.Path("shard.bin"))
	cmd.Env = append(os.Environ(), mounttest.ChildVerb+"=later")
	cmd.Dir = "/"
	cmd.SysProcAttr = blackbox.AsNobody()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	change()
	_, err = in.Write([]byte("\n"))
	must(t, err)
	said, err := lines.ReadString('\n')
	must(t, err)
	_ = cmd.Wait() // what it said is what counts
	return strings.TrimSpace(said)
}
