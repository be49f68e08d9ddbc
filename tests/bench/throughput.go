package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Least median ratios, from the project's first issue.
const (
	wholeFileTarget = 0.95
	viewTarget      = 0.90
	firstReadTarget = 1.00
)

// throughput compares a whole file, a view in the page cache, and a view's first read with the read that each
// replaces.
func (b *bench) throughput(ctx context.Context) (err error) {
	dirs, err := b.makeDirs("data", "copy", "mnt", "loop")
	if err != nil {
		return err
	}
	data, copies, mnt, loop := dirs[0], dirs[1], dirs[2], dirs[3]
	progress("throughput: writing two shards of %d MiB", b.shardMiB)
	if err := writeShards(ctx, data, 2, (b.shardMiB<<20-llmcHeaderBytes)/2); err != nil {
		return err
	}
	for i := range 2 {
		if err := warmByReading(ctx, filepath.Join(data, shardName(i))); err != nil {
			return err
		}
	}
	m, err := b.mount(ctx, data, mnt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()

	whole := shardName(0)
	if err := b.compareProbes(ctx, "whole file", "", wholeFileTarget, m.Path(whole), filepath.Join(data, whole)); err != nil {
		return err
	}
	view, err := m.View("tokens.npy")
	if err != nil {
		return err
	}
	// The view's baseline is the file that a user without hbmfs would have made: a copy of the stitched tokens.
	viewCopy := filepath.Join(copies, "tokens.npy")
	if err := errors.Join(copyFile(viewCopy, view), warmByReading(ctx, viewCopy)); err != nil {
		return err
	}
	if err := b.compareProbes(ctx, "cached view", "", viewTarget, view, viewCopy); err != nil {
		return err
	}
	if err := b.compareSmallPages(ctx, view); err != nil {
		return err
	}
	relative, err := filepath.Rel(mnt, view)
	if err != nil {
		return fmt.Errorf("find the view: %w", err)
	}
	if err := m.Close(); err != nil {
		return err
	}
	return b.compareFirstRead(ctx, firstRead{data, mnt, relative, copies, loop, filepath.Base(viewCopy)})
}

// compareSmallPages compares a view in the page cache with a file on a tmpfs that caches in pages of 4 KiB, as FUSE
// does. The difference between the two is the cost of hbmfs. The plain file lies on a filesystem that caches in
// large folios, where the kernel allows it. Only root can mount a tmpfs.
func (b *bench) compareSmallPages(ctx context.Context, view string) (err error) {
	if os.Geteuid() != 0 {
		progress("throughput: not root, so without the comparison with pages of 4 KiB")
		return nil
	}
	dirs, err := b.makeDirs("small")
	if err != nil {
		return err
	}
	if err := unix.Mount("hbmfs-bench", dirs[0], "tmpfs", 0, "huge=never"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(dirs[0], 0)) }()
	small := filepath.Join(dirs[0], "tokens.npy")
	if err := copyFile(small, view); err != nil {
		return err
	}
	return b.compareProbes(ctx, "cached view", " against pages of 4 KiB", viewTarget, view, small)
}

// compareProbes compares every access pattern on two warm files of the same bytes. against describes the second one,
// if it is special.
func (b *bench) compareProbes(ctx context.Context, what, against string, target float64, mounted, direct string) error {
	for _, p := range probes() {
		progress("throughput: %s, %s%s", what, p.name, against)
		on := func(path string) measure {
			return func(ctx context.Context, seed uint64) (float64, error) { return p.read(ctx, path, seed) }
		}
		ratio, mount, base, err := compare(ctx, b.rounds, on(mounted), on(direct))
		if err != nil {
			return err
		}
		b.report.Comparisons = append(b.report.Comparisons, comparison{
			Name: what + ", " + p.name + against, Against: "the same bytes in a plain file" + against,
			Ratio: ratio, Mount: mount, Baseline: base, Target: target,
		})
	}
	return nil
}

// firstRead names the two sides of the case that reads bytes that the kernel has not cached for the mount
// yet.
type firstRead struct {
	data, mnt, view    string // hbmfs: source, mountpoint, the view's path below it
	copies, loop, file string // loopback: source, mountpoint, the file's path below it
}

// compareFirstRead mounts anew for every run, which drops FUSE's cached pages; the backing files stay warm.
func (b *bench) compareFirstRead(ctx context.Context, f firstRead) error {
	progress("throughput: first sequential read of a view")
	mount := func(ctx context.Context, _ uint64) (rate float64, err error) {
		m, err := b.mount(ctx, f.data, f.mnt)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		return sequential(ctx, m.Path(f.view), 0)
	}
	baseline := func(ctx context.Context, _ uint64) (rate float64, err error) {
		stop, err := startLoopback(ctx, b.loopback, f.loop, f.copies)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		return sequential(ctx, filepath.Join(f.loop, f.file), 0)
	}
	// Each run mounts and reads everything once: fewer of them say as much.
	ratio, a, base, err := compare(ctx, (b.rounds+1)/2, mount, baseline)
	if err != nil {
		return err
	}
	b.report.Comparisons = append(b.report.Comparisons, comparison{
		Name:    "view, first sequential read",
		Against: "go-fuse's loopback example without passthrough, the same bytes in one file",
		Ratio:   ratio, Mount: a, Baseline: base, Target: firstReadTarget,
	})
	return nil
}

// startLoopback mounts original on mountpoint by the loopback program; the returned stop unmounts it.
func startLoopback(ctx context.Context, program, mountpoint, original string) (stop func() error, err error) {
	cmd := exec.Command(program, mountpoint, original)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start loopback: %w", err)
	}
	stop = func() error {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			return errors.Join(fmt.Errorf("stop loopback: %w", err), cmd.Wait(), blackbox.Detach(mountpoint))
		}
		return cmd.Wait()
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		mounted, err := blackbox.IsMounted(mountpoint)
		if mounted {
			return stop, nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && time.Now().After(deadline) {
			err = errors.New("it did not mount in 10 s")
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start loopback: %w", err), stop())
		}
		time.Sleep(5 * time.Millisecond)
	}
}
