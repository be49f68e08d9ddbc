package kv_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// takeLock puts a lock of the test in the place of the volume's. The next daemons wait for it, 5 s each, and fail.
func (v *volume) takeLock(t *testing.T) *os.File {
	t.Helper()
	name := filepath.Join(v.dir, ".hbmfs-kv.lock")
	f, err := os.OpenFile(name+".new", os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	must(t, errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), os.Rename(name+".new", name)))
	return f
}

// TestLoadThatFailsSlowly: daemons that take the mount over, and fail seconds later since they cannot load the volume, are no daemons that served. The mount is
// given up after three, and an upgrade that fails so says why.
func TestLoadThatFailsSlowly(t *testing.T) {
	const reason = "another mount uses it"
	t.Run("upgrade", func(t *testing.T) {
		t.Parallel() // it waits most of the time
		v := mount(t, "--size", "16MiB")
		before, taken := v.status(t), v.takeLock(t)
		r := suite.Run(t, "upgrade", v.point)
		if r.Code != 3 || !strings.Contains(r.Stdout, reason) {
			t.Errorf("hbmfs upgrade ends with %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		must(t, taken.Close())
		after := v.status(t) // once a daemon serves
		if after.PID == before.PID || after.Handover.Holder != "keeper" {
			t.Errorf("there is %+v, and was %+v", after, before)
		}
	})
	t.Run("crash", func(t *testing.T) {
		t.Parallel() // it waits most of the time
		v := mount(t, "--size", "16MiB")
		taken := v.takeLock(t)
		must(t, unix.Kill(v.status(t).PID, unix.SIGKILL))
		ended := make(chan error, 1)
		go func() { // ends with the mount
			_, err := os.Stat(v.Path("none"))
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
		must(t, taken.Close())
		text, err := os.ReadFile(v.log)
		must(t, err)
		if log := string(text); strings.Count(log, "a daemon could not go on") != 3 || !strings.Contains(log, "the mount is given up: no daemon went on with it, in 3 attempts") ||
			!strings.Contains(log[strings.LastIndex(log, "the mount is given up"):], reason) {
			t.Errorf("the log is\n%s", log)
		}
		must(t, unix.Unmount(v.point, unix.MNT_DETACH))
	})
}
