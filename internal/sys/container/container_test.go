package container

import (
	"bufio"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

const patience = time.Minute

// start starts a shell in a mount namespace of its own, which says when it is there.
func start(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	blackbox.NeedRoot(t)
	cmd := exec.Command("sh", "-ec", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "there\n" {
		t.Fatalf("the container is not there: %q, %v", line, err)
	}
	return cmd
}

// TestEndOfAContainer has a container end by its first process, by one that came later, and by one that left the others' session.
func TestEndOfAContainer(t *testing.T) {
	cmd := start(t, "sleep 1000000 & echo there; wait")
	id, err := Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if self, err := Self(); err != nil || self == id || self == "" {
		t.Fatalf("the container is %s and this one %s, %v", id, self, err)
	}
	over, w := make(chan error, 1), NewWatch(id)
	go func() { over <- w.Await(t.Context()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := NewWatch(id).Await(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a container that lives: %v", err)
	}
	if w.Doubtful() {
		t.Error("there is doubt of a container that lives")
	}
	pids, err := numbers("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil { // the child goes on
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	select {
	case err := <-over:
		t.Fatalf("it is over (%v), and a process of it lives", err)
	case <-time.After(10 * pause.Look):
	}
	killed := 0
	for _, pid := range append(pids, func() []int { now, _ := numbers("/proc"); return now }()...) {
		if id.has(pid) {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
			killed++
		}
	}
	if killed == 0 {
		t.Fatal("nobody was in the container")
	}
	select {
	case err := <-over:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("nobody noticed the end of the container")
	}
	if !w.Doubtful() {
		t.Error("there is no doubt of a container that is over")
	}
	if err := NewWatch(id).Await(t.Context()); err != nil {
		t.Fatalf("a container that is over: %v", err)
	}
}

func TestWrites(t *testing.T) {
	dir := t.TempDir()
	for script, want := range map[string]bool{
		"mount -t tmpfs -o ro none " + dir: false,
		"mount -t tmpfs none " + dir:       true,
		"mount -t tmpfs none " + dir + "; mkdir " + dir + "/sub; mount --bind " + dir + "/sub " + dir + "; mount -o remount,bind,ro " + dir: true,
	} {
		cmd := start(t, "mount --make-rprivate /; "+script+"; echo there; exec sleep 1000000")
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "root", dir), &st); err != nil {
			t.Fatal(err)
		}
		if rw, err := Writes(cmd.Process.Pid, unix.Major(st.Dev), unix.Minor(st.Dev)); err != nil || rw != want {
			t.Errorf("%s: %v, %v", script, rw, err)
		}
		if rw, err := Writes(cmd.Process.Pid, 4000, 4000); err != nil || rw {
			t.Errorf("a filesystem that is not there: %v, %v", rw, err)
		}
	}
	if _, err := Writes(1<<30, 1, 1); err == nil {
		t.Error("a process that is not there has mounts")
	}
}
