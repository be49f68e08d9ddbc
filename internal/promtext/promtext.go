// Package promtext writes labels of Prometheus metrics, and makes one page of several: of the mounts of a machine, of the
// volumes of a node.
package promtext

import (
	"cmp"
	"fmt"
	"strings"
)

// Page is one page of metrics made of several: each sample gets labels, and all samples of a metric stand together, as the
// format wants it.
type Page struct {
	families map[string]*family
	order    []string
}

type family struct{ help, kind, body string }

func (p *Page) of(name string) *family {
	if p.families == nil {
		p.families = map[string]*family{}
	}
	if p.families[name] == nil {
		p.families[name] = &family{}
		p.order = append(p.order, name)
	}
	return p.families[name]
}

// Add adds the text of a mount's metrics, with labels (NAME=VALUE,...; values are of [Quote]) on each sample.
func (p *Page) Add(text, label string) {
	var current *family
	for line := range strings.Lines(text) {
		words := strings.SplitN(line, " ", 4)
		if words[0] != "#" {
			if current != nil {
				current.body += labelled(line, label)
			}
			continue
		}
		if len(words) < 4 {
			continue
		}
		current = p.of(words[2])
		switch words[1] { // said once
		case "HELP":
			current.help = cmp.Or(current.help, line)
		case "TYPE":
			current.kind = cmp.Or(current.kind, line)
		}
	}
}

// Metric adds a metric whose samples are not of a mount, each as {LABELS} VALUE.
func (p *Page) Metric(name, kind, help string, samples ...string) {
	f := p.of(name)
	f.help, f.kind = fmt.Sprintf("# HELP %s %s\n", name, help), fmt.Sprintf("# TYPE %s %s\n", name, kind)
	for _, s := range samples {
		f.body += name + s + "\n"
	}
}

func (p *Page) String() string {
	var b strings.Builder
	for _, name := range p.order {
		if f := p.families[name]; f.body != "" {
			b.WriteString(f.help + f.kind + f.body)
		}
	}
	return b.String()
}

// labelled adds labels to a sample's others. Names of metrics have no brace and no space.
func labelled(sample, label string) string {
	i := strings.IndexAny(sample, "{ ")
	switch {
	case i < 0:
		return sample
	case sample[i] == '{':
		return sample[:i+1] + label + "," + sample[i+1:]
	}
	return sample[:i] + "{" + label + "}" + sample[i:]
}

// Quote writes the value of a label with the three escapes of the format. Any other, as Go's %q makes them, is a syntax
// error that costs the reader the whole page; and paths, names of clients and reasons may hold anything.
func Quote(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(value, "\uFFFD")) + `"`
}
