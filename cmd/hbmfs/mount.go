package main

import (
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/internal/daemon"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/layout"
)

// mountCommand is hbmfs mount.
type mountCommand struct {
	daemon.Mount
	draftLife     string
	format, dtype string
	uid, gid      int64
	umask         string
	readAhead     size.Amount
	options       []string // -o
}

func newMountCommand() *cobra.Command {
	c := &mountCommand{readAhead: defaultReadAhead()}
	cmd := &cobra.Command{
		Use:   mountName + " SOURCE MOUNTPOINT",
		Short: "Mount a dataset",
		Long:  mountHelp,
		Example: `  hbmfs mount /data/pile /mnt/pile
  hbmfs mount -f --allow-other --log-level debug /data/pile /mnt/pile
  hbmfs mount s3://datasets/pile /mnt/pile --cache-dir /nvme/hbmfs --cache-size 2TiB
  hbmfs mount --checkpoints --allow-other /nvme/ckpt /mnt/ckpt
  hbmfs mount --kv --size 200GiB --memory 32GiB --allow-other /nvme/kv /mnt/kv`,
		Args: exactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Source, c.Point, c.Stdout, c.Stderr, c.ExitCode = args[0], args[1], cmd.OutOrStdout(), cmd.ErrOrStderr(), exitCode
			if err := c.takeOptions(cmd.Flags()); err != nil {
				return err
			}
			if err := c.settle(); err != nil {
				return err
			}
			return c.Run(cmd.Context())
		},
	}
	c.addFlags(cmd)
	return cmd
}

const mountHelp = `Mount SOURCE read-only at MOUNTPOINT. The command returns when the mount can be used, and leaves a daemon
behind; with -f it stays in the foreground. A MOUNTPOINT that is missing is made, and goes with the mount.

SOURCE is a directory, or an address: s3://BUCKET/PREFIX (?endpoint=http://HOST:PORT&region=...), or
http(s)://HOST/DIRECTORY/ with an index in it. Bytes of an address are kept below --cache-dir, on a local disk, and
fetched once: name one, or every read goes to the network. Credentials come from where AWS's tools find them.

Every file of SOURCE appears as it is. Views that the dataset's format allows appear in
MOUNTPOINT/.hbmfs/views (which no listing shows, so that loaders do not read the data twice):

  tokens.npy           all tokens as one NumPy array: np.load(..., mmap_mode="r")
  tokens.bin           the same without a header: np.memmap
  documents.npy        where each document begins, in tokens; shards.json has the shards
  megatron.bin, .idx   all shards as one Megatron dataset
  members/, tensors/   files of a WebDataset archive, tensors of a safetensors file

MOUNTPOINT/.hbmfs/status says in JSON what is mounted, and MOUNTPOINT/.hbmfs/metrics is for Prometheus. Where
OTEL_EXPORTER_OTLP_ENDPOINT names a collector of OpenTelemetry, traces of the mount go there.

As root the kernel reads whole files itself (FUSE passthrough, Linux 6.9), so that they are as fast as at the source
and readers survive the daemon. Ordinary users need fusermount3 (package fuse3), and their reads go through hbmfs.

With --checkpoints SOURCE is a directory of checkpoints on a local disk, and programs write in the mount. A directory that
is made in its root is a draft: only its user can look into it, and no other mount of SOURCE shows it. It is published, and
never changes from then on, by one of

  mv MOUNTPOINT/step_100.tmp MOUNTPOINT/step_100   a rename to a name that does not end in .tmp
  hbmfs publish MOUNTPOINT/step_100                for any program
  Megatron's and DeepSpeed's tracker files         which name it, once all ranks are done
  torch.distributed.checkpoint.save                .metadata, once all processes that wrote to it have ended

Publishing fails, with EBUSY, while a file of the draft is still open for writing. rmdir removes a whole checkpoint. Drafts
end with the mount; a daemon that is replaced keeps them. With --draft-life container one that was begun in a container ends
with the last process of that container, as far as the daemon's own container is another.

With --drain what is published is copied to S3 in the background, where other machines mount it; hbmfs checkpoint drain --help
says how. With --keep old checkpoints are removed here once they are there.

With --kv SOURCE is a directory on a local disk where engines keep blocks of their KV caches. They write and read these past FUSE, in
slots of preallocated files: --size bytes there, and before it --memory bytes of memory. Neither limit is ever passed; what was not
used for the longest time goes. Namespaces of the volume are the entries of MOUNTPOINT; hbmfs kv --help has more.

In /etc/fstab, with a link /sbin/mount.fuse.hbmfs to this program (make install makes it):

  /data/pile  /mnt/pile  fuse.hbmfs  allow_other,nofail              0  0
  /nvme/ckpt  /mnt/ckpt  fuse.hbmfs  checkpoints,allow_other,nofail  0  0
  /nvme/kv    /mnt/kv    fuse.hbmfs  kv,size=200GiB,allow_other,nofail  0  0`

