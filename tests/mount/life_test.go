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
)

// kill ends the daemon at once, as a crash or the out-of-memory killer does.
func (m *mounted) kill(t *testing.T) {
	t.Helper()
	must(t, syscall.Kill(m.pid, syscall.SIGKILL))
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(m.pid) }) {
		t.Fatal("the daemon survives SIGKILL")
	}
}

// A reader that has a passthrough file open, or mapped, outlives the daemon; a new mount on the same place works at once.
func TestReadersSurviveTheDaemon(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := suite.NewDir(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	writeFiles(t, source, map[string]string{"shard.bin": string(content), "other.bin": "other"})
	m := mount(t, source, "--no-keeper")
	passthrough := status(t, m).Passthrough
	f, err := os.Open(m.Path("shard.bin"))
	must(t, err)
	defer func() { must(t, f.Close()) }()
	mapped, err := mapFile(m.Path("shard.bin"))
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
	again := mountOn(t, source, m.point)
	if err := compareTrees(source, again.point); err != nil {
		t.Error(err)
	}
	if passthrough.On && !bytes.Equal(mapped, content) {
		t.Error("the mapping of the dead mount changed when a new one came")
	}
}

func TestUnmountOfADeadMount(t *testing.T) {
	for _, lazy := range []bool{false, true} {
		m := mount(t, golden(t, "nanogpt"), "--no-keeper")
		m.kill(t)
		args := []string{"umount", m.point}
		if lazy {
			args = []string{"umount", "--lazy", m.point}
		}
		if r := run(t, args...); r.code != 0 {
			t.Errorf("%q of a dead mount: exit code %d: %s", args[:len(args)-1], r.code, r.stderr)
		}
		wantMounted(t, m.point, false)
	}
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
		m := mountOn(t, golden(t, "nanogpt"), point)
		pid := m.pid
		if killed {
			must(t, unix.Kill(pid, unix.SIGKILL))
			var err error
			if !blackbox.Within(patience, func() bool { m.pid, err = m.DaemonPID(); return err == nil && m.pid != pid }) {
				t.Skip("no daemon goes on with the mount of another here")
			}
			pid = m.pid
		}
		r := runCommand(t, exec.Command("unshare", "--pid", "--fork", "--mount", "--propagation", "unchanged", "--mount-proc", suite.Path(), "umount", point))
		if ended := blackbox.Ended(pid); r.code != 0 || r.stderr != "" || !ended {
			t.Errorf("killed before: %v: exit code %d: %s; the daemon has ended: %v", killed, r.code, r.stderr, ended)
		}
		wantMounted(t, point, false)
	}
}

func wantMounted(t *testing.T, point string, want bool) {
	t.Helper()
	if is, err := blackbox.IsMounted(point); err != nil || is != want {
		t.Errorf("mounted: %v (%v), want %v", is, err, want)
	}
}

// A busy mount stays, and the message names who holds it.
func TestBusyUnmount(t *testing.T) {
	blackbox.NeedFUSE(t)
	source, _ := shardedTokens(t, 2, 1000)
	self := fmt.Sprintf("pid %d", os.Getpid())
	for what, hold := range map[string]func(m *mounted) (release func() error){
		"a file is open": func(m *mounted) func() error {
			f, err := os.Open(m.Path("shard_000000.bin"))
			must(t, err)
			return f.Close
		},
		"a view is mapped": func(m *mounted) func() error {
			p, err := mapFile(m.Path(".hbmfs", "views", "tokens.bin"))
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
		r := run(t, "umount", m.point)
		if r.code != 4 || !strings.Contains(r.stderr, self) || !strings.Contains(r.stderr, m.point) {
			t.Errorf("%s: exit code %d, want 4 and a word of %s: %s", what, r.code, self, r.stderr)
		}
		wantMounted(t, m.point, true)
		if err := compareTrees(source, m.point); err != nil {
			t.Errorf("%s: after the attempt: %v", what, err)
		}
		must(t, release())
		if r := run(t, "umount", m.point); r.code != 0 {
			t.Errorf("%s, and no longer: exit code %d: %s", what, r.code, r.stderr)
		}
		wantMounted(t, m.point, false)
	}
}

// A process that only passes through a mount, as hbmfs top does, does not keep it mounted.
func TestUmountWhileSomebodyLooks(t *testing.T) {
	blackbox.NeedFUSE(t)
	m := mount(t, golden(t, "nanogpt"))
	f, err := os.Open(m.Path("val.bin"))
	must(t, err)
	time.AfterFunc(100*time.Millisecond, func() { must(t, f.Close()) })
	if r := run(t, "umount", m.point); r.code != 0 {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
	wantMounted(t, m.point, false)
}

// Files that were open when a mount was taken out of the tree go on, and the daemon ends with them.
func TestDetachedMountServesOn(t *testing.T) {
	blackbox.NeedFUSE(t)
	source, stream := shardedTokens(t, 3, 50_000)
	for what, detach := range map[string]func(m *mounted){
		"umount --lazy": func(m *mounted) {
			if r := run(t, "umount", "--lazy", m.point); r.code != 0 {
				t.Errorf("umount --lazy: exit code %d: %s", r.code, r.stderr)
			}
		},
		"SIGTERM": func(m *mounted) { must(t, syscall.Kill(m.pid, syscall.SIGTERM)) },
	} {
		m := mount(t, source)
		f, err := os.Open(m.Path(".hbmfs", "views", "tokens.bin"))
		must(t, err)
		detach(m)
		if !blackbox.Within(patience, func() bool { is, err := blackbox.IsMounted(m.point); return err == nil && !is }) {
			t.Errorf("%s: still in the tree", what)
		}
		got := make([]byte, len(stream))
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, stream) {
			t.Errorf("%s: what was open no longer reads: %v", what, err)
		}
		if blackbox.Ended(m.pid) {
			t.Errorf("%s: the daemon ended with a file open", what)
		}
		// A new mount can take the place meanwhile.
		again := mountOn(t, source, m.point)
		if again.pid = status(t, again).PID; again.pid == m.pid { // both daemons were told this mount point
			t.Errorf("%s: the new mount has the old daemon", what)
		}
		must(t, f.Close())
		if !blackbox.Within(patience, func() bool { return blackbox.Ended(m.pid) }) {
			t.Errorf("%s: the daemon does not end with the last file", what)
		}
		must(t, again.Close())
	}
}

func TestSignalsUnmount(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		m := mount(t, golden(t, "nanogpt"))
		must(t, syscall.Kill(m.pid, signal))
		if !blackbox.Within(patience, func() bool { return blackbox.Ended(m.pid) }) {
			t.Errorf("%v does not end the daemon", signal)
		}
		wantMounted(t, m.point, false)
		if !strings.Contains(m.logText(t), "msg=unmounted") {
			t.Errorf("the log does not say that %v unmounted:\n%s", signal, m.logText(t))
		}
	}
}

