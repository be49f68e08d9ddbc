package stuck_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// stop stops the daemon of a mount, and has it go on when the test ends. Processes that were left behind go then, too, and the
// mount can be taken away.
func (m *mounted) stop(t *testing.T) {
	t.Helper()
	must(t, blackbox.Stop(m.PID))
	t.Cleanup(func() {
		_ = syscall.Kill(m.PID, syscall.SIGCONT) // it may have ended
		if !blackbox.Within(patience, func() bool {
			is, err := blackbox.IsMounted(m.Point)
			return err == nil && (!is || unix.Unmount(m.Point, unix.UMOUNT_NOFOLLOW) == nil)
		}) {
			t.Error("what waited for the daemon does not go")
		}
	})
}

// jammed is the filesystem of a daemon that takes every question and answers none but the first: one that is deadlocked.
type jammed struct{ fuse.RawFileSystem }

func (jammed) StatFs(<-chan struct{}, *fuse.InHeader, *fuse.StatfsOut) fuse.Status { select {} }

func (jammed) Lookup(<-chan struct{}, *fuse.InHeader, string, *fuse.EntryOut) fuse.Status { select {} }

func (jammed) GetAttr(<-chan struct{}, *fuse.GetAttrIn, *fuse.AttrOut) fuse.Status { select {} }

func (jammed) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { select {} }

// serveJammed mounts such a filesystem and stays.
func serveJammed(point string) error {
	opt := &fuse.MountOptions{Name: "hbmfs", FsName: "jammed", DirectMount: os.Geteuid() == 0}
	server, err := fuse.NewServer(jammed{fuse.NewDefaultRawFileSystem()}, point, opt)
	if err != nil {
		return err
	}
	fmt.Println("mounted")
	server.Serve()
	select {} // as a deadlocked daemon does not end by itself either
}

// jam mounts the filesystem of a deadlocked daemon on a new directory.
func jam(t *testing.T, ordinary bool) *mounted {
	t.Helper()
	blackbox.NeedFUSE(t)
	m := &mounted{&blackbox.Mounted{Point: suite.NewDir(t)}}
	m.Mount = suite.At(m.Point)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", m.Point)
	cmd.Env = append(os.Environ(), mounttest.ChildVerb+"=jam")
	cmd.Dir = "/"
	if ordinary {
		must(t, os.Chown(m.Point, blackbox.Nobody, blackbox.Nobody))
		cmd.SysProcAttr = blackbox.AsNobody()
	}
	said, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	m.PID = cmd.Process.Pid
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = syscall.Kill(m.PID, syscall.SIGKILL) // it may have ended
		<-ended
		if is, err := blackbox.IsMounted(m.Point); err != nil || is {
			must(t, blackbox.Detach(m.Point))
		}
	})
	if line := make([]byte, 64); !bytes.HasPrefix(line[:first(said.Read(line))], []byte("mounted")) {
		t.Errorf("the jammed filesystem says %q", line)
	}
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	return m
}

func first(n int, _ error) int { return n }

// timed runs hbmfs and fails the test where that takes longer than something that waits for no daemon.
func timed(t *testing.T, ordinary bool, args ...string) (code int, stderr string) {
	t.Helper()
	cmd := suite.Command(t.Context(), args...)
	cmd.Dir = "/"
	if ordinary {
		cmd.SysProcAttr = blackbox.AsNobody()
	}
	b := mounttest.Begin(t, suite, cmd)
	if !b.End(t) {
		return -1, b.Said(t)
	}
	return cmd.ProcessState.ExitCode(), b.Said(t)
}

// A daemon that is stopped, or deadlocked, keeps nobody from taking its mount away. The command names a daemon that
// stays, by its pid.
func TestUmountOfAStuckDaemon(t *testing.T) {
	blackbox.NeedRoot(t)
	mounttest.MakeFUSEPublic(t)
	users := map[string]bool{"root": false, "nobody": true}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		delete(users, "nobody")
	}
	for user, ordinary := range users {
		for _, c := range []struct {
			flag string
			code int
			ends bool
		}{{"--lazy", 0, false}, {"--force", 0, true}, {"", 1, false}} {
			t.Run(strings.TrimSpace(user+" stopped "+c.flag), func(t *testing.T) {
				t.Parallel()
				m := stopped(t, ordinary)
				said := umountStuck(t, m, ordinary, c.flag, c.code, c.ends)
				if resume := fmt.Sprintf("kill -CONT %d", m.PID); !c.ends && !strings.Contains(said, resume) {
					t.Errorf("%q does not say %q", said, resume)
				}
			})
			t.Run(strings.TrimSpace(user+" deadlocked "+c.flag), func(t *testing.T) {
				t.Parallel()
				umountStuck(t, jam(t, ordinary), ordinary, c.flag, c.code, c.ends)
			})
		}
	}
}

