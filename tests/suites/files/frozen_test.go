package files_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// frozenFiles mounts 200 small files and a large one with --frozen, and returns their contents.
func frozenFiles(t *testing.T, flags ...string) (*mounted, map[string]string) {
	t.Helper()
	blackbox.NeedRoot(t)
	files := map[string]string{"large": strings.Repeat("0123456789abcdef", 3<<20/16+1), "empty": ""}
	for i := range 200 {
		files[fmt.Sprintf("d%d/f%d", i%3, i)] = strings.Repeat(fmt.Sprint(i, " "), 1+i*20)
	}
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, files)
	return mount(t, source, append(flags, "--frozen")...), files
}

func compareFiles(t *testing.T, m *mounted, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := mounttest.CompareFile(m.Path(name), []byte(content)); err != nil {
			t.Error(err)
		}
	}
}

// Files of a frozen mount are opened without the daemon, and read only once through it. Its status is always that of now.
func TestFrozen(t *testing.T) {
	m, files := frozenFiles(t)
	before := m.Status(t).Counters.Lookups
	compareFiles(t, m, files)
	s := m.Status(t)
	if s.Counters.Lookups <= before {
		t.Errorf("the status still says %d look-ups", before)
	}
	for end := time.Now().Add(time.Minute); ; { // another program may have the kernel drop its caches
		before := s
		compareFiles(t, m, files)
		if s = m.Status(t); s.Counters.Reads == before.Counters.Reads {
			break
		} else if time.Now().After(end) {
			t.Fatalf("for a minute the kernel read files again: %+v, then %+v", before.Counters, s.Counters)
		}
	}
	if s.Counters.Reads == 0 || s.Counters.CachedOpens+s.Counters.PassthroughOpens != 0 || len(s.Notes) > 0 {
		t.Errorf("counters: %+v, notes: %q", s.Counters, s.Notes)
	}
	for _, flags := range []int{unix.O_WRONLY, unix.O_RDWR, unix.O_RDONLY | unix.O_TRUNC} {
		if fd, err := unix.Open(m.Path("large"), flags, 0); !errors.Is(err, syscall.EROFS) {
			t.Errorf("open with flags %#x: %d, %v", flags, fd, err)
		}
	}
	if err := lookUp(t, m.Point, "large"); err != nil {
		t.Errorf("a reader past FUSE: %v", err)
	}
}

// A status file shows one moment to whoever has it open, in a frozen mount also.
func TestFrozenStatusStaysWhileItIsOpen(t *testing.T) {
	m, files := frozenFiles(t)
	open, err := os.Open(m.Path(".hbmfs", "status"))
	must(t, err)
	defer func() { must(t, open.Close()) }()
	first := make([]byte, 100)
	_, err = io.ReadFull(open, first)
	must(t, err)
	compareFiles(t, m, files)
	for range 20 {
		_ = m.Status(t)
	}
	all := make([]byte, 1<<20)
	n, err := open.ReadAt(all, 0)
	if info, statErr := open.Stat(); err != io.EOF || statErr != nil || info.Size() != int64(n) || !bytes.HasPrefix(all[:n], first) || !bytes.HasSuffix(all[:n], []byte("}\n")) {
		t.Errorf("%d bytes, %v; %v", n, err, statErr)
	}
}

// What was read stays as it was. What was not read is as it was, too, or an error: no byte is of another version.
func TestFrozenWhileTheSourceChanges(t *testing.T) {
	for what, change := range changes {
		t.Run(what, func(t *testing.T) {
			m, files := frozenFiles(t)
			const read, unread = "d0/f150", "d0/f153"
			if err := mounttest.CompareFile(m.Path(read), []byte(files[read])); err != nil {
				t.Error(err)
			}
			settle()
			for _, name := range []string{read, unread} {
				must(t, change(filepath.Join(m.Source, name)))
			}
			if err := mounttest.CompareFile(m.Path(read), []byte(files[read])); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(m.Path(unread)); !stale(err) && (err != nil || string(got) != files[unread]) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

// The daemon that goes on with a frozen mount answers the kernel as the one before.
func TestFrozenMountGoesOn(t *testing.T) {
	m, files := frozenFiles(t)
	m.NeedHandover(t)
	must(t, mounttest.CompareFile(m.Path("d0/f150"), []byte(files["d0/f150"])))
	open, err := os.Open(m.Path(".hbmfs", "metrics"))
	must(t, err)
	defer func() { must(t, open.Close()) }()
	must(t, syscall.Kill(m.PID, syscall.SIGKILL))
	for range 3 {
		compareFiles(t, m, files)
		if s := m.Status(t); s.PID == m.PID || s.Handover.Crashes != 1 {
			t.Errorf("status: %+v", s)
		}
	}
	// The text of the daemon that died is gone with it.
	if n, err := open.Read(make([]byte, 10)); !stale(err) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if s := m.Status(t); len(s.Notes) > 0 || s.Counters.CachedOpens+s.Counters.PassthroughOpens != 0 {
		t.Errorf("%q, %+v", s.Notes, s.Counters)
	}
	m.PID = m.Status(t).PID
}

func TestFrozenIsRefused(t *testing.T) {
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"file": "1"})
	for _, args := range [][]string{
		{"s3://bucket/prefix"}, {"http://127.0.0.1:1/"}, {source, "--strict"},
		{source, "--decode", "--cache-dir", suite.NewDir(t)},
	} {
		if r := run(t, append([]string{"mount", "--frozen", args[0], suite.NewDir(t)}, args[1:]...)...); r.Code != 2 || !strings.Contains(r.Stderr, "--frozen is for a directory") {
			t.Errorf("%q: exit code %d: %s", args, r.Code, r.Stderr)
		}
	}
}
