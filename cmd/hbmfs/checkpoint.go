package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/progress"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/internal/volume/drain"
)

// checkpointCommand is one of the commands below hbmfs checkpoint.
type checkpointCommand struct{ printer }

func newCheckpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "List, verify and remove checkpoints, and copy them to S3",
		Long: `Look after directories of checkpoints that the Python package wrote. Each checkpoint is a directory that is complete or
not there. Its files are written into a draft beside it, a hidden directory. A manifest with their checksums comes last, and then
the draft gets the checkpoint's name. A job that is killed leaves a draft, which no reader takes for a checkpoint.

Any program may read the files, and copy or move whole checkpoints. Writers, meanwhile, are not disturbed.`,
	}
	addCommands(cmd, newCheckpointMountCommand(), newCheckpointListCommand(), newCheckpointVerifyCommand(), newCheckpointRemoveCommand(), newCheckpointCleanCommand(), newCheckpointDrainCommand())
	return cmd
}

// bind gives a command below hbmfs checkpoint its arguments, which a shell completes, its flag and its work.
func (c *checkpointCommand) bind(cmd *cobra.Command, args cobra.PositionalArgs, run func(ctx context.Context, paths []string) error) *cobra.Command {
	cmd.ValidArgsFunction = completeDirectories
	return c.work(cmd, args, run)
}

func newCheckpointListCommand() *cobra.Command {
	c, patience := &checkpointCommand{}, time.Duration(0)
	cmd := c.bind(&cobra.Command{
		Use:   "ls DIR|s3://BUCKET/RUN",
		Short: "List the checkpoints in a directory, unfinished ones too",
		Long: `List the checkpoints in DIR, or at the destination of a drain, by their names, numbers in them by value. STATE is one of:

  complete  published, and all files are there with their sizes; verify compares the bytes
  damaged   published, and a file is missing or has another size since
  in work   a living process writes or removes it; at a destination: its manifest has not come yet
  leftover  of a process that died: hbmfs checkpoint clean removes it

PART is counted from 1, where nodes keep parts of a checkpoint on disks of their own.`,
		Example: "  hbmfs checkpoint ls /nvme/ckpt\n  hbmfs checkpoint ls s3://models/run-1\n  hbmfs checkpoint ls --json /nvme/ckpt | jq -r '.checkpoints[].path'",
	}, exactArgs(1), func(ctx context.Context, paths []string) error {
		list := func() ([]checkpoint.Entry, error) { return checkpoint.List(paths[0]) }
		if patience <= 0 {
			return cli.Mistakef("--patience %v: want a time such as 30s", patience)
		}
		if cli.IsRemote(paths[0]) {
			list = func() ([]checkpoint.Entry, error) { return drain.List(ctx, paths[0], patience) }
		}
		all, err := list()
		if err != nil {
			return err
		}
		return c.print(map[string]any{"directory": paths[0], "checkpoints": all}, func() {
			t := c.table("NAME\tSTATE\tPART\tFILES\tSIZE\tCREATED")
			defer t.Flush()
			for _, e := range all {
				if e.State != checkpoint.Complete {
					fmt.Fprintf(t, "%s\t%s\t\t\t\t%s\n", cli.Printable(e.Name), e.State, cli.Printable(e.Why))
					continue
				}
				fmt.Fprintf(t, "%s\t%s\t%d/%d\t%s\t%s\t%s\n", cli.Printable(e.Name), e.State, e.Index+1, e.Of, size.Grouped(int64(e.Files)), size.Decimal(e.Size), e.Created.Local().Format(time.DateTime))
			}
		})
	})
	cmd.Flags().DurationVar(&patience, "patience", 30*time.Second, "how long an s3:// destination may take to answer")
	return cmd
}

func newCheckpointVerifyCommand() *cobra.Command {
	c, threads := &checkpointCommand{}, 0
	cmd := c.bind(&cobra.Command{
		Use:   "verify PATH...",
		Short: "Compare all bytes of checkpoints with their checksums",
		Long: `Read all files of the checkpoints and compare them with their manifests: sizes, and the CRC-32C of every 4 MiB. Each line of
damage names the file, the chunk, its place and both checksums. The exit code is 3 when something is damaged.

A PATH is a checkpoint, or the directory of a run, whose published checkpoints are all verified.`,
		Example: "  hbmfs checkpoint verify /nvme/ckpt/step_1000\n  hbmfs checkpoint verify /nvme/ckpt\n  hbmfs checkpoint verify --json /nvme/ckpt/*",
	}, someArgs("checkpoints"), func(ctx context.Context, paths []string) error { return c.verify(ctx, paths, threads) })
	cmd.Flags().IntVar(&threads, "threads", 0, "`threads` that read (default: one for each CPU, at most 8)")
	return cmd
}

