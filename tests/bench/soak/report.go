package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// result holds a soak's figures.
type result struct {
	began           time.Time
	took            time.Duration
	reads, bytes    int64
	held, heldBytes int64
	wrong           int64
	failed          []string
	answers, served int64
	faults          []int64
	samples         []sample
}

// third gives the median of a figure over one third of the samples, the first of which is left out of the first third.
// A figure that grows from the second to the last has not settled.
func (r *result) third(i int, of func(sample) int64) int64 {
	n := len(r.samples)
	part := r.samples[n*i/3 : n*(i+1)/3]
	var x []int64
	for _, s := range part {
		x = append(x, of(s))
	}
	slices.Sort(x)
	if len(x) == 0 {
		return 0
	}
	return x[len(x)/2]
}

// noLimit is the slack of figures that are bounded otherwise.
const noLimit = 1 << 40

// figure is something that must stay flat.
type figure struct {
	name  string
	of    func(sample) int64
	slack int64 // by which it may grow all the same
}

func figures() []figure {
	return []figure{
		{"memory of the daemon, KiB", func(s sample) int64 { return s.rss >> 10 }, 16 << 10},
		{"descriptors of the daemon", func(s sample) int64 { return int64(s.descriptors) }, 256}, // segments that stay open between reads
		{"files of the cache, KiB", func(s sample) int64 { return s.disk >> 10 }, noLimit},       // up to the budget they may
		{"pinned bytes of the cache, KiB", func(s sample) int64 { return s.cache.Pinned >> 10 }, 32 << 10},
	}
}

// verdict is nil if all went well.
func (r *result) verdict() error {
	var errs []error
	if r.wrong > 0 || len(r.failed) > 0 {
		errs = append(errs, fmt.Errorf("%d reads brought other bytes, %d failed", r.wrong, int64(len(r.failed))-r.wrong))
	}
	for _, f := range figures() {
		if second, last := r.third(1, f.of), r.third(2, f.of); last > second+second/10+f.slack {
			errs = append(errs, fmt.Errorf("%s grew from %d to %d", f.name, second, last))
		}
	}
	for _, s := range r.samples {
		if s.disk > s.cache.Limit {
			errs = append(errs, fmt.Errorf("after %v the cache has %d bytes, %d are allowed", s.at.Round(time.Second), s.disk, s.cache.Limit))
			break
		}
	}
	if len(r.samples) == 0 || r.samples[len(r.samples)-1].cache.Evicted == 0 || r.held == 0 || r.reads == 0 {
		errs = append(errs, errors.New("it did not do what it is for: nothing was read, held or evicted"))
	}
	return errors.Join(errs...)
}

func (r *result) markdown(c config) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# A soak of the cache\n\n    go run ./tests/bench/soak --time %v --objects %d --object-size %d --readers %d --holders %d --faults %g\n\n",
		c.time, c.objects, c.objectSize, c.readers, c.holders, c.faults)
	last := sample{}
	if len(r.samples) > 0 {
		last = r.samples[len(r.samples)-1]
	}
	fmt.Fprintf(&b, `%s on %s: %d objects of %d MiB behind a web server, a cache of a tenth of them in segments of 1 MiB, %d readers of
random ranges through the mount, %d readers past it that hold leases. Every byte was compared.

| | |
|---|---|
| reads through the mount | %d, %.1f GB |
| reads by extents | %d, %.1f GB |
| other bytes | %d |
| failed reads | %d |
| answers of the origin | %d, of which %s |
| fetched, bytes read past the cache | %.1f GB, %.1f GB |
| bytes fetched for each that was read | %.2f |
| segments published, evicted | %d, %d |
| requests tried again, second requests for slow ones | %d, %d |
`, r.took.Round(time.Second), r.began.UTC().Format(time.DateOnly), c.objects, c.objectSize>>20, c.readers, c.holders,
		r.reads, gb(r.bytes), r.held, gb(r.heldBytes), r.wrong, int64(len(r.failed))-r.wrong, r.answers, r.faultList(),
		gb(last.cache.Fetched), gb(last.cache.Uncached), float64(last.cache.Fetched+last.cache.Uncached)/float64(max(1, r.bytes+r.heldBytes)), last.cache.Published, last.cache.Evicted, last.origin.Retries, last.origin.Hedges)
	b.WriteString("\nMedians of the three thirds of the time:\n\n| | first | second | last |\n|---|---|---|---|\n")
	for _, f := range figures() {
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", f.name, r.third(0, f.of), r.third(1, f.of), r.third(2, f.of))
	}
	if err := r.verdict(); err != nil {
		fmt.Fprintf(&b, "\nIt failed: %v\n", err)
		for _, f := range r.failed[:min(len(r.failed), 20)] {
			fmt.Fprintf(&b, "- %s\n", f)
		}
	}
	return b.String()
}

func (r *result) faultList() string {
	var parts []string
	for f, n := range r.faults {
		parts = append(parts, fmt.Sprintf("%d %v", n, fault(f)))
	}
	return strings.Join(parts, ", ")
}

func gb(n int64) float64 { return float64(n) / 1e9 }
