// Package volumetest is shared by the suites over checkpoint volumes. It has a mounted volume, child processes that act as other users, and
// writers past FUSE.
package volumetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Patience bounds every wait of these tests.
const Patience = 30 * time.Second

// Nobody is the ordinary user of these tests, and Other is another one.
const (
	Nobody = blackbox.Nobody
	Other  = 4711
)

// Volume is a mounted checkpoint volume.
type Volume struct {
	*blackbox.Mount
	Dir, Point string
	Log        string // file
	suite      *blackbox.Suite
}

// Mount mounts a new volume that everybody may write to.
func Mount(t testing.TB, s *blackbox.Suite, flags ...string) *Volume {
	t.Helper()
	blackbox.NeedRoot(t)
	dir := s.NewDir(t)
	blackbox.Must(t, os.Chmod(dir, 0o777))
	return MountAt(t, s, dir, flags...)
}

// MountAt mounts a directory as a volume. The mount comes off when the test ends.
func MountAt(t testing.TB, s *blackbox.Suite, dir string, flags ...string) *Volume {
	t.Helper()
	v := &Volume{Dir: dir, Point: s.NewDir(t), Log: filepath.Join(s.NewDir(t), "log"), suite: s}
	var err error
	v.Mount, err = s.Mount(context.Background(), dir, v.Point, append(flags, "--checkpoints", "--allow-other", "--log-file", v.Log)...)
	blackbox.Must(t, err)
	t.Cleanup(func() { v.End(t) })
	return v
}

// End unmounts. The volume's daemon must end.
func (v *Volume) End(t testing.TB) {
	t.Helper()
	v.EndsWellYet(t, v.Log, Patience)
}

// State is the status of a volume's mount.
func (v *Volume) State(t testing.TB) *status.Status {
	t.Helper()
	s := v.Status(t)
	if s.Checkpoints == nil {
		t.Fatal("the status has no checkpoints")
	}
	return s
}

// PID is the daemon's.
func (v *Volume) PID(t testing.TB) int {
	t.Helper()
	return v.State(t).PID
}

// Said fails the test unless the status has a refusal with these words.
func (v *Volume) Said(t testing.TB, words string) {
	t.Helper()
	refused := v.State(t).Checkpoints.Refused
	for _, r := range refused {
		if strings.Contains(r, words) {
			return
		}
	}
	t.Errorf("the status does not say %q: %q", words, refused)
}

// Publish renames NAME.tmp to NAME.
func (v *Volume) Publish(name string) error { return os.Rename(v.Path(name+".tmp"), v.Path(name)) }

// Draft makes a draft NAME.tmp with files.
func (v *Volume) Draft(t testing.TB, name string, files map[string]string) string {
	t.Helper()
	dir := v.Path(name + ".tmp")
	blackbox.Must(t, os.Mkdir(dir, 0o755))
	for file, text := range files {
		blackbox.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755))
		blackbox.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	return dir
}

// Kill ends the daemon, and waits until the next one serves.
func (v *Volume) Kill(t testing.TB) {
	t.Helper()
	v.Replace(t, Patience)
}

// KillSlowly ends the daemon, and has the next one begin only once something was done.
func (v *Volume) KillSlowly(t *testing.T, meanwhile func()) {
	t.Helper()
	s := v.State(t)
	others := []int{s.Handover.PID}
	if s.Handover.Next != 0 {
		others = append(others, s.Handover.Next)
	}
	for _, pid := range others {
		blackbox.Must(t, blackbox.Stop(pid))
	}
	blackbox.Must(t, unix.Kill(s.PID, unix.SIGKILL))
	if !blackbox.Within(Patience, func() bool { return blackbox.Ended(s.PID) }) {
		t.Error("the daemon does not end")
	}
	meanwhile()
	for _, pid := range others {
		blackbox.Must(t, unix.Kill(pid, unix.SIGCONT))
	}
	if now := v.PID(t); now == s.PID {
		t.Error("no other daemon serves")
	}
}

// Listed gives the names in a directory.
func Listed(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	blackbox.Must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Want fails the test where an error is not this one. 0: none.
func Want(t testing.TB, what string, err error, errno syscall.Errno) {
	t.Helper()
	if errno == 0 && err == nil || errno != 0 && errors.Is(err, errno) {
		return
	}
	t.Errorf("%s: %v, want %s", what, err, unix.ErrnoName(errno))
}
