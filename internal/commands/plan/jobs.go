package plan

import (
	"context"
	"maps"
	"math"
	"slices"
)

// JobReport is a job on a node, by each path.
type JobReport struct {
	Job     Job       `json:"job"`
	Paths   []JobPath `json:"paths"`
	Against string    `json:"against"` // the path that the others are compared with
}

// JobPath is a job by one path. A checkpoint's rate and time are of writing one; hbmfs itself only reads.
type JobPath struct {
	Path    string   `json:"path"`
	Without string   `json:"without,omitempty"` // why the path is not there
	Rate    Range    `json:"rate_gb_per_s"`
	Time    Range    `json:"time_s"`
	Cost    Range    `json:"cost"`
	Faster  Range    `json:"times_faster"` // than plain, with the same compute
	Binds   []string `json:"binds,omitempty"`

	Stall   *Range `json:"stall_s,omitempty"`          // epoch with compute: time in which the GPUs wait
	Restore *Range `json:"restore_s,omitempty"`        // checkpoint: reading it back
	Share   *Range `json:"overhead_share,omitempty"`   // checkpoint: the part of all time that checkpoints and lost work take
	Best    *Range `json:"best_interval_s,omitempty"`  // checkpoint: sqrt(2 x time x MTBF) (Young 1974)
	Fits    string `json:"fits_the_notice,omitempty"`  // checkpoint: yes, no, or perhaps
	Lost    *Range `json:"lost_a_failure_s,omitempty"` // checkpoint: work lost and time to restore at a preemption
}

func (m *model) job(ctx context.Context, j Job) (*JobReport, error) {
	r := &JobReport{Job: j, Against: Plain}
	for _, path := range []string{Plain, Staged, Mapped, Direct} {
		p, err := m.jobPath(ctx, j, path)
		if err != nil {
			return nil, err
		}
		r.Paths = append(r.Paths, *p)
	}
	plain := &r.Paths[0]
	for i := range r.Paths {
		if p := &r.Paths[i]; p.Without == "" && plain.Without == "" {
			p.Cost = p.Time.scale(m.node.PricePerHour / 3600)
			// The same errors act on both, so mids are compared with mids.
			p.Faster = Range{plain.Time.Low / p.Time.Low, plain.Time.Mid / p.Time.Mid, plain.Time.High / p.Time.High}
			p.Faster = Range{min(p.Faster.Low, p.Faster.Mid, p.Faster.High), p.Faster.Mid, max(p.Faster.Low, p.Faster.Mid, p.Faster.High)}
		}
	}
	return r, nil
}

func (m *model) jobPath(ctx context.Context, j Job, path string) (*JobPath, error) {
	p := &JobPath{Path: path}
	u := use{path: path, gpus: len(m.node.GPUs), cold: !j.Cached || path == Direct, once: true, write: j.Kind == Checkpoint}
	if u.write {
		u.cold = false
	}
	why, ok := m.offers(u)
	if p.Without = why; !ok {
		return p, nil
	}
	o, err := m.run(ctx, u)
	if err != nil {
		return nil, err
	}
	p.Rate, p.Binds = o.aggregate, o.binds
	switch j.Kind {
	case Epoch:
		err = m.epoch(ctx, j, u, p)
	case Weights:
		err = m.weights(ctx, j, u, p)
	case Checkpoint:
		err = m.checkpoint(ctx, j, u, p)
	}
	return p, err
}

// epoch reads the data in each pass. Only the first pass over cached data registers it.
func (m *model) epoch(ctx context.Context, j Job, u use, p *JobPath) error {
	size := float64(j.Size) / 1e9
	reading := p.Rate.per(size)
	if j.Passes > 1 {
		again := u
		again.once = u.cold // data that is not cached is not registered for long
		o, err := m.run(ctx, again)
		if err != nil {
			return err
		}
		reading = reading.add(o.aggregate.per(size * float64(j.Passes-1)))
		p.Rate, p.Binds = o.aggregate, o.binds
	}
	p.Time = reading
	if j.Compute > 0 {
		compute := float64(j.Compute) * float64(j.Passes)
		stall := reading.each(func(t float64) float64 { return max(0, t-compute) })
		p.Stall = &stall
		p.Time = reading.each(func(t float64) float64 { return max(t, compute) })
	}
	return nil
}

// weights are read once into all GPUs, or a copy into each: then storage gives them once, where the page cache keeps them.
func (m *model) weights(ctx context.Context, j Job, u use, p *JobPath) error {
	size := float64(j.Size) / 1e9
	if !j.Copies || u.path == Direct {
		if j.Copies {
			size *= float64(u.gpus)
		}
		p.Time = p.Rate.per(size)
		return nil
	}
	// Reading and registering once serve all copies, and go on beside the copying.
	once := map[string]Range{}
	if u.cold {
		once[stageStorage] = m.storage(false).per(size)
	}
	if u.path == Mapped {
		once[stageRegistering] = m.cal.Register.per(size)
	}
	u.cold, u.once = false, false
	o, err := m.run(ctx, u)
	if err != nil {
		return err
	}
	copies := size * float64(u.gpus)
	p.Time, p.Binds = o.aggregate.per(copies), o.binds
	for _, stage := range slices.Sorted(maps.Keys(once)) {
		t := once[stage]
		if t.Mid > p.Time.Mid {
			p.Binds = []string{stage}
		}
		p.Time = Range{max(p.Time.Low, t.Low), max(p.Time.Mid, t.Mid), max(p.Time.High, t.High)}
	}
	p.Rate = p.Time.per(copies)
	return nil
}

// checkpoint writes at each interval while the GPUs wait, and loses work at each preemption.
func (m *model) checkpoint(ctx context.Context, j Job, u use, p *JobPath) error {
	size := float64(j.Size) / 1e9
	p.Time = p.Rate.per(size)
	u.write, u.cold = false, true
	o, err := m.run(ctx, u)
	if err != nil {
		return err
	}
	restore := o.aggregate.per(size)
	p.Restore = &restore
	if j.Notice > 0 {
		switch notice := float64(j.Notice); {
		case p.Time.High <= notice:
			p.Fits = "yes"
		case p.Time.Low > notice:
			p.Fits = "no"
		default:
			p.Fits = "perhaps"
		}
	}
	if j.Interval == 0 {
		return nil
	}
	interval, mtbf := float64(j.Interval), float64(j.MTBF)
	lost := restore.each(func(t float64) float64 { return t + interval/2 })
	if p.Fits == "yes" { // the notice is enough for a last checkpoint
		lost = restore.add(p.Time)
	}
	share := atLevels(func(level func(Range) float64) float64 { return overhead(level(p.Time), level(lost), interval, mtbf) })
	p.Share = &share
	if mtbf > 0 {
		best := p.Time.each(func(t float64) float64 { return math.Sqrt(2 * t * mtbf) })
		p.Best, p.Lost = &best, &lost
	}
	return nil
}

// overhead is the part of all time that goes into checkpoints of so many seconds and into failures; 1 is all of it.
func overhead(write, lost, interval, mtbf float64) float64 {
	share := write / (interval + write)
	if mtbf > 0 {
		share += lost / mtbf
	}
	return min(1, share)
}
