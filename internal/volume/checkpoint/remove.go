package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Remove removes a checkpoint, complete or damaged. It is renamed first, so that it is never half there. [ErrNone]: path is no
// checkpoint. [ErrBusy]: a living process works on it.
func Remove(ctx context.Context, path string) error {
	return removeOnly(ctx, path, nil)
}

// Remove is [Remove] of this checkpoint, which is open. It removes no other one that has the name by now.
func (c *Checkpoint) Remove(ctx context.Context) error { return removeOnly(ctx, c.Path, c) }

func removeOnly(ctx context.Context, path string, only *Checkpoint) error {
	in, name, err := split(path)
	if err != nil {
		return err
	}
	parent, err := os.OpenRoot(in)
	if err != nil {
		return fmt.Errorf("remove checkpoint %s: %w", path, err)
	}
	defer func() { _ = parent.Close() }() // it was synced where that mattered
	if err := remove(ctx, parent, name, ours, only, func() {}); err != nil {
		return fmt.Errorf("remove checkpoint %s: %w", path, err)
	}
	return nil
}

func remove(ctx context.Context, parent *os.Root, name string, of trust, only *Checkpoint, renamed func()) error {
	if err := checkCheckpoint(parent, name, of, only); err != nil {
		return err
	}
	l, err := take(ctx, parent, name, of)
	if err != nil {
		return err
	}
	defer l.release()
	if err := checkCheckpoint(parent, name, of, only); err != nil { // another process was first
		return err
	}
	old := hidden(name, oldEnding)
	if _, err := removeHidden(ctx, parent, old, of); err != nil {
		return err
	}
	if err := rename(parent, name, old); err != nil {
		return err
	}
	if err := syncDir(parent, "."); err != nil { // after a power loss half of it could be there
		return errors.Join(err, rename(parent, old, name))
	}
	renamed()
	return removeAll(ctx, parent, old)
}

// checkCheckpoint refuses a directory that is no checkpoint, or another user's, or, unless only is nil, another checkpoint.
func checkCheckpoint(parent *os.Root, name string, of trust, only *Checkpoint) error {
	info, err := parent.Lstat(name)
	if err != nil {
		return err
	}
	if err := of.check(parent, name, info, os.ModeDir); err != nil {
		return err
	}
	if only != nil {
		opened, err := only.dir.Stat(".") // nothing else has its inode while it is open
		if err != nil {
			return err
		}
		if !os.SameFile(info, opened) {
			return fmt.Errorf("another checkpoint has the name by now: %w", fs.ErrNotExist)
		}
	}
	if _, err := parent.Lstat(filepath.Join(name, ManifestName)); err != nil {
		return failf(ErrNone, "it has no %s, and is no checkpoint of hbmfs's: remove it by other means", ManifestName)
	}
	return nil
}

// Clean removes the leftovers of dead processes in a directory: drafts, and remains of checkpoints. It gives their paths. Drafts of
// living processes stay, and so do other users' leftovers.
func Clean(ctx context.Context, dir string) (removed []string, err error) {
	root, names, err := openList(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // nothing is lost
	return cleanAll(ctx, root, names, ours)
}

func cleanAll(ctx context.Context, root *os.Root, names []string, of trust) (removed []string, err error) {
	unfinished := map[string]bool{}
	for _, base := range names {
		if name, ok := ofHidden(base); ok {
			unfinished[name] = true
		}
	}
	var failed []error
	for _, name := range slices.SortedFunc(maps.Keys(unfinished), natural) {
		if err := ctx.Err(); err != nil {
			return removed, errors.Join(append(failed, err)...)
		}
		gone, err := clean(ctx, root, name, of)
		for _, base := range gone {
			removed = append(removed, filepath.Join(root.Name(), base))
		}
		if err != nil && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrForeign) {
			failed = append(failed, err)
		}
	}
	return removed, errors.Join(failed...)
}

func clean(ctx context.Context, root *os.Root, name string, of trust) (gone []string, err error) {
	l, err := take(ctx, root, name, of)
	if err != nil {
		return nil, err
	}
	defer l.release()
	for _, ending := range []string{draftEnding, oldEnding} {
		base := hidden(name, ending)
		was, err := removeHidden(ctx, root, base, of)
		if err != nil {
			return gone, err
		}
		if was {
			gone = append(gone, base)
		}
	}
	return gone, nil
}
