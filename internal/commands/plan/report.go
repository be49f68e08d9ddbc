package plan

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

// Report is all that the model says, and the JSON of hbmfs plan.
type Report struct {
	Version      int          `json:"version"` // of this structure: 1
	Units        string       `json:"units"`
	Calibration  *Calibration `json:"calibration"`
	Nodes        []NodeReport `json:"nodes"`
	Compared     []Compared   `json:"compared,omitempty"` // where there are several nodes
	Registration []Surface    `json:"registration"`
}

// Compared is a job on one of several nodes, by its fastest path there and by plain.
type Compared struct {
	Job   string `json:"job"`
	Node  string `json:"node"`
	Path  string `json:"path"`
	Time  Range  `json:"time_s"`
	Cost  Range  `json:"cost"`
	Plain Range  `json:"plain_time_s"`

	Currency string `json:"currency"`
}

// NodeReport is the report on one node.
type NodeReport struct {
	Name   string   `json:"name"`
	Source string   `json:"source"`
	Notes  []string `json:"notes,omitempty"`
	GPUs   int      `json:"gpus"`
	Price  float64  `json:"price_per_hour"`

	Currency string       `json:"currency"` // of the price and of every cost
	Sweeps   []Sweep      `json:"contention"`
	Stages   []StageUse   `json:"stages"`
	IOSize   []IOSizeRate `json:"io_size"`
	Jobs     []JobReport  `json:"jobs"`
}

// Sweep is a path with one GPU, two, and so on, all reading at once.
type Sweep struct {
	Path    string       `json:"path"`
	From    string       `json:"from"` // page cache or storage
	Without string       `json:"without,omitempty"`
	Points  []SweepPoint `json:"points,omitempty"`
	Best    int          `json:"best_gpus"` // the least number that reaches 99% of the highest aggregate
}

// SweepPoint is the rates of so many GPUs.
type SweepPoint struct {
	GPUs      int      `json:"gpus"`
	Aggregate Range    `json:"aggregate_gb_per_s"`
	Slowest   float64  `json:"slowest_gpu_gb_per_s"`
	Fastest   float64  `json:"fastest_gpu_gb_per_s"`
	Binds     []string `json:"binds"`
}

// StageUse is one stage of a path with one GPU or all of them.
type StageUse struct {
	Path  string  `json:"path"`
	From  string  `json:"from"`
	GPUs  int     `json:"gpus"`
	Stage string  `json:"stage"`
	Rate  Range   `json:"rate_gb_per_s"`
	Use   float64 `json:"use"` // part of the time that it is busy, 0 to 1
	Binds bool    `json:"binds"`
}

// IOSizeRate is the rates of one GPU with I/Os of one size.
type IOSizeRate struct {
	Path   string  `json:"path"`
	Bytes  int64   `json:"bytes"`
	Shut   float64 `json:"fence_each_io_gb_per_s"` // nothing overlaps
	Depth8 float64 `json:"depth_8_gb_per_s"`
	Fenced float64 `json:"depth_8_fence_each_64_mib_gb_per_s"`
}

// Where bytes come from.
const (
	fromCache   = "page cache"
	fromStorage = "storage"
)

// Build computes the report. Nodes come from Parse or Discover, the calibration from Calibrate or Measured.
func Build(ctx context.Context, nodes []Node, jobs []Job, c *Calibration) (*Report, error) {
	r := &Report{Version: 1, Units: "GB are 1e9 bytes; a range is low, mid, high", Calibration: c}
	links := []float64{12.5, 25, 50} // 100, 200 and 400 Gb/s
	for i := range nodes {
		m := newModel(&nodes[i], c)
		n, err := m.report(ctx, jobs)
		if err != nil {
			return nil, fmt.Errorf("node %q: %w", nodes[i].Name, err)
		}
		r.Nodes = append(r.Nodes, *n)
		if link := math.Round(m.wire(nodes[i].GPUs[0].Wire).Mid*10) / 10; !slices.Contains(links, link) && len(links) < 6 {
			links = append(links, link)
		}
	}
	r.Registration = surfaces(links)
	if len(nodes) > 1 {
		r.Compared = compare(r.Nodes, len(jobs))
	}
	return r, nil
}

// compare puts the nodes beside each other, job by job.
func compare(nodes []NodeReport, jobs int) []Compared {
	var list []Compared
	for i := range jobs {
		for _, n := range nodes {
			var best *JobPath
			for k := range n.Jobs[i].Paths {
				if p := &n.Jobs[i].Paths[k]; p.Without == "" && (best == nil || p.Time.Mid < best.Time.Mid) {
					best = p
				}
			}
			if best != nil {
				list = append(list, Compared{n.Jobs[i].Job.Name, n.Name, best.Path, best.Time, best.Cost, n.Jobs[i].Paths[0].Time, n.Currency})
			}
		}
	}
	return list
}