// stopped is a mount whose daemon is stopped.
func stopped(t *testing.T, ordinary bool) *mounted {
	t.Helper()
	var m *mounted
	if ordinary {
		m = &mounted{suite.MountAsNobody(t, mounttest.Golden(t, "nanogpt"))}
	} else {
		m = mount(t, mounttest.Golden(t, "nanogpt"))
	}
	m.stop(t)
	return m
}

// umountStuck takes a mount away whose daemon is stuck. Where the daemon does not end, one line must have its pid.
func umountStuck(t *testing.T, m *mounted, ordinary bool, flag string, wantCode int, ends bool) (said string) {
	t.Helper()
	code, said := timed(t, ordinary, append(append([]string{"umount"}, strings.Fields(flag)...), m.Point)...)
	if pid := fmt.Sprintf("pid %d", m.PID); code != wantCode || (!ends && !strings.Contains(said, pid)) || strings.Count(said, "\n") > 1 {
		t.Errorf("exit code %d, want %d and one line with %s: %q", code, wantCode, pid, said)
	}
	mounttest.WantMounted(t, m.Point, false)
	if ends && !blackbox.Within(patience, func() bool { return blackbox.Ended(m.PID) }) {
		t.Error("the daemon has not ended")
	}
	return said
}

// Ctrl-C ends the wait for a daemon that does not end.
func TestInterruptedUmount(t *testing.T) {
	blackbox.NeedRoot(t)
	m := jam(t, false)
	b := mounttest.Begin(t, suite, suite.Command(t.Context(), "umount", m.Point))
	if !blackbox.Within(patience, func() bool { is, err := blackbox.IsMounted(m.Point); return err == nil && !is }) {
		t.Error("still mounted")
	}
	must(t, b.Process.Signal(os.Interrupt))
	if b.End(t) && (b.ProcessState.ExitCode() != 130 || !strings.Contains(b.Said(t), fmt.Sprintf("pid %d", m.PID))) {
		t.Errorf("exit code %d, want 130 and the daemon's pid: %q", b.ProcessState.ExitCode(), b.Said(t))
	}
}

// A mount in use whose daemon is stuck is not taken away by a plain umount, which says both; --force ends it for all.
func TestUmountOfAStuckDaemonInUse(t *testing.T) {
	blackbox.NeedRoot(t)
	m := jam(t, false)
	reader := mounttest.Begin(t, suite, exec.CommandContext(t.Context(), "stat", "-f", m.Point)) // it waits where no signal reaches
	defer func() { _ = reader.Process.Kill() }()
	if !blackbox.Within(patience, func() bool { return mounttest.WaitsForFUSE(reader.Process.Pid) }) {
		t.Error("the reader does not wait for the daemon")
	}
	code, said := timed(t, false, "umount", m.Point)
	if code != 4 || !strings.Contains(said, "does not answer") || !strings.Contains(said, "--force") {
		t.Errorf("umount: exit code %d, want 4, that the daemon does not answer, and what to do: %q", code, said)
	}
	mounttest.WantMounted(t, m.Point, true)
	if code, said := timed(t, false, "umount", "--force", m.Point); code != 0 {
		t.Errorf("umount --force: exit code %d: %q", code, said)
	}
	mounttest.WantMounted(t, m.Point, false)
	if reader.End(t) && reader.ProcessState.Success() {
		t.Error("the reader got an answer")
	}
}

// Files that are open with passthrough outlive a forced end, as they outlive the daemon.
func TestForceLeavesPassthrough(t *testing.T) {
	blackbox.NeedRoot(t)
	source := suite.NewDir(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	mounttest.WriteFiles(t, source, map[string]string{"shard.bin": string(content)})
	m := mount(t, source)
	if p := m.Status(t).Passthrough; !p.On {
		t.Skipf("needs passthrough: %s", p.Why)
	}
	f, err := os.Open(m.Path("shard.bin"))
	must(t, err)
	defer func() { must(t, f.Close()) }()
	m.stop(t)
	if code, said := timed(t, false, "umount", "--force", m.Point); code != 0 {
		t.Errorf("exit code %d: %q", code, said)
	}
	mounttest.WantMounted(t, m.Point, false)
	got := make([]byte, len(content))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the open file no longer reads: %v", err)
	}
}

// When umount returns, the daemon has ended, and what it had open is free: the source can be unmounted at once.
func TestUmountWaitsForTheDaemon(t *testing.T) {
	blackbox.NeedRoot(t)
	for range 10 {
		source := suite.NewDir(t)
		must(t, unix.Mount("tmpfs", source, "tmpfs", 0, ""))
		mounttest.WriteFiles(t, source, map[string]string{"shard.bin": strings.Repeat("tokens ", 100_000)})
		m := mount(t, source)
		if _, err := os.ReadFile(m.Path("shard.bin")); err != nil {
			t.Error(err)
		}
		if r := run(t, "umount", m.Point); r.Code != 0 {
			t.Errorf("umount: exit code %d: %s", r.Code, r.Stderr)
		}
		if !blackbox.Ended(m.PID) {
			t.Error("umount returns before the daemon has ended")
		}
		if err := unix.Unmount(source, 0); err != nil {
			t.Errorf("umount of the mount, and then of its source: %v", err)
			must(t, unix.Unmount(source, unix.MNT_DETACH))
		}
	}
}

