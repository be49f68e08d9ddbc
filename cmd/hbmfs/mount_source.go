package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/fs/checkpoints"
	"github.com/hbmfs/hbmfs/internal/dataset"
	"github.com/hbmfs/hbmfs/internal/handover"
	"github.com/hbmfs/hbmfs/internal/size"
	"github.com/hbmfs/hbmfs/internal/trace"
)

// mountSource is what a mount shows: a dataset, or a directory of checkpoints.
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
	v, err := checkpoints.Open(ctx, c.source, checkpoints.Options{MaxOpen: maxOpenFiles(), Log: opt.Log, Life: opt.Life})
	if err != nil {
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
		beside:  func(context.Context) func() { return func() {} },
		state:   v.State,
		ended:   v.End,
		close:   func() { _ = v.Close() }, // nothing is lost
	}, nil
}

// checkCheckpoints refuses a source and flags that are of no use for checkpoints.
func (c *mountCommand) checkCheckpoints() error {
	if dataset.IsRemote(c.source) {
		return usageError{fmt.Errorf("--checkpoints: %s is an address, and drafts are written to a local disk: name a directory", c.source)}
	}
	if c.format != "" || len(c.selections) > 0 || c.cache.CacheDir != "" || c.uid >= 0 || c.gid >= 0 {
		return usageError{errors.New("--checkpoints goes without --format, --select, --cache-dir, --uid and --gid: files have the owners who wrote them")}
	}
	source, err := os.Stat(c.source)
	if err != nil {
		return fmt.Errorf("open the checkpoint directory (mkdir -p makes it): %w", err)
	}
	if !source.IsDir() {
		return fmt.Errorf("--checkpoints: %s is no directory", c.source)
	}
	point, err := os.Stat(c.point)
	if err == nil && os.SameFile(source, point) {
		return fmt.Errorf("--checkpoints: %s cannot be mounted on itself: name another mount point", c.source)
	}
	abs, err := filepath.Abs(c.source)
	if err != nil {
		return err
	}
	if rel, err := filepath.Rel(abs, c.point); err == nil && filepath.IsLocal(rel) {
		return fmt.Errorf("--checkpoints: the mount point %s lies in the directory itself: name one outside", c.point)
	}
	return nil
}
