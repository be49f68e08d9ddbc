package fanout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Cluster is nodes that read one dataset at once.
type Cluster struct {
	Nodes  int     `json:"nodes"`
	Size   int64   `json:"bytes"`                   // of the dataset
	Origin float64 `json:"origin_bytes_per_second"` // to all together
	Cache  float64 `json:"cache_bytes_per_second"`  // of one, to all nodes
	Node   float64 `json:"node_bytes_per_second"`   // what one node takes in
}

// Row is a cluster with so many caches.
type Row struct {
	Caches    int     `json:"caches"`
	FromHere  float64 `json:"origin_sends"`          // times the dataset
	Keeps     int64   `json:"cache_keeps_bytes"`     // each
	Carries   int64   `json:"cache_sends_bytes"`     // each, to nodes
	Time      float64 `json:"time_s"`                // to the last node, by calculation
	Binds     string  `json:"binds"`                 // node, origin or caches
	InStep    float64 `json:"time_in_step_s"`        // by simulation: all nodes read in the same order
	Elsewhere float64 `json:"time_each_elsewhere_s"` // each begins with another object
	Enough    bool    `json:"enough"`                // the fewest with which nodes that begin elsewhere come within 10% of the best
}

// Report is one cluster with several numbers of caches. The first row has none.
type Report struct {
	Cluster
	Rows []Row `json:"rows"`
}

const (
	share      = 64 << 20 // of cache/spread
	mostNodes  = 10_000
	mostCaches = 1024
	enough     = 1.1
)

// Build computes and simulates a cluster without caches and with 1, 2, 4 and so on, until more do not help.
func Build(ctx context.Context, c Cluster) (*Report, error) {
	if c.Nodes < 1 || c.Nodes > mostNodes {
		return nil, fmt.Errorf("%d nodes: give 1 to %d", c.Nodes, mostNodes)
	}
	if c.Size < 1 || c.Size > 1e18 || !positive(c.Origin) || !positive(c.Cache) || !positive(c.Node) {
		return nil, errors.New("the size of the dataset and all rates are above zero, and at most 10^18 bytes and 10^15 bytes per second")
	}
	r := &Report{Cluster: c}
	most := min(mostCaches, max(1, int((c.Size+share-1)/share)))
	for caches := 0; caches <= most; caches = max(1, 2*caches) {
		row := c.row(caches)
		var err error
		if row.InStep, err = c.simulate(ctx, caches, false); err == nil {
			row.Elsewhere, err = c.simulate(ctx, caches, true)
		}
		if err != nil {
			return nil, err
		}
		r.Rows = append(r.Rows, row)
		if n := len(r.Rows); n > 3 && row.Binds != "caches" && r.Rows[n-2].Binds != "caches" && row.Elsewhere > 0.98*r.Rows[n-2].Elsewhere {
			break
		}
	}
	best := math.Inf(1)
	for _, row := range r.Rows {
		best = min(best, row.Elsewhere)
	}
	if i := slices.IndexFunc(r.Rows, func(row Row) bool { return row.Elsewhere <= enough*best }); i >= 0 {
		r.Rows[i].Enough = true
	}
	return r, nil
}

func positive(rate float64) bool { return rate > 0 && rate <= 1e15 }

// row is the calculation.
func (c *Cluster) row(caches int) Row {
	size, nodes := float64(c.Size), float64(c.Nodes)
	row := Row{Caches: caches, FromHere: nodes, Time: size / c.Node, Binds: "node"}
	binds := func(name string, time float64) {
		if time > row.Time {
			row.Time, row.Binds = time, name
		}
	}
	if caches > 0 {
		row.FromHere = 1
		row.Keeps, row.Carries = int64(size/float64(caches)), int64(size*nodes/float64(caches))
		binds("caches", size*nodes/float64(caches)/c.Cache)
	}
	binds("origin", row.FromHere*size/c.Origin)
	return row
}
