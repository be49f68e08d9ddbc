package faults_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// TestDraftsSurviveTheDaemon: writers go on while their daemon is killed, again and again.
func TestDraftsSurviveTheDaemon(t *testing.T) {
	v := mount(t)
	dir := v.Draft(t, "step", map[string]string{"sub/file": "", "other": "bytes"})
	f, err := os.OpenFile(dir+"/sub/file", os.O_RDWR, 0)
	blackbox.Must(t, err)
	gone, err := os.Create(dir + "/gone")
	blackbox.Must(t, err)
	blackbox.Must(t, os.Remove(dir+"/gone"))
	blackbox.Must(t, f.Truncate(4096))
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	blackbox.Must(t, err)
	defer func() { _ = unix.Munmap(m) }()
	v.Draft(t, "done", map[string]string{"file": "bytes"})
	blackbox.Must(t, v.Publish("done"))
	reader, err := os.Open(v.Path("done", "file"))
	blackbox.Must(t, err)
	defer func() { _ = reader.Close() }()
	for i := range 4 {
		v.Kill(t)
		m[i] = 'm'
		_, err := f.WriteAt([]byte{byte('a' + i)}, int64(100+i))
		blackbox.Must(t, err)
		blackbox.Must(t, f.Sync())
		if _, err := gone.WriteString("more"); err != nil {
			t.Errorf("a file that was removed cannot be written after a hand-over: %v", err)
		}
		info, err := f.Stat()
		blackbox.Must(t, err)
		if info.Size() != 4096 {
			t.Errorf("it has %d bytes", info.Size())
		}
		g, err := os.OpenFile(dir+"/sub/file", os.O_RDWR|os.O_APPEND, 0) // beside the older descriptor, by the same backing
		blackbox.Must(t, err)
		blackbox.Must(t, g.Close())
		blackbox.Must(t, os.WriteFile(fmt.Sprintf("%s/new%d", dir, i), []byte("x"), 0o644))
		blackbox.Must(t, os.Rename(fmt.Sprintf("%s/new%d", dir, i), fmt.Sprintf("%s/sub/new%d", dir, i)))
		text := make([]byte, 5)
		if _, err := reader.ReadAt(text, 0); err != nil || string(text) != "bytes" {
			t.Errorf("a reader reads %q, %v", text, err)
		}
		volumetest.Want(t, "publish what is written", v.Publish("step"), unix.EBUSY)
	}
	blackbox.Must(t, errors.Join(f.Close(), gone.Close()))
	volumetest.Want(t, "publish what is mapped", v.Publish("step"), unix.EBUSY)
	blackbox.Must(t, unix.Munmap(m))
	m = nil
	blackbox.Must(t, v.Publish("step"))
	text, err := os.ReadFile(v.Path("step", "sub", "file"))
	if err != nil || string(text[:4]) != "mmmm" || string(text[100:104]) != "abcd" {
		t.Errorf("it has %q, %v", text[:104], err)
	}
	if n := v.State(t).Handover.Count; n != 4 {
		t.Errorf("%d daemons have taken over", n)
	}
	if code, out, errs := run(t, "checkpoint", "verify", filepath.Join(v.Dir, "step")); code != 0 {
		t.Errorf("verify: %d %s%s", code, out, errs)
	}
}

