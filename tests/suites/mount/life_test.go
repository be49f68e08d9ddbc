package mount_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// kill ends the daemon at once, as a crash or the out-of-memory killer does.
func (m *mounted) kill(t *testing.T) {
	t.Helper()
	must(t, syscall.Kill(m.PID, syscall.SIGKILL))
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(m.PID) }) {
		t.Fatal("the daemon survives SIGKILL")
	}
}

// A reader that has a passthrough file open, or mapped, outlives the daemon; a new mount on the same place works at once.
func TestReadersSurviveTheDaemon(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := suite.NewDir(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	mounttest.WriteFiles(t, source, map[string]string{"shard.bin": string(content), "other.bin": "other"})
	m := mount(t, source, "--no-keeper")
	passthrough := m.Status(t).Passthrough
	f, err := os.Open(m.Path("shard.bin"))
	must(t, err)
	defer func() { must(t, f.Close()) }()
	mapped, err := mounttest.MapFile(m.Path("shard.bin"))
	must(t, err)
	defer func() { must(t, unix.Munmap(mapped)) }()
	m.kill(t)

	if _, err := os.ReadFile(m.Path("other.bin")); err == nil || errors.Is(err, unix.ENOENT) {
		t.Errorf("opening a file of a dead mount: %v, want an error that is not taken for a missing file", err)
	}
	if passthrough.On {
		got := make([]byte, len(content))
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, content) {
			t.Errorf("the open file no longer reads: %v", err)
		}
		if !bytes.Equal(mapped, content) {
			t.Error("the mapping changed")
		}
	} else {
		t.Logf("no passthrough here, so readers do not survive: %s", passthrough.Why)
	}
	again := mountOn(t, source, m.Point)
	if err := mounttest.CompareTrees(source, again.Point); err != nil {
		t.Error(err)
	}
	if passthrough.On && !bytes.Equal(mapped, content) {
		t.Error("the mapping of the dead mount changed when a new one came")
	}
}

func TestUnmountOfADeadMount(t *testing.T) {
	for _, lazy := range []bool{false, true} {
		m := mount(t, mounttest.Golden(t, "nanogpt"), "--no-keeper")
		m.kill(t)
		args := []string{"umount", m.Point}
		if lazy {
			args = []string{"umount", "--lazy", m.Point}
		}
		if r := run(t, args...); r.Code != 0 {
			t.Errorf("%q of a dead mount: exit code %d: %s", args[:len(args)-1], r.Code, r.Stderr)
		}
		mounttest.WantMounted(t, m.Point, false)
	}
}

// Of several mounts each is tried, though one before it failed.
func TestUnmountOfSeveral(t *testing.T) {
	a, b, none := mount(t, mounttest.Golden(t, "nanogpt")), mount(t, mounttest.Golden(t, "nanogpt")), suite.NewDir(t)
	r := run(t, "umount", none, a.Point, filepath.Join(none, "missing"), b.Point)
	lines := strings.Split(strings.TrimSpace(r.Stderr), "\n")
	if r.Code != 1 || len(lines) != 2 || !strings.Contains(lines[0], "nothing of hbmfs is mounted at "+none) || !strings.Contains(lines[1], "missing") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	mounttest.WantMounted(t, a.Point, false)
	mounttest.WantMounted(t, b.Point, false)
}

// TestUnmountFromAnotherPIDNamespace takes a mount away where its daemon has no number: the command returns when it has ended, also that of
// a later life.
func TestUnmountFromAnotherPIDNamespace(t *testing.T) {
	blackbox.NeedRoot(t)
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip("needs unshare: ", err)
	}
	for _, killed := range []bool{false, true} {
		dir := suite.NewDir(t) // what is mounted and unmounted below is so in both mount namespaces
		must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
		t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
		must(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
		point := filepath.Join(dir, "point")
		must(t, os.Mkdir(point, 0o755))
		m := mountOn(t, mounttest.Golden(t, "nanogpt"), point)
		pid := m.PID
		if killed {
			must(t, unix.Kill(pid, unix.SIGKILL))
			var err error
			if !blackbox.Within(patience, func() bool { m.PID, err = m.DaemonPID(); return err == nil && m.PID != pid }) {
				t.Skip("no daemon goes on with the mount of another here")
			}
			pid = m.PID
		}
		r := suite.RunCommand(t, exec.Command("unshare", "--pid", "--fork", "--mount", "--propagation", "unchanged", "--mount-proc", suite.Path(), "umount", point))
		if ended := blackbox.Ended(pid); r.Code != 0 || r.Stderr != "" || !ended {
			t.Errorf("killed before: %v: exit code %d: %s; the daemon has ended: %v", killed, r.Code, r.Stderr, ended)
		}
		mounttest.WantMounted(t, point, false)
	}
}

