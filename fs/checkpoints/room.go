package checkpoints

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

// room is the space that the drafts of all users may take. A user gets half of each, and less where others
// have some.
type room struct {
	drafts *shares.Shares
	files  *shares.Shares // that are open: the daemon has a descriptor of each
	seals  *shares.Shares // bytes of manifests that are being made
	// Files that no program has open, and that may have bytes that are not on the disk. Beyond that, files are synced when they are closed.
	waiting *shares.Shares
	// Files and directories of drafts that the kernel knows: each takes some hundred bytes. A lone user has room for the largest checkpoint.
	nodes *shares.Shares
}

func newRoom() room {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024 // the default of Linux
	}
	files := int64(min(limit.Cur/2, 1<<20))
	drafts := min(mostDrafts, files/4/perDraft)
	waiting := min(mostWaiting, files/4)
	return room{drafts: shares.New(drafts, drafts/2, 1), files: shares.New(files/2, files/4, 16), seals: shares.New(mostSeals, mostSeals/2, 0),
		waiting: shares.New(waiting, waiting/2, 0), nodes: shares.New(mostNodes, mostNodes/2, leastNodes)}
}

// count books a node that counts, or gives it back.
func (r *room) count(n *node, by int64) {
	if n.counts {
		r.nodes.Book(n.draft.owner.UID, by)
	}
}

// moreNodes refuses more files where the draft's user has as many as it may.
func (d *mountedDraft) moreNodes() error {
	uid, nodes := d.owner.UID, d.v.room.nodes
	if d == d.v.side || nodes.Fit(uid, 1) {
		return nil
	}
	d.v.refuse("a file in %s: user %d has %d files and directories in drafts, as many as it may now: publish or remove some", d.shownAs(), uid, nodes.Of(uid))
	return unix.EDQUOT
}

// Limits of a volume's records.
const (
	mostDrafts  = 512
	perDraft    = 8    // descriptors
	mostWaiting = 8192 // files
	mostSeals   = 256 << 20
	mostNodes   = 9 << 18 // of which a user gets half: the files of the largest manifest, and as many directories as an eighth of these
	leastNodes  = 1 << 12
	mostEntries = 1 << 20 // of listings: beyond that a directory is listed again for each part that is read
)

// No draft is begun where less of a disk is free than this part of it: at least leastBytes, at most mostBytes.
const (
	leastFree  = 1.0 / 200
	leastBytes = 1 << 20
	mostBytes  = 1 << 30
)

// roomy refuses a draft where the disk is full: it would fail in its middle. Published checkpoints are never removed to make room
// for it.
func (v *Volume) roomy() error {
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(v.self.Fd()), &disk); err != nil {
		return nil //nolint:nilerr // making the draft will report the error
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
