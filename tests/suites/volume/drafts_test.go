package volume_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// TestPublishing: the three ways, and what others see before and after.
func TestPublishing(t *testing.T) {
	v := mount(t)
	seen := func(drafts, published []string) {
		t.Helper()
		both := append(slices.Clone(drafts), published...)
		slices.Sort(both)
		if names := volumetest.Listed(t, v.Point); !slices.Equal(names, both) {
			t.Errorf("the mount lists %q, want %q", names, both)
		}
		if names := volumetest.Listed(t, v.Path(".hbmfs", "views")); !slices.Equal(names, published) {
			t.Errorf("there are views of %q, want %q", names, published)
		}
		var plain []string
		for _, name := range volumetest.Listed(t, v.Dir) {
			if name[0] != '.' {
				plain = append(plain, name)
			}
		}
		if !slices.Equal(plain, published) {
			t.Errorf("the directory has %q, want %q", plain, published)
		}
	}
	v.Draft(t, "a", map[string]string{"file": "bytes", "sub/file": "below"})
	seen([]string{"a.tmp"}, nil)
	if info, err := os.Stat(v.Path("a.tmp")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("a draft has mode %v, %v", info.Mode(), err)
	}
	blackbox.Must(t, v.Publish("a"))
	seen(nil, []string{"a"})

	blackbox.Must(t, os.Mkdir(v.Path("b"), 0o750)) // as DCP does it
	blackbox.Must(t, os.WriteFile(v.Path("b", "__0_0.distcp"), []byte("tensors"), 0o644))
	blackbox.Must(t, os.WriteFile(v.Path("b", ".metadata.tmp"), []byte("where"), 0o644))
	seen([]string{"b"}, []string{"a"})
	blackbox.Must(t, os.Rename(v.Path("b", ".metadata.tmp"), v.Path("b", ".metadata")))
	seen([]string{"b"}, []string{"a"}) // this process could write more
	if code, out, errs := run(t, "publish", v.Path("b")); code != 0 {
		t.Errorf("hbmfs publish: %d %q %q", code, out, errs)
	}
	seen(nil, []string{"a", "b"})
	volumetest.Want(t, "another file", os.WriteFile(v.Path("b", "more"), nil, 0o644), unix.EROFS)
	if info, err := os.Stat(filepath.Join(v.Dir, "b")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the published directory has mode %v, %v", info.Mode(), err)
	}

	blackbox.Must(t, os.Mkdir(v.Path("c"), 0o755))
	blackbox.Must(t, os.Mkdir(v.Path("c", "empty"), 0o755))
	blackbox.Must(t, os.WriteFile(v.Path("c", "model.safetensors"), []byte("weights"), 0o600))
	waits := fmt.Sprintf("hbmfs: waiting, since the daemon of %s (pid ", v.Point) // on busy CPUs
	if code, out, errs := run(t, "publish", v.Path("c")); code != 0 || out != "published "+v.Path("c")+"\n" || errs != "" && (!strings.HasPrefix(errs, waits) || strings.Count(errs, "\n") != 1) {
		t.Errorf("hbmfs publish: %d %q %q", code, out, errs)
	}
	seen(nil, []string{"a", "b", "c"})
	if code, _, errs := run(t, "publish", v.Path("c")); code != 1 || !strings.Contains(errs, "no draft") {
		t.Errorf("hbmfs publish of a published one: %d %q", code, errs)
	}
	if code, out, errs := run(t, "checkpoint", "verify", filepath.Join(v.Dir, "a"), v.Path("b"), v.Path("c")); code != 0 {
		t.Errorf("verify: %d %s%s", code, out, errs)
	}
	// A DCP save inside of NAME.tmp ends with the rename of that, as its writer means it.
	v.Draft(t, "d", map[string]string{".metadata.tmp": "where"})
	blackbox.Must(t, os.Rename(v.Path("d.tmp", ".metadata.tmp"), v.Path("d.tmp", ".metadata")))
	seen([]string{"d.tmp"}, []string{"a", "b", "c"})
	blackbox.Must(t, os.Rename(v.Path("d.tmp"), v.Path("e.tmp")))
	blackbox.Must(t, os.Rename(v.Path("e.tmp"), v.Path("f")))
	seen(nil, []string{"a", "b", "c", "f"})
}

