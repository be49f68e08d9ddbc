package volume_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// contain runs a script of the shell as a container does, in a mount namespace of its own. It stays until end.
func contain(t *testing.T, script string) (end func()) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", "mount --make-rprivate /; "+script+"\necho there\nexec sleep 1000000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	blackbox.Must(t, errors.Join(err, cmd.Start()))
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	t.Cleanup(end)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "there\n" {
		t.Fatalf("the container is not there: %q, %v", line, err)
	}
	return end
}

// left lists what the directory of a volume has.
func left(t *testing.T, v *volumetest.Volume) string {
	t.Helper()
	entries, err := os.ReadDir(v.Dir)
	blackbox.Must(t, err)
	var names []string
	for _, e := range entries {
		if strings.Contains(e.Name(), ".tmp") {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

// TestDraftsOfContainers: a draft ends with the container that began it, also where daemon and container are killed together. Others, and what
// is published, stay.
func TestDraftsOfContainers(t *testing.T) {
	v := mount(t, "--draft-life=container")
	begin := func(name string) (end func()) {
		// Another process makes the draft than those that stay.
		return contain(t, "(mkdir "+v.Path(name+".tmp")+"; mkdir "+v.Path(name+".tmp")+"/sub; echo text > "+v.Path(name+".tmp")+"/sub/file)")
	}
	v.Draft(t, "own", map[string]string{"file": "text"})
	ends := map[string]func(){}
	for _, name := range []string{"dies", "stays", "publishes", "daemon", "both"} {
		ends[name] = begin(name)
	}
	gone := func(name string) bool { return !strings.Contains(left(t, v), "."+name+".") }
	blackbox.Must(t, v.Publish("publishes"))
	ends["publishes"]()
	ends["dies"]()
	if !blackbox.Within(volumetest.Patience, func() bool { return gone("dies") }) {
		t.Fatalf("the draft of a container that has ended stays: %s", left(t, v))
	}
	if _, err := os.Stat(v.Path("dies.tmp")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mount shows it: %v", err)
	}
	if text, err := os.ReadFile(v.Path("publishes", "sub", "file")); err != nil || string(text) != "text\n" {
		t.Errorf("what was published is %q, %v", text, err)
	}
	held := v.State(t).Handover.Holder == "keeper"
	kill := func() {
		if !held {
			return
		}
		before := v.PID(t)
		blackbox.Must(t, unix.Kill(before, unix.SIGKILL))
		if !blackbox.Within(volumetest.Patience, func() bool { return v.PID(t) != before }) {
			t.Fatal("no other daemon goes on")
		}
	}
	kill()
	ends["daemon"]() // with the next daemon
	if !blackbox.Within(volumetest.Patience, func() bool { return gone("daemon") }) {
		t.Errorf("a draft that another daemon took over stays: %s", left(t, v))
	}
	ends["both"]()
	kill()
	if !blackbox.Within(volumetest.Patience, func() bool { return gone("both") }) {
		t.Errorf("a draft whose container ended with the daemon stays: %s", left(t, v))
	}
	for _, name := range []string{"own", "stays"} {
		if gone(name) {
			t.Errorf("draft %s is gone: %s", name, left(t, v))
		}
	}
	blackbox.Must(t, v.Publish("stays"))
	blackbox.Must(t, os.Mkdir(v.Path("dies.tmp"), 0o755)) // the name is free
}

// TestContainersThatOnlyRead has programs of a container with a read-only mount begin and publish drafts by the ways that the kernel leaves
// open there.
func TestContainersThatOnlyRead(t *testing.T) {
	v := mount(t, "--draft-life=container")
	dir := v.Draft(t, "step", map[string]string{"file": "text"})
	out, err := inReadOnly(v, suite.Path(), "publish", dir)
	if err == nil || !strings.Contains(out, "read-only") {
		t.Errorf("hbmfs publish by a container that only reads: %v, %s", err, out)
	}
	self, err := os.Executable()
	blackbox.Must(t, err)
	t.Setenv(volumetest.ChildVerb, "begin")
	out, err = inReadOnly(v, self, v.Path("new"))
	if err != nil || !strings.Contains(out, "read-only") {
		t.Errorf("BEGIN by a container that only reads: %v, %s", err, out)
	}
	if text, err := exec.Command(self, v.Path("new")).CombinedOutput(); err != nil || string(text) != "ok\n" {
		t.Errorf("BEGIN by a process that may write: %v, %s", err, text)
	}
	if _, err := os.Stat(filepath.Join(v.Dir, "step")); err == nil {
		t.Error("the draft is published")
	}
}

// inReadOnly runs a program where the volume is mounted read-only.
func inReadOnly(v *volumetest.Volume, command ...string) (said string, err error) {
	script := "mount --make-rprivate /; mount -o remount,bind,ro " + v.Point + `; exec "$@"`
	out, err := exec.Command("unshare", append([]string{"--mount", "sh", "-ec", script, "sh"}, command...)...).CombinedOutput()
	return string(out), err
}
