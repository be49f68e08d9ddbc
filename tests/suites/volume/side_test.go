package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSideFiles: training frameworks keep some files beside the checkpoints. They write them as anywhere, and checkpoints stay what they are.
func TestSideFiles(t *testing.T) {
	v := mount(t)
	for _, tag := range []string{"global_step1", "global_step2"} { // as DeepSpeed does: the tag's directory, then the name of it
		dir := v.Path(tag)
		must(t, os.Mkdir(dir, 0o755))
		must(t, os.WriteFile(dir+"/mp_rank_00_model_states.pt", []byte(tag), 0o644))
		must(t, os.WriteFile(v.Path("latest"), []byte(tag), 0o644))
		script := []byte(strings.Repeat("# a script\n", 3000))
		must(t, os.WriteFile(v.Path("zero_to_fp32.py"), script, 0o644))
		must(t, os.Chmod(v.Path("zero_to_fp32.py"), 0o755))
		if code, out, errs := run(t, "publish", dir); code != 0 {
			t.Fatalf("hbmfs publish: %d %s%s", code, out, errs)
		}
		must(t, os.WriteFile(v.Path("latest_checkpointed_iteration.txt"), []byte("2"), 0o644)) // Megatron's
		v.kill(t)
		if text, err := os.ReadFile(v.Path("latest")); err != nil || string(text) != tag {
			t.Errorf("latest has %q, %v, want %s", text, err, tag)
		}
		if text, err := os.ReadFile(filepath.Join(v.dir, "latest")); err != nil || string(text) != tag {
			t.Errorf("in the directory latest has %q, %v", text, err)
		}
		if info, err := os.Stat(v.Path("zero_to_fp32.py")); err != nil || info.Size() != int64(len(script)) || info.Mode().Perm() != 0o755 {
			t.Errorf("the script is %v, %v", info, err)
		}
	}
	if names := strings.Join(listed(t, v.point), " "); names != "global_step1 global_step2 latest latest_checkpointed_iteration.txt zero_to_fp32.py" {
		t.Errorf("the mount lists %s", names)
	}
	sideRefusals(t, v)

	f, err := os.OpenFile(v.Path("latest"), os.O_RDWR|os.O_APPEND, 0) // goes on with the next daemon
	must(t, err)
	must(t, f.Truncate(0))
	v.kill(t)
	_, err = f.WriteString("global_step1")
	must(t, errors.Join(err, f.Sync()))
	must(t, os.Remove(v.Path("zero_to_fp32.py")))
	v.kill(t)
	_, err = f.WriteString("23")
	must(t, errors.Join(err, f.Close()))
	if text, err := os.ReadFile(v.Path("latest")); err != nil || string(text) != "global_step123" {
		t.Errorf("latest has %q, %v", text, err)
	}
	must(t, os.Remove(v.Path("latest")))
	want(t, "read what is removed", func() error { _, err := os.ReadFile(v.Path("latest")); return err }(), unix.ENOENT)
	must(t, os.Mkdir(v.Path("latest.tmp"), 0o755)) // a checkpoint may have the name, too
	must(t, os.Rename(v.Path("latest.tmp"), v.Path("latest")))
	want(t, "write over a checkpoint", os.WriteFile(v.Path("latest"), nil, 0o644), unix.EISDIR)
	if said := as(t, nobody, nil, "write", v.Path("latest_universal"), "step"); said != "ok" {
		t.Errorf("another user writes: %s", said)
	}
	if said := as(t, other, nil, "write", v.Path("latest_universal"), "other"); said != "EACCES" {
		t.Errorf("somebody else writes: %s", said)
	}
	if said := as(t, other, nil, "rmdir", v.Path("latest_universal")); said != "EPERM" {
		t.Errorf("somebody else removes: %s", said)
	}
	if said := as(t, nobody, nil, "rmdir", v.Path("latest_universal")); said != "ok" {
		t.Errorf("its owner removes: %s", said)
	}
	v.end(t)
	again := mountAt(t, v.dir)
	if text, err := os.ReadFile(again.Path("latest_checkpointed_iteration.txt")); err != nil || string(text) != "2" {
		t.Errorf("after the mount it has %q, %v", text, err)
	}
	if notes := again.status(t).Notes; len(notes) != 0 {
		t.Errorf("the mount notes %q", notes)
	}
}

// sideRefusals: side files are small, and no way to anything else.
func sideRefusals(t *testing.T, v *volume) {
	t.Helper()
	latest := v.Path("latest")
	want(t, "another file", os.WriteFile(v.Path("newest"), nil, 0o644), unix.EPERM)
	want(t, "its temporary file", os.WriteFile(v.Path("latest.tmp"), nil, 0o644), unix.EPERM)
	want(t, "a link", os.Symlink("global_step1", v.Path("latest_universal")), unix.EPERM)
	want(t, "a hard link", os.Link(latest, v.Path("latest_universal")), unix.EPERM)
	want(t, "a pipe", unix.Mkfifo(v.Path("latest_universal"), 0o644), unix.EPERM)
	want(t, "rename it", os.Rename(latest, v.Path("latest_universal")), unix.EPERM)
	want(t, "make it a checkpoint", os.Rename(latest, v.Path("step")), unix.EPERM)
	want(t, "a directory of its name", os.Mkdir(latest, 0o755), unix.EEXIST)
	want(t, "a large one", os.WriteFile(v.Path("latest_universal"), make([]byte, 300<<10), 0o644), unix.EFBIG)
	want(t, "extend it", os.Truncate(latest, 1<<30), unix.EFBIG)
	f, err := os.OpenFile(latest, os.O_RDWR, 0)
	must(t, err)
	want(t, "allocate it", unix.Fallocate(int(f.Fd()), 0, 0, 1<<30), unix.EFBIG)
	_, err = f.WriteAt([]byte("x"), 1<<30)
	want(t, "write far in it", err, unix.EFBIG)
	must(t, f.Close())
	draft := v.draft(t, "step", map[string]string{"latest": "within a draft it is any file"})
	want(t, "move it into a draft", os.Rename(latest, draft+"/moved"), unix.EXDEV)
	want(t, "move a file of a draft to it", os.Rename(draft+"/latest", latest), unix.EXDEV)
	must(t, os.RemoveAll(draft))
	must(t, os.Remove(v.Path("latest_universal")))
	want(t, "write what is published", os.WriteFile(v.Path("global_step1", "mp_rank_00_model_states.pt"), nil, 0o644), unix.EROFS)
	v.said(t, "a file beside the checkpoints")
}
