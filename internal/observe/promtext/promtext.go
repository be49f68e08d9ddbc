// Package promtext owns pages of metrics in Prometheus' text exposition format 0.0.4: it writes one, and
// merges those of several mounts.
package promtext

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Page is a page of metrics in the order in which they were first named. The format wants all samples of a metric together.
type Page struct {
	Terse bool // leaves out metrics without samples

	byName map[string]*Metric
	order  []*Metric
}

// Metric is a metric of a page with its samples.
type Metric struct {
	name, help, kind string
	samples          bytes.Buffer
}

func (p *Page) metric(name string) *Metric {
	if p.byName == nil {
		p.byName = map[string]*Metric{}
	}
	if p.byName[name] == nil {
		p.byName[name] = &Metric{name: name}
		p.order = append(p.order, p.byName[name])
	}
	return p.byName[name]
}

func (p *Page) declare(name, help, kind string) *Metric {
	m := p.metric(name)
	m.help, m.kind = fmt.Sprintf("# HELP %s %s\n", name, help), fmt.Sprintf("# TYPE %s %s\n", name, kind)
	return m
}

// Gauge declares a metric that goes up and down.
func (p *Page) Gauge(name, help string) *Metric { return p.declare(name, help, "gauge") }

// Counter declares a metric that only goes up.
func (p *Page) Counter(name, help string) *Metric { return p.declare(name, help, "counter") }

// Histogram writes how many of something took up to each of the bounds, and how long all took. The last count is of
// those that took longer.
func (p *Page) Histogram(name, help string, bounds []time.Duration, counts []int64, sum time.Duration) {
	m, n := p.declare(name, help, "histogram"), int64(0)
	for i, c := range counts {
		le := "+Inf"
		if i < len(bounds) {
			le = fmt.Sprintf("%g", bounds[i].Seconds())
		}
		n += c
		m.sample("_bucket", n, "le", le)
	}
	m.sample("_sum", sum.Seconds())
	m.sample("_count", n)
}

// Up declares hbmfs_up, the one metric of a page of several mounts that a mount's own page lacks.
func (p *Page) Up() *Metric { return p.Gauge("hbmfs_up", "1 where the daemon of a mount answers.") }

// Add adds a sample, and returns the metric. Labels are names and values in turn. A bool is 0 or 1.
func (m *Metric) Add(value any, labels ...string) *Metric {
	if on, ok := value.(bool); ok {
		value = map[bool]int{true: 1}[on]
	}
	m.sample("", value, labels...)
	return m
}

func (m *Metric) sample(suffix string, value any, labels ...string) {
	m.samples.WriteString(labelled(fmt.Sprintf("%s%s %v\n", m.name, suffix, value), labels))
}

// Merge adds the page of a mount, with labels on each sample, names and values in turn.
func (p *Page) Merge(text string, labels ...string) {
	var current *Metric
	for line := range strings.Lines(text) {
		words := strings.SplitN(line, " ", 4)
		if words[0] != "#" {
			if current != nil {
				current.samples.WriteString(labelled(line, labels))
			}
			continue
		}
		if len(words) < 4 {
			continue
		}
		current = p.metric(words[2])
		switch words[1] { // said once
		case "HELP":
			current.help = cmp.Or(current.help, line)
		case "TYPE":
			current.kind = cmp.Or(current.kind, line)
		}
	}
}

func (p *Page) String() string {
	var b strings.Builder
	for _, m := range p.order {
		if m.samples.Len() > 0 || !p.Terse {
			b.WriteString(m.help + m.kind + m.samples.String())
		}
	}
	return b.String()
}

// labelled adds labels to a sample's others. Names of metrics have no brace and no space.
func labelled(sample string, labels []string) string {
	i := strings.IndexAny(sample, "{ ")
	if i < 0 || len(labels) == 0 {
		return sample
	}
	var all []string
	for k := 0; k < len(labels); k += 2 {
		all = append(all, labels[k]+"="+quote(labels[k+1]))
	}
	text := strings.Join(all, ",")
	if sample[i] == '{' {
		return sample[:i+1] + text + "," + sample[i+1:]
	}
	return sample[:i] + "{" + text + "}" + sample[i:]
}

// quote writes the value of a label with the three escapes of the format. Prometheus takes any other, as Go's %q makes them, for a
// syntax error, and refuses the whole page. Paths, names of clients and reasons may hold anything.
func quote(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(value, "\uFFFD")) + `"`
}
