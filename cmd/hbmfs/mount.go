package main

import (
	"errors"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/internal/daemon"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/manpage"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/layout"
)

// mountCommand is one of the three commands that mount: hbmfs mount, hbmfs checkpoint mount and hbmfs kv mount.
type mountCommand struct {
	daemon.Mount
	former        string // the spelling of an earlier release that was translated into this command
	draftLife     string
	format, dtype string
	uid, gid      int64
	umask         string
	readAhead     size.Amount
	options       []string // -o
}

func newMountCommand() *cobra.Command {
	c := &mountCommand{}
	return c.bind(&cobra.Command{
		Use:   mountName + " SOURCE MOUNTPOINT",
		Short: "Mount a dataset",
		Long:  mountHelp,
		Example: `  hbmfs mount /data/pile /mnt/pile
  hbmfs mount -f --allow-other --log-level debug /data/pile /mnt/pile
  hbmfs mount --cache-dir /nvme/hbmfs s3://datasets/pile /mnt/pile`,
	})
}

// bind gives a command that mounts its arguments, its work, and the flags of every mount and of datasets.
func (c *mountCommand) bind(cmd *cobra.Command) *cobra.Command {
	c.readAhead = defaultReadAhead()
	cmd.Args = exactArgs(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.Source, c.Point, c.Stdout, c.Stderr, c.ExitCode = args[0], args[1], cmd.OutOrStdout(), cmd.ErrOrStderr(), exitCode
		if err := errors.Join(c.takeOptions(cmd.Flags()), c.refuseForeign(cmd)); err != nil {
			return err
		}
		if err := c.settle(); err != nil {
			return err
		}
		return c.Run(cmd.Context())
	}
	c.addFlags(cmd)
	return cmd
}

const mountHelp = `Mount the dataset SOURCE read-only at MOUNTPOINT. The command returns when the mount can be used, and leaves a daemon behind.
With -f it stays in the foreground. hbmfs makes a MOUNTPOINT that is missing, and removes it after the mount.

SOURCE is a directory, or an address: s3://BUCKET/PREFIX (?endpoint=http://HOST:PORT&region=...), or
http(s)://HOST/DIRECTORY/ with an index in it. The cache in --cache-dir, on a local disk, keeps the bytes of an address, so that
hbmfs fetches them once. Without --cache-dir every read goes to the network. hbmfs finds credentials where AWS's tools find them.

The mount shows every file of SOURCE as it is, and views of the dataset in MOUNTPOINT/.hbmfs/views. Listings leave .hbmfs out, so
that loaders do not read the data twice:

  tokens.npy           all tokens as one NumPy array
  tokens.bin           the same without a header: np.memmap
  documents.npy        the first token of each document; shards.json has shards
  megatron.bin, .idx   all shards as one Megatron dataset
  members/, tensors/   files of a WebDataset, tensors of safetensors files

MOUNTPOINT/.hbmfs/status describes the mount in JSON, and MOUNTPOINT/.hbmfs/metrics has its metrics for Prometheus. The daemon sends
traces to the OpenTelemetry collector that OTEL_EXPORTER_OTLP_ENDPOINT names.

For root, the kernel reads whole files itself (FUSE passthrough, Linux 6.9): reads are as fast as at the source, and readers survive
the daemon. Ordinary users need fusermount3 (package fuse3), and their reads go through the daemon.

hbmfs checkpoint mount and hbmfs kv mount make mounts that programs write to.

A line of /etc/fstab mounts at boot. It needs the link /sbin/mount.fuse.hbmfs to this program, which make install makes. The option
checkpoints or kv chooses hbmfs checkpoint mount or hbmfs kv mount:

  /data/pile  /mnt/pile  fuse.hbmfs  ro,allow_other,nofail              0  0
  /nvme/ckpt  /mnt/ckpt  fuse.hbmfs  checkpoints,allow_other,nofail     0  0
  /nvme/kv    /mnt/kv    fuse.hbmfs  kv,size=200GiB,allow_other,nofail  0  0`

// addFlags adds the flags of every mount, and those of datasets.
func (c *mountCommand) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&c.Foreground, "foreground", "f", false, "stay in the foreground and log to stderr")
	f.BoolVar(&c.Options.AllowOther, "allow-other", false, "let other users in, under the permissions of the files")
	f.BoolVar(&c.Options.ShowViews, "show-views", false, "list .hbmfs in the root of the mount")
	f.StringVar(&c.LogFile, "log-file", "", "append the log to this `file` (default in the background: see Files)")
	addChoice(cmd, &c.LogLevel, "log-level", "info", "debug, info, warn or error", "debug", "info", "warn", "error")
	f.StringArrayVarP(&c.options, "options", "o", nil, "`options` as mount(8) passes them, separated by commas")
	f.BoolVar(&c.NoKeeper, "no-keeper", false, "end the mount with its daemon (default: with --foreground, for ordinary users, and before Linux 6.9)")
	f.BoolVar(&c.NoSpare, "no-spare", false, "start the next daemon only after a crash: less memory, longer waits")
	f.StringVar(&c.former, formerFlag, "", "")
	_ = f.MarkHidden(formerFlag) // it exists
	manpage.Advanced(f, "no-keeper", "no-spare", "show-views")

	addChoice(cmd, &c.format, "format", "", "fail unless the dataset has this format; hbmfs inspect --help lists formats", formatNames()...)
	f.StringVar(&c.dtype, "dtype", "", "element `type` of headerless token files: uint16, uint32, int64, ... (default: guessed)")
	f.StringArrayVar(&c.Select, "select", nil, "also show views of the documents or samples whose numbers FILE lists, ascending, in .hbmfs/views/NAME (`NAME=FILE`, as in train/clean=list); may be given again")
	f.Int64Var(&c.uid, "uid", -1, "owner of all files (default: as at the source)")
	f.Int64Var(&c.gid, "gid", -1, "group of all files (default: as at the source)")
	f.StringVar(&c.umask, "umask", "0", "permission `bits` to take away, octal")
	f.Var(&c.readAhead, "read-ahead", "bytes that the kernel reads ahead in a view; root only; 0 takes the kernel's setting")
	f.Lookup("read-ahead").DefValue = "512KiB for root" // the same words for all users
	f.BoolVar(&c.Options.Frozen, "frozen", false, "promise that files and permissions never change while mounted, so that the kernel opens small files without the daemon; root only")
	addSourceFlags(f, &c.Dataset)
	manpage.Advanced(f, "uid", "gid", "umask", "read-ahead", "frozen")
}

// takeOptions applies the words of -o, and derives settings from all flags.
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

// settle gives the daemon the values of flags that have words of their own.
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
