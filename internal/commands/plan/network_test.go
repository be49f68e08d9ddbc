package plan

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// within fails unless got is near want.
func within(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > part*math.Abs(want) {
		t.Errorf("%s is %.4g, and should be %.4g within %g%%", what, got, want, 100*part)
	}
}

func simulate(t *testing.T, n *Network) *Simulated {
	t.Helper()
	s, err := n.Simulate(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// behindSwitches is flows that have a link each, behind switches with one uplink each.
func behindSwitches(flows, switches int, link, uplink float64) *Network {
	n := &Network{}
	for i := range switches {
		n.Stages = append(n.Stages, Stage{Name: fmt.Sprintf("uplink %d", i), Rate: uplink})
	}
	for i := range flows {
		n.Stages = append(n.Stages, Stage{Name: fmt.Sprintf("link %d", i), Rate: link})
		n.Flows = append(n.Flows, Flow{Route: []int{i % switches, len(n.Stages) - 1}, Weight: 1})
	}
	return n
}

// The worked figure: eight streams, four behind each of two switches, each reach about 45% of what one reaches alone. It
// follows where an uplink carries 1.8 times one stream: 22.5 GB/s (PCIe 4.0 x16 at 0.71 of its raw rate) for streams that
// a 100 Gb/s NIC feeds. With an uplink of twice a stream it takes a contention of 3.7% for each further stream.
func TestEightStreamsBehindTwoSwitches(t *testing.T) {
	one := simulate(t, behindSwitches(1, 2, 12.5, 22.5))
	eight := simulate(t, behindSwitches(8, 2, 12.5, 22.5))
	for _, rate := range eight.Rates {
		within(t, "a stream's part of a lone one", rate/one.Rates[0], 0.45, 0.01)
	}
	contended := behindSwitches(8, 2, 12.5, 25)
	contended.Stages[0].Contention, contended.Stages[1].Contention = 0.037, 0.037
	within(t, "a stream's part with contention", simulate(t, contended).Aggregate/8/one.Rates[0], 0.45, 0.01)
}

func TestOneStreamGetsTheNarrowestStage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		n := &Network{Flows: []Flow{{Weight: 0.1 + random.Float64()}}}
		narrowest := math.Inf(1)
		for i := range 1 + random.IntN(6) {
			rate := math.Pow(10, 4*random.Float64()-1)
			narrowest = min(narrowest, rate)
			// Contention costs a lone stream nothing.
			n.Stages = append(n.Stages, Stage{Rate: rate, Contention: random.Float64()})
			n.Flows[0].Route = append(n.Flows[0].Route, i)
		}
		within(t, "the rate", simulate(t, n).Rates[0], narrowest, 1e-6)
		within(t, "the exact rate", n.MaxMin()[0], narrowest, 1e-12)
	}
}

// randomNetwork has up to 8 flows over up to 6 shared stages, and a link for each flow.
func randomNetwork(random *rand.Rand) *Network {
	n := &Network{}
	shared := 1 + random.IntN(6)
	for range shared {
		n.Stages = append(n.Stages, Stage{Rate: 10 + 90*random.Float64()})
	}
	for range 1 + random.IntN(8) {
		route := random.Perm(shared)[:1+random.IntN(min(shared, 3))]
		n.Stages = append(n.Stages, Stage{Rate: 10 + 50*random.Float64()})
		n.Flows = append(n.Flows, Flow{Route: append(route, len(n.Stages)-1), Weight: float64(1 + random.IntN(3))})
	}
	return n
}

func TestSimulationAgreesWithTheExactSolver(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 60 {
		n := randomNetwork(random)
		s, exact := simulate(t, n), n.MaxMin()
		for f := range exact {
			within(t, fmt.Sprintf("network %d, flow %d of %d", i, f, len(exact)), s.Rates[f], exact[f], 0.02)
		}
		used := make([]float64, len(n.Stages))
		for f, flow := range n.Flows {
			for _, stage := range flow.Route {
				used[stage] += s.Rates[f]
			}
		}
		for stage := range used {
			if used[stage] > n.Stages[stage].Rate*1.02 {
				t.Errorf("network %d: stage %d carries %g of %g", i, stage, used[stage], n.Stages[stage].Rate)
			}
			// What is carried is what the stage was busy with, but for quanta on their way.
			within(t, "use", s.Use[stage]+0.05, used[stage]/n.Stages[stage].Rate+0.05, 0.3)
		}
	}
}

