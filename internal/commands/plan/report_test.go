package plan

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
)

// example is the report of the example, which takes a while under the race detector: no test changes it.
var example = sync.OnceValues(func() (*Report, error) {
	d, err := Parse(bytes.NewReader(Example))
	if err != nil {
		return nil, err
	}
	return Build(context.Background(), d.Nodes, d.Jobs, Measured())
})

func exampleReport(t *testing.T) *Report {
	t.Helper()
	r, err := example()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func build(t *testing.T, text string, c *Calibration) *Report {
	t.Helper()
	d, err := Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Build(context.Background(), d.Nodes, d.Jobs, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Invariants of a whole report, on the example and on nodes with odd shapes.
func TestReportIsConsistent(t *testing.T) {
	reports := map[string]*Report{"example": exampleReport(t)}
	for name, text := range map[string]string{
		"one GPU":         "nodes: [{name: a, gpus: [{gb_per_s: 25}]}]",
		"a crowd":         "nodes: [{name: a, links: [{name: s, gb_per_s: 20, contention: 0.2}], gpus: [" + strings.Repeat("{gb_per_s: 10, parent: s}, ", 6) + "]}]",
		"unequal weights": "nodes: [{name: a, links: [{name: s, gb_per_s: 30}], gpus: [{gb_per_s: 25, parent: s, weight: 2}, {gb_per_s: 25, parent: s}]}]",
	} {
		reports[name] = build(t, text, Measured())
	}
	for name, r := range reports {
		for _, n := range r.Nodes {
			for _, s := range n.Sweeps {
				checkSweep(t, name+", "+n.Name, n, s)
			}
			for _, j := range n.Jobs {
				checkJob(t, name, n, j)
			}
		}
	}
}

func checkSweep(t *testing.T, name string, n NodeReport, s Sweep) {
	name = fmt.Sprintf("%s: %s from %s", name, s.Path, s.From)
	if (s.Without == "") != (len(s.Points) > 0) {
		t.Errorf("%s has %d points and the reason %q", name, len(s.Points), s.Without)
	}
	highest := 0.0
	for _, p := range s.Points {
		highest = max(highest, p.Aggregate.Mid)
		if a := p.Aggregate; !(a.Low > 0 && a.Low <= a.Mid && a.Mid <= a.High) || math.IsInf(a.High, 0) {
			t.Errorf("%s, %d GPUs: %+v is no range", name, p.GPUs, a)
		}
		if len(p.Binds) == 0 {
			t.Errorf("%s, %d GPUs: nothing binds", name, p.GPUs)
		}
		if low, high := p.Slowest*float64(p.GPUs), p.Fastest*float64(p.GPUs); low > p.Aggregate.Mid*1.001 || high < p.Aggregate.Mid*0.999 {
			t.Errorf("%s, %d GPUs: %g to %g for each do not add up to %g", name, p.GPUs, p.Slowest, p.Fastest, p.Aggregate.Mid)
		}
	}
	for _, p := range s.Points {
		if p.GPUs == s.Best && p.Aggregate.Mid < 0.99*highest {
			t.Errorf("%s: %d GPUs are not the best", name, s.Best)
		}
	}
	// One GPU alone gets what its narrowest stage carries.
	narrowest := math.Inf(1)
	for _, st := range n.Stages {
		if st.GPUs != 1 || st.Path != s.Path || st.From != s.From {
			continue
		}
		if st.Path != Direct { // which has a stream from each drive
			narrowest = min(narrowest, st.Rate.Mid)
		}
		if st.Use > 1+1e-9 {
			t.Errorf("%s: stage %s is busy for %g of the time", name, st.Stage, st.Use)
		}
	}
	if len(s.Points) > 0 && !math.IsInf(narrowest, 1) {
		within(t, name+", one GPU", s.Points[0].Aggregate.Mid, narrowest, 1e-6)
	}
}

func checkJob(t *testing.T, name string, n NodeReport, j JobReport) {
	name += ": " + j.Job.Name
	var plain *JobPath
	for i := range j.Paths {
		p := &j.Paths[i]
		if p.Without != "" {
			continue
		}
		if p.Path == j.Against {
			plain = p
		}
		if !(p.Time.Low > 0 && p.Time.Low <= p.Time.Mid && p.Time.Mid <= p.Time.High) {
			t.Errorf("%s by %s takes %+v", name, p.Path, p.Time)
		}
		within(t, name+": cost", p.Cost.Mid, n.Price*p.Time.Mid/3600, 1e-9)
		if plain == nil {
			t.Fatalf("%s: %s is compared with nothing", name, p.Path)
		}
		within(t, name+": times faster", p.Faster.Mid, plain.Time.Mid/p.Time.Mid, 1e-9)
	}
}

// The order that measurements have, with nothing cached twice over: mapped at the wall, plain far below.
func TestExampleOrdersThePaths(t *testing.T) {
	n := exampleReport(t).Nodes[0]
	all := map[string]float64{}
	for _, s := range n.Sweeps {
		all[s.Path+" "+s.From] = s.Points[len(s.Points)-1].Aggregate.Mid
		if s.Path == Staged && s.From == fromCache && s.Best != 2 {
			t.Errorf("staged is best with %d GPUs; two have the 16 threads that hbmfs takes for all of them", s.Best)
		}
	}
	if !(all["pinned page cache"] >= all["mapped page cache"] && all["mapped page cache"] > all["staged page cache"] && all["staged page cache"] > all["plain page cache"]) {
		t.Errorf("out of order: %v", all)
	}
}

func path(t *testing.T, j JobReport, name string) JobPath {
	t.Helper()
	for _, p := range j.Paths {
		if p.Path == name {
			return p
		}
	}
	t.Fatalf("%s has no path %s", j.Job.Name, name)
	return JobPath{}
}

// oneFast is a node whose figures are round: 10 GB/s from storage, 5 into it, 50 to its GPU.
const oneFast = `nodes: [{name: a, price_per_hour: 3600, memory_gb_per_s: 10000,
  gpus: [{gb_per_s: 50, uncertainty: 0.1}], storage: [{name: s, gb_per_s: 10, write_gb_per_s: 5, uncertainty: 0.2}]}]
`

func TestJobsByHand(t *testing.T) {
	n := build(t, oneFast+`jobs:
  - {name: cold, kind: epoch, size: 1TB, passes: 3}
  - {name: computing, kind: epoch, size: 1TB, compute: 95s}
  - {name: weights, kind: weights, size: 100GB}
  - {name: checkpoint, kind: checkpoint, size: 100GB, interval: 980s, notice: 22s, mtbf: 10000s}
`, Measured()).Nodes[0]
	cold := path(t, n.Jobs[0], Staged)
	within(t, "three passes from storage at 10 GB/s", cold.Time.Mid, 300, 1e-6)
	within(t, "at a price of 1 a second", cold.Cost.Mid, 300, 1e-6)
	within(t, "with storage a fifth faster", cold.Time.Low, 300/1.2, 1e-6)
	within(t, "with storage a fifth slower", cold.Time.High, 300/0.8, 1e-6)
	computing := path(t, n.Jobs[1], Staged)
	within(t, "100 s of reading beside 95 s of computing", computing.Time.Mid, 100, 1e-6)
	within(t, "stall", computing.Stall.Mid, 5, 1e-6)
	if computing.Stall.Low != 0 {
		t.Errorf("83 s of reading stall 95 s of computing for %g", computing.Stall.Low)
	}
	within(t, "weights", path(t, n.Jobs[2], Staged).Time.Mid, 10, 1e-6)

	c := path(t, n.Jobs[3], Staged)
	within(t, "writing", c.Time.Mid, 20, 1e-6)
	within(t, "restoring", c.Restore.Mid, 10, 1e-6)
	within(t, "Young's interval", c.Best.Mid, math.Sqrt(2*20*10000), 1e-6)
	// 16.7 to 25 s against a notice of 22 s; half an interval is lost and 10 s to restore, each 10,000 s.
	if c.Fits != "perhaps" {
		t.Errorf("it fits the notice: %q", c.Fits)
	}
	within(t, "overhead", c.Share.Mid, 20./1000+(490.+10)/10000, 1e-6)
	if p := path(t, n.Jobs[3], Mapped); p.Without == "" {
		t.Error("mapped writes a checkpoint")
	}
	if p := path(t, n.Jobs[0], Direct); !strings.Contains(p.Without, "not proven") {
		t.Errorf("direct is there without a proof: %q", p.Without)
	}
}

func TestRegisteringBindsOnlyOnce(t *testing.T) {
	n := build(t, oneFast+`jobs:
  - {name: once, kind: epoch, size: 100GB, cached: true}
  - {name: often, kind: epoch, size: 100GB, cached: true, passes: 11}
`, Measured()).Nodes[0]
	register := Measured().Register.Mid
	within(t, "one pass", path(t, n.Jobs[0], Mapped).Time.Mid, 100/register, 1e-3)
	within(t, "eleven passes", path(t, n.Jobs[1], Mapped).Time.Mid, 100/register+1000/50., 1e-3)
	if binds := path(t, n.Jobs[0], Mapped).Binds; len(binds) != 1 || binds[0] != stageRegistering {
		t.Errorf("%v binds, and registering should", binds)
	}
}

// Copies for each GPU are read from storage once; direct reads them each time.
func TestCopiesOfWeights(t *testing.T) {
	text := `nodes: [{name: a, memory_gb_per_s: 10000, gpus: [{gb_per_s: 50}, {gb_per_s: 50}], storage: [{name: s, gb_per_s: 10, direct: true}]}]
jobs: [{name: w, kind: weights, size: 100GB, copies: true}, {name: c, kind: weights, size: 100GB, copies: true, cached: true}]
`
	n := build(t, text, Measured()).Nodes[0]
	within(t, "staged, bound by storage", path(t, n.Jobs[0], Staged).Time.Mid, 10, 1e-6)
	within(t, "direct, twice", path(t, n.Jobs[0], Direct).Time.Mid, 20, 0.01)
	within(t, "mapped from the cache, bound by registering", path(t, n.Jobs[1], Mapped).Time.Mid, 100/Measured().Register.Mid, 1e-3)
}

// A drive beside the GPU does not use the uplink; one behind another uplink uses both.
func TestDirectTurnsAroundBelowTheSwitch(t *testing.T) {
	const text = `nodes: [{name: a, links: [{name: near, gb_per_s: 2}, {name: far, gb_per_s: 3}],
  gpus: [{gb_per_s: 50, parent: near}], storage: [{name: s, gb_per_s: 10, direct: true, parent: PARENT}]}]`
	for parent, want := range map[string]float64{"near": 10, "far": 2, `""`: 2} {
		n := build(t, strings.Replace(text, "PARENT", parent, 1), Measured()).Nodes[0]
		for _, s := range n.Sweeps {
			if s.Path == Direct {
				within(t, "direct from a drive at "+parent, s.Points[0].Aggregate.Mid, want, 1e-6)
			}
		}
	}
}

// Two drives behind one NIC: it binds, on the way to host memory as on the way to the GPU.
func TestStorageBehindANIC(t *testing.T) {
	n := build(t, `nodes: [{name: a, links: [{name: nic, gb_per_s: 12.5}], gpus: [{gb_per_s: 50}],
  storage: [{name: s, gb_per_s: 10, direct: true, parent: nic}, {name: t, gb_per_s: 20, direct: true, parent: nic}]}]
jobs: [{name: e, kind: epoch, size: 1TB}]`, Measured()).Nodes[0]
	for _, name := range []string{Staged, Mapped, Direct} {
		within(t, name, path(t, n.Jobs[0], name).Rate.Mid, 12.5, 0.01)
	}
}

func TestNodesBesideEachOther(t *testing.T) {
	r := build(t, `nodes:
  - {name: slow, price_per_hour: 3600, gpus: [{gb_per_s: 50}], storage: [{name: s, gb_per_s: 5}]}
  - {name: fast, price_per_hour: 7200, gpus: [{gb_per_s: 50}], storage: [{name: s, gb_per_s: 20}]}
  - {name: without storage, gpus: [{gb_per_s: 50}]}
jobs: [{name: e, kind: epoch, size: 1TB}]`, Measured())
	if len(r.Compared) != 2 {
		t.Fatalf("compared %+v", r.Compared)
	}
	for i, want := range []struct {
		node       string
		time, cost float64
	}{{"slow", 200, 200}, {"fast", 50, 100}} {
		got := r.Compared[i]
		if got.Node != want.node || got.Path == Plain || got.Plain.Mid <= got.Time.Mid {
			t.Errorf("compared %+v", got)
		}
		within(t, got.Node+": time", got.Time.Mid, want.time, 1e-6)
		within(t, got.Node+": cost", got.Cost.Mid, want.cost, 1e-6)
	}
	var printed bytes.Buffer
	r.Print(&printed)
	if !strings.Contains(printed.String(), "beside each other") {
		t.Error("the table does not compare the nodes")
	}
}

func TestReportAsJSONAndText(t *testing.T) {
	r := exampleReport(t)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&back)
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("the report's JSON does not survive being read: %v", err)
	}
	var printed bytes.Buffer
	r.Print(&printed)
	for _, part := range []string{"eight H200", "pinned", "between sockets", "weights of 70 billion", "page cache, measured", "fits the notice"} {
		if !strings.Contains(printed.String(), part) {
			t.Errorf("the table does not mention %q", part)
		}
	}
}

func TestBuildIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	d, err := Parse(bytes.NewReader(Example))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Build(ctx, d.Nodes, d.Jobs, Measured()); err == nil {
		t.Error("went on")
	}
}
