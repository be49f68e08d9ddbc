package plan

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// heldOut is the H200 host's table of docs/reference/planning.md: what four and eight GPUs reached together, in GB/s. The model
// never sees it: it is calibrated by testdata/bench-*.json, from one and two GPUs.
var heldOut = []struct {
	gpus, threads int
	path          string
	measured      float64
}{
	{4, 8, Pinned, 114.6}, {8, 8, Pinned, 175.3},
	{4, 8, Mapped, 106.7}, {8, 8, Mapped, 166.9},
	{4, 4, Staged, 82.0}, {8, 4, Staged, 94.8},
	{4, 8, Staged, 87.7}, {8, 8, Staged, 67.1},
}

func calibration(t *testing.T, patterns ...string) *Calibration {
	t.Helper()
	var results []*Bench
	for _, pattern := range patterns {
		names, err := filepath.Glob(filepath.Join("testdata", pattern))
		if err != nil || len(names) == 0 {
			t.Fatalf("no file %s: %v", pattern, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			b, err := ParseBench(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			results = append(results, b)
		}
	}
	c, err := Calibrate(results)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func exampleNode(t *testing.T) *Node {
	t.Helper()
	d, err := Parse(bytes.NewReader(Example))
	if err != nil {
		t.Fatal(err)
	}
	return &d.Nodes[0]
}

func TestPredictsFourAndEightFromOneAndTwo(t *testing.T) {
	c := calibration(t, "bench-*.json")
	for _, h := range heldOut {
		n := exampleNode(t)
		n.Threads = h.threads
		o, err := newModel(n, c).run(context.Background(), use{path: h.path, gpus: h.gpus})
		if err != nil {
			t.Fatal(err)
		}
		within(t, fmt.Sprintf("%s, %d GPUs, %d threads", h.path, h.gpus, h.threads), o.aggregate.Mid, h.measured, 0.15)
		t.Logf("%-6s %d GPUs %d threads: measured %6.1f, predicted %6.1f (%+.1f%%), range %s, binds %v",
			h.path, h.gpus, h.threads, h.measured, o.aggregate.Mid, 100*(o.aggregate.Mid/h.measured-1), o.aggregate, o.binds)
	}
}

// The rate between the sockets is an assumption. The predictions must not depend on having guessed it well.
func TestPredictionsHoldForOtherLinksBetweenSockets(t *testing.T) {
	c := calibration(t, "bench-*.json")
	for _, between := range []float64{40, 80} {
		for _, h := range heldOut {
			if h.path == Staged {
				continue // the CPUs bind
			}
			n := exampleNode(t)
			n.Links[n.find("between sockets")].GBps = between
			o, err := newModel(n, c).run(context.Background(), use{path: h.path, gpus: h.gpus})
			if err != nil {
				t.Fatal(err)
			}
			within(t, fmt.Sprintf("%s, %d GPUs, %g GB/s between sockets", h.path, h.gpus, between), o.aggregate.Mid, h.measured, 0.15)
		}
	}
}

// One or two GPUs are what the model was calibrated by: it must give them back.
func TestGivesBackWhatItWasCalibratedBy(t *testing.T) {
	c := calibration(t, "bench-*.json")
	for _, p := range []struct {
		gpus, threads int
		path          string
		measured      float64
	}{
		{1, 8, Pinned, 55.2}, {2, 8, Pinned, 110}, {1, 8, Mapped, 55.2}, {2, 8, Mapped, 109.8},
		{1, 4, Staged, 30.5}, {2, 4, Staged, 57.6}, {1, 8, Staged, 51.1}, {2, 8, Staged, 91.5},
	} {
		n := exampleNode(t)
		n.Threads = p.threads
		o, err := newModel(n, c).run(context.Background(), use{path: p.path, gpus: p.gpus})
		if err != nil {
			t.Fatal(err)
		}
		within(t, fmt.Sprintf("%s, %d GPUs, %d threads", p.path, p.gpus, p.threads), o.aggregate.Mid, p.measured, 0.03)
	}
}
