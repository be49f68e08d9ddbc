package host

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// page is one page of metrics made of several: each sample gets labels, and all samples of a metric stand together, as the
// format wants it.
type page struct {
	families map[string]*family
	order    []string
}

type family struct{ help, kind, body string }

func (p *page) of(name string) *family {
	if p.families == nil {
		p.families = map[string]*family{}
	}
	if p.families[name] == nil {
		p.families[name] = &family{}
		p.order = append(p.order, name)
	}
	return p.families[name]
}

// add adds the text of one mount's metrics.
func (p *page) add(text, label string) {
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

// metric adds samples of the host's own.
func (p *page) metric(name, kind, help string, samples ...string) {
	f := p.of(name)
	f.help, f.kind = fmt.Sprintf("# HELP %s %s\n", name, help), fmt.Sprintf("# TYPE %s %s\n", name, kind)
	for _, s := range samples {
		f.body += name + s + "\n"
	}
}

func (p *page) String() string {
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

// quote writes the value of a label with the three escapes of the format.
func quote(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(value, "\uFFFD")) + `"`
}

// askers is how many mounts are asked for their metrics at once.
const askers = 8

// ServeHTTP writes the metrics of all volumes, and the host's own.
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprint(w, h.metrics(r.Context()))
}

func (h *Host) metrics(ctx context.Context) string {
	h.mu.Lock()
	volumes := slices.SortedFunc(maps.Values(h.volumes), func(a, b *held) int { return cmp.Compare(a.key, b.key) })
	c := h.counts
	h.mu.Unlock()
	texts := make([][]byte, len(volumes))
	var group sync.WaitGroup
	slots := make(chan struct{}, askers)
	for i, v := range volumes {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			texts[i], _ = v.ask(ctx, "metrics") // hbmfs_up says so
		})
	}
	group.Wait()
	var p page
	up, info, published := []string{}, []string{}, []string{}
	for i, v := range volumes {
		label := "volume=" + quote(v.key) + ",mount=" + quote(v.mount())
		up = append(up, fmt.Sprintf("{%s} %d", label, map[bool]int{true: 1}[texts[i] != nil]))
		p.add(string(texts[i]), label)
		v.with(func(r *record) {
			info = append(info, fmt.Sprintf("{volume=%s,source=%s,authentication=%s} 1", quote(v.key), quote(r.Spec.Source), quote(r.Spec.Auth)))
			for _, target := range slices.Sorted(maps.Keys(r.Published)) {
				u := r.Published[target]
				published = append(published, fmt.Sprintf("{volume=%s,volume_id=%s,namespace=%s,pod=%s} 1", quote(v.key), quote(u.VolumeID), quote(u.Namespace), quote(u.Name)))
			}
		})
	}
	p.metric("hbmfs_csi_host_up", "gauge", "1 where hbmfs-csi host answers.", " 1")
	p.metric("hbmfs_up", "gauge", "1 where the daemon of a mount answers.", up...)
	p.metric("hbmfs_csi_volume", "gauge", "1 for each volume with a daemon of its own.", info...)
	slices.Sort(published) // a pod may have a volume twice
	p.metric("hbmfs_csi_published", "gauge", "1 for each volume of a pod.", slices.Compact(published)...)
	for _, m := range []struct {
		name, help string
		n          int64
	}{
		{"starts", "Daemons that were started.", c.starts},
		{"failed_starts", "Daemons that did not come up.", c.failedStarts},
		{"deaths", "Daemons that died while they were used.", c.deaths},
		{"replaced_mounts", "Dead mounts that were replaced inside of pods.", c.replaced},
	} {
		p.metric("hbmfs_csi_"+m.name+"_total", "counter", m.help, fmt.Sprintf(" %d", m.n))
	}
	return p.String()
}