// TestRefusals: what a volume does not take, with a sentence in its status.
// TestNameIsTheCheckpoints: from the moment that a draft is published, its name leads to the checkpoint alone, however lately the kernel was told of
// the draft.
func TestNameIsTheCheckpoints(t *testing.T) {
	v := mount(t)
	inode := func(path string) uint64 {
		var st unix.Stat_t
		blackbox.Must(t, unix.Stat(path, &st))
		return st.Ino
	}
	for i := range 3 {
		renamed := fmt.Sprintf("renamed-%d", i)
		draft := v.Draft(t, renamed, map[string]string{"file": "bytes"})
		was := inode(draft)
		blackbox.Must(t, v.Publish(renamed))
		if now := inode(v.Path(renamed)); now == was {
			t.Errorf("after the rename the name is still the draft's")
		}
		saved := v.Path(fmt.Sprintf("iter_%07d", i))
		blackbox.Must(t, os.Mkdir(saved, 0o755))
		blackbox.Must(t, os.WriteFile(saved+"/common.pt", []byte("bytes"), 0o644))
		was = inode(saved)
		blackbox.Must(t, os.WriteFile(v.Path("latest_checkpointed_iteration.txt"), []byte(fmt.Sprint(i)), 0o644))
		if now := inode(saved); now == was {
			t.Errorf("after Megatron's tracker the name is still the draft's")
		}
		volumetest.Want(t, "write what is published", os.WriteFile(saved+"/common.pt", nil, 0o644), unix.EROFS)
	}
}