func (m *model) report(ctx context.Context, jobs []Job) (*NodeReport, error) {
	n := &NodeReport{Name: m.node.Name, Source: m.node.Source, Notes: m.node.Notes, GPUs: len(m.node.GPUs), Price: m.node.PricePerHour,
		Currency: cmp.Or(m.node.Currency, "USD")}
	for _, u := range []use{{path: Pinned}, {path: Mapped}, {path: Staged}, {path: Plain}, {path: Direct, cold: true}, {path: Staged, cold: true}, {path: Plain, cold: true}} {
		if err := m.sweep(ctx, n, u); err != nil {
			return nil, err
		}
	}
	for _, path := range []string{Direct, Mapped, Staged, Plain} {
		n.IOSize = append(n.IOSize, m.ioSizes(path, n.Sweeps)...)
	}
	for _, j := range jobs {
		report, err := m.job(ctx, j)
		if err != nil {
			return nil, fmt.Errorf("job %q: %w", j.Name, err)
		}
		n.Jobs = append(n.Jobs, *report)
	}
	return n, nil
}

// counts is how many GPUs a sweep uses: each number up to 16, then powers of two, and all.
func counts(gpus int) []int {
	var list []int
	for i := 1; i <= gpus; i++ {
		if i <= 16 || i&(i-1) == 0 || i == gpus {
			list = append(list, i)
		}
	}
	return list
}

func (m *model) sweep(ctx context.Context, n *NodeReport, u use) error {
	s := Sweep{Path: u.path, From: fromCache}
	if u.cold {
		s.From = fromStorage
	}
	u.gpus = n.GPUs
	if why, ok := m.offers(u); !ok {
		s.Without = why
		n.Sweeps = append(n.Sweeps, s)
		return nil
	}
	highest := 0.0
	for _, gpus := range counts(n.GPUs) {
		u.gpus = gpus
		o, err := m.run(ctx, u)
		if err != nil {
			return err
		}
		highest = max(highest, o.aggregate.Mid)
		s.Points = append(s.Points, SweepPoint{gpus, o.aggregate, o.slowest, o.fastest, o.binds})
		if gpus == 1 || gpus == n.GPUs {
			for i, st := range o.stages {
				if o.use[i] > 0 {
					n.Stages = append(n.Stages, StageUse{u.path, s.From, gpus, st.name, st.rate, o.use[i], o.use[i] >= busy})
				}
			}
		}
	}
	for _, p := range s.Points {
		if p.Aggregate.Mid >= 0.99*highest {
			s.Best = p.GPUs
			break
		}
	}
	n.Sweeps = append(n.Sweeps, s)
	return nil
}

// The time of starting and ending one I/O, in seconds, where the description does not say. A copy from pinned memory is
// some 10 us from its call to its event; a read from an NVMe drive some 100 us.
const (
	copyLatency    = 10e-6
	storageLatency = 100e-6
	fenceBytes     = 64 << 20
)

// IORate is the rate of I/Os of one size on a way that carries rate GB/s at best, with depth under way and a latency in
// seconds. At a fence each so many bytes (0 for none) all must have ended.
func IORate(rate, latency float64, size int64, depth int, fence int64) float64 {
	bytes := float64(size)
	open := min(rate, float64(depth)*bytes/1e9/(latency+bytes/(rate*1e9)))
	if fence <= 0 {
		return open
	}
	between := float64(max(fence, size)) / 1e9
	return between / (between/open + latency)
}

// ioSizes gives one GPU's rates over the size of an I/O.
func (m *model) ioSizes(path string, sweeps []Sweep) []IOSizeRate {
	at := slices.IndexFunc(sweeps, func(s Sweep) bool { return s.Path == path && len(s.Points) > 0 })
	if at < 0 {
		return nil
	}
	rate, latency := sweeps[at].Points[0].Aggregate.Mid, copyLatency
	if path == Direct {
		latency = storageLatency
		for _, s := range m.node.Storage {
			if s.LatencyUS > 0 {
				latency = s.LatencyUS * 1e-6
			}
		}
	}
	var list []IOSizeRate
	for size := int64(4 << 10); size <= 64<<20; size <<= 2 {
		r := IOSizeRate{Path: path, Bytes: size, Shut: IORate(rate, latency, size, 1, size)}
		r.Depth8, r.Fenced = IORate(rate, latency, size, 8, 0), IORate(rate, latency, size, 8, fenceBytes)
		list = append(list, r)
	}
	return list
}
