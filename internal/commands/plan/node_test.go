package plan

import (
	"bytes"
	"strings"
	"testing"
)

func TestExampleParses(t *testing.T) {
	d, err := Parse(bytes.NewReader(Example))
	if err != nil {
		t.Fatal(err)
	}
	n := &d.Nodes[0]
	if len(n.GPUs) != 8 || len(n.Links) != 5 || len(n.Storage) != 4 || len(d.Jobs) != 6 {
		t.Fatalf("%d GPUs, %d links, %d drives, %d jobs", len(n.GPUs), len(n.Links), len(n.Storage), len(d.Jobs))
	}
	route, err := n.above("uplink 3")
	if err != nil || len(route) != 2 || n.Links[route[1]].Name != "between sockets" {
		t.Errorf("uplink 3 hangs on %v, %v", route, err)
	}
	if j := d.Jobs[3]; j.Size != 1.1e12 || j.Interval != 1800 || j.Notice != 120 || j.MTBF != 43200 {
		t.Errorf("the checkpoint is %+v", j)
	}
}

// PCIe's rates by generation, in GB/s, as its specifications have them.
func TestRatesOfPCIe(t *testing.T) {
	for _, w := range []struct {
		gen, lanes int
		want       float64
	}{{1, 1, 0.25}, {2, 8, 4}, {3, 16, 15.754}, {4, 4, 7.877}, {4, 16, 31.508}, {5, 16, 63.015}, {6, 16, 121}} {
		within(t, "raw rate", Wire{Gen: w.gen, Lanes: w.lanes}.raw(), w.want, 1e-4)
	}
	if raw := (Wire{Gen: 7, Lanes: 16}).raw() + (Wire{Gen: 5, Lanes: 5}).raw(); raw != 0 {
		t.Errorf("links that do not exist have a rate of %g", raw)
	}
}

func TestDescriptionsThatMakeNoSense(t *testing.T) {
	for says, text := range map[string]string{
		"compare it with":           "nodes: [{name: a, gups: []}]",
		"no name":                   "nodes: [{gpus: [{gen: 5, lanes: 16}]}]",
		"0 GPUs":                    "nodes: [{name: a}]",
		"no usable rate":            "nodes: [{name: a, gpus: [{name: g}]}]",
		`"GPU g" has no usable`:     "nodes: [{name: a, gpus: [{name: g, gen: 5, lanes: 7}]}]",
		"has the parent \"x\"":      "nodes: [{name: a, gpus: [{name: g, gen: 5, lanes: 16, parent: x}]}]",
		"go in a circle":            "nodes: [{name: a, gpus: [{gb_per_s: 1}], links: [{name: l, gb_per_s: 1, parent: m}, {name: m, gb_per_s: 1, parent: l}]}]",
		"no name of its own":        "nodes: [{name: a, gpus: [{gb_per_s: 1}], links: [{name: l, gb_per_s: 1}, {name: l, gb_per_s: 1}]}]",
		"contention is":             "nodes: [{name: a, gpus: [{gb_per_s: 1}], links: [{name: l, gb_per_s: 1, contention: -1}]}]",
		"weight is":                 "nodes: [{name: a, gpus: [{gb_per_s: 1, weight: -1}]}]",
		"uncertainty is":            "nodes: [{name: a, gpus: [{gb_per_s: 1, uncertainty: .nan}]}]",
		"give memory_gb_per_s":      "nodes: [{name: a, memory_gb_per_s: .inf, gpus: [{gb_per_s: 1}]}]",
		"write_gb_per_s is":         "nodes: [{name: a, gpus: [{gb_per_s: 1}], storage: [{name: s, gb_per_s: 1, write_gb_per_s: -1}]}]",
		"it has no name":            "jobs: [{kind: epoch, size: 1GB}]",
		"write epoch, checkpoint":   "jobs: [{name: a, kind: dance, size: 1GB}]",
		"is no size: write":         "jobs: [{name: a, kind: epoch, size: -1GB}]",
		"is no size, its unit":      "jobs: [{name: a, kind: epoch, size: 1 parsec}]",
		"add size":                  "jobs: [{name: a, kind: epoch}]",
		"is no span":                "jobs: [{name: a, kind: epoch, size: 1GB, compute: soon}]",
		"passes is":                 "jobs: [{name: a, kind: epoch, size: 1GB, passes: -1}]",
		"belong to an epoch":        "jobs: [{name: a, kind: weights, size: 1GB, compute: 1h}]",
		"copies belongs":            "jobs: [{name: a, kind: epoch, size: 1GB, copies: true}]",
		"interval, notice and mtbf": "jobs: [{name: a, kind: epoch, size: 1GB, mtbf: 1h}]",
		"at most 1 MiB":             "# " + strings.Repeat("x", mostDescription),
		"at most 64 nodes":          "jobs: [" + strings.Repeat("{name: a}, ", 65) + "]",
		"not understood":            "nodes: [",
		"behind its first document": "jobs: []\n---\nnodes: []",
	} {
		_, err := Parse(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.80s: %v, which does not say %q", text, err, says)
		}
	}
}

func TestSizes(t *testing.T) {
	for size, want := range map[Size]string{1: "1 B", 999: "999 B", 1e9: "1 GB", 1.1e12: "1.1 TB", 999_999: "1 MB", 140e9: "140 GB"} {
		if got := size.String(); got != want {
			t.Errorf("%d is written as %q, not %q", int64(size), got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(string(Example))
	f.Add("nodes: [{name: a, gpus: [{gb_per_s: 1, weight: 100}], links: [{name: l, gb_per_s: 1, contention: 10}]}]")
	f.Add("a: &a [*a]")
	f.Add("jobs: [{name: a, kind: checkpoint, size: 1PB, interval: 1s, notice: 1s, mtbf: 1ns}]")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		// What is accepted can be built: every stage has a rate, every route is known.
		for i := range d.Nodes {
			m := newModel(&d.Nodes[i], Measured())
			for _, u := range []use{{path: Pinned}, {path: Staged, cold: true}, {path: Mapped, once: true}, {path: Direct}, {path: Plain, write: true}} {
				u.gpus = len(d.Nodes[i].GPUs)
				if _, ok := m.offers(u); !ok {
					continue
				}
				n := &Network{}
				b := m.build(u)
				n.Flows = b.flows
				for _, s := range b.stages {
					if !(s.rate.Low > 0 && s.rate.Low <= s.rate.Mid && s.rate.Mid <= s.rate.High) {
						t.Fatalf("stage %q has the rate %+v", s.name, s.rate)
					}
					n.Stages = append(n.Stages, Stage{s.name, s.rate.Low, s.contention})
				}
				if err := n.check(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
