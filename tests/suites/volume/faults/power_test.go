package faults_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// lost looks at the images of power losses since the last look. Each has all of these checkpoints, whole, and nothing that is half there; the last one
// also has, or has not, a name.
func lost(t *testing.T, d *powerloss.Disk, seen *int, all []string, name string, has bool) (without int) {
	t.Helper()
	images := d.Losses(t)
	for i, image := range images[*seen:] {
		dir := suite.NewDir(t)
		unmount := powerloss.Mount(t, image, dir)
		complete := map[string]bool{}
		entries, err := checkpoint.List(filepath.Join(dir, "ckpt"))
		if err != nil && len(all) > 0 {
			t.Error(err)
		}
		for _, e := range entries {
			if e.State != checkpoint.Complete && e.State != checkpoint.Leftover {
				t.Errorf("image %d has %+v", *seen+i, e)
			}
			if e.State == checkpoint.Complete {
				complete[e.Name] = true
				if r, err := checkpoint.Verify(t.Context(), e.Path, checkpoint.VerifyOptions{Threads: 1}); err != nil || r.Damaged > 0 || r.Bytes != e.Size {
					t.Errorf("image %d: %s is %+v, %v", *seen+i, e.Name, r, err)
				}
			}
		}
		for _, name := range all {
			if !complete[name] {
				t.Errorf("image %d has only %v, not %s", *seen+i, complete, name)
			}
		}
		if last := i == len(images[*seen:])-1; last && complete[name] != has {
			t.Errorf("the last image has %v, want %q to be there: %v", complete, name, has)
		} else if last {
			sameMounted(t, filepath.Join(dir, "ckpt"), complete)
		}
		if !complete[name] {
			without++
		}
		unmount()
	}
	*seen = len(images)
	return without
}

// sameMounted mounts what a power loss has left: the mount shows what is complete, and its drafts are gone.
func sameMounted(t *testing.T, dir string, complete map[string]bool) {
	t.Helper()
	v := mountAt(t, dir)
	defer v.End(t)
	names := volumetest.Listed(t, v.Point)
	for _, name := range names {
		if !complete[name] {
			t.Errorf("the mount shows %s", name)
		}
		if text, err := os.ReadFile(v.Path(name, "a")); err != nil || string(text) != "first" {
			t.Errorf("%s/a has %q, %v", name, text, err)
		}
	}
	if len(names) != len(complete) {
		t.Errorf("the mount shows %q of %v", names, complete)
	}
	if left := volumetest.Listed(t, dir); len(left) != len(complete) {
		t.Errorf("the directory has %q, of %v", left, complete)
	}
}

// TestPowerLoss writes drafts through the mount, publishes and removes them on a disk, and looks at the states that power losses would have left. A
// checkpoint whose publishing has returned is there, what is listed is sound, and one that was removed is never half there.
func TestPowerLoss(t *testing.T) {
	blackbox.NeedRoot(t)
	blackbox.NeedFUSE(t)
	d := powerloss.New(t, suite.NewDir(t), suite.NewDir(t))
	in := filepath.Join(d.Dir, "ckpt")
	blackbox.Must(t, os.Mkdir(in, 0o755))
	v := mountAt(t, in)
	files := map[string]string{"a": "first", "sub/b": string(make([]byte, 100_000))}
	seen, without := 0, 0
	v.Draft(t, "step_1", files)
	blackbox.Must(t, v.Publish("step_1"))
	without += lost(t, d, &seen, nil, "step_1", true)
	saved := v.Draft(t, "step_2", files)
	blackbox.Must(t, os.WriteFile(saved+"/.metadata.tmp", []byte("where"), 0o644))
	blackbox.Must(t, os.Rename(saved, v.Path("other.tmp")))
	blackbox.Must(t, os.Rename(v.Path("other.tmp"), v.Path("step_2")))
	without += lost(t, d, &seen, []string{"step_1"}, "step_2", true)
	v.Draft(t, "step_3", files)
	without += lost(t, d, &seen, []string{"step_1", "step_2"}, "step_3", false)
	if without < 3 {
		t.Errorf("only %d of %d images have not the checkpoint that was being published: they come too late", without, seen)
	}
	blackbox.Must(t, os.Remove(v.Path("step_1")))
	lost(t, d, &seen, []string{"step_2"}, "step_1", false)
	v.End(t)
	t.Logf("%d images", seen)
}
