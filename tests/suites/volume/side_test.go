package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// TestSideFiles: training frameworks keep some files beside the checkpoints. They write them as anywhere, and checkpoints stay what they are.
func TestSideFiles(t *testing.T) {
	v := mount(t)
	for _, tag := range []string{"global_step1", "global_step2"} { // as DeepSpeed does: the tag's directory, then the name of it
		dir := v.Path(tag)
		blackbox.Must(t, os.Mkdir(dir, 0o755))
		blackbox.Must(t, os.WriteFile(dir+"/mp_rank_00_model_states.pt", []byte(tag), 0o644))
		blackbox.Must(t, os.WriteFile(v.Path("latest"), []byte(tag), 0o644))
		script := []byte(strings.Repeat("# a script\n", 3000))
		blackbox.Must(t, os.WriteFile(v.Path("zero_to_fp32.py"), script, 0o644))
		blackbox.Must(t, os.Chmod(v.Path("zero_to_fp32.py"), 0o755))
		if code, out, errs := run(t, "publish", dir); code != 0 {
			t.Fatalf("hbmfs publish: %d %s%s", code, out, errs)
		}
		blackbox.Must(t, os.WriteFile(v.Path("latest_checkpointed_iteration.txt"), []byte("2"), 0o644)) // Megatron's
		v.Kill(t)
		if text, err := os.ReadFile(v.Path("latest")); err != nil || string(text) != tag {
			t.Errorf("latest has %q, %v, want %s", text, err, tag)
		}
		if text, err := os.ReadFile(filepath.Join(v.Dir, "latest")); err != nil || string(text) != tag {
			t.Errorf("in the directory latest has %q, %v", text, err)
		}
		if info, err := os.Stat(v.Path("zero_to_fp32.py")); err != nil || info.Size() != int64(len(script)) || info.Mode().Perm() != 0o755 {
			t.Errorf("the script is %v, %v", info, err)
		}
	}
	if names := strings.Join(volumetest.Listed(t, v.Point), " "); names != "global_step1 global_step2 latest latest_checkpointed_iteration.txt zero_to_fp32.py" {
		t.Errorf("the mount lists %s", names)
	}
	sideRefusals(t, v)

	f, err := os.OpenFile(v.Path("latest"), os.O_RDWR|os.O_APPEND, 0) // goes on with the next daemon
	blackbox.Must(t, err)
	blackbox.Must(t, f.Truncate(0))
	v.Kill(t)
	_, err = f.WriteString("global_step1")
	blackbox.Must(t, errors.Join(err, f.Sync()))
	blackbox.Must(t, os.Remove(v.Path("zero_to_fp32.py")))
	v.Kill(t)
	_, err = f.WriteString("23")
	blackbox.Must(t, errors.Join(err, f.Close()))
	if text, err := os.ReadFile(v.Path("latest")); err != nil || string(text) != "global_step123" {
		t.Errorf("latest has %q, %v", text, err)
	}
	blackbox.Must(t, os.Remove(v.Path("latest")))
	volumetest.Want(t, "read what is removed", func() error { _, err := os.ReadFile(v.Path("latest")); return err }(), unix.ENOENT)
	blackbox.Must(t, os.Mkdir(v.Path("latest.tmp"), 0o755)) // a checkpoint may have the name, too
	blackbox.Must(t, os.Rename(v.Path("latest.tmp"), v.Path("latest")))
	volumetest.Want(t, "write over a checkpoint", os.WriteFile(v.Path("latest"), nil, 0o644), unix.EISDIR)
	if said := volumetest.As(t, volumetest.Nobody, nil, "write", v.Path("latest_universal"), "step"); said != "ok" {
		t.Errorf("another user writes: %s", said)
	}
	if said := volumetest.As(t, volumetest.Other, nil, "write", v.Path("latest_universal"), "other"); said != "EACCES" {
		t.Errorf("somebody else writes: %s", said)
	}
	if said := volumetest.As(t, volumetest.Other, nil, "rmdir", v.Path("latest_universal")); said != "EPERM" {
		t.Errorf("somebody else removes: %s", said)
	}
	if said := volumetest.As(t, volumetest.Nobody, nil, "rmdir", v.Path("latest_universal")); said != "ok" {
		t.Errorf("its owner removes: %s", said)
	}
	v.End(t)
	again := mountAt(t, v.Dir)
	if text, err := os.ReadFile(again.Path("latest_checkpointed_iteration.txt")); err != nil || string(text) != "2" {
		t.Errorf("after the mount it has %q, %v", text, err)
	}
	if notes := again.State(t).Notes; len(notes) != 0 {
		t.Errorf("the mount notes %q", notes)
	}
}

// sideRefusals: side files are small, and no way to anything else.
func sideRefusals(t *testing.T, v *volumetest.Volume) {
	t.Helper()
	latest := v.Path("latest")
	volumetest.Want(t, "another file", os.WriteFile(v.Path("newest"), nil, 0o644), unix.EPERM)
	volumetest.Want(t, "its temporary file", os.WriteFile(v.Path("latest.tmp"), nil, 0o644), unix.EPERM)
	volumetest.Want(t, "a link", os.Symlink("global_step1", v.Path("latest_universal")), unix.EPERM)
	volumetest.Want(t, "a hard link", os.Link(latest, v.Path("latest_universal")), unix.EPERM)
	volumetest.Want(t, "a pipe", unix.Mkfifo(v.Path("latest_universal"), 0o644), unix.EPERM)
	volumetest.Want(t, "rename it", os.Rename(latest, v.Path("latest_universal")), unix.EPERM)
	volumetest.Want(t, "make it a checkpoint", os.Rename(latest, v.Path("step")), unix.EPERM)
	volumetest.Want(t, "a directory of its name", os.Mkdir(latest, 0o755), unix.EEXIST)
	volumetest.Want(t, "a large one", os.WriteFile(v.Path("latest_universal"), make([]byte, 300<<10), 0o644), unix.EFBIG)
	volumetest.Want(t, "extend it", os.Truncate(latest, 1<<30), unix.EFBIG)
	f, err := os.OpenFile(latest, os.O_RDWR, 0)
	blackbox.Must(t, err)
	volumetest.Want(t, "allocate it", unix.Fallocate(int(f.Fd()), 0, 0, 1<<30), unix.EFBIG)
	_, err = f.WriteAt([]byte("x"), 1<<30)
	volumetest.Want(t, "write far in it", err, unix.EFBIG)
	blackbox.Must(t, f.Close())
	draft := v.Draft(t, "step", map[string]string{"latest": "within a draft it is any file"})
	volumetest.Want(t, "move it into a draft", os.Rename(latest, draft+"/moved"), unix.EXDEV)
	volumetest.Want(t, "move a file of a draft to it", os.Rename(draft+"/latest", latest), unix.EXDEV)
	blackbox.Must(t, os.RemoveAll(draft))
	blackbox.Must(t, os.Remove(v.Path("latest_universal")))
	volumetest.Want(t, "write what is published", os.WriteFile(v.Path("global_step1", "mp_rank_00_model_states.pt"), nil, 0o644), unix.EROFS)
	v.Said(t, "a file beside the checkpoints")
}