func TestRefusals(t *testing.T) {
	v := mount(t)
	v.Draft(t, "done", map[string]string{"file": "bytes"})
	blackbox.Must(t, v.Publish("done"))
	dir := v.Draft(t, "step", map[string]string{"file": "bytes", "sub/file": "x"})
	v.Draft(t, "next", map[string]string{"file": "bytes"})
	for _, c := range []struct {
		name  string
		err   error
		errno unix.Errno
		says  string
	}{
		{"a file in the root", os.WriteFile(v.Path("file"), nil, 0o644), unix.EPERM, "file in the root"},
		{"a link in the root", os.Symlink("done", v.Path("latest")), unix.EPERM, "no links"},
		{"a pipe in the root", unix.Mkfifo(v.Path("pipe"), 0o644), unix.EPERM, "pipe in the root"},
		{"a symbolic link", os.Symlink("/etc/passwd", dir+"/link"), unix.EPERM, "no links"},
		{"a hard link", os.Link(dir+"/file", dir+"/link"), unix.EPERM, "no links"},
		{"a hard link out of it", os.Link(dir+"/file", v.Path("next.tmp", "link")), unix.EPERM, "no links"},
		{"a hard link of a published file", os.Link(v.Path("done", "file"), dir+"/link"), unix.EPERM, ""},
		{"a pipe", unix.Mkfifo(dir+"/pipe", 0o644), unix.EPERM, "no devices"},
		{"a device", unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.EPERM, "no devices"},
		{"a socket", unix.Mknod(dir+"/socket", unix.S_IFSOCK|0o666, 0), unix.EPERM, "no devices"},
		{"a manifest", os.WriteFile(dir+"/.hbmfs-manifest.json", nil, 0o644), unix.EPERM, "manifest"},
		{"a rename to the manifest", os.Rename(dir+"/file", dir+"/.hbmfs-manifest.json"), unix.EPERM, "manifest"},
		{"a draft of a published name", os.Mkdir(v.Path("done"), 0o755), unix.EEXIST, ""},
		{"a draft of a published name, as .tmp", os.Mkdir(v.Path("done.tmp"), 0o755), unix.EEXIST, ""},
		{"a second draft of a name", os.Mkdir(v.Path("step"), 0o755), unix.EEXIST, ""},
		{"a rename over a published one", os.Rename(dir, v.Path("done")), unix.EEXIST, "never overwritten"},
		{"a rename over a draft", os.Rename(dir, v.Path("next.tmp")), unix.EEXIST, ""},
		{"a rename onto a draft's name", os.Rename(dir, v.Path("next")), unix.EEXIST, ""},
		{"a rename of a published one", os.Rename(v.Path("done"), v.Path("gone")), unix.EROFS, "never changes"},
		{"a rename of a file to the root", os.Rename(dir+"/file", v.Path("file")), unix.EXDEV, ""},
		{"a rename of a directory to the root", os.Rename(dir+"/sub", v.Path("sub")), unix.EXDEV, ""},
		{"a rename between drafts", os.Rename(dir+"/file", v.Path("next.tmp", "other")), unix.EXDEV, ""},
		{"a rename into a published one", os.Rename(dir+"/file", v.Path("done", "other")), unix.EXDEV, ""},
		{"a rename of a draft into another", os.Rename(dir, v.Path("next.tmp", "sub")), unix.EXDEV, ""},
		{"a name with a dot", os.Mkdir(v.Path(".hidden"), 0o755), unix.EINVAL, "begins with a dot"},
		{"a rename to a name with a dot", os.Rename(dir, v.Path(".hidden")), unix.EINVAL, "begins with a dot"},
		{"a name with a control character", os.Mkdir(v.Path("a\nb"), 0o755), unix.EINVAL, "control characters"},
		{"a long name", os.Mkdir(v.Path(strings.Repeat("n", 250)), 0o755), unix.EINVAL, "longer than"},
		{"an exchange", unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, v.Path("next.tmp"), unix.RENAME_EXCHANGE), unix.EINVAL, ""},
		{"rmdir of a draft with files", unix.Rmdir(dir), unix.ENOTEMPTY, ""},
		{"rmdir of the control directory", unix.Rmdir(v.Path(".hbmfs")), unix.EPERM, ""},
		{"a file in the control directory", os.WriteFile(v.Path(".hbmfs", "x"), nil, 0o644), unix.EROFS, ""},
		{"a file in the views", os.WriteFile(v.Path(".hbmfs", "views", "x"), nil, 0o644), unix.EROFS, ""},
		{"unlink of a draft", unix.Unlink(dir), unix.EISDIR, ""},
		{"rename without a source", os.Rename(v.Path("none.tmp"), v.Path("none")), unix.ENOENT, ""},
	} {
		volumetest.Want(t, c.name, c.err, c.errno)
		if c.says != "" {
			logged(t, v, c.says)
		}
	}
	// What somebody makes past the mount is named when it is published.
	blackbox.Must(t, os.Symlink("/etc/passwd", filepath.Join(v.Dir, ".step.hbmfs.tmp", "planted")))
	volumetest.Want(t, "publish a planted link", v.Publish("step"), unix.EINVAL)
	v.Said(t, `"planted" is no regular file`)
	if _, err := os.ReadFile(dir + "/planted"); err == nil {
		t.Error("a planted link is followed")
	}
	blackbox.Must(t, os.RemoveAll(filepath.Join(v.Dir, ".step.hbmfs.tmp", "planted")))
	blackbox.Must(t, v.Publish("step"))
}

// logged looks into the daemon's log, which has what the status has no room for.
func logged(t *testing.T, v *volumetest.Volume, words string) {
	t.Helper()
	if !blackbox.Within(volumetest.Patience, func() bool {
		text, err := os.ReadFile(v.Log)
		return err == nil && strings.Contains(string(text), words)
	}) {
		t.Errorf("the log does not say %q", words)
	}
}

