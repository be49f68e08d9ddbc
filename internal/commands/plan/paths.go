package plan

import (
	"context"
	"slices"
)

// The paths into GPU memory, as in package cufile, and two to compare them with. Pinned is a copy of memory that is
// pinned already, which none of them can beat. Plain is one thread for each GPU that reads and copies.
const (
	Pinned = "pinned"
	Mapped = "mapped"
	Staged = "staged"
	Plain  = "plain"
	Direct = "direct"
)

// use is a way to use a path.
type use struct {
	path  string
	gpus  int  // the first so many
	cold  bool // the bytes come from storage
	once  bool // read once, so that mapped must register all that it reads
	write bool // from the GPUs to storage
}

// stage is a Stage whose rate is a range.
type stage struct {
	name       string
	rate       Range
	contention float64
	kind       string // one name for the stages of many devices
}

// Names of stages.
const (
	stageStorage     = "storage"
	stageMemory      = "host memory"
	stageCPUs        = "CPUs"
	stageRegistering = "registering"
	stageThreads     = "each GPU's one thread"
	stageGPUs        = "the GPUs' own links"
)

// model is a node with a calibration.
type model struct {
	node *Node
	cal  *Calibration
	pcie float64 // usable part of a PCIe link's raw rate
}

func newModel(n *Node, c *Calibration) *model {
	m := &model{node: n, cal: c, pcie: pcieDefault}
	// The wall was measured through a GPU's link; a description that gives its generation tells the wall's part of the
	// link.
	if raw := n.GPUs[0].raw(); c.measured && raw > 0 {
		m.pcie = c.Wall.Mid / raw
	}
	return m
}

func (m *model) wire(w Wire) Range {
	part := w.Uncertainty
	if part == 0 {
		part = assumed
		if m.cal.measured && w.GBps == 0 {
			part = runToRun
		}
	}
	return around(w.rate(m.pcie), part)
}

// builder collects stages and flows.
type builder struct {
	stages []stage
	flows  []Flow
	links  []int // of the node's links, where each is among the stages
}

// add makes a stage of a kind, and one of many where it is given a name.
func (b *builder) add(kind, name string, r Range) int {
	if name == "" {
		name = kind
	}
	b.stages = append(b.stages, stage{name: name, rate: r, kind: kind})
	return len(b.stages) - 1
}

// build makes the stages and flows of a use.
func (m *model) build(u use) *builder {
	b := &builder{}
	part := map[string]float64{Mapped: m.cal.Mapped, Staged: m.cal.Staged}[u.path]
	if part == 0 {
		part = 1
	}
	for _, l := range m.node.Links {
		b.links = append(b.links, b.add(l.Name, "", m.wire(l.Wire).scale(part)))
		b.stages[len(b.stages)-1].contention = l.Contention
	}
	if u.path == Direct {
		m.direct(b, u)
		return b
	}
	shared := m.shared(b, u)
	for i := range u.gpus {
		g := &m.node.GPUs[i]
		route := slices.Clone(shared)
		if u.path == Plain {
			route = append(route, b.add(stageThreads, "thread of GPU "+g.Name, m.thread(u)))
		}
		above, _ := m.node.above(g.Parent) // check has followed it
		for _, l := range slices.Backward(above) {
			route = append(route, b.links[l])
		}
		route = append(route, b.add(stageGPUs, "link of GPU "+g.Name, m.wire(g.Wire).scale(part)))
		b.flows = append(b.flows, Flow{Route: route, Weight: g.Weight})
	}
	return b
}

// shared adds the shared stages of the host, and gives the route through it.
func (m *model) shared(b *builder, u use) (route []int) {
	if u.cold || u.write {
		route = append(route, b.add(stageStorage, "", m.storage(u.write)))
	}
	// How often a byte crosses the memory bus: a DMA or a thread reads it, or writes it.
	// Of staged, the slots are small and used again at once: half of their traffic stays in the last-level cache.
	touches := map[string]float64{Pinned: 1, Mapped: 1, Staged: 2, Plain: 3}[u.path]
	if (u.cold || u.write) && u.path != Staged { // staged goes past the page cache, by O_DIRECT
		touches++
	}
	route = append(route, b.add(stageMemory, "", around(m.node.Memory/touches, assumed)))
	if u.path == Staged && !u.cold && !u.write {
		route = append(route, b.add(stageCPUs, "", m.cal.CPUs.Rate(m.threads(u.gpus))))
	}
	if u.path == Mapped && u.once {
		route = append(route, b.add(stageRegistering, "", m.cal.Register))
	}
	return route
}

// threads is how many stage, in all. The description gives them for each GPU. hbmfs itself takes 8 for one GPU, 16 for
// several together, and at least 2 each.
func (m *model) threads(gpus int) int {
	if m.node.Threads > 0 {
		return gpus * m.node.Threads
	}
	return gpus * min(8, max(2, 16/gpus))
}