// TestUpgradesUnderWriters replaces the daemon again and again, while drafts begin, are published and removed.
func TestUpgradesUnderWriters(t *testing.T) {
	v := mount(t)
	f, err := os.Create(v.Draft(t, "long", nil) + "/file")
	blackbox.Must(t, err)
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w := range 2 {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := oneCheckpoint(v, fmt.Sprintf("w%d-%d", w, i), rnd); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	const upgrades = 5
	for range upgrades {
		if code, out, errs := run(t, "upgrade", v.Point); code != 0 {
			t.Errorf("upgrade: %d %s%s", code, out, errs)
		}
		if _, err := f.WriteString("x"); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	writers.Wait()
	blackbox.Must(t, f.Close())
	blackbox.Must(t, v.Publish("long"))
	if text, err := os.ReadFile(v.Path("long", "file")); err != nil || len(text) != upgrades {
		t.Errorf("it has %q, %v", text, err)
	}
	if names := volumetest.Listed(t, v.Dir); len(names) != 1 || v.State(t).Handover.Count != upgrades {
		t.Errorf("%q are left, after %d hand-overs", names, v.State(t).Handover.Count)
	}
}

// TestKillWhilePublishing kills the daemon at each named step of a publishing. The rename goes on with the next daemon, and whatever was told
// is true.
func TestKillWhilePublishing(t *testing.T) {
	if err := blackbox.CanInject(); err != nil {
		t.Skip("needs strace: ", err)
	}
	for _, step := range []struct {
		name, call string
		of         string // only calls on this file of the directory
	}{
		{"at the first lease", "fcntl", ".step.hbmfs.tmp/a"},
		{"at a file's sync", "fsync", ".step.hbmfs.tmp/a"},
		{"while it is summed", "pread64", ".step.hbmfs.tmp/sub/b"},
		{"at a directory's sync", "fsync", ".step.hbmfs.tmp/sub"},
		{"at the manifest's sync", "fsync", ".step.hbmfs.tmp/.hbmfs-manifest.json"},
		{"at the draft's sync", "fsync", ".step.hbmfs.tmp"},
		{"before the rename", "renameat", ""},
		{"after the rename", "fsync", "."},
	} {
		t.Run(step.name, func(t *testing.T) {
			v := mount(t)
			v.Draft(t, "done", map[string]string{"file": "bytes"})
			blackbox.Must(t, v.Publish("done"))
			v.Draft(t, "step", map[string]string{"a": "first", "sub/b": strings.Repeat("second", 1<<18)})
			pid := v.PID(t)
			words := []string{"-f", "-qq", "-o", "/dev/null", "-p", strconv.Itoa(pid), "-e", "inject=" + step.call + ":signal=KILL:when=1"}
			if step.of != "" {
				words = append(words, "-P", filepath.Join(v.Dir, step.of))
			}
			tracer := exec.Command("strace", words...)
			blackbox.Must(t, tracer.Start())
			defer func() { _ = tracer.Process.Kill(); _ = tracer.Wait() }()
			if !blackbox.Within(volumetest.Patience, func() bool { return blackbox.Traced(pid, tracer.Process.Pid) }) {
				t.Fatal("strace does not attach")
			}
			result := make(chan error, 1)
			go func() { result <- v.Publish("step") }()
			var err error
			select {
			case err = <-result:
			case <-time.After(volumetest.Patience):
				t.Fatal("the rename hangs")
			}
			blackbox.Must(t, err)
			if n := v.State(t).Handover.Crashes; n == 0 {
				t.Error("the daemon was not killed")
			}
			text, err := os.ReadFile(v.Path("step", "sub", "b"))
			if err != nil || len(text) != 6<<18 {
				t.Errorf("it has %d bytes, %v", len(text), err)
			}
			for _, name := range []string{"done", "step"} {
				r, err := checkpoint.Verify(t.Context(), filepath.Join(v.Dir, name), checkpoint.VerifyOptions{})
				if err != nil || r.Damaged > 0 {
					t.Errorf("%s: %v %+v", name, err, r)
				}
			}
			volumetest.Want(t, "a change of what is published", os.WriteFile(v.Path("step", "a"), nil, 0o644), unix.EROFS)
			blackbox.Must(t, os.Remove(v.Path("step")))
			v.Draft(t, "step", map[string]string{"a": "again"})
			blackbox.Must(t, v.Publish("step"))
		})
	}
}

// TestBothDie kills the daemon with its keeper: the mount is over. Nothing half is seen, and the next mount cleans up.
func TestBothDie(t *testing.T) {
	v := mount(t)
	v.Draft(t, "done", map[string]string{"file": "bytes"})
	blackbox.Must(t, v.Publish("done"))
	v.Draft(t, "half", map[string]string{"file": "bytes"})
	s := v.State(t)
	if s.Handover.PID == 0 {
		t.Skip("no keeper holds the mount here: ", s.Handover.Why)
	}
	blackbox.Must(t, blackbox.Stop(s.PID)) // it would start another keeper
	blackbox.Must(t, syscall.Kill(s.Handover.PID, syscall.SIGKILL))
	blackbox.Must(t, syscall.Kill(s.PID, syscall.SIGKILL))
	if !blackbox.Within(volumetest.Patience, func() bool { return blackbox.Ended(s.PID) && blackbox.Ended(s.Handover.PID) }) { // both hold the draft
		t.Fatal("they do not end")
	}
	blackbox.Must(t, blackbox.Detach(v.Point))
	all, err := checkpoint.List(v.Dir)
	blackbox.Must(t, err)
	if len(all) != 2 || all[0].Name != "done" || all[0].State != checkpoint.Complete || all[1].State != checkpoint.Leftover {
		t.Errorf("there are %+v", all)
	}
	again := mountAt(t, v.Dir)
	if names := volumetest.Listed(t, again.Point); len(names) != 1 || names[0] != "done" {
		t.Errorf("the next mount shows %q", names)
	}
	if left := volumetest.Listed(t, v.Dir); len(left) != 1 {
		t.Errorf("the directory has %q", left)
	}
}

// TestNextDaemonCannotGoOn: the next daemon refuses what the one before has left, as that of another version may. It ends at once, with the mount,
// and does not wait for its own answers.
func TestNextDaemonCannotGoOn(t *testing.T) {
	v := mount(t)
	s := v.State(t)
	if s.Handover.Holder != "keeper" {
		t.Skip("no keeper holds the mount here: ", s.Handover.Why)
	}
	v.Draft(t, "done", map[string]string{"file": "bytes"})
	blackbox.Must(t, v.Publish("done")) // the kernel knows nothing of the root any more
	grown := false
	if !blackbox.Within(volumetest.Patience, func() bool { // on a busy machine the keeper may only be starting
		fds, err := filepath.Glob("/proc/" + strconv.Itoa(s.Handover.PID) + "/fd/*")
		blackbox.Must(t, err)
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); !grown && strings.HasPrefix(to, "/memfd:hbmfs-handles") {
				info, err := os.Stat(fd)
				blackbox.Must(t, err)
				blackbox.Must(t, os.Truncate(fd, info.Size()+4096))
				grown = true
			}
		}
		return grown
	}) {
		t.Fatal("the keeper has no table of open files")
	}
	blackbox.Must(t, syscall.Kill(s.PID, syscall.SIGKILL))
	if !blackbox.Within(volumetest.Patience, func() bool { return blackbox.Ended(s.PID) }) { // on a busy machine its threads answer for a while
		t.Fatal("the daemon does not end")
	}
	ended := make(chan error, 1)
	go func() { // which hangs where the test fails; the kernel knows nothing of this name, as it may of others after the mount's end
		_, err := os.Stat(v.Path("never looked up"))
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.ENOTCONN) {
			t.Errorf("a look at the mount: %v", err)
		}
	case <-time.After(volumetest.Patience / 2): // of which the keeper would take all
		t.Fatal("the next daemon does not end")
	}
	blackbox.Must(t, blackbox.Detach(v.Point))
}

// TestWriterDies: what a killed writer left open does not keep its draft, and another program may go on with it.
func TestWriterDies(t *testing.T) {
	v := mount(t)
	dir := v.Draft(t, "step", nil)
	writer := exec.Command("sh", "-c", `exec 3>"$0"/file; printf half >&3; echo ready; sleep 100`, dir)
	out, err := writer.StdoutPipe()
	blackbox.Must(t, err)
	writer.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	blackbox.Must(t, writer.Start())
	_, err = out.Read(make([]byte, 6))
	blackbox.Must(t, err)
	volumetest.Want(t, "publish", v.Publish("step"), unix.EBUSY)
	blackbox.Must(t, syscall.Kill(-writer.Process.Pid, syscall.SIGKILL))
	_ = writer.Wait() // by the signal
	blackbox.Must(t, v.Publish("step"))
	if text, err := os.ReadFile(v.Path("step", "file")); err != nil || string(text) != "half" {
		t.Errorf("it has %q, %v", text, err)
	}
}
