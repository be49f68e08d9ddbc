package main

import (
	"context"
	"fmt"
	"slices"
)

// spread is the result of several runs of one measurement.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Runs   int     `json:"runs"`
}

// newSpread summarizes values, of which there must be one at least.
func newSpread(values []float64) spread {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return spread{
		Median: (sorted[(n-1)/2] + sorted[n/2]) / 2,
		Min:    sorted[0],
		Max:    sorted[n-1],
		Runs:   n,
	}
}

// comparison is a case in which more is better: rates in bytes per second, and the ratio that is judged.
type comparison struct {
	Name     string  `json:"name"`
	Against  string  `json:"against"`
	Ratio    spread  `json:"ratio"`    // of the two runs of each round
	Mount    spread  `json:"mount"`    // bytes per second
	Baseline spread  `json:"baseline"` // bytes per second
	Target   float64 `json:"target"`   // least median ratio
}

func (c comparison) met() bool { return c.Ratio.Median >= c.Target }

// limit is a case in which less is better.
type limit struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value spread  `json:"value"`
	Limit float64 `json:"limit"` // the median must stay below; 0 means that nothing was promised
}

func (l limit) met() bool { return l.Limit == 0 || l.Value.Median < l.Limit }

// measure returns a rate; the seed says which random offsets to use.
type measure func(ctx context.Context, seed uint64) (float64, error)

// compare runs mount and baseline in turn. One round before the first is thrown away: it warms both sides.
func compare(ctx context.Context, rounds int, mount, baseline measure) (ratio, a, b spread, err error) {
	var ratios, mounts, baselines []float64
	for i := range rounds + 1 {
		base, err := baseline(ctx, uint64(i))
		if err != nil {
			return ratio, a, b, fmt.Errorf("baseline: %w", err)
		}
		rate, err := mount(ctx, uint64(i))
		if err != nil {
			return ratio, a, b, fmt.Errorf("mount: %w", err)
		}
		if i == 0 {
			continue
		}
		ratios, mounts, baselines = append(ratios, rate/base), append(mounts, rate), append(baselines, base)
	}
	return newSpread(ratios), newSpread(mounts), newSpread(baselines), nil
}
