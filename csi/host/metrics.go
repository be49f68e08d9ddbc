package host

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/hbmfs/hbmfs/promtext"
)

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
	var p promtext.Page
	up, info, published := []string{}, []string{}, []string{}
	for i, v := range volumes {
		label := "volume=" + promtext.Quote(v.key) + ",mount=" + promtext.Quote(v.mount())
		up = append(up, fmt.Sprintf("{%s} %d", label, map[bool]int{true: 1}[texts[i] != nil]))
		p.Add(string(texts[i]), label)
		v.with(func(r *record) {
			info = append(info, fmt.Sprintf("{volume=%s,source=%s,authentication=%s} 1", promtext.Quote(v.key), promtext.Quote(r.Spec.Source), promtext.Quote(r.Spec.Auth)))
			for _, target := range slices.Sorted(maps.Keys(r.Published)) {
				u := r.Published[target]
				published = append(published, fmt.Sprintf("{volume=%s,volume_id=%s,namespace=%s,pod=%s} 1", promtext.Quote(v.key), promtext.Quote(u.VolumeID), promtext.Quote(u.Namespace), promtext.Quote(u.Name)))
			}
		})
	}
	p.Metric("hbmfs_csi_host_up", "gauge", "1 where hbmfs-csi host answers.", " 1")
	p.Metric("hbmfs_csi_max_daemons", "gauge", "Daemons that the node may have; 0 is no limit.", fmt.Sprintf(" %d", h.opt.MaxDaemons))
	p.Metric("hbmfs_up", "gauge", "1 where the daemon of a mount answers.", up...)
	p.Metric("hbmfs_csi_volume", "gauge", "1 for each volume with a daemon of its own.", info...)
	slices.Sort(published) // a pod may have a volume twice
	p.Metric("hbmfs_csi_published", "gauge", "1 for each volume of a pod.", slices.Compact(published)...)
	for _, m := range []struct {
		name, help string
		n          int64
	}{
		{"starts", "Daemons that were started.", c.starts},
		{"failed_starts", "Daemons that did not come up.", c.failedStarts},
		{"deaths", "Daemons that died while they were used.", c.deaths},
		{"refused_daemons", "Times that a volume was refused since the node has as many daemons as it may.", c.refused},
		{"replaced_mounts", "Dead mounts that were replaced inside of pods.", c.replaced},
	} {
		p.Metric("hbmfs_csi_"+m.name+"_total", "counter", m.help, fmt.Sprintf(" %d", m.n))
	}
	return p.String()
}