// storage is all devices together, through the links that they share on their way to host memory. The data is spread
// evenly, so that the slowest device holds the others up.
func (m *model) storage(write bool) Range {
	return atLevels(func(level func(Range) float64) float64 {
		n := &Network{}
		for _, l := range m.node.Links {
			n.Stages = append(n.Stages, Stage{Name: l.Name, Rate: level(m.wire(l.Wire))})
		}
		for _, s := range m.node.Storage {
			route, _ := m.node.above(s.Parent) // check has followed it
			n.Stages = append(n.Stages, Stage{Name: s.Name, Rate: level(m.device(s, write))})
			n.Flows = append(n.Flows, Flow{Route: append(route, len(n.Stages)-1), Weight: 1})
		}
		return slices.Min(n.MaxMin()) * float64(len(n.Flows))
	})
}

// device is one storage device's rate.
func (m *model) device(s Storage, write bool) Range {
	if write {
		return around(s.Write, max(assumed, s.Uncertainty))
	}
	return m.wire(s.Wire)
}

// thread is a program that reads, then copies, and never does both at once.
func (m *model) thread(u use) Range {
	if !u.cold && !u.write {
		return m.cal.Plain
	}
	s, p := m.storage(u.write), m.cal.Plain
	return atLevels(func(level func(Range) float64) float64 { return 1 / (1/level(s) + 1/level(p)) })
}

// direct adds a stream from each storage device to each GPU, past host memory unless that lies between them.
func (m *model) direct(b *builder, u use) {
	var devices []int
	for _, s := range m.node.Storage {
		devices = append(devices, b.add(stageStorage, "storage "+s.Name, m.device(s, u.write)))
	}
	for i := range u.gpus {
		g := &m.node.GPUs[i]
		link := b.add(stageGPUs, "link of GPU "+g.Name, m.wire(g.Wire))
		toGPU, _ := m.node.above(g.Parent)
		for d, s := range m.node.Storage {
			fromDevice, _ := m.node.above(s.Parent)
			route := []int{devices[d]}
			// A link that both have above them is above their common switch: the bytes turn around below it. A link is
			// full duplex, and each route uses another direction of it; they are counted as one, on the safe side.
			for _, l := range fromDevice {
				if !slices.Contains(toGPU, l) {
					route = append(route, b.links[l])
				}
			}
			for _, l := range slices.Backward(toGPU) {
				if !slices.Contains(fromDevice, l) {
					route = append(route, b.links[l])
				}
			}
			b.flows = append(b.flows, Flow{Route: append(route, link), Weight: g.Weight})
		}
	}
}

// mostFlows bounds a simulation.
const mostFlows = 256

// offers says whether a node has a path, and why not.
func (m *model) offers(u use) (why string, ok bool) {
	switch {
	case (u.cold || u.write || u.path == Direct) && len(m.node.Storage) == 0:
		return "the description names no storage", false
	case u.path == Mapped && u.write:
		return "mapped only reads", false
	case u.path == Direct && u.gpus*len(m.node.Storage) > mostFlows:
		return "there are too many pairs of GPU and drive to simulate", false
	case u.path == Direct && slices.ContainsFunc(m.node.Storage, func(s Storage) bool { return !s.Direct }):
		return "direct is not proven for all of the storage (hbmfs check, then direct: true)", false
	}
	return "", true
}

// outcome is the result of a use.
type outcome struct {
	aggregate Range
	slowest   float64 // of the GPUs
	fastest   float64
	use       []float64 // of each stage, by its mid rates
	stages    []stage
	binds     []string
}

// busy is the use from which a stage counts as binding.
const busy = 0.97

// run simulates a use three times, with low, mid and high rates.
func (m *model) run(ctx context.Context, u use) (*outcome, error) {
	b := m.build(u)
	o := &outcome{stages: b.stages}
	for i, level := range []func(Range) float64{
		func(r Range) float64 { return r.Low }, func(r Range) float64 { return r.High }, func(r Range) float64 { return r.Mid },
	} {
		n := &Network{Flows: b.flows}
		for _, s := range b.stages {
			n.Stages = append(n.Stages, Stage{s.name, level(s.rate), s.contention})
		}
		s, err := n.Simulate(ctx)
		if err != nil {
			return nil, err
		}
		switch i {
		case 0:
			o.aggregate.Low = s.Aggregate
		case 1:
			o.aggregate.High = s.Aggregate
		case 2:
			o.aggregate.Mid = s.Aggregate
			m.share(o, b, s)
		}
	}
	// Simulations are exact to a percent only: keep the range in order.
	o.aggregate.Low, o.aggregate.High = min(o.aggregate.Low, o.aggregate.Mid), max(o.aggregate.High, o.aggregate.Mid)
	return o, nil
}

// share takes over the work of each GPU and each stage.
func (m *model) share(o *outcome, b *builder, s *Simulated) {
	perGPU := map[int]float64{} // by the GPU's own link, which ends each route
	for f, flow := range b.flows {
		perGPU[flow.Route[len(flow.Route)-1]] += s.Rates[f]
	}
	first := true
	for _, rate := range perGPU {
		if first || rate < o.slowest {
			o.slowest = rate
		}
		o.fastest, first = max(o.fastest, rate), false
	}
	o.use = s.Use
	for i, part := range s.Use {
		if kind := o.stages[i].kind; part >= busy && !slices.Contains(o.binds, kind) {
			o.binds = append(o.binds, kind)
		}
	}
}
