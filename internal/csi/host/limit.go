package host

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
)

// roomFor refuses a want for which there is no room. claimed is its volume, which nobody uses, nil for a new one. namespace is that of a
// pod, or empty for an administrator's volume. A volume that nobody uses ends for the want, unless that is refused anyhow. It needs mu.
func (h *Host) roomFor(claimed *nodeVolume, w volume.Want, namespace string) error {
	checks := []func() (*nodeVolume, error){func() (*nodeVolume, error) { return h.admit(claimed, namespace) }}
	if claimed == nil {
		checks = append(checks,
			func() (*nodeVolume, error) { return h.meets(w, namespace) },
			func() (*nodeVolume, error) { return h.memoryFor(w, namespace) })
	}
	var ends *nodeVolume
	var again error
	for _, check := range checks {
		switch v, err := check(); {
		case err != nil && v == nil:
			return err
		case ends == nil:
			ends, again = v, err
		}
	}
	if ends != nil {
		h.endLinger(ends)
	}
	return again
}

// soonest returns the one of two volumes that ends sooner for others: nobody uses it, and it drains nothing. It needs mu.
func soonest(best, v *nodeVolume) *nodeVolume {
	if !v.rec.idle() || v.rec.Draining || best != nil && best.rec.Kept.Before(v.rec.Kept) {
		return best
	}
	return v
}

// admit tells whether there may be one more daemon beside that of a claimed volume. Those that linger or just end count, too. Where a volume
// can end for it, admit returns that one. It needs mu.
func (h *Host) admit(claimed *nodeVolume, namespace string) (ends *nodeVolume, err error) {
	used, its := 0, 0
	var itsEnds *nodeVolume
	for _, v := range h.volumes {
		if v == claimed {
			continue
		}
		used++
		ends = soonest(ends, v)
		if v.rec.countsFor(namespace) {
			its++
			itsEnds = soonest(itsEnds, v)
		}
	}
	full := h.opt.MaxDaemons > 0 && used >= h.opt.MaxDaemons
	itsFull := namespace != "" && h.opt.MaxOfNamespace > 0 && its >= h.opt.MaxOfNamespace
	if itsFull {
		ends = itsEnds
	}
	switch {
	case !full && !itsFull:
		return nil, nil
	case ends != nil:
		return ends, status.Error(codes.Unavailable, "there are as many daemons as may be, and one that nobody uses any more just ends: try again")
	case full:
		h.counts.refused++
		return nil, status.Errorf(codes.ResourceExhausted, "this node has %d daemons, and may have %d (hbmfs-csi host --max-daemons, maxDaemons of the chart): give volumes of the same content the same attributes, so that they share one, have the pod run on another node, or raise the limit", used, h.opt.MaxDaemons)
	default:
		h.counts.refused++
		return nil, status.Errorf(codes.ResourceExhausted, "the pods of namespace %s have %d daemons of this node, and may have %d (hbmfs-csi host --max-daemons-per-namespace, maxDaemonsPerNamespace of the chart), so that others get theirs: give volumes of the same content the same attributes, so that they share one, have the pod run on another node, or raise the limit", namespace, its, h.opt.MaxOfNamespace)
	}
}

// countsFor tells whether a volume counts for a namespace: a pod of it has the volume, or had it last, and no administrator has it staged.
func (r *record) countsFor(namespace string) bool {
	return len(r.Staged) == 0 && (r.idle() && r.Last == namespace || r.hasPod(func(p pod) bool { return p.Namespace == namespace }))
}

// looksOfNamespace is how many directories are looked at for one namespace at once. A look takes no time, or, where its
// filesystem does not answer, a thread of this process for as long as that lasts.
const looksOfNamespace = 8

// beginLook counts a look for a namespace. Those of administrators' volumes, and of daemons that are started again, are as many
// as these.
func (h *Host) beginLook(namespace string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if namespace != "" && h.looking[namespace] >= looksOfNamespace {
		return status.Errorf(codes.Unavailable, "the filesystems of %d directories that pods of namespace %s want to see do not answer, and no more are looked at for it until they do", looksOfNamespace, namespace)
	}
	h.looking[namespace]++
	return nil
}

func (h *Host) endLook(namespace string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.looking[namespace]--; h.looking[namespace] == 0 {
		delete(h.looking, namespace)
	}
}
