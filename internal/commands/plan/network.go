package plan

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// Stage is something that streams share: a link, a switch's uplink, memory, a storage device, the CPUs.
type Stage struct {
	Name       string
	Rate       float64 // GB/s, above zero
	Contention float64 // a quantum takes 1 + Contention x (waiting streams - 1) times as long
}

// Flow is one stream: the stages that it passes, in order, none of them twice.
type Flow struct {
	Route  []int
	Weight float64 // above zero; its share where stages arbitrate
}

// Network is stages and the flows through them.
type Network struct {
	Stages []Stage
	Flows  []Flow
}

// MaxMin gives each flow's exact rate in GB/s under weighted max-min fairness, by progressive filling. All rates rise
// in proportion to their weights until a stage is full. Its flows stop; the others go on. Contention is left out.
func (n *Network) MaxMin() []float64 {
	rates := make([]float64, len(n.Flows))
	stopped := make([]bool, len(n.Flows))
	level := 0.0
	for {
		next, found := math.Inf(1), false
		for i := range n.Stages {
			used, weight := n.load(i, rates, stopped)
			if weight > 0 {
				next, found = min(next, (n.Stages[i].Rate-used)/weight), true
			}
		}
		if !found {
			return rates
		}
		level = max(level, next)
		full := make([]bool, len(n.Stages))
		for i := range n.Stages {
			used, weight := n.load(i, rates, stopped)
			full[i] = weight > 0 && (n.Stages[i].Rate-used)/weight <= level*(1+1e-12)
		}
		for f, flow := range n.Flows {
			for _, s := range flow.Route {
				if full[s] && !stopped[f] {
					stopped[f], rates[f] = true, level*flow.Weight
				}
			}
		}
	}
}

// load is the rate that stopped flows use of a stage, and the weight of those that still rise.
func (n *Network) load(stage int, rates []float64, stopped []bool) (used, weight float64) {
	for f, flow := range n.Flows {
		for _, s := range flow.Route {
			switch {
			case s != stage:
			case stopped[f]:
				used += rates[f]
			default:
				weight += flow.Weight
			}
		}
	}
	return used, weight
}

// Simulated is the result of a simulation.
type Simulated struct {
	Rates     []float64 // of each flow, GB/s
	Aggregate float64
	Use       []float64 // of each stage: the part of the time that it was busy
}

var errUnsettled = errors.New("the streams' rates are too far apart to simulate: leave the slowest out of the description")

const (
	quantaPerHop = 8       // quanta of a stream under way, for each stage that it passes
	batch        = 256     // quanta that each stream receives between two looks at its rate
	mostBatches  = 32      // after which rates that still change are taken as they are
	settled      = 0.001   // change of every stream's rate from one batch to the next that ends the simulation
	mostEvents   = 8 << 20 // about a second
)

// Simulate runs the streams until their rates no longer change, and gives the last ones.
func (n *Network) Simulate(ctx context.Context) (*Simulated, error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	s := newSimulation(n)
	var last *Simulated
	for range mostBatches {
		s.startMeasuring()
		if err := s.until(ctx, batch); err != nil {
			return nil, err
		}
		now := s.result()
		if last != nil && now.near(last) {
			return now, nil
		}
		last = now
	}
	return last, nil
}

// near says whether no stream's rate differs much from another measurement's.
func (s *Simulated) near(other *Simulated) bool {
	for f, rate := range s.Rates {
		if math.Abs(rate-other.Rates[f]) > settled*rate {
			return false
		}
	}
	return true
}

func (n *Network) check() error {
	if len(n.Flows) == 0 {
		return errors.New("there is no stream to simulate: name at least one GPU")
	}
	for i, s := range n.Stages {
		if !(s.Rate > 0) || math.IsInf(s.Rate, 1) || !(s.Contention >= 0) {
			return fmt.Errorf("stage %q has a rate of %g GB/s and a contention of %g: give a rate above zero and a contention of at least zero", n.Stages[i].Name, s.Rate, s.Contention)
		}
	}
	for _, f := range n.Flows {
		seen := map[int]bool{}
		for _, s := range f.Route {
			if s < 0 || s >= len(n.Stages) || seen[s] {
				return errors.New("a route names a stage that does not exist, or one twice: name each stage once")
			}
			seen[s] = true
		}
		if len(f.Route) == 0 || !(f.Weight > 0) || math.IsInf(f.Weight, 1) {
			return errors.New("a stream has no stage or no weight: give it at least one stage and a weight above zero")
		}
	}
	return nil
}