// A busy mount stays, and the message names who holds it.
func TestBusyUnmount(t *testing.T) {
	blackbox.NeedFUSE(t)
	source, _ := mounttest.ShardedTokens(t, suite, 2, 1000)
	self := fmt.Sprintf("pid %d", os.Getpid())
	for what, hold := range map[string]func(m *mounted) (release func() error){
		"a file is open": func(m *mounted) func() error {
			f, err := os.Open(m.Path("shard_000000.bin"))
			must(t, err)
			return f.Close
		},
		"a view is mapped": func(m *mounted) func() error {
			p, err := mounttest.MapFile(m.Path(".hbmfs", "views", "tokens.bin"))
			must(t, err)
			return func() error { return unix.Munmap(p) }
		},
		"a directory is open": func(m *mounted) func() error {
			f, err := os.Open(m.Path(".hbmfs"))
			must(t, err)
			return f.Close
		},
	} {
		m := mount(t, source)
		release := hold(m)
		r := run(t, "umount", m.Point)
		if r.Code != 4 || !strings.Contains(r.Stderr, self) || !strings.Contains(r.Stderr, m.Point) {
			t.Errorf("%s: exit code %d, want 4 and a word of %s: %s", what, r.Code, self, r.Stderr)
		}
		mounttest.WantMounted(t, m.Point, true)
		if err := mounttest.CompareTrees(source, m.Point); err != nil {
			t.Errorf("%s: after the attempt: %v", what, err)
		}
		must(t, release())
		if r := run(t, "umount", m.Point); r.Code != 0 {
			t.Errorf("%s, and no longer: exit code %d: %s", what, r.Code, r.Stderr)
		}
		mounttest.WantMounted(t, m.Point, false)
	}
}

// A process that only passes through a mount, as hbmfs top does, does not keep it mounted.
func TestUmountWhileSomebodyLooks(t *testing.T) {
	blackbox.NeedFUSE(t)
	m := mount(t, mounttest.Golden(t, "nanogpt"))
	f, err := os.Open(m.Path("val.bin"))
	must(t, err)
	time.AfterFunc(100*time.Millisecond, func() { must(t, f.Close()) })
	if r := run(t, "umount", m.Point); r.Code != 0 {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	mounttest.WantMounted(t, m.Point, false)
}

// Files that were open when a mount was taken out of the tree go on, and the daemon ends with them.
func TestDetachedMountServesOn(t *testing.T) {
	blackbox.NeedFUSE(t)
	source, stream := mounttest.ShardedTokens(t, suite, 3, 50_000)
	for what, detach := range map[string]func(m *mounted){
		"umount --lazy": func(m *mounted) {
			if r := run(t, "umount", "--lazy", m.Point); r.Code != 0 {
				t.Errorf("umount --lazy: exit code %d: %s", r.Code, r.Stderr)
			}
		},
		"SIGTERM": func(m *mounted) { must(t, syscall.Kill(m.PID, syscall.SIGTERM)) },
	} {
		m := mount(t, source)
		f, err := os.Open(m.Path(".hbmfs", "views", "tokens.bin"))
		must(t, err)
		detach(m)
		if !blackbox.Within(patience, func() bool { is, err := blackbox.IsMounted(m.Point); return err == nil && !is }) {
			t.Errorf("%s: still in the tree", what)
		}
		got := make([]byte, len(stream))
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, stream) {
			t.Errorf("%s: what was open no longer reads: %v", what, err)
		}
		if blackbox.Ended(m.PID) {
			t.Errorf("%s: the daemon ended with a file open", what)
		}
		// A new mount can take the place meanwhile.
		again := mountOn(t, source, m.Point)
		if again.PID = again.Status(t).PID; again.PID == m.PID { // both daemons were told this mount point
			t.Errorf("%s: the new mount has the old daemon", what)
		}
		if what != "SIGTERM" { // a second one would end the daemon
			must(t, syscall.Kill(m.PID, syscall.SIGTERM))
			if !blackbox.Within(patience, func() bool { return strings.Contains(m.LogText(t), "another filesystem is mounted on") }) {
				t.Errorf("%s: the log does not say what is mounted there:\n%s", what, m.LogText(t))
			}
		}
		must(t, f.Close())
		if !m.Ends(t) {
			t.Errorf("%s: the daemon does not end with the last file", what)
		}
		mounttest.WantMounted(t, m.Point, true)
		must(t, again.Close())
	}
}

func TestSignalsUnmount(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		m := mount(t, mounttest.Golden(t, "nanogpt"))
		must(t, syscall.Kill(m.PID, signal))
		if !m.Ends(t) {
			t.Errorf("%v does not end the daemon", signal)
		}
		mounttest.WantMounted(t, m.Point, false)
		if !strings.Contains(m.LogText(t), "msg=unmounted") {
			t.Errorf("the log does not say that %v unmounted:\n%s", signal, m.LogText(t))
		}
	}
}