// TestMountRefusals: directories and flags that are of no use.
func TestMountRefusals(t *testing.T) {
	blackbox.NeedRoot(t)
	dir, point := suite.NewDir(t), suite.NewDir(t)
	blackbox.Must(t, os.Mkdir(dir+"/below", 0o755))
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{dir + "/none", point}, "mkdir -p makes it"},
		{[]string{dir, dir}, "cannot be mounted on itself"},
		{[]string{dir, dir + "/below"}, "lies in the directory itself"},
		{[]string{"s3://bucket/run", point}, "is an address"},
		{[]string{"--format", "npy", dir, point}, "is a flag of hbmfs mount"},
		{[]string{"/proc/self", point}, "nothing can be written there"},
	} {
		code, _, errs := run(t, append([]string{"checkpoint", "mount"}, c.args...)...)
		if code == 0 || !strings.Contains(errs, c.says) {
			t.Errorf("mount %q: %d %q, want %q", c.args, code, errs, c.says)
		}
	}
	// Directories that are no checkpoints are not shown, and not removed; leftovers are removed.
	blackbox.Must(t, os.WriteFile(dir+"/notes.txt", []byte("mine"), 0o644))
	blackbox.Must(t, os.Mkdir(dir+"/.old.hbmfs.tmp", 0o700))
	blackbox.Must(t, os.WriteFile(dir+"/.old.hbmfs.tmp/half", []byte("half"), 0o644))
	v := mountAt(t, dir)
	if names := volumetest.Listed(t, v.Point); len(names) != 0 {
		t.Errorf("the mount shows %q", names)
	}
	volumetest.Want(t, "a draft of a foreign name", os.Mkdir(v.Path("notes.txt"), 0o755), unix.EEXIST)
	notes := strings.Join(v.State(t).Notes, "\n")
	if !strings.Contains(notes, "below, notes.txt") || !strings.Contains(notes, "were removed") {
		t.Errorf("the notes are %q", notes)
	}
	if names := volumetest.Listed(t, dir); !slices.Equal(names, []string{"below", "notes.txt"}) {
		t.Errorf("the directory has %q", names)
	}
}

// TestStatusNamesDrafts: who writes what, since when, with how many files open.
func TestStatusNamesDrafts(t *testing.T) {
	v := mount(t)
	dir := v.Draft(t, "step", map[string]string{"file": "bytes"})
	f, err := os.OpenFile(dir+"/file", os.O_RDWR, 0)
	blackbox.Must(t, err)
	s := v.State(t).Checkpoints
	if len(s.Drafts) != 1 || s.Drafts[0].Name != "step.tmp" || s.Drafts[0].Open != 1 || s.Drafts[0].UID != 0 || s.Drafts[0].Since.IsZero() || s.Free <= 0 {
		t.Errorf("the status has %+v", s)
	}
	if code, out, errs := run(t, "status", v.Point); code != 0 || !strings.Contains(out, "0 published, 0 B; 1 drafts") || !strings.Contains(out, "step.tmp of user 0, since") || strings.Contains(out, "0 files,") {
		t.Errorf("hbmfs status: %d %s%s", code, out, errs)
	}
	blackbox.Must(t, f.Close())
	blackbox.Must(t, v.Publish("step"))
	s = v.State(t).Checkpoints
	if len(s.Drafts) != 0 || len(s.Published) != 1 || s.Published[0].Name != "step" || s.Published[0].State != "local" || s.Published[0].Size != 5 || s.Published[0].Files != 1 {
		t.Errorf("the status has %+v", s)
	}
}

// TestStatusKeepsSecrets: names in a draft that stays private are not in the status, which everybody reads.
func TestStatusKeepsSecrets(t *testing.T) {
	v := mount(t)
	dir := v.Path("private.tmp")
	blackbox.Must(t, os.Mkdir(dir, 0o700))
	f, err := os.Create(dir + "/secret-name")
	blackbox.Must(t, err)
	volumetest.Want(t, "publish", v.Publish("private"), unix.EBUSY)
	if _, _, errs := run(t, "publish", dir); !strings.Contains(errs, `"secret-name" is still open`) {
		t.Errorf("hbmfs publish says %q", errs)
	}
	text, err := os.ReadFile(v.Path(".hbmfs", "status"))
	if err != nil || strings.Contains(string(text), "secret-name") || !strings.Contains(string(text), "hbmfs publish says which") {
		t.Errorf("the status has %s, %v", text, err)
	}
	blackbox.Must(t, f.Close())
	blackbox.Must(t, v.Publish("private"))
}

// TestUnmountEndsDrafts: drafts end with the mount, and what is published stays.
func TestUnmountEndsDrafts(t *testing.T) {
	v := mount(t)
	v.Draft(t, "done", map[string]string{"file": "bytes"})
	blackbox.Must(t, v.Publish("done"))
	v.Draft(t, "half", map[string]string{"file": "bytes"})
	v.End(t)
	if names := volumetest.Listed(t, v.Dir); !slices.Equal(names, []string{"done"}) {
		t.Errorf("after the unmount there are %q", names)
	}
	again := mountAt(t, v.Dir)
	if text, err := os.ReadFile(again.Path("done", "file")); err != nil || string(text) != "bytes" {
		t.Errorf("after another mount it has %q, %v", text, err)
	}
}
