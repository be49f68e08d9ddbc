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

	"github.com/hbmfs/hbmfs/internal/observe/promtext"
)

// The host asks so many mounts at once for their metrics; one that takes longer than itsTime no longer counts. All of a
// page takes pageTime at most, since Prometheus gives up after 10 seconds by default (scrape_timeout).
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
	p := promtext.Page{Terse: true}
	for i, v := range volumes {
		p.Merge(string(texts[i]), "volume", v.key, "mount", v.mount())
	}
	p.Gauge("hbmfs_csi_host_up", "1 where hbmfs-csi host answers.").Add(1)
	p.Gauge("hbmfs_csi_max_daemons", "Daemons that the node may have; 0 is no limit.").Add(h.opt.MaxDaemons)
	up := p.Up()
	late := p.Gauge("hbmfs_csi_unanswered_seconds", "For how long a daemon has not answered a question; of those that are late.")
	info := p.Gauge("hbmfs_csi_volume", "1 for each volume with a daemon of its own.")
	published := p.Gauge("hbmfs_csi_published", "1 for each volume of a pod.")
	for i, v := range volumes {
		up.Add(texts[i] != nil, "volume", v.key, "mount", v.mount())
		if d := h.asker.Late(v.key); d > 0 {
			late.Add(fmt.Sprintf("%.0f", d.Seconds()), "volume", v.key, "mount", v.mount())
		}
		v.with(func(r *record) {
			info.Add(1, "volume", v.key, "source", r.Spec.Source, "authentication", r.Spec.Auth)
			var pods [][]string // one may have a volume twice
			for _, u := range r.Published {
				pods = append(pods, []string{"volume", v.key, "volume_id", u.VolumeID, "namespace", u.Namespace, "pod", u.Name})
			}
			slices.SortFunc(pods, slices.Compare)
			for _, labels := range slices.CompactFunc(pods, slices.Equal) {
				published.Add(1, labels...)
			}
		})
	}
	for _, m := range []struct {
		name, help string
		n          int64
	}{
		{"starts", "Daemons that were started.", c.starts},
		{"failed_starts", "Daemons that did not come up.", c.failedStarts},
		{"deaths", "Daemons that died while they were used, and no other went on with the mount.", c.deaths},
		{"refused_daemons", "Times that a volume was refused since the node has as many daemons as it may.", c.refused},
		{"replaced_mounts", "Dead mounts that were replaced inside of pods.", c.replaced},
	} {
		p.Counter("hbmfs_csi_"+m.name+"_total", m.help).Add(m.n)
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
