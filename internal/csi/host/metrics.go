package host

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/internal/promtext"
)

// How mounts are asked for their metrics: so many at once, of which one that takes its time no longer counts; and so long in
// all, since Prometheus by itself gives up after 10 seconds (scrape_timeout).
const (
	askers   = 8
	itsTime  = 200 * time.Millisecond
	pageTime = 8 * time.Second
)

// ServeHTTP writes the metrics of all volumes, and the host's own.
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprint(w, h.metrics(r.Context()))
}

func (h *Host) metrics(ctx context.Context) string {
	h.mu.Lock()
	volumes := slices.SortedFunc(maps.Values(h.volumes), func(a, b *nodeVolume) int { return cmp.Compare(a.key, b.key) })
	c := h.counts
	h.mu.Unlock()
	texts := askAll(ctx, volumes)
	var p promtext.Page
	up, late, info, published := []string{}, []string{}, []string{}, []string{}
	for i, v := range volumes {
		label := "volume=" + promtext.Quote(v.key) + ",mount=" + promtext.Quote(v.mount())
		up = append(up, fmt.Sprintf("{%s} %d", label, map[bool]int{true: 1}[texts[i] != nil]))
		if d := h.asker.Late(v.key); d > 0 {
			late = append(late, fmt.Sprintf("{%s} %.0f", label, d.Seconds()))
		}
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
	p.Metric("hbmfs_csi_unanswered_seconds", "gauge", "For how long a daemon has not answered a question; of those that are late.", late...)
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

// askAll asks mounts for their metrics, nil where one does not answer. However many are stuck, the others have their turn.
func askAll(ctx context.Context, volumes []*nodeVolume) [][]byte {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	texts := make([][]byte, len(volumes))
	var group sync.WaitGroup
	slots := make(chan struct{}, askers)
	for i, v := range volumes {
		group.Go(func() {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			release := sync.OnceFunc(func() { <-slots })
			defer release()
			defer time.AfterFunc(itsTime, release).Stop()
			texts[i], _ = v.ask(ctx, "metrics") // hbmfs_up says so
		})
	}
	group.Wait()
	return texts
}
