package host

import (
	"errors"
	"maps"
	"os"
	"slices"
)

// forget drops the uses of a volume that ended without a word, while no host was there. A target that is not there was
// never made, or has been removed, so nothing is mounted on it. The volume's lock must be held.
func (v *nodeVolume) forget() error {
	var targets []string
	v.with(func(r *record) { targets = slices.Collect(maps.Keys(r.Published)) })
	targets = slices.DeleteFunc(targets, func(target string) bool { return !missingPath(target) })
	var err error
	v.with(func(r *record) {
		for _, target := range targets {
			delete(r.Published, target)
		}
		if len(targets) > 0 {
			r.mayLinger() // the rest of the drain is unknown
		}
		err = v.save() // nobody calls again: they are dropped all the same
	})
	return errors.Join(err, v.forgetStaged())
}

// forgetStaged drops stagings below a directory of kubelet that has been wiped since. Kubelet makes a staging path before
// it asks for the staging, and removes it after the unstaging. A volume that a pod has stays: later calls for the pod may
// rely on the secrets of the staging.
func (v *nodeVolume) forgetStaged() (err error) {
	h := v.host
	var staged map[string]string
	v.with(func(r *record) { staged = maps.Clone(r.Staged) })
	for _, id := range slices.Sorted(maps.Keys(staged)) {
		path := staged[id]
		if !missingPath(path) {
			continue
		}
		log := h.log.With("volume", v.key, "volume_id", id, "path", path)
		_, missing := os.Stat(h.opt.KubeletDir)
		switch {
		case missing != nil || !below(path, h.opt.KubeletDir): // perhaps a disk is not mounted yet
			log.Warn("a volume stays staged although its staging path is gone, since kubelet's directory is not there, or the path not in it; NodeUnstageVolume ends it")
			continue
		case h.inPods(id):
			log.Warn("a volume stays staged although its staging path is gone, since pods have it; NodeUnstageVolume ends it, or the next host once they are gone")
			continue
		}
		log.Warn("a volume is staged no more: its staging path was removed without NodeUnstageVolume")
		v.with(func(r *record) {
			delete(r.Staged, id)
			err = errors.Join(err, v.save())
		})
	}
	return err
}

// inPods tells whether a volume id is published anywhere, by whichever daemon.
func (h *Host) inPods(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.volumes {
		if v.rec.hasPod(func(p pod) bool { return p.VolumeID == id }) {
			return true
		}
	}
	return false
}

// missingPath tells whether nothing is at a path for sure.
func missingPath(path string) bool { return nowhere(find(path)) }