// A mount point whose daemon is stuck is refused, with what to do.
func TestMountOnAStuckMount(t *testing.T) {
	blackbox.NeedRoot(t)
	for what, m := range map[string]*mounted{"stopped": stopped(t, false), "deadlocked": jam(t, false)} {
		for _, flag := range []string{"--show-views", "-f"} { // the first is for any flag but the second
			t.Run(what+" "+flag, func(t *testing.T) {
				t.Parallel() // it waits
				code, said := timed(t, false, "mount", flag, mounttest.Golden(t, "megatron"), m.Point)
				if code != 1 || !strings.Contains(said, "does not answer") || !strings.Contains(said, "umount --force "+m.Point) {
					t.Errorf("exit code %d, want 1 and what to do: %q", code, said)
				}
				mounttest.WantMounted(t, m.Point, true)
			})
		}
	}
}

// A command that works on a mount whose daemon is stuck says so soon, and ends when it is interrupted.
func TestCommandsOnAStuckMount(t *testing.T) {
	blackbox.NeedRoot(t)
	for what, m := range map[string]*mounted{"stopped": stopped(t, false), "deadlocked": jam(t, false)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // it waits
			commandsOn(t, m)
		})
	}
}

func commandsOn(t *testing.T, m *mounted) {
	t.Helper()
	file, point := m.Path("val.bin"), suite.NewDir(t)
	link := filepath.Join(suite.NewDir(t), "link")
	must(t, os.Symlink(file, link))
	var all []*mounttest.Begun
	for _, args := range [][]string{
		{"inspect", m.Point}, {"locate", "--extents", file}, {"locate", "--extents", link}, {"read", "--to", "host", file}, {"bench", "--to", "host", file}, {"warm", m.Point},
		{"pack", "--to", "npy", m.Point, filepath.Join(suite.NewDir(t), "new")}, {"mount", m.Point, point}, {"mount", "-f", m.Point, point},
		{"cache", "ls", m.Point},
	} {
		b := mounttest.Begin(t, suite, suite.Command(t.Context(), args...))
		defer func() { _ = b.Process.Kill() }() // where the test ends early
		all = append(all, b)
	}
	for _, b := range all {
		if !blackbox.Within(mounttest.Soon, func() bool { return strings.Contains(b.Said(t), "does not answer") }) {
			t.Errorf("%q says %q", b.Args[1:], b.Said(t))
		}
		must(t, b.Process.Signal(os.Interrupt))
	}
	for _, b := range all {
		if b.End(t) && b.ProcessState.ExitCode() != 130 {
			t.Errorf("%q ends with exit code %d, want 130: %q", b.Args[1:], b.ProcessState.ExitCode(), b.Said(t))
		}
	}
	// It gives the rest of its report, and ends.
	if code, said := timed(t, false, "check", file); code == 0 {
		t.Errorf("check finds nothing wrong, and says %q", said)
	}
}

// A daemon may get stuck while a command waits for an answer that no signal calls off: the command ends all the same.
func TestACommandWhoseDaemonGetsStuck(t *testing.T) {
	blackbox.NeedRoot(t)
	asked, release := make(chan struct{}, 64), make(chan struct{})
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("ETag", `"1"`)
		switch {
		case q.URL.Path != "/shard.dat":
			http.NotFound(w, q)
		case strings.HasPrefix(q.Header.Get("Range"), "bytes=0-4095"), q.Method == http.MethodHead:
			http.ServeContent(w, q, "", time.Unix(1, 0), bytes.NewReader(make([]byte, 8_000_000)))
		default:
			select {
			case asked <- struct{}{}:
			default:
			}
			<-release
		}
	}))
	defer source.Close()
	defer close(release)
	m := mount(t, source.URL+"/shard.dat")
	b := mounttest.Begin(t, suite, suite.Command(t.Context(), "read", "--to", "host", m.Path("shard.dat")))
	select {
	case <-asked:
	case <-b.Ended:
		t.Fatalf("the command ended: %q", b.Said(t))
	case <-time.After(patience):
		t.Fatal("the source is not asked")
	}
	m.stop(t)
	must(t, b.Process.Signal(os.Interrupt))
	if b.End(t) && b.ProcessState.ExitCode() != 130 {
		t.Errorf("exit code %d, want 130: %q", b.ProcessState.ExitCode(), b.Said(t))
	}
}
