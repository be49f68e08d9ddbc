package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
)

// TestPowerLoss publishes and removes on a disk, and looks at the states that power losses would have left. Before each flush a
// half, by chance, is left of the writes since the last one. A checkpoint whose publishing has returned is always there, all that is
// listed as complete is sound, and one that was removed is never half there.
func TestPowerLoss(t *testing.T) {
	blackbox.NeedFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a disk")
	}
	d := powerloss.New(t, t.TempDir(), t.TempDir())
	in := filepath.Join(d.Dir, "ckpt")
	seen, without := 0, 0
	// look checks the images since the last look. There must be all of these; the last one must also have, or not have, name.
	look := func(must map[string]bool, name string, has bool) {
		t.Helper()
		images := d.Losses(t)
		for i, image := range images[seen:] {
			dir := t.TempDir()
			unmount := powerloss.Mount(t, image, dir)
			complete := map[string]bool{}
			all, err := List(filepath.Join(dir, "ckpt"))
			if err != nil && len(must) > 0 {
				t.Error(err)
			}
			for _, e := range all {
				if e.State != Complete && e.State != Leftover {
					t.Errorf("image %d has %+v", seen+i, e)
				}
				if e.State == Complete {
					complete[e.Name] = true
					if r, err := Verify(t.Context(), e.Path, VerifyOptions{Threads: 1}); err != nil || r.Damaged > 0 || r.Bytes != e.Size {
						t.Errorf("image %d: %s is %+v, %v", seen+i, e.Name, r, err)
					}
				}
			}
			for name := range must {
				if !complete[name] {
					t.Errorf("image %d has only %v", seen+i, complete)
				}
			}
			if i == len(images[seen:])-1 && complete[name] != has {
				t.Errorf("the last image has %v, want %q to be there: %v", complete, name, has)
			}
			if !complete[name] {
				without++
			}
			if _, err := Clean(t.Context(), filepath.Join(dir, "ckpt")); err != nil && len(must) > 0 {
				t.Error(err)
			}
			unmount()
		}
		seen = len(images)
	}
	one, two := filepath.Join(in, "step_1"), filepath.Join(in, "step_2")
	publish(t, one)
	look(nil, "step_1", true)
	publish(t, two)
	look(map[string]bool{"step_1": true}, "step_2", true)
	if without < 3 {
		t.Errorf("only %d of %d images have not the checkpoint that was being published: they come too late", without, seen)
	}
	must(t, Remove(t.Context(), one))
	look(map[string]bool{"step_2": true}, "step_1", false)
	t.Logf("%d images", seen)
}
