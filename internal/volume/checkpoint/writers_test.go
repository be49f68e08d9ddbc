package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestTwoWriters has a second writer, of this process and of another one, refused with the first one's name.
func TestTwoWriters(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "step")
	d, err := Begin(t.Context(), at, Part{0, 1})
	must(t, err)
	host, err := os.Hostname()
	must(t, err)
	want := fmt.Sprintf("process %d on %s", os.Getpid(), host)
	if _, err := Begin(t.Context(), at, Part{0, 1}); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if removed, err := Clean(t.Context(), dir); err != nil || len(removed) > 0 {
		t.Errorf("a living writer's draft is cleaned: %q, %v", removed, err)
	}
	all, err := List(dir)
	if err != nil || len(all) != 1 || all[0].State != InWork || all[0].Why != want {
		t.Errorf("%+v, %v", all, err)
	}
	must(t, d.Publish(t.Context(), written(t, d.Dir(), some)))
	sound(t, dir, "step")
	publish(t, filepath.Join(dir, "step2"))
}

// TestDeadWriter has the lock of a process freed when that is killed, and its draft removed.
func TestDeadWriter(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "step")
	must(t, os.MkdirAll(filepath.Join(dir, ".step.hbmfs.tmp", "sub"), 0o700))
	lock := filepath.Join(dir, ".step.hbmfs.lock")
	must(t, os.WriteFile(lock, []byte("4711 otherhost\n"), 0o600))
	holder := exec.CommandContext(t.Context(), "flock", "--no-fork", "--exclusive", lock, "sleep", "600")
	if err := holder.Start(); err != nil {
		t.Skip("needs flock (package util-linux): ", err)
	}
	dead, err := os.OpenRoot(dir)
	must(t, err)
	defer func() { must(t, dead.Close()) }()
	if !blackbox.Within(time.Minute, func() bool { return held(dead, "step") == "process 4711 on otherhost" }) {
		t.Fatal("nobody has the lock")
	}
	if _, err := Begin(t.Context(), at, Part{0, 1}); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "process 4711 on otherhost") {
		t.Errorf("%v, want who has the lock", err)
	}
	must(t, holder.Process.Kill())
	_ = holder.Wait() // by the signal
	publish(t, at)
	sound(t, dir, "step")
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("%v, %v are left", names, err)
	}
}

// TestManyAtOnce has writers, removers, cleaners and readers at the same few names. Each error is of one of the kinds that
// tell of others; all that is ever complete verifies; and in the end nothing is left over.
func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	names := []string{"step_1", "step_2"}
	var all sync.WaitGroup
	var mu sync.Mutex
	const enough = 20 // of each, whatever the machine
	times := map[string]int{}
	count := func(what string, err error) {
		mu.Lock()
		defer mu.Unlock()
		times[what+map[bool]string{false: ", refused"}[err == nil]]++
		if min(times["publish"], times["remove"], times["begin, refused"], times["verify"]) >= enough {
			cancel()
		}
		if err != nil && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrExists) && !errors.Is(err, ErrNone) && !errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	loop := func(each func(i int)) {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				each(i)
			}
		})
	}
	for range 4 {
		loop(func(i int) {
			d, err := Begin(ctx, filepath.Join(dir, names[i%2]), Part{0, 1})
			count("begin", err)
			if err != nil {
				return
			}
			files := written(t, d.Dir(), map[string]int{"a": 10, "s/b": 20})
			if i%3 > 0 {
				count("publish", d.Publish(t.Context(), files))
			}
			count("drop", d.Drop())
		})
	}
	loop(func(i int) { count("remove", Remove(ctx, filepath.Join(dir, names[i%2]))) })
	loop(func(int) { _, err := Clean(ctx, dir); count("clean", err) })
	loop(func(int) {
		entries, err := List(dir)
		count("list", err)
		for _, e := range entries {
			if e.State == Damaged {
				t.Errorf("there is %+v", e)
			}
			if e.State == Complete {
				r, err := Verify(t.Context(), e.Path, VerifyOptions{Threads: 1})
				count("verify", err)
				if err == nil && r.Damaged > 0 {
					t.Errorf("there is %+v", r)
				}
			}
		}
	})
	all.Wait()
	if t.Log(times); !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("too little happened: %v", times)
	}
	_, err := Clean(t.Context(), dir)
	must(t, err)
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%q are left, %v", left, err)
	}
}

// TestClockGoesBackwards has checkpoints, drafts and locks from times to come. Nothing depends on it.
func TestClockGoesBackwards(t *testing.T) {
	dir := t.TempDir()
	later := time.Now().AddDate(40, 0, 0)
	publish(t, filepath.Join(dir, "step_1"))
	m, err := Open(filepath.Join(dir, "step_1"))
	must(t, err)
	m.Manifest.Created = later
	text, err := m.Manifest.marshal()
	must(t, errors.Join(err, m.Close()))
	must(t, os.WriteFile(filepath.Join(dir, "step_1", ManifestName), text, 0o644))
	must(t, os.MkdirAll(filepath.Join(dir, ".step_2.hbmfs.tmp"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, ".step_2.hbmfs.lock"), []byte("1 here\n"), 0o600))
	for _, name := range []string{"step_1", ".step_2.hbmfs.tmp", ".step_2.hbmfs.lock"} {
		must(t, os.Chtimes(filepath.Join(dir, name), later, later))
	}
	publish(t, filepath.Join(dir, "step_2"))
	sound(t, dir, "step_1", "step_2")
}

// TestPartsOnSeveralNodes has two nodes, each with a directory of its own, publish their parts under one name.
func TestPartsOnSeveralNodes(t *testing.T) {
	for i := range 2 {
		dir := t.TempDir()
		d, err := Begin(t.Context(), filepath.Join(dir, "step"), Part{i, 2})
		must(t, err)
		must(t, d.Publish(t.Context(), written(t, d.Dir(), some)))
		all, err := List(dir)
		if err != nil || len(all) != 1 || all[0].Part != (Part{i, 2}) || all[0].Files != 3 || all[0].Size != Chunk+107 {
			t.Errorf("%+v, %v", all, err)
		}
	}
}

// TestNoLocks has a filesystem without locks refused.
func TestNoLocks(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip(err)
	}
	dir := scene(t)
	for _, errno := range []string{"ENOSYS", "EOPNOTSUPP", "ENOLCK"} {
		_, ok := strace(t, dir, "-e", "trace=flock", "-e", "inject=flock:error="+errno)
		if ok {
			t.Error("it is published without a lock")
		}
		whole(t, dir, false)
		dir = scene(t)
	}
}

// TestInterruptedRemoval leaves what Clean and the next Begin remove, and nothing that is listed as a checkpoint.
func TestInterruptedRemoval(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "step")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		publish(t, at)
		if err := Remove(ended, at); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		all, err := List(dir)
		if err != nil || len(all) != 1 || all[0].State != Leftover || all[0].Why != "it is half removed" {
			t.Errorf("%+v, %v", all, err)
		}
		if _, err := Clean(ended, dir); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if _, err := Begin(ended, at, Part{0, 1}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	removed, err := Clean(t.Context(), dir)
	if err != nil || len(removed) != 1 || removed[0] != filepath.Join(dir, ".step.hbmfs.old") {
		t.Errorf("%q, %v", removed, err)
	}
	sound(t, dir)
}