// No flow can get more without another, that has no more for its weight, getting less: what max-min fair means.
func TestExactSolverIsMaxMinFair(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		n := randomNetwork(random)
		rates := n.MaxMin()
		used := make([]float64, len(n.Stages))
		for f, flow := range n.Flows {
			for _, stage := range flow.Route {
				used[stage] += rates[f]
			}
		}
		for f, flow := range n.Flows {
			bottleneck := false
			for _, stage := range flow.Route {
				if used[stage] > n.Stages[stage].Rate*(1+1e-9) {
					t.Fatalf("stage %d carries %g of %g", stage, used[stage], n.Stages[stage].Rate)
				}
				most := 0.0
				for g, other := range n.Flows {
					for _, s := range other.Route {
						if s == stage {
							most = max(most, rates[g]/other.Weight)
						}
					}
				}
				full := used[stage] > n.Stages[stage].Rate*(1-1e-9)
				bottleneck = bottleneck || full && rates[f]/flow.Weight >= most*(1-1e-9)
			}
			if !bottleneck {
				t.Fatalf("flow %d has no full stage at which it gets the most: %v", f, rates)
			}
		}
	}
}

// Wider stages never make the sum of max-min rates of one shared tree smaller, nor the simulated one.
func TestWiderUplinksNeverHurt(t *testing.T) {
	last := 0.0
	for uplink := 10.0; uplink <= 80; uplink += 10 {
		now := simulate(t, behindSwitches(6, 2, 20, uplink)).Aggregate
		if now < last*0.99 {
			t.Errorf("an uplink of %g GB/s carries %g, a narrower one %g", uplink, now, last)
		}
		last = now
	}
}

func TestContentionHasABestNumberOfStreams(t *testing.T) {
	rate := func(n int) float64 {
		net := behindSwitches(n, 1, 10, 40)
		net.Stages[0].Contention = 0.1
		return simulate(t, net).Aggregate
	}
	within(t, "two streams", rate(2), 20, 0.02)
	within(t, "eight streams", rate(8), 40/(1+0.1*7), 0.02)
	if rate(4) <= rate(8) {
		t.Error("with contention, eight streams should be worse than four")
	}
}

func TestNetworksThatMakeNoSense(t *testing.T) {
	for name, n := range map[string]*Network{
		"no flow":             {Stages: []Stage{{Rate: 1}}},
		"no rate":             {Stages: []Stage{{}}, Flows: []Flow{{Route: []int{0}, Weight: 1}}},
		"not a number":        {Stages: []Stage{{Rate: math.NaN()}}, Flows: []Flow{{Route: []int{0}, Weight: 1}}},
		"no weight":           {Stages: []Stage{{Rate: 1}}, Flows: []Flow{{Route: []int{0}}}},
		"no route":            {Stages: []Stage{{Rate: 1}}, Flows: []Flow{{Weight: 1}}},
		"a stage twice":       {Stages: []Stage{{Rate: 1}}, Flows: []Flow{{Route: []int{0, 0}, Weight: 1}}},
		"a stage not there":   {Stages: []Stage{{Rate: 1}}, Flows: []Flow{{Route: []int{1}, Weight: 1}}},
		"negative contention": {Stages: []Stage{{Rate: 1, Contention: -1}}, Flows: []Flow{{Route: []int{0}, Weight: 1}}},
	} {
		if _, err := n.Simulate(context.Background()); err == nil {
			t.Errorf("%s: simulated", name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := behindSwitches(64, 8, 1, 10).Simulate(ctx); err == nil {
		t.Error("a cancelled simulation went on")
	}
}
