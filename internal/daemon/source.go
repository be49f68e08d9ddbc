package daemon

import (
	"context"
	"fmt"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/daemon/dataset"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// source is the source of a mount: a dataset, a directory of checkpoints, or a KV volume.
type source struct {
	listing *cache.Listing
	what    func() string // in a few words
	state   func() handover.State
	close   func()

	// These are nil where there is nothing to do.
	mounted func() error          // before anybody serves the mount
	run     func(context.Context) // beside the mount
	ended   func()                // after the mount
}

// open opens the source, and sets the options of the mount that depend on it.
func (m *Mount) open(ctx context.Context, opt *fs.Options, note func(string)) (*source, error) {
	switch {
	case m.Checkpoints.On:
		return m.openCheckpoints(ctx, opt)
	case m.KV.On:
		return m.openKV(opt)
	}
	m.Dataset.Life, m.Dataset.MaxOpen = opt.Life, dataset.MaxOpenFiles()
	from, err := dataset.Open(ctx, m.Source, &m.Dataset, opt.Log, note, opt.Trace)
	if err != nil {
		return nil, err
	}
	opt.Source, opt.Remote.Origin, opt.Notes = from.Name, from.Origin, append(m.notes, from.Notes...)
	if from.Cache != nil {
		opt.Remote.Cache = from.Cache
	}
	return &source{
		listing: from.Listing,
		what: func() string {
			return fmt.Sprintf("%d files, %s", len(from.Listing.Objects), size.Decimal(from.Listing.Bytes()))
		},
		run:   from.Serve,
		state: from.State,
		close: func() { _ = from.Close() }, // opened for reading: nothing is lost
	}, nil
}

// runBeside runs the services beside the mount, until the function that it returns is called.
func (s *source) runBeside(ctx context.Context) (stop func()) {
	if s.run == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := beside(func() { s.run(ctx) })
	return func() { cancel(); <-over }
}
