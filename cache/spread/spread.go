package spread

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/layout"
)

// share is the part of an object, bytes, that belongs to one cache. All nodes must agree on it.
const share = 64 << 20

// Upstream is an origin that caches may stand before.
type Upstream interface {
	fetch.Getter
	List(ctx context.Context) (*cache.Listing, error)
	// Through returns a getter of the same objects that asks the server at endpoint, a URL.
	Through(endpoint string) (fetch.Getter, error)
	String() string
	Close() error
}

// Spread is an origin that is read through caches. It is safe for concurrent use.
type Spread struct {
	*fetch.Client // which asks by Get, and reads

	up     Upstream
	caches []*server
	origin *server
}

// Open makes an origin of one and the caches before it. Nothing is asked of them yet.
func Open(up Upstream, endpoints []string, opt fetch.Options) (*Spread, error) {
	o := &Spread{up: up, origin: &server{name: up.String(), getter: up}}
	opt.Share, opt.NoHedging = share, true // a second request would go to the same cache, or have another fetch the same bytes
	if opt.Stall == 0 {                    // a cache may wait for the origin, and many nodes for the cache
		opt.Stall = min(30*time.Second, opt.Patience/4)
	}
	o.Client = fetch.New(o, opt)
	for _, endpoint := range endpoints {
		getter, err := up.Through(endpoint)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(o.caches, func(s *server) bool { return s.name == endpoint }) {
			return nil, fmt.Errorf("cache %s: it is given twice: %w", endpoint, fs.ErrInvalid)
		}
		o.caches = append(o.caches, &server{name: endpoint, getter: getter, limit: o.Stall() / 2})
	}
	return o, nil
}

// Through implements [Upstream]: another row of caches would stand before these.
func (o *Spread) Through(endpoint string) (fetch.Getter, error) { return o.up.Through(endpoint) }

// Upstream is the origin behind the caches.
func (o *Spread) Upstream() Upstream { return o.up }

// String is the origin's name: its cached bytes are the same, whichever way they came.
func (o *Spread) String() string { return o.up.String() }

// Close ends idle connections.
func (o *Spread) Close() error { return o.up.Close() }

// List lists the origin, and asks each cache for a byte of ten objects. So one whose versions are others is left out before
// anybody waits for it.
func (o *Spread) List(ctx context.Context) (*cache.Listing, error) {
	l, err := o.up.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, obj := range l.Objects {
		obj.Origin = o
	}
	o.Answered()
	var all sync.WaitGroup
	for s, places := range o.probes(l.Objects) {
		all.Go(func() { s.probe(ctx, places) })
	}
	all.Wait()
	return l, ctx.Err()
}

// probe is a byte of an object.
type probe struct {
	object *layout.Object
	off    int64
}

// probes chooses objects for each cache, ten where there are as many, from among its own shares: nothing is brought that
// would not be anyway.
func (o *Spread) probes(objects []*layout.Object) map[*server][]probe {
	out := map[*server][]probe{}
	tries := min(len(objects), 20*mostOther*len(o.caches))
	for i := range tries {
		obj := objects[i*len(objects)/tries]
		for off := int64(0); off < obj.Size && off < int64(len(o.caches))*share; off += share {
			s := o.order(obj.Name, off/share)[0]
			if n := len(out[s]); n < mostOther && (n == 0 || out[s][n-1].object != obj) {
				out[s] = append(out[s], probe{obj, off})
			}
		}
	}
	return out
}

func (s *server) probe(ctx context.Context, places []probe) {
	for _, p := range places {
		if !s.usable(p.object.Name) {
			continue
		}
		if a, err := s.get(ctx, p.object, p.off, 1); err == nil {
			_ = a.Body.Close() // the version is known
			a.Ended(nil)
		}
	}
}

// Notes tell the user at mount which caches are passed over.
func (o *Spread) Notes() (notes []string) {
	for _, s := range o.caches {
		if e := s.said(); e.Out != "" {
			notes = append(notes, fmt.Sprintf("the cache %s is passed over: %s", e.Name, e.Out))
		}
	}
	return notes
}

// Stats are those of all requests, and of each server.
func (o *Spread) Stats() status.OriginTotals {
	stats := o.Client.Stats()
	for _, s := range append(slices.Clone(o.caches), o.origin) {
		stats.Endpoints = append(stats.Endpoints, s.said())
	}
	return stats
}

// order is the caches in the order in which they are asked for a share of an object (rendezvous hashing).
func (o *Spread) order(object string, part int64) []*server {
	key := "\x00" + object + "\x00" + strconv.FormatInt(part, 10)
	type scored struct {
		*server
		score uint64
	}
	list := make([]scored, len(o.caches))
	for i, s := range o.caches {
		list[i] = scored{s, xxhash.Sum64String(s.name + key)}
	}
	slices.SortFunc(list, func(a, b scored) int { return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.name, b.name)) })
	out := make([]*server, len(list))
	for i, s := range list {
		out[i] = s.server
	}
	return out
}
