package faults_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// crash ends the daemon while it does what it does now, as a fatal error of the Go runtime does, which takes a moment longer: the daemon's last words are there.
func crash(t *testing.T, pid, keeper int) {
	t.Helper()
	var tables []string
	if !blackbox.Within(volumetest.Patience, func() bool { // on busy CPUs a keeper that was started before reads what it was told only now
		fds, err := filepath.Glob("/proc/" + strconv.Itoa(keeper) + "/fd/*")
		blackbox.Must(t, err)
		tables = slices.DeleteFunc(fds, func(fd string) bool {
			to, _ := os.Readlink(fd) // it may be closed by now
			return !strings.HasPrefix(to, "/memfd:hbmfs-requests")
		})
		return len(tables) == 1
	}) {
		t.Fatalf("the keeper has the tables of requests %q", tables)
	}
	table, err := os.OpenFile(tables[0], os.O_WRONLY|os.O_APPEND, 0)
	blackbox.Must(t, errors.Join(err, blackbox.Stop(pid)))
	_, err = table.WriteString("fatal error: by the test\n")
	blackbox.Must(t, errors.Join(syscall.Kill(pid, syscall.SIGKILL), err, table.Close())) // whatever fails, no daemon stays stopped
}

// needsKeeper skips a test where no daemon goes on after another, and gives the keeper.
func needsKeeper(t *testing.T, v *volumetest.Volume) int {
	t.Helper()
	s := v.State(t)
	if s.Handover.Holder != "keeper" {
		t.Skip("no keeper holds the mount here: ", s.Handover.Why)
	}
	return s.Handover.PID
}

// serves checks that a volume does, and that its log says what happened.
func serves(t *testing.T, v *volumetest.Volume, name string) {
	t.Helper()
	daemon := v.PID(t)
	v.Draft(t, name, map[string]string{"file": "bytes"})
	blackbox.Must(t, v.Publish(name))
	if now := v.PID(t); now != daemon {
		t.Errorf("the daemon is process %d, and was %d", now, daemon)
	}
	text, err := os.ReadFile(v.Log)
	blackbox.Must(t, err)
	if log := string(text); !strings.Contains(log, "work is refused: two daemons have crashed") || !strings.Contains(log, "by the test") {
		t.Errorf("the log does not say it:\n%s", log)
	}
}

// TestPublishThatEndsDaemons: hbmfs publish, whose work no request waits for, is refused once two daemons have crashed in it, and each time.
func TestPublishThatEndsDaemons(t *testing.T) {
	v := mount(t)
	keeper := needsKeeper(t, v)
	dir := v.Draft(t, "step", map[string]string{"file": "bytes"})
	pen, err := os.OpenFile(dir+"/file", os.O_WRONLY, 0)
	blackbox.Must(t, err)
	type result struct {
		code int
		said string
	}
	publish := func() <-chan result {
		over := make(chan result, 1)
		go func() { // ends with the command
			code, out, errs := run(t, "publish", dir)
			over <- result{code, out + errs}
		}()
		return over
	}
	for crashes := 0; crashes < 2; {
		pid, over := v.PID(t), publish()
		if !blackbox.Within(volumetest.Patience, func() bool { // it waits for the pen
			return errors.Is(os.Chmod(dir+"/file", 0o644), unix.EBUSY)
		}) {
			t.Fatal("it does not begin to publish")
		}
		crash(t, pid, keeper)
		if r := <-over; r.code == 0 {
			t.Fatalf("it is published: %v", r)
		} else if strings.Contains(r.said, "replaced meanwhile") { // else it had ended just before
			crashes++
		}
	}
	for range 2 {
		if r := <-publish(); r.code == 0 || !strings.Contains(r.said, "two daemons have crashed in it") {
			t.Errorf("after two crashes: %v", r)
		}
	}
	serves(t, v, "another")
	blackbox.Must(t, pen.Close())
	blackbox.Must(t, v.Publish("step")) // which the kernel asks for, once
}

// TestFrameThatEndsDaemons: a message of the control channel, which its client repeats at each next daemon, is refused once two have crashed in it.
func TestFrameThatEndsDaemons(t *testing.T) {
	v := mount(t)
	keeper := needsKeeper(t, v)
	d, err := control.BeginDraft(t.Context(), v.Path("past"), 0, 1, "test")
	blackbox.Must(t, err)
	first, pens, err := d.Add(t.Context(), control.NewFile{Name: "file", Size: 5})
	blackbox.Must(t, err)
	_, err = pens[0].WriteString("bytes")
	blackbox.Must(t, errors.Join(err, pens[0].Truncate(5), pens[0].Sync()))
	blackbox.Must(t, d.Seal(t.Context(), first, volumetest.SumsOf([]byte("bytes"))))
	file := filepath.Join(v.Dir, ".past.hbmfs.tmp", "file")
	attempt := func() error {
		over := make(chan error, 1)
		blackbox.Must(t, os.Chmod(file, 0o600))
		pid := v.PID(t)
		go func() { over <- d.Publish(t.Context(), 1, 5) }() // ends once a daemon answers
		for range 2 {
			begun := blackbox.Within(volumetest.Patience, func() bool { // it makes the file read-only, and waits for the pen
				info, err := os.Stat(file)
				blackbox.Must(t, err)
				return info.Mode() == 0o444 || len(over) > 0
			})
			if !begun || len(over) > 0 {
				break
			}
			blackbox.Must(t, os.Chmod(file, 0o600))
			crash(t, pid, keeper)
			pid = v.PID(t)
		}
		return <-over
	}
	err = attempt()
	for tries := 0; errors.Is(err, unix.EBUSY) && tries < 20; tries++ { // it had ended just before a daemon did
		err = attempt()
	}
	if !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "two daemons have crashed in it") {
		t.Errorf("a message that ends daemons gets %v", err)
	}
	serves(t, v, "another")
	blackbox.Must(t, errors.Join(pens[0].Close(), d.Drop(t.Context())))
}
