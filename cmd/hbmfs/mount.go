package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/aside"
	"github.com/hbmfs/hbmfs/internal/background"
	"github.com/hbmfs/hbmfs/internal/dataset"
	"github.com/hbmfs/hbmfs/internal/handover"
	"github.com/hbmfs/hbmfs/internal/onmount"
	"github.com/hbmfs/hbmfs/internal/ready"
	"github.com/hbmfs/hbmfs/internal/size"
	"github.com/hbmfs/hbmfs/layout"
)

// mountCommand is hbmfs mount.
type mountCommand struct {
	source, point string

	drain       drainFlags
	kv          kvFlags
	checkpoints bool // SOURCE is a directory of checkpoints, where programs write
	draftLife   string
	foreground  bool
	noKeeper    bool
	noSpare     bool
	allowOther  bool
	showViews   bool
	format      string
	dtype       string
	selections  []string // NAME=FILE
	selected    dataset.Selections
	uid, gid    int64
	umask       string
	readAhead   size.Amount
	logFile     string
	logLevel    string
	options     []string // -o
	fsName      string   // shown by /proc/mounts instead of the source
	cache       dataset.Options

	kernelOptions []string
	notes         []string // of the mount point
	places        dataset.Places
	stdout        io.Writer
	stderr        io.Writer
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
		Args: exactArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
			c.source, c.point, c.stdout, c.stderr = args[0], args[1], cmd.OutOrStdout(), cmd.ErrOrStderr()
			if err := c.takeOptions(cmd.Flags()); err != nil {
				return err
			}
			return c.run(cmd.Context())
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
  torch.distributed.checkpoint.save                its last step, the rename to .metadata
  hbmfs publish MOUNTPOINT/step_100                for programs that do neither

Publishing fails, with EBUSY, while a file of the draft is still open for writing. rmdir removes a whole checkpoint. Drafts
end with the mount; a daemon that is replaced keeps them. With --draft-life container one that was begun in a container ends
with the last process of that container, as far as the daemon's own container is another.

With --drain what is published is copied to S3 in the background, where other machines mount it; hbmfs checkpoint drain --help
says how. With --keep old checkpoints are removed here once they are there.

With --kv SOURCE is a directory on a local disk where engines keep blocks of their KV caches, in slots of preallocated files that they
write and read past FUSE: --size bytes there, and before it --memory bytes of memory. Neither limit is ever passed; what was not used
for the longest time goes. Namespaces of the volume are the entries of MOUNTPOINT; hbmfs kv --help has more.

In /etc/fstab, with a link /sbin/mount.fuse.hbmfs to this program (make install makes it):

  /data/pile  /mnt/pile  fuse.hbmfs  allow_other,nofail              0  0
  /nvme/ckpt  /mnt/ckpt  fuse.hbmfs  checkpoints,allow_other,nofail  0  0
  /nvme/kv    /mnt/kv    fuse.hbmfs  kv,size=200GiB,allow_other,nofail  0  0`

func (c *mountCommand) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	c.drain.add(f)
	c.kv.add(f)
	f.BoolVar(&c.checkpoints, "checkpoints", false, "mount a directory of checkpoints, for programs to write in; see below")
	addChoice(cmd, &c.draftLife, "draft-life", lifeMount, "with --checkpoints: what unpublished drafts end with, the mount or the container in which they were begun", lifeMount, lifeContainer)
	f.BoolVarP(&c.foreground, "foreground", "f", false, "stay in the foreground and log to stderr")
	f.BoolVar(&c.noKeeper, "no-keeper", false, "let the mount end with its daemon (default in the foreground, where =false has a keeper; for ordinary users, and before Linux 6.9)")
	f.BoolVar(&c.noSpare, "no-spare", false, "have no second daemon wait for its turn: less memory, and longer waits after a crash")
	f.BoolVar(&c.allowOther, "allow-other", false, "let other users in, under the permissions of the files")
	f.BoolVar(&c.showViews, "show-views", false, "list .hbmfs in the root of the mount")
	addChoice(cmd, &c.format, "format", "", "take the dataset for this format only, and fail if it is not (hbmfs inspect --help lists them)", formatNames()...)
	f.StringVar(&c.dtype, "dtype", "", "element type of headerless token files: u16, u32, ... (default: found out)")
	f.StringArrayVar(&c.selections, "select", nil, "NAME=FILE: also show views of the documents (or samples) whose numbers FILE has, one in each line, ascending, in .hbmfs/views/NAME. NAME is the directory of a set's views and a word of yours, as in train/clean; may be given again")
	f.Int64Var(&c.uid, "uid", -1, "owner of all files (default: as at the source)")
	f.Int64Var(&c.gid, "gid", -1, "group of all files (default: as at the source)")
	f.StringVar(&c.umask, "umask", "0", "permission bits to take away, octal")
	f.Var(&c.readAhead, "read-ahead", "bytes that the kernel reads ahead of a sequential reader of a view; root only, 0 is the kernel's own (128KiB)")
	f.Lookup("read-ahead").DefValue = "512KiB for root" // the same words for all users
	c.addLogFlags(cmd)
	addSourceFlags(f, &c.cache)
	f.StringArrayVarP(&c.options, "options", "o", nil, "options as mount(8) passes them, separated by commas")
}

// takeOptions applies the words of -o, and what follows from all flags.
func (c *mountCommand) takeOptions(flags *pflag.FlagSet) error {
	for _, o := range c.options {
		kernel, err := c.applyOptions(o, flags)
		if err != nil {
			return err
		}
		c.kernelOptions = append(c.kernelOptions, kernel...)
	}
	c.noKeeper = c.noKeeper || c.foreground && !flags.Changed("no-keeper")
	return nil
}

func (c *mountCommand) addLogFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.logFile, "log-file", "", "file that the log is appended to (default in the background: /var/log/hbmfs.log for root, else hbmfs/hbmfs.log in XDG_STATE_HOME)")
	addChoice(cmd, &c.logLevel, "log-level", "info", "debug, info, warn or error", "debug", "info", "warn", "error")
}

func (c *mountCommand) run(ctx context.Context) error {
	opt, err := c.mountOptions()
	if err != nil {
		return err
	}
	life, err := handover.Inherited()
	if err == nil && life.Adopts() {
		err = errors.Join(life.Load(&c.places), life.Load(&c.selected))
		c.source, c.point, c.logFile, c.cache.CacheDir = c.places.Source, c.places.Point, c.places.Log, c.places.CacheDir
	} else if err == nil {
		if err = c.selected.Read(c.selections); err != nil {
			return sourceUse(err)
		}
		err = c.checkPlaces(ctx)
		if err == nil && !c.foreground && os.Getenv(ready.Env) == "" {
			return (&background.Start{Point: c.point, LogName: c.logName(), Log: c.openLog, Stdout: c.stdout, Stderr: c.stderr}).Run(ctx)
		}
		c.places = dataset.Places{Source: c.source, Point: c.point, Log: c.logFile, CacheDir: c.cache.CacheDir}
		err = errors.Join(err, c.places.Absolute())
	}
	if errors.Is(err, handover.ErrNoTurn) {
		return onmount.Ended(exitFailed) // nobody needs to hear of it
	}
	if err != nil {
		life.Failed(err)
		return err
	}
	if life == nil && !c.noKeeper && os.Geteuid() == 0 {
		life = handover.New()
	}
	if c.noSpare || c.checkpoints || c.kv.on { // of a volume the state changes with each draft or block
		life.NoSpare()
	}
	report := ready.New(c.foreground)
	defer report.Close()
	opt.Life, c.cache.Life, opt.Layout.Select = life, life, c.selected.List
	err = c.serve(ctx, opt, report)
	if errors.Is(err, handover.ErrNoTurn) {
		return onmount.Ended(exitFailed) // nobody needs to hear of it
	}
	if err != nil {
		life.Failed(err)
	}
	if err != nil && report.Failed(err) && !c.foreground { // the command that started this one says it
		return onmount.Ended(exitCode(err))
	}
	return err
}

// checkPlaces makes sure that something can be mounted on the mount point, and that neither it nor the source lies in a mount
// whose daemon is stuck.
func (c *mountCommand) checkPlaces(ctx context.Context) error {
	place, err := fs.Locate(c.point)
	if err != nil {
		return err
	}
	c.point = place.Path
	if place.HBMFS() {
		if err := c.clearDead(ctx, place); err != nil {
			return err
		}
	}
	if os.Getenv(ready.Env) == "" { // the command that started this one has asked
		mounts, err := onmount.Mounts([]string{c.source, c.point})
		if err == nil {
			err = onmount.Await(ctx, mounts, c.stderr)
		}
		if err != nil {
			return err
		}
	}
	c.notes, err = dataset.CheckPoint(c.point, c.source)
	if err == nil {
		err = c.drain.check(c.checkpoints)
	}
	if err == nil {
		err = c.checkKV()
	}
	if err == nil && c.checkpoints {
		err = c.checkVolume("--checkpoints", "drafts are", "files have the owners who wrote them")
	} else if err == nil && c.draftLife != lifeMount {
		err = usageError{errors.New("--draft-life is about drafts, which a mount with --checkpoints has: give both")}
	}
	return err
}

// clearDead takes the mount away that is at the mount point, if its daemon is gone. Readers that still hold passthrough files
// go on.
func (c *mountCommand) clearDead(ctx context.Context, place *fs.Place) error {
	switch a := onmount.Ask(ctx, place.Path); {
	case ctx.Err() != nil:
		return ctx.Err()
	case a.State == aside.Silent:
		daemon, err := fs.FindDaemon(place.On)
		if err != nil && !errors.Is(err, fs.ErrUntold) {
			return err
		}
		if daemon != nil {
			defer daemon.Close()
		}
		return fmt.Errorf("%s is an hbmfs mount already, and %s: hbmfs umount --force %s takes it away", c.point, onmount.Silence(place, daemon), c.point)
	case a.State != aside.Dead:
		return fmt.Errorf("%s is an hbmfs mount already: hbmfs umount %s takes it away", c.point, c.point)
	}
	if err := fs.Detach(c.point); err != nil {
		return fmt.Errorf("take the dead mount at %s away: %w", c.point, err)
	}
	fmt.Fprintf(c.stderr, "hbmfs: took away a mount at %s whose daemon was gone; the end of its log says why (%s, unless it was told another)\n", c.point, defaultLogFile())
	return nil
}

func (c *mountCommand) mountOptions() (fs.Options, error) {
	opt := fs.Options{
		Name: c.fsName, ShowViews: c.showViews, AllowOther: c.allowOther,
		ReadAhead: int(c.readAhead), Extra: c.kernelOptions, Helper: bindHelper(), Version: version,
	}
	var err error
	if opt.Layout, err = layoutOptions(c.format, c.dtype); err != nil {
		return opt, err
	}
	umask, err := strconv.ParseUint(c.umask, 8, 16)
	if err != nil || umask > 0o777 {
		return opt, usageError{fmt.Errorf("umask %q is not an octal number up to 777", c.umask)}
	}
	opt.Umask = uint16(umask)
	for _, id := range []struct {
		name string
		from int64
		to   **uint32
	}{{"uid", c.uid, &opt.UID}, {"gid", c.gid, &opt.GID}} {
		if id.from == -1 {
			continue
		}
		if id.from < 0 || id.from > 1<<32-2 {
			return opt, usageError{fmt.Errorf("%s %d is out of range: want 0 to %d, or -1 for the source's own", id.name, id.from, uint32(1<<32-2))}
		}
		v := uint32(id.from)
		*id.to = &v
	}
	return opt, nil
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
			return opt, usageError{err}
		}
	}
	return opt, nil
}

// sourceUse tells mistakes of the command line from failures.
func sourceUse(err error) error {
	if wrong := (dataset.WrongUse{}); errors.As(err, &wrong) {
		return usageError{err}
	}
	return err
}

// serve mounts, reports that the mount is ready, and stays until it is unmounted.
func (c *mountCommand) serve(ctx context.Context, opt fs.Options, report *ready.Report) error {
	out, closeLog, err := c.openLog()
	if err != nil {
		return err
	}
	defer closeLog()
	opt.Log = c.newLog(out)
	began := time.Now()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)

	if err := c.awaitTurn(ctx, opt.Life); err != nil {
		return err
	}
	tracer := openTracer(opt.Log)
	defer closeTracer(tracer)
	ctx, span := tracer.Start(ctx, "mount") // of a spare, with the wait for its turn
	c.cache.MaxOpen = maxOpenFiles()
	from, err := c.open(ctx, &opt, report.Note, tracer)
	if err != nil {
		span.End("source")
		return sourceError{sourceUse(err)}
	}
	defer from.close()
	opt.Trace = tracer
	m, err := c.begin(ctx, from, opt)
	if err == nil || m == nil && !opt.Life.Adopts() { // otherwise the mount is there, and a look at it waits for this daemon
		defer c.places.RemovePoint()
	}
	if err != nil {
		span.End("mount")
		return err
	}
	if opt.Life.Spare() {
		began = time.Now() // it has waited for its turn
	}
	keepIdleProcessor()
	served := make(chan struct{})
	go func() {
		defer close(served)
		m.Serve(ctx)
	}()
	<-m.Ready()
	defer from.beside(ctx)()
	if !c.foreground {
		if err := background.StayBehind(out); err != nil {
			opt.Log.Warn("the daemon still depends on the place where it was started", "error", err)
		}
	}
	defer m.Hold(ctx, &c.places, &c.selected, from.state())()
	bytes := from.listing.Bytes()
	span.Int("files", int64(len(from.listing.Objects))).Int("bytes", bytes).End("")
	opt.Log.Info("mounted", "source", c.source, "files", len(from.listing.Objects), "bytes", bytes, "seconds", time.Since(began).Seconds(), "version", version)
	c.tellReady(ctx, m, from, report, time.Since(began))
	err = c.untilUnmounted(m, opt.Log, signals, served)
	if err == nil {
		from.ended()
	}
	opt.Log.Info("unmounted", "seconds", time.Since(began).Seconds())
	return err
}

// begin makes the mount of a source.
func (c *mountCommand) begin(ctx context.Context, from *mountSource, opt fs.Options) (*fs.Mount, error) {
	if err := c.places.MakePoint(); err != nil {
		return nil, err
	}
	m, err := fs.New(ctx, c.point, from.listing, opt)
	if err != nil {
		return nil, err
	}
	return m, from.mounted()
}

// tellReady reports that the mount can be used, and what is soon found wrong with it.
func (c *mountCommand) tellReady(ctx context.Context, m *fs.Mount, from *mountSource, report *ready.Report, took time.Duration) {
	report.Ready(fmt.Sprintf("%s is mounted on %s: %s, in %.2f s", c.source, c.point, from.what(), took.Seconds()))
	if !c.foreground {
		background.TellNotes(ctx, m, report)
	}
	report.Close()
}

// awaitTurn has a spare wait before it opens a cache: two daemons of one mount would each evict what the other keeps.
func (c *mountCommand) awaitTurn(ctx context.Context, life *handover.Life) error {
	if !life.Spare() || c.cache.CacheDir == "" {
		return nil
	}
	_, err := life.Prepared(ctx, func() error { return nil })
	return err
}

// keepIdleProcessor raises GOMAXPROCS above the number of threads that wait for requests. go-fuse keeps as many as GOMAXPROCS
// and one more, 3 at least. Where no processor of Go's scheduler is idle, its monitor wakes every 20 us and takes processors
// from the waiting threads. That is a quarter of the daemon's CPU time for opening and closing a small file.
func keepIdleProcessor() { runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 2) + 2) }

// untilUnmounted waits for the end of the mount. The first signal unmounts it; if it is in use, it is taken out of the
// tree and served until the last file is closed. A second signal ends the daemon at once.
func (c *mountCommand) untilUnmounted(m *fs.Mount, log *slog.Logger, signals <-chan os.Signal, served <-chan struct{}) error {
	for asked := 0; ; asked++ {
		select {
		case <-served:
			return nil
		case s := <-signals:
			if asked > 0 {
				return fmt.Errorf("ended by a second %v with files open", s)
			}
			err := m.Unmount()
			if errors.Is(err, fs.ErrBusy) {
				log.Warn("detached; serving until the last file is closed", "signal", s.String(), "reason", err)
				err = m.Detach()
			}
			if err != nil {
				log.Error("cannot unmount", "error", err)
			}
		}
	}
}

// defaultReadAhead is four times the kernel's, so that the first sequential read of a view is faster. More would cost cold
// random page faults in mappings, which read as much. Only root can set it.
func defaultReadAhead() size.Amount {
	if os.Geteuid() != 0 {
		return 0
	}
	return 512 << 10
}

// maxOpenFiles is how many backing files may stay open for reads through the daemon: half of what the process may have,
// since pipes, the kernel's connection and the log need some too.
func maxOpenFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 128
	}
	return int(min(limit.Cur/2, 4096))
}
