package host

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// admit tells whether one more volume may be used, for a pod of a namespace, or for an administrator's volume where that is
// empty. It needs mu.
func (h *Host) admit(namespace string) error {
	used, its := 0, 0
	for _, v := range h.volumes {
		if v.rec.idle() {
			continue
		}
		used++
		if v.rec.countsFor(namespace) {
			its++
		}
	}
	switch {
	case h.opt.MaxDaemons > 0 && used >= h.opt.MaxDaemons:
		h.counts.refused++
		return status.Errorf(codes.ResourceExhausted, "this node has %d daemons, and may have %d (hbmfs-csi host --max-daemons, maxDaemons of the chart): give volumes of the same content the same attributes, so that they share one, have the pod run on another node, or raise the limit", used, h.opt.MaxDaemons)
	case namespace != "" && h.opt.MaxOfNamespace > 0 && its >= h.opt.MaxOfNamespace:
		h.counts.refused++
		return status.Errorf(codes.ResourceExhausted, "the pods of namespace %s have %d daemons of this node, and may have %d (hbmfs-csi host --max-daemons-per-namespace, maxDaemonsPerNamespace of the chart), so that others get theirs: give volumes of the same content the same attributes, so that they share one, have the pod run on another node, or raise the limit", namespace, its, h.opt.MaxOfNamespace)
	}
	return nil
}

// countsFor tells whether a volume counts for a namespace: a pod of it has the volume, and no administrator has it staged.
func (r *record) countsFor(namespace string) bool {
	return len(r.Staged) == 0 && r.hasPod(func(p pod) bool { return p.Namespace == namespace })
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