// The values of --draft-life.
const (
	lifeMount     = "mount"
	lifeContainer = "container"
)

func (c *mountCommand) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	c.addVolumeFlags(cmd)
	f.BoolVarP(&c.Foreground, "foreground", "f", false, "stay in the foreground and log to stderr")
	f.BoolVar(&c.NoKeeper, "no-keeper", false, "let the mount end with its daemon (default in the foreground, where =false has a keeper; for ordinary users, and before Linux 6.9)")
	f.BoolVar(&c.NoSpare, "no-spare", false, "have no second daemon wait for its turn: less memory, and longer waits after a crash")
	f.BoolVar(&c.Options.AllowOther, "allow-other", false, "let other users in, under the permissions of the files")
	f.BoolVar(&c.Options.ShowViews, "show-views", false, "list .hbmfs in the root of the mount")
	addChoice(cmd, &c.format, "format", "", "take the dataset for this format only, and fail if it is not (hbmfs inspect --help lists them)", formatNames()...)
	f.StringVar(&c.dtype, "dtype", "", "element type of headerless token files: uint16, uint32, int64, ... (default: guessed from the values where they are clear)")
	f.StringArrayVar(&c.Select, "select", nil, "`NAME=FILE`: also show views of the documents (or samples) whose numbers FILE has, one in each line, ascending, in .hbmfs/views/NAME. NAME is the directory of a set's views and a word of yours, as in train/clean; may be given again")
	f.Int64Var(&c.uid, "uid", -1, "owner of all files (default: as at the source)")
	f.Int64Var(&c.gid, "gid", -1, "group of all files (default: as at the source)")
	f.StringVar(&c.umask, "umask", "0", "permission bits to take away, octal")
	f.Var(&c.readAhead, "read-ahead", "bytes that the kernel reads ahead of a sequential reader of a view; root only, 0 is the kernel's own (128KiB)")
	f.Lookup("read-ahead").DefValue = "512KiB for root" // the same words for all users
	f.BoolVar(&c.Options.Frozen, "frozen", false, "promise that files and their permissions stay as they are while they are mounted: the kernel opens files without asking, and keeps their bytes, so small files are as fast as at the source from the second reading on; root only")
	f.StringVar(&c.LogFile, "log-file", "", "file that the log is appended to (default in the background: /var/log/hbmfs.log for root, else hbmfs/hbmfs.log in XDG_STATE_HOME)")
	addChoice(cmd, &c.LogLevel, "log-level", "info", "debug, info, warn or error", "debug", "info", "warn", "error")
	addSourceFlags(f, &c.Dataset)
	f.StringArrayVarP(&c.options, "options", "o", nil, "options as mount(8) passes them, separated by commas")
}