func (c *checkpointCommand) verify(ctx context.Context, paths []string, threads int) (err error) {
	all, damaged := []*checkpoint.Report{}, 0
	paths, err = checkpointsIn(paths)
	if err != nil {
		return err
	}
	for _, path := range paths {
		bar := progress.New(c.stderr, "verifying", 0, true)
		r, err := checkpoint.Verify(ctx, path, checkpoint.VerifyOptions{Threads: threads, Progress: bar.Set})
		bar.Close()
		if err != nil {
			return err
		}
		damaged += r.Damaged
		if all = append(all, r); !c.asJSON {
			c.printReport(r)
		}
	}
	if c.asJSON {
		err = writeJSON(c.stdout, all)
	}
	return problems(err, damaged > 0)
}

// checkpointsIn replaces the directories of runs by the checkpoints that are published there.
func checkpointsIn(paths []string) (all []string, err error) {
	for _, path := range paths {
		if _, err := os.Lstat(filepath.Join(path, checkpoint.ManifestName)); !errors.Is(err, os.ErrNotExist) {
			all = append(all, path)
			continue
		}
		entries, err := checkpoint.List(path)
		if err != nil {
			return nil, err
		}
		count := len(all)
		for _, e := range entries {
			if e.State == checkpoint.Complete || e.State == checkpoint.Damaged {
				all = append(all, e.Path)
			}
		}
		if len(all) == count {
			all = append(all, path) // verifying it says why it is none
		}
	}
	return all, nil
}

func (c *checkpointCommand) printReport(r *checkpoint.Report) {
	fmt.Fprintf(c.stdout, "%s: %s files, of which %s are right, read at %s, %d damaged\n", r.Path, size.Grouped(int64(r.Files)), size.Decimal(r.Bytes), perSecond(r.Bytes, r.Seconds), r.Damaged)
	for i := range r.Damage {
		fmt.Fprintf(c.stdout, "  %s\n", cli.Printable(r.Damage[i].String()))
	}
	if more := r.Damaged - len(r.Damage); more > 0 {
		fmt.Fprintf(c.stdout, "  and %d more\n", more)
	}
}

func newCheckpointRemoveCommand() *cobra.Command {
	c := &checkpointCommand{}
	return c.bind(&cobra.Command{
		Use:   "rm PATH...",
		Short: "Remove checkpoints, so that none is ever half there",
		Long: `Remove checkpoints, damaged ones too. It asks nothing. Each is renamed to a hidden name first, so that nobody sees a half
one. If this is interrupted, hbmfs checkpoint clean removes the rest. Directories that are no checkpoints of hbmfs's stay. In a
checkpoint volume it does as rmdir.`,
		Example: "  hbmfs checkpoint rm /nvme/ckpt/step_900",
	}, someArgs("checkpoints"), func(ctx context.Context, paths []string) error {
		for i, path := range paths {
			if err := removeCheckpoint(ctx, path); err != nil {
				return errors.Join(err, c.printRemoved(paths[:i]))
			}
		}
		return c.printRemoved(paths)
	})
}

// removeCheckpoint removes a checkpoint of a directory, or of a checkpoint volume: its daemon removes it as a whole, and nobody else can.
func removeCheckpoint(ctx context.Context, path string) error {
	place, err := mountpoint.Locate(path)
	if err != nil {
		return err
	}
	err = checkpoint.Remove(ctx, path)
	if place.Over == nil || !errors.Is(err, os.ErrPermission) {
		return err
	}
	if err := unix.Rmdir(path); err != nil {
		return fmt.Errorf("remove checkpoint %s: rmdir: %w", path, err)
	}
	return nil
}

func newCheckpointCleanCommand() *cobra.Command {
	c := &checkpointCommand{}
	var all bool
	cmd := c.bind(&cobra.Command{
		Use:   "clean DIR",
		Short: "Remove drafts of dead writers",
		Long: `Remove from DIR the drafts of processes that died, and the remains of checkpoints whose removal was interrupted.
Checkpoints, other files, and drafts of living processes or other users stay; hbmfs checkpoint ls shows them. With --all-users
root does it for every user: in the directory of a checkpoint volume that is mounted nowhere.`,
		Example: "  hbmfs checkpoint clean /nvme/ckpt",
	}, exactArgs(1), func(ctx context.Context, paths []string) error {
		clean := checkpoint.Clean
		if all {
			clean = checkpoint.CleanAll
		}
		removed, err := clean(ctx, paths[0])
		if err == nil && len(removed) == 0 && !c.asJSON {
			fmt.Fprintln(c.stdout, "nothing is there to remove")
		}
		return errors.Join(err, c.printRemoved(removed))
	})
	cmd.Flags().BoolVar(&all, "all-users", false, "also remove leftovers of other users' writers; root only")
	return cmd
}

func (c *checkpointCommand) printRemoved(paths []string) error {
	return c.print(map[string][]string{"removed": append([]string{}, paths...)}, func() {
		for _, path := range paths {
			fmt.Fprintf(c.stdout, "removed %s\n", path)
		}
	})
}
