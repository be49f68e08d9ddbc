package stored_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// TestPowerLoss fills a cache on a disk, and looks at the state that power losses would have left. Before each flush a
// half, by chance, is left of the writes since the last one. All that is published is sound, what the daemon has said to
// be published is there, and nothing of that is fetched again.
func TestPowerLoss(t *testing.T) {
	blackbox.NeedFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a disk")
	}
	t.Parallel()
	d := powerloss.New(t, suite.NewDir(t), suite.NewDir(t))
	c := newCacheIn(t, filepath.Join(d.Dir, "cache"))
	must(t, sitetest.CompareFile(c.Path("away.bin"), c.files["away.bin"]))
	if s := c.Settled(t).Cache; s.Failures != 0 || s.Uncached != 0 || s.Published < 3 {
		t.Errorf("the disk does not hold the dataset: %+v", s)
	}
	said := len(publishedIn(t, c.dir))
	c.Kill(t)
	losses, least := d.Losses(t), said
	for i, image := range losses {
		dir := suite.NewDir(t)
		unmount := powerloss.Mount(t, image, dir)
		c.dir = filepath.Join(dir, "cache")
		must(t, os.MkdirAll(c.dir, 0o755)) // it may be lost as a whole
		least = min(least, len(publishedIn(t, c.dir)))
		if i == len(losses)-1 {
			c.flags[1] = c.dir
			c.sameAfterwards(t, said)
			must(t, c.Close())
		}
		unmount()
	}
	if least == said {
		t.Errorf("each of %d power losses left all %d segments: they come too late", len(losses), said)
	}
}
