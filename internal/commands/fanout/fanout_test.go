package fanout

import (
	"context"
	"errors"
	"math"
	"testing"
)

func near(a, b, part float64) bool { return math.Abs(a-b) <= part*b }

// TestBounds compares the simulation with the calculation, where that is exact: it is never faster, and as fast where one stage binds.
func TestBounds(t *testing.T) {
	for name, c := range map[string]struct {
		Cluster
		caches int
		binds  string
		within float64 // of the calculation, for nodes that begin elsewhere
	}{
		"origin alone":      {Cluster{8, 4 << 30, 100e6, 1e9, 1e9}, 0, "origin", 0.02},
		"one node":          {Cluster{1, 4 << 30, 1e9, 1e9, 100e6}, 4, "node", 0.02},
		"the origin, once":  {Cluster{8, 4 << 30, 100e6, 1e9, 1e9}, 2, "origin", 0.3},
		"one cache":         {Cluster{20, 16 << 30, 1e9, 1e9, 1e9}, 1, "caches", 0.02},
		"the nodes":         {Cluster{16, 32 << 30, 1e10, 1e10, 1e9}, 8, "node", 0.1},
		"some shares twice": {Cluster{40, 16 << 30, 1e9, 1e9, 1e9}, 8, "caches", 0.6},
	} {
		row := c.row(c.caches)
		if row.Binds != c.binds {
			t.Errorf("%s: %s binds, want %s", name, row.Binds, c.binds)
		}
		for _, elsewhere := range []bool{false, true} {
			took, err := c.simulate(t.Context(), c.caches, elsewhere)
			if err != nil {
				t.Fatal(err)
			}
			if took < 0.99*row.Time || elsewhere && took > (1+c.within)*row.Time {
				t.Errorf("%s, elsewhere %v: %.1f s simulated, %.1f s computed", name, elsewhere, took, row.Time)
			}
		}
	}
}

// TestInStep has all nodes read in the same order: they ask few caches at a time, so it takes longer than where each begins elsewhere.
func TestInStep(t *testing.T) {
	c := Cluster{64, 16 << 30, 1e10, 1e9, 1e9}
	inStep, err := c.simulate(t.Context(), 32, false)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := c.simulate(t.Context(), 32, true)
	if err != nil {
		t.Fatal(err)
	}
	if elsewhere > inStep {
		t.Errorf("%.0f s in step, %.0f s elsewhere", inStep, elsewhere)
	}
}

func TestReport(t *testing.T) {
	r, err := Build(t.Context(), Cluster{20, 2e9, 1.25e9, 2e9, 1e9})
	if err != nil {
		t.Fatal(err)
	}
	if r.Rows[0].Caches != 0 || !near(r.Rows[0].Time, 20*2e9/1.25e9, 1e-9) || r.Rows[0].FromHere != 20 {
		t.Errorf("without caches: %+v", r.Rows[0])
	}
	flagged := 0
	for i, row := range r.Rows[1:] {
		if row.FromHere != 1 || row.Time > r.Rows[i].Time+1e-9 {
			t.Errorf("%+v after %+v", row, r.Rows[i])
		}
		if row.Enough {
			flagged++
		}
	}
	if last := r.Rows[len(r.Rows)-1]; flagged != 1 || last.Binds == "caches" {
		t.Errorf("%d rows are enough; the last: %+v", flagged, last)
	}
}

func TestRefusals(t *testing.T) {
	good := Cluster{10, 1e12, 1e9, 1e9, 1e9}
	for name, spoil := range map[string]func(c *Cluster){
		"no node": func(c *Cluster) { c.Nodes = 0 }, "too many": func(c *Cluster) { c.Nodes = 1e6 }, "no size": func(c *Cluster) { c.Size = 0 },
		"no origin": func(c *Cluster) { c.Origin = 0 }, "no number": func(c *Cluster) { c.Cache = math.NaN() }, "negative": func(c *Cluster) { c.Node = -1 },
	} {
		c := good
		spoil(&c)
		if _, err := Build(t.Context(), c); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Build(ctx, good); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was canceled", err)
	}
}
