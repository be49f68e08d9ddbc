package handover_test

import (
	"errors"
	"net"
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

// fakeSystemd is a descriptor store as systemd's: it hears sd_notify, and gives what it holds to the process that it starts next. It
// is a fake: no systemd runs here.
type fakeSystemd struct {
	socket *net.UnixConn
	name   string
	store  map[string]*os.File
}

func newFakeSystemd(t *testing.T) *fakeSystemd {
	t.Helper()
	s := &fakeSystemd{name: filepath.Join(suite.NewDir(t), "notify"), store: map[string]*os.File{}}
	var err error
	s.socket, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.name, Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { s.drop(t); must(t, s.socket.Close()) })
	return s
}

func (s *fakeSystemd) drop(t *testing.T) {
	for name, f := range s.store {
		must(t, f.Close())
		delete(s.store, name)
	}
}

// start starts a daemon in the foreground, with what is in the store.
func (s *fakeSystemd) start(t *testing.T, log *os.File, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, suite.Path(), "mount", "--foreground"}, args...)...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+s.name, "FDSTORE=16")
	if len(s.store) > 0 {
		var names []string
		for name, f := range s.store {
			names, cmd.ExtraFiles = append(names, name), append(cmd.ExtraFiles, f)
		}
		cmd.Env = append(cmd.Env, "LISTEN_FDS="+strconv.Itoa(len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	}
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	return cmd
}

// hear takes messages until one has the word, or none comes for a while.
func (s *fakeSystemd) hear(t *testing.T, word string) (heard bool) {
	t.Helper()
	for {
		must(t, s.socket.SetReadDeadline(time.Now().Add(patience)))
		p, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
		n, k, _, _, err := s.socket.ReadMsgUnix(p, oob)
		if err != nil {
			return false
		}
		text := string(p[:n])
		_, name, _ := strings.Cut(text, "FDNAME=")
		name, _, _ = strings.Cut(name, "\n")
		if old := s.store[name]; old != nil && strings.Contains(text, "FDSTORE") {
			must(t, old.Close())
			delete(s.store, name)
		}
		if parts, err := unix.ParseSocketControlMessage(oob[:k]); err == nil && len(parts) == 1 {
			fds, err := unix.ParseUnixRights(&parts[0])
			must(t, err)
			s.store[name] = os.NewFile(uintptr(fds[0]), name)
		}
		if strings.Contains(text, word) {
			return true
		}
	}
}

// Under systemd, whose descriptor store is a fake here, the next daemon goes on with the mount of one that was killed.
func TestSystemdHoldsTheMount(t *testing.T) {
	blackbox.NeedRoot(t)
	source, stream := mounttest.ShardedTokens(t, suite, 2, 50_000)
	point := suite.NewDir(t)
	log, err := os.Create(filepath.Join(suite.NewDir(t), "log"))
	must(t, err)
	s := newFakeSystemd(t)
	m := &mounted{&blackbox.Mounted{Mount: suite.At(point), Source: source, Point: point, Log: log.Name()}}
	t.Cleanup(func() { _ = m.Close(); must(t, log.Close()) }) // a failure has left it
	daemon := s.start(t, log, source, point)
	if !s.hear(t, "READY=1") {
		t.Fatalf("the mount is not ready:\n%s", m.LogText(t))
	}
	if h := m.Status(t).Handover; h.Holder != "systemd" {
		must(t, daemon.Process.Signal(syscall.SIGTERM))
		_ = daemon.Wait()
		t.Skip("systemd does not hold it: ", h.Why)
	}
	f, err := os.Open(m.Path(".hbmfs", "views", "tokens.bin"))
	must(t, err)
	for life := range 3 {
		must(t, daemon.Process.Kill())
		_ = daemon.Wait() // by the signal
		dropped(f)
		got := make(chan error, 1)
		go func() { // ends with its read
			p := make([]byte, len(stream))
			_, err := f.ReadAt(p, 0)
			got <- errors.Join(err, equal(p, stream, "a view", 0))
		}()
		daemon = s.start(t, log, source, point)
		if !s.hear(t, "READY=1") {
			t.Fatalf("life %d: it does not go on:\n%s", life, m.LogText(t))
		}
		if err := <-got; err != nil {
			t.Errorf("life %d: %v", life, err)
		}
		if h := m.Status(t).Handover; h.Count != int64(life+1) {
			t.Errorf("life %d: the status has %d hand-overs", life, h.Count)
		}
	}
	if r := run(t, "upgrade", point); r.Code != 3 || !strings.Contains(r.Stdout, "systemctl kill") {
		t.Errorf("upgrade: exit code %d: %s", r.Code, r.Stdout)
	}
	must(t, f.Close())
	must(t, daemon.Process.Signal(syscall.SIGTERM))
	if !s.hear(t, "STOPPING=1") {
		t.Error("systemd does not hear of the end")
	}
	s.drop(t)
	if err := daemon.Wait(); err != nil {
		t.Errorf("the daemon ends with %v:\n%s", err, m.LogText(t))
	}
	mounttest.WantMounted(t, point, false)
}

// TestSystemdGivesUp: systemd's limit of starts is one of time. A mount whose daemons fail slowly, here a KV volume that cannot be loaded, is given up by the
// third of them, so that no reader waits for ever. One that goes on in between forgets the failures before.
func TestSystemdGivesUp(t *testing.T) {
	blackbox.NeedRoot(t)
	source, point := suite.NewDir(t), suite.NewDir(t)
	log, err := os.Create(filepath.Join(suite.NewDir(t), "log"))
	must(t, err)
	s := newFakeSystemd(t)
	m := &mounted{&blackbox.Mounted{Mount: suite.At(point), Source: source, Point: point, Log: log.Name()}}
	t.Cleanup(func() { _ = m.Close(); must(t, log.Close()) }) // a failure has left it
	start := func() *exec.Cmd { return s.start(t, log, "--kv", "--size", "16MiB", source, point) }
	daemon := start()
	if !s.hear(t, "READY=1") {
		t.Fatalf("the mount is not ready:\n%s", m.LogText(t))
	}
	if h := m.Status(t).Handover; h.Holder != "systemd" {
		must(t, daemon.Process.Signal(syscall.SIGTERM))
		_ = daemon.Wait()
		t.Skip("systemd does not hold it: ", h.Why)
	}
	lock := filepath.Join(source, ".hbmfs-kv.lock")
	fail := func(times int) {
		must(t, errors.Join(os.Remove(lock), os.Mkdir(lock, 0o700)))
		must(t, daemon.Process.Kill())
		_ = daemon.Wait() // by the signal
		for n := range times {
			if err := start().Wait(); err == nil {
				t.Error("a daemon goes on")
			}
			for given := n == 2; s.hear(t, "FDSTORE") && given && s.store["fuse"] != nil; { // it drops all files
			}
		}
		must(t, os.Remove(lock))
	}
	if fail(2); s.store["failures"] == nil || s.store["fuse"] == nil {
		t.Fatalf("after two failures systemd has %v:\n%s", s.store, m.LogText(t))
	}
	daemon = start()
	if !s.hear(t, "READY=1") || s.store["failures"] != nil {
		t.Fatalf("it does not go on:\n%s", m.LogText(t))
	}
	if fail(3); s.store["fuse"] != nil {
		t.Fatalf("after three failures systemd has %v:\n%s", s.store, m.LogText(t))
	}
	ended := make(chan error, 1)
	go func() { // ends with the mount
		_, err := os.Stat(m.Path("none"))
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("a reader gets %v", err)
		}
	case <-time.After(patience):
		t.Error("the mount is not given up")
	}
	if text := m.LogText(t); !strings.Contains(text, "the mount is given up: no daemon went on with it, in 3 attempts") {
		t.Errorf("the log does not say it:\n%s", text)
	}
}
