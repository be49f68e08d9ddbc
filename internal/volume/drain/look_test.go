package drain

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// unprivileged runs do on a thread that has the rights of files of a user without rights.
func unprivileged(t *testing.T, do func()) {
	if os.Geteuid() != 0 {
		do()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := unix.SetfsuidRetUid(65534)
	must(t, err)
	defer func() { _, _ = unix.SetfsuidRetUid(0) }() // which root may always
	do()
}

// TestUnreadable has directories that nobody can look into for a while: a checkpoint that is known stays as it is, and another name has failed.
func TestUnreadable(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) // of the testing package
	for _, name := range []string{"step-1", "step-2", "step-3"} {
		publish(t, dir, name, checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	}
	must(t, os.Rename(filepath.Join(dir, "step-2"), filepath.Join(dir, ".step-2"))) // which comes later
	opt := fast()
	opt.Keep = 1
	d := open(t, dir, s.url("run"), opt)
	must(t, d.open())
	must(t, d.look())
	must(t, os.Rename(filepath.Join(dir, ".step-2"), filepath.Join(dir, "step-2")))
	must(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0))
	for _, name := range []string{"step-1", "step-2"} {
		must(t, os.Chmod(filepath.Join(dir, name), 0))
		t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, name), 0o755) }) // it may have been removed
	}
	for range 2 {
		unprivileged(t, func() { must(t, d.look()) })
		if got := states(d); len(got) != 3 || got["step-1"] != Local || !strings.HasPrefix(got["step-2"], "failed: ") || !strings.Contains(got["step-2"], "permission denied") || got["step-3"] != Local {
			t.Fatalf("the states are %v", got)
		}
	}
	if len(d.lost) > 0 {
		t.Errorf("what is there is lost: %v", d.lost)
	}
	for _, name := range []string{"step-1", "step-2"} {
		must(t, os.Chmod(filepath.Join(dir, name), 0o755))
	}
	must(t, d.Once(t.Context()))
	if got := states(d); len(got) != 1 || got["step-3"] != Remote || s.objects["run/step-2/"+checkpoint.ManifestName] == nil {
		t.Errorf("readable again, the states are %v", got)
	}
}

// TestNoDirectory has a directory that cannot be read: no drain says that all is done.
func TestNoDirectory(t *testing.T) {
	s, dir := newStore(t), filepath.Join(t.TempDir(), "checkpoints")
	must(t, os.Mkdir(dir, 0o755))
	publish(t, dir, "step-1", checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	opt := fast()
	opt.Patience = 0
	d := open(t, dir, s.url("run"), opt)
	trouble := func() string { return d.Status().Trouble }
	if trouble() == "" {
		t.Error("before the first look all is well")
	}
	must(t, d.open())
	must(t, os.Rename(dir, dir+".moved"))
	if err := d.Once(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); d.Run(ctx) }()
	defer func() { cancel(); <-done }()
	if !strings.Contains(trouble(), "no such file") {
		t.Errorf("the trouble is %q", trouble())
	}
	must(t, os.Rename(dir+".moved", dir))
	wait(t, d, "step-1", func(state string) bool { return state == Remote })
	until(t, func() bool { return trouble() == "" })
	must(t, os.Rename(dir, dir+".moved"))
	until(t, func() bool { return strings.Contains(trouble(), "no such file") })
	if got := states(d)["step-1"]; got != Remote {
		t.Errorf("an unlisted checkpoint is %q", got)
	}
}
