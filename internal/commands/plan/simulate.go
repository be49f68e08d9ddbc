package plan

import (
	"context"
	"math"
)

// simulation is the state between two events. An event is the end of a quantum's service at a stage.
type simulation struct {
	net    *Network
	stages []stageState
	flows  []flowState
	now    float64
	events int
	begin  float64   // of measuring
	target int       // quanta that each flow is to receive from then on
	short  int       // flows that have not yet
	ends   []float64 // when each stage's service ends; infinite for idle ones
}

type stageState struct {
	flows   []int     // that pass it
	waiting []int     // quanta of each flow, the one in service included
	tag     []float64 // start tag of each flow's next quantum, in GB over weight
	virtual float64   // tag of the quantum in service
	serving int       // flow, or -1
	busy    float64   // time spent serving since measuring began
	started float64
}

type flowState struct {
	quantum   float64 // GB
	hop       []int   // stage -> position in the route, -1 when it is not there
	delivered int
}

func newSimulation(n *Network) *simulation {
	s := &simulation{net: n, stages: make([]stageState, len(n.Stages)), flows: make([]flowState, len(n.Flows)), ends: make([]float64, len(n.Stages))}
	for i := range s.stages {
		s.ends[i] = math.Inf(1)
		s.stages[i] = stageState{waiting: make([]int, len(n.Flows)), tag: make([]float64, len(n.Flows)), serving: -1}
	}
	for f, flow := range n.Flows {
		// A quantum takes a millisecond at the stream's narrowest stage, so that fast and slow streams both settle soon.
		narrowest := math.Inf(1)
		hop := make([]int, len(n.Stages))
		for i := range hop {
			hop[i] = -1
		}
		for i, stage := range flow.Route {
			narrowest, hop[stage] = min(narrowest, n.Stages[stage].Rate), i
			s.stages[stage].flows = append(s.stages[stage].flows, f)
		}
		s.flows[f] = flowState{quantum: narrowest * 1e-3, hop: hop}
	}
	for f, flow := range n.Flows {
		for range quantaPerHop * len(flow.Route) {
			s.arrive(flow.Route[0], f)
		}
	}
	return s
}

// arrive puts a quantum of a flow in a stage's queue.
func (s *simulation) arrive(stage, flow int) {
	st := &s.stages[stage]
	if st.waiting[flow]++; st.waiting[flow] == 1 {
		st.tag[flow] = max(st.tag[flow], st.virtual)
	}
	if st.serving < 0 {
		s.serve(stage)
	}
}

// serve takes the waiting quantum with the least start tag.
func (s *simulation) serve(stage int) {
	st := &s.stages[stage]
	next, active := -1, 0
	for _, f := range st.flows {
		if st.waiting[f] == 0 {
			continue
		}
		if active++; next < 0 || st.tag[f] < st.tag[next] {
			next = f
		}
	}
	if st.serving = next; next < 0 {
		s.ends[stage] = math.Inf(1)
		return
	}
	shared, quantum := &s.net.Stages[stage], s.flows[next].quantum
	st.virtual = st.tag[next]
	st.tag[next] += quantum / s.net.Flows[next].Weight
	st.started = s.now
	s.ends[stage] = s.now + quantum/shared.Rate*(1+shared.Contention*float64(active-1))
}

// until runs until every flow has received so many quanta since measuring began.
func (s *simulation) until(ctx context.Context, quanta int) error {
	s.target, s.short = quanta, len(s.flows)
	for s.short > 0 {
		if s.events++; s.events > mostEvents {
			return errUnsettled
		}
		if s.events%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		s.step()
	}
	return nil
}

// step ends the service that ends first. There are few stages: looking at all of them is as fast as a heap.
func (s *simulation) step() {
	at := 0
	for i, end := range s.ends {
		if end < s.ends[at] {
			at = i
		}
	}
	st := &s.stages[at]
	f := st.serving
	s.now = s.ends[at]
	st.busy += s.now - st.started
	st.waiting[f]--
	st.serving = -1
	route, flow := s.net.Flows[f].Route, &s.flows[f]
	if next := flow.hop[at] + 1; next < len(route) {
		s.arrive(route[next], f)
	} else {
		if flow.delivered++; flow.delivered == s.target {
			s.short--
		}
		s.arrive(route[0], f)
	}
	if st.serving < 0 {
		s.serve(at)
	}
}

func (s *simulation) startMeasuring() {
	s.begin = s.now
	for i := range s.flows {
		s.flows[i].delivered = 0
	}
	for i := range s.stages {
		s.stages[i].busy = 0
		s.stages[i].started = s.now
	}
}

func (s *simulation) result() *Simulated {
	took := s.now - s.begin
	r := &Simulated{Rates: make([]float64, len(s.flows)), Use: make([]float64, len(s.stages))}
	for i := range s.flows {
		r.Rates[i] = float64(s.flows[i].delivered) * s.flows[i].quantum / took
		r.Aggregate += r.Rates[i]
	}
	for i := range s.stages {
		if s.stages[i].serving >= 0 {
			s.stages[i].busy += s.now - s.stages[i].started
		}
		r.Use[i] = s.stages[i].busy / took
	}
	return r
}
