package host

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/roots"
	"github.com/hbmfs/hbmfs/internal/csi/volume"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
)

// A checkpoint volume is one daemon for all pods that write and read there. Drafts end with the containers that began them: the daemon
// sees that by itself, even without kubelet, the plugin and this host. So it is with a KV volume, and the pins and reservations of its
// pods' processes. The directory, and volumes that must not meet, remain to be checked here.

// roots are the directories below which volumes lie that pods change, as this one.
func (h *Host) roots(s volume.Spec) roots.Roots {
	if s.KV {
		return roots.KV(h.opt.AllowKV)
	}
	return roots.Checkpoints(h.opt.AllowCheckpoints)
}

// kind names the kind of a volume that pods change.
func kind(s volume.Spec) string {
	if s.KV {
		return "KV volume"
	}
	return "checkpoint volume"
}

// allowed refuses directories of the node that a volume may not have. namespace is that of the pod, and inline says that the pod
// describes the volume.
func (h *Host) allowed(ctx context.Context, s volume.Spec, namespace string, inline bool) error {
	dir := s.Directory()
	if dir == "" {
		return nil
	}
	if !s.Written() {
		return h.lookOnce(ctx, namespace, dir, func() error { return h.look(dir) })
	}
	within := ""
	if inline {
		if within = namespace; within == "" {
			return status.Errorf(codes.FailedPrecondition, "an inline %s needs to know the pod's namespace: set podInfoOnMount in the CSIDriver object", kind(s))
		}
	}
	dirs := h.roots(s)
	return h.lookOnce(ctx, namespace, kind(s)+" of "+within+" "+dir, func() error { return dirs.Check(dir, within) })
}

// meets refuses a volume whose directory or destination another one has. Where that lingers, since nobody uses it any more, meets returns it.
// A pod claims a destination against volumes of the same rights only, since it may have none there. A drain with other rights finds the
// mark of the first one at the bucket. namespace is that of the pod, "" for an administrator's volume. It needs mu.
func (h *Host) meets(w volume.Want, namespace string) (ends *nodeVolume, err error) {
	if !w.Written() {
		return nil, nil
	}
	for _, v := range h.volumes {
		s := v.rec.Spec
		if !s.Written() {
			continue
		}
		var what string
		sameRights := s.Auth == w.Auth && s.Identity == w.Identity
		switch {
		case roots.Overlap(s.Source, w.Source):
			what = "the directory " + s.Source
		case (sameRights || len(v.rec.Staged) > 0) && roots.SameDestination(s.Drain, w.Drain):
			what = "the destination " + s.Drain
		default:
			continue
		}
		if v.rec.idle() {
			ends, err = v, status.Errorf(codes.Unavailable, "%s is that of a %s that just ends: try again", what, kind(s))
			continue // another may refuse it
		}
		h.counts.refused++
		return nil, status.Errorf(codes.FailedPrecondition, "%s is that of another %s, which %s has: two volumes do not share a directory or a destination; pods share a volume whose attributes and rights are all equal", what, kind(s), v.rec.someUser(namespace))
	}
	return ends, err
}

// sameGroup refuses a pod that would take a volume's directory away from the group of another pod that writes there. It needs mu.
func (r *record) sameGroup(p pod) error {
	for _, other := range r.Published {
		if p.Group != "" && other.Group != "" && other.Group != p.Group {
			return status.Errorf(codes.FailedPrecondition, "the pod's fsGroup is %s, and pod %s/%s writes to this %s with fsGroup %s: give both one group, or mount it with readOnly: true", p.Group, other.Namespace, other.Name, kind(r.Spec), other.Group)
		}
	}
	return nil
}

// makeDirectory makes the directory of a volume, and gives it to the group of a pod that writes there.
func (h *Host) makeDirectory(w volume.Want) error {
	if !w.Written() {
		return nil
	}
	dirs := h.roots(w.Spec)
	return dirs.Make(w.Source, w.Group)
}

// dropTime is how long a daemon may take to remove drafts, which may be large, when its mount is over, or to have blocks on the disk.
const dropTime = time.Minute

// clean removes drafts that the daemon of a checkpoint volume left: it was killed, or took too long. Nobody serves the volume any
// more.
func (v *nodeVolume) clean() {
	var s volume.Spec
	v.with(func(r *record) { s = r.Spec })
	if !s.Checkpoints {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dropTime)
	defer cancel()
	if out, err := aside.Output(ctx, dropTime, v.host.opt.HBMFS, "checkpoint", "clean", "--all-users", s.Source); err != nil {
		v.host.log.Error("drafts may be left of a volume: hbmfs checkpoint clean --all-users removes them", "volume", v.key, "directory", s.Source, "error", err)
	} else if len(out) > 0 {
		v.host.log.Info("removed what a dead daemon left", "volume", v.key, "said", string(out))
	}
}
