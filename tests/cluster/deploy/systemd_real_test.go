package deploy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// realSystemd is a systemd that is process 1 of namespaces of its own, and knows the units of a directory alone.
type realSystemd struct {
	pid int
	log *bytes.Buffer // what it said, once it has ended
}

// startSystemd starts one, and skips where none can run.
func startSystemd(t *testing.T, units string) *realSystemd {
	t.Helper()
	const program, named = "/lib/systemd/systemd", "/sys/fs/cgroup/systemd"
	for _, need := range []string{program, "unshare", "nsenter", "systemctl"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("needs systemd, unshare and nsenter: %v", err)
		}
	}
	group := filepath.Join(named, "hbmfs-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("needs the cgroup hierarchy of systemd, version 1: %v", err)
	}
	t.Cleanup(func() {
		if !blackbox.Within(patience, func() bool { return exec.Command("find", group, "-depth", "-type", "d", "-delete").Run() == nil }) {
			t.Errorf("%s stays", group)
		}
	})
	for _, name := range []string{"test", "sysinit", "basic", "shutdown"} {
		if err := os.WriteFile(filepath.Join(units, name+".target"), []byte("[Unit]\nDescription="+name+"\nDefaultDependencies=no\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &realSystemd{log: &bytes.Buffer{}}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `echo $$ > "$1/cgroup.procs" && exec unshare --mount --cgroup --pid --fork --kill-child --mount-proc sh -ec '
		mount --make-rprivate /
		mount -t tmpfs tmpfs /run
		mount -t tmpfs tmpfs /sys/fs/cgroup
		mkdir /sys/fs/cgroup/systemd
		mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
		exec "$0" --system --unit=test.target --show-status=0 --log-target=console' "$0"`, program, group)
	cmd.Env = append(os.Environ(), "container=hbmfs", "SYSTEMD_UNIT_PATH="+units)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }() // it is killed by the cleanup
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	if !blackbox.Within(2*time.Minute, func() bool {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)) // it may have ended
		s.pid, _ = strconv.Atoi(strings.TrimSpace(string(children)))
		return s.pid != 0 && s.run(t, "systemctl", "is-active", "test.target") == "active\n"
	}) {
		_ = cmd.Process.Kill()
		<-ended
		t.Skipf("no systemd runs as process 1 of a namespace here: %s", s.log)
	}
	return s
}

// run runs a program beside it, and returns what that printed.
func (s *realSystemd) run(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(s.pid), "-m", "-p", "-C"}, args...)...).CombinedOutput() // which says what is wrong
	return string(out)
}

// show returns a property of a unit.
func (s *realSystemd) show(t *testing.T, unit, property string) string {
	t.Helper()
	return strings.TrimSpace(s.run(t, "systemctl", "show", "--value", "-p", property, unit))
}

// The descriptor store of a real systemd keeps the mount of hbmfs@.service while daemons are killed: what is open stays open. FDSTORE in the
// environment came with systemd 254; an older one has the store, and is told to set the variable.
func TestSystemdsStoreKeepsTheMount(t *testing.T) {
	if err := blackbox.CanMount(); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs FUSE and root: %v", err)
	}
	hbmfs := blackbox.Given(t)
	source, point, units, etc := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	content := bytes.Repeat([]byte("as it is "), 50_000)
	unit, err := os.ReadFile(deploy("systemd", "hbmfs@.service"))
	unit = bytes.ReplaceAll(bytes.ReplaceAll(unit, []byte("/usr/bin/hbmfs"), []byte(hbmfs.Path())), []byte("/etc/hbmfs"), []byte(etc))
	unit = regexp.MustCompile(`(?m)^(Wants|After)=.*$`).ReplaceAll(unit, nil) // there is no network here
	unit = bytes.Replace(unit, []byte("[Service]\n"), []byte("[Service]\nEnvironment=FDSTORE="+setting(t, "FileDescriptorStoreMax")+"\n"), 1)
	if err := errors.Join(err, os.WriteFile(filepath.Join(source, "data.bin"), content, 0o600), os.WriteFile(filepath.Join(units, "hbmfs@.service"), unit, 0o600),
		os.WriteFile(filepath.Join(etc, "pile.conf"), []byte("SOURCE="+source+"\nMOUNTPOINT="+point+"\nOPTIONS=\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := startSystemd(t, units)
	const name = "hbmfs@pile.service"
	if said := s.run(t, "systemctl", "start", name); s.show(t, name, "ActiveState") != "active" {
		t.Fatalf("the service does not start: %s\n%s", said, s.run(t, "systemctl", "status", name))
	}
	if !strings.Contains(s.run(t, "cat", filepath.Join(point, ".hbmfs/status")), `"holder": "systemd"`) {
		t.Skip("systemd does not hold the mount (Linux 6.9 can): ", s.run(t, "cat", filepath.Join(point, ".hbmfs/status")))
	}
	within := func(file string) string { return fmt.Sprintf("/proc/%d/root%s", s.pid, file) }
	open, err := os.Open(within(filepath.Join(point, "data.bin")))
	if err != nil {
		t.Fatal(err)
	}
	before := s.show(t, name, "MainPID")
	for restarts := 1; restarts <= 3; restarts++ {
		s.run(t, "systemctl", "kill", "--signal=KILL", name)
		if !blackbox.Within(patience, func() bool {
			return s.show(t, name, "NRestarts") == strconv.Itoa(restarts) && s.show(t, name, "ActiveState") == "active"
		}) {
			t.Fatalf("the service does not come back: %s", s.run(t, "systemctl", "status", name))
		}
		if after := s.show(t, name, "MainPID"); after == before || s.show(t, name, "NFileDescriptorStore") == "0" {
			t.Errorf("process %s came after %s, and systemd holds %s files", after, before, s.show(t, name, "NFileDescriptorStore"))
		}
		before = s.show(t, name, "MainPID")
		had := make([]byte, len(content))
		if _, err := open.ReadAt(had, 0); err != nil || !bytes.Equal(had, content) {
			t.Errorf("what was open has other bytes: %v", err)
		}
		if again, err := os.ReadFile(within(filepath.Join(point, "data.bin"))); err != nil || !bytes.Equal(again, content) {
			t.Errorf("what is opened has other bytes: %v", err)
		}
	}
	if err := open.Close(); err != nil { // else the mount would be served on
		t.Error(err)
	}
	s.run(t, "systemctl", "stop", name)
	if result := s.show(t, name, "Result"); result != "success" || s.show(t, name, "NFileDescriptorStore") != "0" {
		t.Errorf("the service ended with %s, and systemd holds %s files", result, s.show(t, name, "NFileDescriptorStore"))
	}
	if _, err := os.Stat(within(filepath.Join(point, "data.bin"))); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("the mount stays: %v", err)
	}
}