func TestSecondSignalEndsABusyDaemon(t *testing.T) {
	m := mount(t, golden(t, "nanogpt"))
	f, err := os.Open(m.Path(".hbmfs", "views", "train", "tokens.npy"))
	must(t, err)
	defer func() { _ = f.Close() }() // of a mount that is gone
	must(t, syscall.Kill(m.pid, syscall.SIGTERM))
	if !blackbox.Within(patience, func() bool { return strings.Contains(m.logText(t), "detached") }) {
		t.Fatalf("the log does not say that the mount was detached:\n%s", m.logText(t))
	}
	if text := m.logText(t); !strings.Contains(text, "pid "+strconv.Itoa(os.Getpid())) {
		t.Errorf("the log does not say who holds the mount:\n%s", text)
	}
	if blackbox.Ended(m.pid) {
		t.Error("one SIGTERM ended the daemon with a file open")
	}
	must(t, syscall.Kill(m.pid, syscall.SIGTERM))
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(m.pid) }) {
		t.Error("a second SIGTERM does not end the daemon")
	}
}

func TestForeground(t *testing.T) {
	blackbox.NeedFUSE(t)
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		point, out := suite.NewDir(t), filepath.Join(suite.NewDir(t), "stderr")
		stderr, err := os.Create(out)
		must(t, err)
		cmd := suite.Command(t.Context(), "mount", "-f", golden(t, "nanogpt"), point)
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
		wantMounted(t, point, false)
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
	must(t, os.CopyFS(source, os.DirFS(golden(t, "megatron-merge"))))
	m := mountOn(t, source, source)
	if err := compareContents(golden(t, "megatron-merge"), m.point); err != nil {
		t.Error(err)
	}
	tokens, err := os.ReadFile(m.Path(".hbmfs", "views", "tokens.bin"))
	if want := goldens(t)["megatron-merge"].Splits[""].TokensSHA256; err != nil || hexSum(tokens) != want {
		t.Errorf("tokens.bin in place: %v, sha256 %s, want %s", err, hexSum(tokens), want)
	}
	if _, err := os.Stat(m.Path("a_text_document.idx")); err != nil {
		t.Error(err)
	}
	must(t, m.Close())
	wantAbsent(t, filepath.Join(source, ".hbmfs"))
}

// A mount point may be named by any path that leads to it.
func TestMountPointPaths(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := golden(t, "nanogpt")
	dir := suite.NewDir(t)
	must(t, os.MkdirAll(filepath.Join(dir, "real", "point"), 0o755))
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	must(t, os.Symlink("real/point", filepath.Join(dir, "direct")))
	point := filepath.Join(dir, "real", "point")
	for _, path := range []string{"link/point", "direct", "real/point/", "real/../link/./point"} {
		named := dir + "/" + path
		log := filepath.Join(dir, "log")
		if r := run(t, "mount", "--log-file", log, source, named); r.code != 0 {
			t.Errorf("mount on %s: exit code %d: %s", path, r.code, r.stderr)
			continue
		}
		wantMounted(t, point, true)
		if r := run(t, "mount", "--log-file", log, source, point); r.code != 1 || !strings.Contains(r.stderr, "already") {
			t.Errorf("a second mount on what %s leads to: exit code %d: %s", path, r.code, r.stderr)
		}
		if r := run(t, "umount", named); r.code != 0 {
			t.Errorf("umount of %s: exit code %d: %s", path, r.code, r.stderr)
			must(t, suite.At(point).Close())
		}
		wantMounted(t, point, false)
	}
}