func TestSecondSignalEndsABusyDaemon(t *testing.T) {
	m := mount(t, mounttest.Golden(t, "nanogpt"))
	f, err := os.Open(m.Path(".hbmfs", "views", "train", "tokens.npy"))
	must(t, err)
	defer func() { _ = f.Close() }() // of a mount that is gone
	must(t, syscall.Kill(m.PID, syscall.SIGTERM))
	if !blackbox.Within(patience, func() bool { return strings.Contains(m.LogText(t), "detached") }) {
		t.Fatalf("the log does not say that the mount was detached:\n%s", m.LogText(t))
	}
	if text := m.LogText(t); !strings.Contains(text, "pid "+strconv.Itoa(os.Getpid())) {
		t.Errorf("the log does not say who holds the mount:\n%s", text)
	}
	if blackbox.Ended(m.PID) {
		t.Error("one SIGTERM ended the daemon with a file open")
	}
	must(t, syscall.Kill(m.PID, syscall.SIGTERM))
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(m.PID) }) {
		t.Error("a second SIGTERM does not end the daemon")
	}
}

func TestForeground(t *testing.T) {
	blackbox.NeedFUSE(t)
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		point, out := suite.NewDir(t), filepath.Join(suite.NewDir(t), "stderr")
		stderr, err := os.Create(out)
		must(t, err)
		cmd := suite.Command(t.Context(), "mount", "-f", mounttest.Golden(t, "nanogpt"), point)
		cmd.Stderr = stderr
		must(t, cmd.Start())
		ready := blackbox.Within(patience, func() bool { is, err := blackbox.IsMounted(point); return err == nil && is })
		if _, err := os.ReadFile(filepath.Join(point, "val.bin")); !ready || err != nil {
			t.Errorf("in the foreground: mounted %v, reading: %v", ready, err)
		}
		must(t, cmd.Process.Signal(signal))
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v in the foreground: %v, want exit code 0", signal, err)
		}
		mounttest.WantMounted(t, point, false)
		must(t, stderr.Close())
		if log, err := os.ReadFile(out); err != nil || !bytes.Contains(log, []byte("msg=mounted")) {
			t.Errorf("the log on stderr is %q, %v", log, err)
		}
	}
}

// The source is its own mount point: the mount hides it, and reads it all the same.
func TestMountInPlace(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := suite.NewDir(t)
	must(t, os.CopyFS(source, os.DirFS(mounttest.Golden(t, "megatron-merge"))))
	m := mountOn(t, source, source)
	if err := mounttest.CompareContents(mounttest.Golden(t, "megatron-merge"), m.Point); err != nil {
		t.Error(err)
	}
	tokens, err := os.ReadFile(m.Path(".hbmfs", "views", "tokens.bin"))
	if want := mounttest.Goldens(t)["megatron-merge"].Splits[""].TokensSHA256; err != nil || mounttest.HexSum(tokens) != want {
		t.Errorf("tokens.bin in place: %v, sha256 %s, want %s", err, mounttest.HexSum(tokens), want)
	}
	if _, err := os.Stat(m.Path("a_text_document.idx")); err != nil {
		t.Error(err)
	}
	must(t, m.Close())
	mounttest.WantAbsent(t, filepath.Join(source, ".hbmfs"))
}

// A mount point may be named by any path that leads to it.
func TestMountPointPaths(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := mounttest.Golden(t, "nanogpt")
	dir := suite.NewDir(t)
	must(t, os.MkdirAll(filepath.Join(dir, "real", "point"), 0o755))
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	must(t, os.Symlink("real/point", filepath.Join(dir, "direct")))
	point := filepath.Join(dir, "real", "point")
	for _, path := range []string{"link/point", "direct", "real/point/", "real/../link/./point"} {
		named := dir + "/" + path
		log := filepath.Join(dir, "log")
		if r := run(t, "mount", "--log-file", log, source, named); r.Code != 0 {
			t.Errorf("mount on %s: exit code %d: %s", path, r.Code, r.Stderr)
			continue
		}
		mounttest.WantMounted(t, point, true)
		if r := run(t, "mount", "--log-file", log, source, point); r.Code != 1 || !strings.Contains(r.Stderr, "already") {
			t.Errorf("a second mount on what %s leads to: exit code %d: %s", path, r.Code, r.Stderr)
		}
		if r := run(t, "umount", named); r.Code != 0 {
			t.Errorf("umount of %s: exit code %d: %s", path, r.Code, r.Stderr)
			must(t, suite.At(point).Close())
		}
		mounttest.WantMounted(t, point, false)
	}
}
