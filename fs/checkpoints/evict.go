package checkpoints

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/size"
)

// Remove removes a published checkpoint, whoever owns it: one that is somewhere else by now.
func (v *Volume) Remove(ctx context.Context, name string) error {
	return v.home.Remove(ctx, name, func() {
		if v.inner != nil {
			v.inner.DropBranch(name)
		}
	})
}

// No draft is begun where less of a disk is free than this part of it: at least leastBytes, at most mostBytes.
const (
	leastFree  = 1.0 / 200
	leastBytes = 1 << 20
	mostBytes  = 1 << 30
)

// roomy refuses a draft where the disk is full: it would fail in its middle. What is published is never removed to make room for it.
func (v *Volume) roomy() error {
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(v.self.Fd()), &disk); err != nil {
		return nil //nolint:nilerr // making the draft will say what is wrong
	}
	free, all := int64(disk.Bavail)*disk.Frsize, int64(disk.Blocks)*disk.Frsize
	if free >= min(mostBytes, max(leastBytes, int64(leastFree*float64(all)))) {
		return nil
	}
	advice := "remove checkpoints that are no longer needed (rmdir, or hbmfs checkpoint rm)"
	if v.opt.Drain != nil {
		if d := v.opt.Drain(); d.Pending > 0 {
			advice = fmt.Sprintf("%s of what is published is not at %s yet, and is not removed before it is (hbmfs status says why it waits)", size.Decimal(d.Pending), d.Destination)
		}
	}
	return fmt.Errorf("%s is full, %s are free: %s: %w", v.home.Path(), size.Decimal(free), advice, unix.ENOSPC)
}
