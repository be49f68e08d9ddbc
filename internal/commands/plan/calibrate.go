package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Calibration is measured figures, and their source. Rates are GB/s of one GPU or thread unless said otherwise.
type Calibration struct {
	Source string `json:"source"`
	// Wall is a pinned copy into one GPU.
	Wall Range `json:"wall"`
	// Mapped, Staged are the parts of the links' rate that these paths reach when a link binds.
	Mapped float64 `json:"mapped_of_link"`
	Staged float64 `json:"staged_of_link"`
	// Plain is one thread that reads cached pages and copies them to the GPU.
	Plain Range `json:"plain"`
	// Register is how fast the driver registers page cache: one for the whole host, since it is serial.
	Register Range `json:"register"`
	CPUs     CPUs  `json:"cpus"`
	measured bool
}

// CPUs is the fit of the package's law for the threads of staged.
type CPUs struct {
	PerThread float64 `json:"gb_per_s_per_thread"`
	Coherence float64 `json:"coherence"`
	Points    []Point `json:"points"`
}

// Point is a measured staged run.
type Point struct {
	GPUs    int     `json:"gpus"`
	Threads int     `json:"threads"` // for each GPU
	GBps    float64 `json:"gb_per_s"`
}

const (
	runToRun  = 0.05 // how far runs of one type of machine differed
	assumed   = 0.15 // how far described figures may be off
	linkBound = 0.9  // above this part of the link, a staged run says nothing about the CPUs
	mostBench = 16 << 20
)

// Measured is the calibration that holds without one of one's own: runs on one and two H200s with a warm page cache.
func Measured() *Calibration {
	c := &Calibration{
		Source: "hbmfs's own runs on one and two H200s (docs/reference/planning.md)",
		Wall:   around(55.2, assumed), Mapped: 1, Staged: 0.93, Plain: around(3.4, assumed),
		// 22 ms/GB in the driver alone, 31 ms/GB for a whole pass with moving windows.
		Register: Range{1 / 0.031, 1 / 0.026, 1 / 0.022},
	}
	c.CPUs = fit([]Point{{1, 4, 30.5}, {2, 4, 57.6}, {2, 8, 91.5}})
	return c
}

// benchOutput is the part of hbmfs bench --json that we read. Fields that we do not know are for others.
type benchOutput struct {
	GPUs    []json.RawMessage `json:"gpus"`
	CPUs    int               `json:"cpus"`
	Threads int               `json:"threads"`
	Wall    float64           `json:"wall_gb_per_s"`
	Rows    []struct {
		Path string  `json:"path"`
		Mode string  `json:"mode"`
		GBps float64 `json:"gb_per_s"`
		Skip string  `json:"skip"`
	} `json:"rows"`
}

// Bench is one result of hbmfs bench --json.
type Bench struct {
	gpus, threads int // threads is 0 where it is not known
	wall          float64
	rows          map[string]float64 // sequential rates of all GPUs together
}

// ParseBench reads the JSON of hbmfs bench.
func ParseBench(r io.Reader) (*Bench, error) {
	text, err := io.ReadAll(io.LimitReader(r, mostBench+1))
	if err != nil {
		return nil, fmt.Errorf("read the result: %w", err)
	}
	var o benchOutput
	if len(text) > mostBench {
		return nil, errors.New("a result has at most 16 MiB: this is none")
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return nil, fmt.Errorf("this is no output of hbmfs bench --json: %w", err)
	}
	if o.Threads == 0 && len(o.GPUs) == 1 {
		o.Threads = min(8, max(4, o.CPUs)) // a reader takes as many by itself; several share, and the result does not say how
	}
	if n := len(o.GPUs); n < 1 || n > mostThings || o.Threads < 0 || o.Threads > 256 || !between(o.Wall, 0.01, mostRate) {
		return nil, fmt.Errorf("this result has %d GPUs, %d threads and a wall of %g GB/s: run hbmfs bench --json with a GPU", n, o.Threads, o.Wall)
	}
	b := &Bench{gpus: len(o.GPUs), threads: o.Threads, wall: o.Wall, rows: map[string]float64{}}
	for _, row := range o.Rows {
		if row.Skip != "" || row.Mode != "sequential" {
			continue
		}
		if !between(row.GBps, 1e-6, mostRate) {
			return nil, fmt.Errorf("this result has a rate of %g GB/s for %q: run hbmfs bench again", row.GBps, row.Path)
		}
		b.rows[row.Path] = row.GBps
	}
	return b, nil
}

