package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/internal/mounts/ready"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/manpage"
)

// The values of --draft-life.
const (
	lifeMount     = "mount"
	lifeContainer = "container"
)

func newCheckpointMountCommand() *cobra.Command {
	c := &mountCommand{}
	c.Checkpoints.On = true
	cmd := c.bind(&cobra.Command{
		Use:   mountName + " DIRECTORY MOUNTPOINT",
		Short: "Mount a checkpoint volume",
		Long: `Mount DIRECTORY, a directory of checkpoints on a local disk, at MOUNTPOINT, where programs write checkpoints at the disk's own
speed. The command returns when the mount can be used, and leaves a daemon behind. With -f it stays in the foreground.

A directory that a program makes in the root of the mount is a draft. Only its user can look into it, and no other mount of
DIRECTORY shows it. One of these publishes it, and from then on it never changes:

  mv MOUNTPOINT/step_100.tmp MOUNTPOINT/step_100   a rename to a name that does not end in .tmp
  hbmfs publish MOUNTPOINT/step_100                for any program
  Megatron's and DeepSpeed's tracker files         which name it, once all ranks are done
  torch.distributed.checkpoint.save                .metadata, once all processes that wrote to it have ended

Publishing fails, with EBUSY, while a file of the draft is still open for writing. rmdir, or hbmfs checkpoint rm, removes a whole
checkpoint. Drafts end with the mount, but a daemon that is replaced keeps them.

With --drain the daemon copies published checkpoints to S3 in the background, where other machines mount them; hbmfs checkpoint
drain --help describes it. With --keep it removes old checkpoints from the disk once S3 has them.`,
		Example: `  hbmfs checkpoint mount --allow-other /nvme/ckpt /mnt/ckpt
  hbmfs checkpoint mount --drain s3://models/run-1 --keep 3 /nvme/ckpt /mnt/ckpt`,
	})
	f, v := cmd.Flags(), &c.Checkpoints
	c.hideForeign(f, "refuse-local", "allow-address", "connections")
	addChoice(cmd, &c.draftLife, "draft-life", lifeMount, "unpublished drafts end with the mount, or with the container in which they began: mount or container", lifeMount, lifeContainer)
	f.StringVar(&v.Drain, "drain", "", "copy published checkpoints to `s3://BUCKET/RUN`, in the background")
	f.IntVar(&v.Keep, "keep", 0, "with --drain: keep the newest `N` checkpoints, by the numbers in their names; remove older ones that are at the destination (default: all)")
	f.Var((*drainRate)(&v.Rate), "drain-rate", "with --drain: bytes per second to send, such as 500MB/s; auto, or none")
	f.BoolVar(&v.TakeOver, "drain-take-over", false, "with --drain: drain to the place of another directory that is gone for good")
	manpage.Advanced(f, "draft-life", "drain-rate", "drain-take-over")
	return cmd
}

func newKVMountCommand() *cobra.Command {
	c := &mountCommand{}
	c.KV.On = true
	cmd := c.bind(&cobra.Command{
		Use:   mountName + " DIRECTORY MOUNTPOINT",
		Short: "Mount a KV volume",
		Long: `Mount DIRECTORY, a directory on a local disk, at MOUNTPOINT as a KV volume, where engines keep blocks of their KV caches. The command
returns when the mount can be used, and leaves a daemon behind. With -f it stays in the foreground.

Engines write and read blocks past FUSE, in slots of preallocated files. Blocks take at most --memory bytes of memory, and then at
most --size bytes of the disk. A new block takes the slot that was unused for the longest time. The entries of MOUNTPOINT are the
namespaces of the volume; hbmfs kv --help describes them.`,
		Example: "  hbmfs kv mount --size 200GiB --memory 4GiB --allow-other /nvme/kv /mnt/kv",
	})
	f, k := cmd.Flags(), &c.KV
	c.hideForeign(f)
	f.Var(&k.Size, "size", "bytes of the disk for blocks and their index, such as 200GiB; the daemon allocates them at once")
	f.Var(&k.Memory, "memory", "bytes of memory for blocks before they go to the disk, such as 4GiB")
	f.StringVar(&k.DiskIO, "disk-io", "", "`way` to the disk: direct, past the page cache, or buffered, through it (default: direct with --memory, else buffered)")
	f.Lookup("size").DefValue, f.Lookup("memory").DefValue = "", ""
	manpage.Advanced(f, "disk-io")
	return cmd
}

// foreign is the annotation of flags of hbmfs mount that a volume has no use for.
const foreign = "foreign"

// hideForeign hides the flags of datasets. It leaves those of every mount, and some.
func (c *mountCommand) hideForeign(f *pflag.FlagSet, some ...string) {
	every := []string{"foreground", "allow-other", "show-views", "log-file", "log-level", "options", "no-keeper", "no-spare"}
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && !slices.Contains(every, flag.Name) && !slices.Contains(some, flag.Name) {
			flag.Hidden = true
			_ = f.SetAnnotation(flag.Name, foreign, nil) // it exists
		}
	})
	_ = f.MarkHidden("no-spare") // a volume has no spare daemon, and accepts the flag
}

// refuseForeign refuses flags of datasets on a volume. A spelling of an earlier release accepted them, and keeps to that.
func (c *mountCommand) refuseForeign(cmd *cobra.Command) (err error) {
	if c.former != "" {
		if again := os.Getenv(ready.Env) != "" || c.former == mountHelper; !again {
			fmt.Fprintf(c.Stderr, "hbmfs: hbmfs %s is now %s; the next release drops the old spelling\n", c.former, cmd.CommandPath())
		}
		return nil
	}
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if _, is := flag.Annotations[foreign]; is && err == nil {
			err = cli.Mistakef("--%s is a flag of hbmfs mount: a volume has no use for it", flag.Name)
		}
	})
	return err
}
