package fs

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// recognition finds the formats of a dataset, once.
type recognition struct {
	opt     *Options
	listing *cache.Listing
	indexed once
	volume  atomic.Pointer[layout.Volume]
	made    atomic.Bool            // the views, or it failed
	failed  atomic.Pointer[string] // why
	looked  chan struct{}          // closed when look is over
}

// index recognizes the dataset, once.
func (r *recognition) index(ctx context.Context) (*layout.Volume, error) {
	err := r.indexed.do(ctx, func(ctx context.Context) error {
		began := time.Now()
		ctx, span := r.opt.Trace.Start(ctx, "index")
		v, err := layout.Index(ctx, r.listing.Objects, r.opt.Layout)
		span.Int("objects", int64(len(r.listing.Objects)))
		if err != nil {
			span.End("failed")
			return err
		}
		logProblems(r.opt.Log, v.Problems())
		r.opt.Log.Info("dataset recognized", "objects", len(v.Objects), "sets", len(v.Sets), "views", len(v.Views), "seconds", time.Since(began).Seconds())
		r.volume.Store(v)
		span.Int("sets", int64(len(v.Sets))).Int("views", int64(len(v.Views))).End("")
		return nil
	})
	return r.volume.Load(), err
}

// lookTime bounds how long a mount reads indexes of shards that nobody has asked for, to find bad ones. Views read the
// others.
const lookTime = 400 * time.Millisecond

// look reads the indexes of local shards for lookTime. The views use them later.
func (r *recognition) look(ctx context.Context) {
	v := r.volume.Load()
	if v == nil || r.opt.Remote.Origin != nil { // there each costs a request
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	known := map[layout.Problem]bool{}
	for _, p := range v.Problems() {
		known[p] = true
	}
	for _, s := range v.Sets {
		if s.Resolve(ctx) != nil { // bad shards are problems: the error is the time's
			break
		}
	}
	logProblems(r.opt.Log, slices.DeleteFunc(v.Problems(), func(p layout.Problem) bool { return known[p] }))
}

func logProblems(log *slog.Logger, problems []layout.Problem) {
	for _, p := range problems {
		log.Warn("problem in the dataset", "object", p.Object, "offset", p.Offset, "problem", p.Detail)
	}
}