// Calibrate takes measured figures over into the model. Links and paths come from the runs with the fewest GPUs, where
// nothing is shared. The CPUs' law comes from all runs that no GPU link bound. Other figures stay as Measured has them.
func Calibrate(results []*Bench) (*Calibration, error) {
	if len(results) == 0 {
		return nil, errors.New("there is nothing to calibrate with: name files that hbmfs bench --json printed")
	}
	c := Measured()
	c.measured = true
	c.Source = fmt.Sprintf("%d results of hbmfs bench", len(results))
	fewest := slices.MinFunc(results, func(a, b *Bench) int { return a.gpus - b.gpus }).gpus
	var walls, mapped, staged, plain []float64
	var moving []Range
	var points []Point
	for _, b := range results {
		n := float64(b.gpus)
		if rate := b.rows["staged"]; rate > 0 && rate < linkBound*b.wall && b.threads > 0 {
			points = append(points, Point{b.gpus, b.threads, rate})
		}
		if b.gpus != fewest {
			continue
		}
		walls = append(walls, b.wall/n)
		if rate := b.rows["mapped kept"]; rate > 0 {
			mapped = append(mapped, min(1, rate/b.wall))
			if slow := b.rows["mapped moving"]; slow > 0 && slow < rate {
				moving = append(moving, movingCost(slow, rate))
			}
		}
		if rate := b.rows["staged"]; rate >= linkBound*b.wall {
			staged = append(staged, min(1, rate/b.wall))
		}
		if rate := b.rows["plain"]; rate > 0 {
			plain = append(plain, rate/n)
		}
	}
	c.Wall = around(mean(walls), runToRun)
	if len(mapped) > 0 {
		c.Mapped = mean(mapped)
	}
	if len(staged) > 0 {
		c.Staged = mean(staged)
	}
	if len(plain) > 0 {
		c.Plain = around(mean(plain), runToRun)
	}
	if len(moving) > 0 {
		c.Register = moving[0]
		for _, r := range moving[1:] {
			c.Register = Range{min(c.Register.Low, r.Low), (c.Register.Mid + r.Mid) / 2, max(c.Register.High, r.High)}
		}
	}
	if len(points) > 0 {
		c.CPUs = fit(points)
	}
	return c, nil
}

// movingCost bounds the driver's rate of registering by a pass with moving windows. With perfect overlap, the pass is
// the registering; without any, the time of the copy is taken off.
func movingCost(moving, kept float64) Range {
	low, high := moving, 1/(1/moving-1/kept)
	// Much overlap makes the upper bound useless: registering ten times as fast as it was seen is no longer an estimate.
	high = min(high, 10*moving)
	return Range{low, math.Sqrt(low * high), high}
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// typicalCoherence is of the H200 host: for a fit to runs with one number of threads only.
const typicalCoherence = 0.0015

// fit finds the law's constants by least squares of relative errors: T/X = 1/perThread + coherence/perThread x T(T-1).
func fit(points []Point) CPUs {
	c := CPUs{Points: points, Coherence: typicalCoherence}
	var aa, ab, bb, a, b float64
	for _, p := range points {
		threads := float64(p.GPUs * p.Threads)
		y := threads / p.GBps
		u, v := 1/y, threads*(threads-1)/y
		aa, ab, bb, a, b = aa+u*u, ab+u*v, bb+v*v, a+u, b+v
	}
	if det := aa*bb - ab*ab; det > 1e-9*aa*bb {
		if alone, pairs := (a*bb-b*ab)/det, (aa*b-ab*a)/det; alone > 0 && pairs > 0 {
			c.PerThread, c.Coherence = 1/alone, pairs/alone
			return c
		}
	}
	// There is one number of threads, or so few that they did not hinder each other. The run with the most is met, and
	// the law's shape is the typical one. To read "no cost" out of such runs would promise any rate to enough threads.
	most := slices.MaxFunc(points, func(p, q Point) int { return p.GPUs*p.Threads - q.GPUs*q.Threads })
	threads := float64(most.GPUs * most.Threads)
	c.PerThread = most.GBps / threads * (1 + c.Coherence*threads*(threads-1))
	return c
}

// at is the law.
func (c CPUs) at(threads int) float64 {
	t := float64(threads)
	return c.PerThread * t / (1 + c.Coherence*t*(t-1))
}

// Rate is the copy rate of so many threads in all, with the range that errors of measuring cause. The law is fitted
// again with each point a little higher and lower. The differences add up as those of independent errors do.
func (c CPUs) Rate(threads int) Range {
	mid := c.at(threads)
	up, down := 0.0, 0.0
	for i := range c.Points {
		for _, off := range []float64{1 - runToRun, 1 + runToRun} {
			moved := slices.Clone(c.Points)
			moved[i].GBps *= off
			d := fit(moved).at(threads) - mid
			if d > 0 {
				up += d * d
			} else {
				down += d * d
			}
		}
	}
	// Points that pull in both directions at once must not lead to a rate of nothing.
	return Range{max(mid/4, mid-math.Sqrt(down)), mid, mid + math.Sqrt(up)}
}
