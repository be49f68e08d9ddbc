package daemon

import (
	"context"
	"fmt"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/fs/checkpoints"
	"github.com/hbmfs/hbmfs/internal/daemon/dataset"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/internal/volume/drain"
)

// Checkpoints say that the source is a directory of checkpoints, where programs write.
type Checkpoints struct {
	On         bool
	Containers bool // drafts end with the container in which they were begun, and not with the mount

	Drain    string // where published checkpoints are copied to, s3://BUCKET/RUN
	Keep     int    // checkpoints that stay on the disk; 0 for all
	Rate     int64  // of the drain, as [drain.Options] has it
	TakeOver bool   // the place belonged to another directory, which is gone
}

// check refuses sources that cannot be a volume of checkpoints, and flags that need one.
func (c *Checkpoints) check(m *Mount) error {
	switch {
	case c.Drain == "" && (c.Keep != 0 || c.Rate != drain.Auto || c.TakeOver):
		return cli.Mistakef("--keep, --drain-rate and --drain-take-over belong to --drain: give that, too")
	case c.Keep < 0:
		return cli.Mistakef("--keep %d: want a number of checkpoints", c.Keep)
	case c.On:
		return m.checkVolume("a checkpoint volume", "drafts are", "files have the owners who wrote them")
	}
	return nil
}

// openCheckpoints opens a directory of checkpoints.
func (m *Mount) openCheckpoints(ctx context.Context, opt *fs.Options) (*source, error) {
	var v *checkpoints.Volume
	use := checkpoints.Options{MaxOpen: dataset.MaxOpenFiles(), Log: opt.Log, Life: opt.Life, Containers: m.Checkpoints.Containers}
	to, err := m.openDrain(drain.Options{
		Log: opt.Log, Begin: func(name string) (func(), error) { return v.Drains(name) },
		Remove: func(ctx context.Context, c *checkpoint.Checkpoint) error { return v.Remove(ctx, c) },
	})
	if err != nil {
		return nil, err
	}
	var run func(context.Context)
	if to != nil {
		use.Published, use.State, use.Drain = to.Published, to.State, to.Status
		run = func(ctx context.Context) {
			to.Run(ctx)
			_ = to.Close() // its journals were written
		}
	}
	if v, err = checkpoints.Open(ctx, m.Source, use); err != nil {
		return nil, err
	}
	opt.Source, opt.Top, opt.Drafts, opt.Notes = v.Path(), v, v.Fast(), append(m.notes, v.Notes()...)
	return &source{
		listing: v.Listing(),
		what: func() string {
			published, _, _ := v.Home().Names() // it is but a number
			return fmt.Sprintf("%d checkpoints", len(published))
		},
		mounted: v.Begin,
		run:     run,
		state:   v.State,
		ended:   v.End,
		close:   func() { _ = v.Close() }, // nothing is lost
	}, nil
}

// openDrain makes the drain that copies checkpoints to the destination, nil without one. Nothing is asked of the destination
// yet.
func (m *Mount) openDrain(opt drain.Options) (*drain.Drain, error) {
	c := &m.Checkpoints
	if c.Drain == "" {
		return nil, nil
	}
	guard, err := m.Dataset.Guard()
	if err != nil {
		return nil, err
	}
	opt.Rate, opt.Keep, opt.Connections, opt.TakeOver, opt.Guard = c.Rate, c.Keep, m.Dataset.Connections, c.TakeOver, guard
	d, err := drain.New(m.Source, c.Drain, opt)
	if err != nil {
		return nil, cli.Mistakef("--drain: %w", err)
	}
	return d, nil
}