// addVolumeFlags adds the flags of volumes, which programs write to.
func (c *mountCommand) addVolumeFlags(cmd *cobra.Command) {
	f, v, k := cmd.Flags(), &c.Checkpoints, &c.KV
	f.BoolVar(&v.On, "checkpoints", false, "mount a directory of checkpoints, for programs to write in; see below")
	addChoice(cmd, &c.draftLife, "draft-life", lifeMount, "with --checkpoints: what unpublished drafts end with, the mount or the container in which they were begun", lifeMount, lifeContainer)
	f.StringVar(&v.Drain, "drain", "", "with --checkpoints: copy what is published to s3://BUCKET/RUN, in the background; hbmfs checkpoint drain --help says how")
	f.IntVar(&v.Keep, "keep", 0, "with --drain: checkpoints that stay on the disk, the newest by the numbers in their names. Older ones are removed when they are at the destination, and never before (default: all)")
	f.Var((*drainRate)(&v.Rate), "drain-rate", "with --drain: bytes per second that it reads and sends, such as 500MB/s; auto, or none")
	f.BoolVar(&v.TakeOver, "drain-take-over", false, "with --drain: drain to a place that another directory has drained to, which is gone for good")
	f.BoolVar(&k.On, "kv", false, "mount a KV volume: a directory that keeps blocks of engines' KV caches; see below")
	f.Var(&k.Size, "size", "with --kv: bytes of the directory's disk that blocks and their index may take, such as 200GiB; they are allocated at once")
	f.Var(&k.Memory, "memory", "with --kv: bytes of memory that blocks may take before they go to the disk, such as 32GiB")
	f.StringVar(&k.DiskIO, "disk-io", "", "with --kv: direct reads and writes blocks on the disk past the page cache, where its filesystem allows that; buffered goes through it; without this flag, direct where --memory is given")
	f.Lookup("size").DefValue, f.Lookup("memory").DefValue = "", ""
}

// takeOptions applies the words of -o, and what follows from all flags.
func (c *mountCommand) takeOptions(flags *pflag.FlagSet) error {
	for _, o := range c.options {
		kernel, err := c.applyOptions(o, flags)
		if err != nil {
			return err
		}
		c.Options.Extra = append(c.Options.Extra, kernel...)
	}
	c.NoKeeper = c.NoKeeper || c.Foreground && !flags.Changed("no-keeper")
	return nil
}

// settle gives the daemon what flags say in words of their own.
func (c *mountCommand) settle() (err error) {
	opt := &c.Options
	opt.ReadAhead, opt.Helper, opt.Version = int(c.readAhead), []string{"/proc/self/exe", bindName}, version
	c.Checkpoints.Containers = c.draftLife == lifeContainer
	if opt.Layout, err = layoutOptions(c.format, c.dtype); err != nil {
		return err
	}
	umask, err := strconv.ParseUint(c.umask, 8, 16)
	if err != nil || umask > 0o777 {
		return cli.Mistakef("umask %q is not an octal number up to 777", c.umask)
	}
	opt.Umask = uint16(umask)
	if opt.UID, err = owner("uid", c.uid); err == nil {
		opt.GID, err = owner("gid", c.gid)
	}
	return err
}

// owner is the user or group that a flag names, nil for the source's own.
func owner(flag string, id int64) (*uint32, error) {
	if id == -1 {
		return nil, nil
	}
	if id < 0 || id > 1<<32-2 {
		return nil, cli.Mistakef("%s %d is out of range: want 0 to %d, or -1 for the source's own", flag, id, uint32(1<<32-2))
	}
	n := uint32(id)
	return &n, nil
}

// formatNames are the words that --format takes.
func formatNames() []string {
	names, _ := layout.Formats()
	return names
}

// layoutOptions makes options of --format and --dtype.
func layoutOptions(format, dtype string) (opt layout.Options, err error) {
	opt.Format = format
	if dtype != "" {
		if opt.DType, err = layout.ParseDType(dtype); err != nil {
			return opt, cli.Mistake{Err: err}
		}
	}
	return opt, nil
}

// defaultReadAhead is four times the kernel's, so that the first sequential read of a view is faster. More would cost cold
// random page faults in mappings, which read as much. Only root can set it.
func defaultReadAhead() size.Amount {
	if os.Geteuid() != 0 {
		return 0
	}
	return 512 << 10
}
