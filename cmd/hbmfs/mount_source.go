package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/fs/checkpoints"
	"github.com/hbmfs/hbmfs/internal/dataset"
	"github.com/hbmfs/hbmfs/internal/drain"
	"github.com/hbmfs/hbmfs/internal/handover"
	"github.com/hbmfs/hbmfs/internal/size"
	"github.com/hbmfs/hbmfs/internal/trace"
)

// mountSource is what a mount shows: a dataset, a directory of checkpoints, or a KV volume.
type mountSource struct {
	listing *cache.Listing
	what    func() string                // in a few words
	mounted func() error                 // before anybody serves the mount
	beside  func(context.Context) func() // runs what is needed beside the mount
	state   func() handover.State
	ended   func() // after the mount
	close   func()
}

// open opens the source, and sets the options of the mount that depend on it.
func (c *mountCommand) open(ctx context.Context, opt *fs.Options, note func(string), tracer *trace.Tracer) (*mountSource, error) {
	if c.checkpoints {
		return c.openCheckpoints(ctx, opt)
	}
	if c.kv.on {
		return c.openKV(opt)
	}
	from, err := dataset.Open(ctx, c.source, &c.cache, opt.Log, note, tracer)
	if err != nil {
		return nil, err
	}
	opt.Source, opt.Remote, opt.Notes = from.Name, from.Remote, append(c.notes, from.Notes...)
	return &mountSource{
		listing: from.Listing,
		what: func() string {
			return fmt.Sprintf("%d files, %s", len(from.Listing.Objects), size.Decimal(from.Listing.Bytes()))
		},
		mounted: func() error { return nil },
		beside:  from.Beside,
		state:   from.State,
		ended:   func() {},
		close:   func() { _ = from.Close() }, // opened for reading: nothing is lost
	}, nil
}

// openCheckpoints opens a directory of checkpoints.
func (c *mountCommand) openCheckpoints(ctx context.Context, opt *fs.Options) (*mountSource, error) {
	var v *checkpoints.Volume
	use := checkpoints.Options{MaxOpen: maxOpenFiles(), Log: opt.Log, Life: opt.Life, Containers: c.draftLife == lifeContainer}
	to, err := c.openDrain(opt.Log, func(ctx context.Context, path string) error { return v.Remove(ctx, filepath.Base(path)) })
	if err != nil {
		return nil, err
	}
	beside := func(context.Context) func() { return func() {} }
	if to != nil {
		use.Published, use.State, use.Drain = to.Published, to.State, to.Status
		beside = func(ctx context.Context) func() { return runDrain(ctx, to) }
	}
	if v, err = checkpoints.Open(ctx, c.source, use); err != nil {
		return nil, err
	}
	opt.Source, opt.Top, opt.Drafts, opt.Notes = v.Path(), v, v.Fast(), append(c.notes, v.Notes()...)
	return &mountSource{
		listing: v.Listing(),
		what: func() string {
			published, _, _ := v.Home().Names() // it is but a number
			return fmt.Sprintf("%d checkpoints", len(published))
		},
		mounted: v.Begin,
		beside:  beside,
		state:   v.State,
		ended:   v.End,
		close:   func() { _ = v.Close() }, // nothing is lost
	}, nil
}

// What drafts end with.
const (
	lifeMount     = "mount"
	lifeContainer = "container"
)

// openDrain makes what copies checkpoints to --drain, nil where nothing does. Nothing is asked of the destination yet.
func (c *mountCommand) openDrain(log *slog.Logger, remove func(context.Context, string) error) (*drain.Drain, error) {
	if c.drain.to == "" {
		return nil, nil
	}
	guard, err := c.cache.Guard()
	if err != nil {
		return nil, err
	}
	d, err := drain.New(c.source, c.drain.to, drain.Options{
		Rate: int64(c.drain.rate), Keep: c.drain.keep, Connections: c.cache.Connections, TakeOver: c.drain.takeOver, Log: log, Guard: guard, Remove: remove,
	})
	if err != nil {
		return nil, usageError{fmt.Errorf("--drain: %w", err)}
	}
	return d, nil
}

// runDrain runs a drain until the function that it returns is called.
func runDrain(ctx context.Context, d *drain.Drain) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		d.Run(ctx)
	}()
	return func() {
		cancel()
		<-over
		_ = d.Close() // its journals were written
	}
}

// drainFlags are --drain and what belongs to it.
type drainFlags struct {
	to       string
	keep     int
	rate     drainRate
	takeOver bool
}

func (d *drainFlags) add(f *pflag.FlagSet) {
	f.StringVar(&d.to, "drain", "", "with --checkpoints: copy what is published to s3://BUCKET/RUN, in the background; hbmfs checkpoint drain --help says how")
	f.IntVar(&d.keep, "keep", 0, "with --drain: checkpoints that stay on the disk, the newest by the numbers in their names. Older ones are removed when they are at the destination, and never before (default: all)")
	f.Var(&d.rate, "drain-rate", "with --drain: bytes per second that it reads and sends, such as 500MB/s; auto, or none")
	f.BoolVar(&d.takeOver, "drain-take-over", false, "with --drain: drain to a place that another directory has drained to, which is gone for good")
}

// check refuses them where they are of no use.
func (d *drainFlags) check(checkpoints bool) error {
	switch {
	case d.to != "" && !checkpoints:
		return usageError{errors.New("--drain copies the checkpoints of a mount with --checkpoints: give both, or hbmfs checkpoint drain without a mount")}
	case d.to == "" && (d.keep != 0 || d.rate != drain.Auto || d.takeOver):
		return usageError{errors.New("--keep, --drain-rate and --drain-take-over belong to --drain: give that, too")}
	case d.keep < 0:
		return usageError{fmt.Errorf("--keep %d: want a number of checkpoints", d.keep)}
	}
	return nil
}

// checkVolume refuses a source and flags that are of no use for a volume that programs write to. what are written, and owners says why files have theirs.
func (c *mountCommand) checkVolume(flag, what, owners string) error {
	if dataset.IsRemote(c.source) {
		return usageError{fmt.Errorf("%s: %s is an address, and %s written to a local disk: name a directory", flag, c.source, what)}
	}
	if c.format != "" || len(c.selections) > 0 || c.cache.CacheDir != "" || c.uid >= 0 || c.gid >= 0 {
		return usageError{fmt.Errorf("%s goes without --format, --select, --cache-dir, --uid and --gid: %s", flag, owners)}
	}
	source, err := os.Stat(c.source)
	if err != nil {
		return fmt.Errorf("open the directory of %s (mkdir -p makes it): %w", flag, err)
	}
	if !source.IsDir() {
		return fmt.Errorf("%s: %s is no directory", flag, c.source)
	}
	point, err := os.Stat(c.point)
	if err == nil && os.SameFile(source, point) {
		return fmt.Errorf("%s: %s cannot be mounted on itself: name another mount point", flag, c.source)
	}
	abs, err := filepath.Abs(c.source)
	if err != nil {
		return err
	}
	if rel, err := filepath.Rel(abs, c.point); err == nil && filepath.IsLocal(rel) {
		return fmt.Errorf("%s: the mount point %s lies in the directory itself: name one outside", flag, c.point)
	}
	return nil
}
