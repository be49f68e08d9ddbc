package host

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/aside"
	"github.com/hbmfs/hbmfs/internal/csi/place"
	"github.com/hbmfs/hbmfs/internal/csi/volume"
)

// A checkpoint volume is one daemon for all pods that write and read there. Drafts end with the containers that began them: the daemon
// sees that by itself, whatever has become of kubelet, the plugin and this host. What is left to do here is the directory, and what must
// not meet.

// allowed refuses directories of the node that a volume may not have. namespace is that of the pod, and inline says that the pod
// describes the volume.
func (h *Host) allowed(ctx context.Context, s volume.Spec, namespace string, inline bool) error {
	dir := s.Directory()
	if dir == "" {
		return nil
	}
	if !s.Checkpoints {
		return h.lookOnce(ctx, namespace, dir, func() error { return h.look(dir) })
	}
	within := ""
	if inline {
		if within = namespace; within == "" {
			return status.Error(codes.FailedPrecondition, "an inline checkpoint volume needs to know the pod's namespace: set podInfoOnMount in the CSIDriver object")
		}
	}
	return h.lookOnce(ctx, namespace, "checkpoints of "+within+" "+dir, func() error { return place.Check(h.opt.AllowCheckpoints, dir, within) })
}

// meets refuses a checkpoint volume whose directory or destination another one has. One that nobody uses any more goes on with its drain
// until then, and ends now. It needs mu.
func (h *Host) meets(w volume.Want) error {
	if !w.Checkpoints {
		return nil
	}
	for _, v := range h.volumes {
		s := v.rec.Spec
		if !s.Checkpoints {
			continue
		}
		var what string
		switch {
		case place.Overlap(s.Source, w.Source):
			what = "the directory " + s.Source
		case place.SameDestination(s.Drain, w.Drain):
			what = "the destination " + s.Drain
		default:
			continue
		}
		if v.rec.idle() {
			h.endDrain(v)
			return status.Errorf(codes.Unavailable, "%s is that of a checkpoint volume that just ends: try again", what)
		}
		h.counts.refused++
		return status.Errorf(codes.FailedPrecondition, "%s is that of another checkpoint volume, which %s has: two volumes do not share a directory or a destination; pods share a volume whose attributes and rights are all equal", what, v.rec.someUser())
	}
	return nil
}

// sameGroup refuses a pod that would take a volume's directory away from the group of another pod that writes there. It needs mu.
func (r *record) sameGroup(p pod) error {
	for _, other := range r.Published {
		if p.Group != "" && other.Group != "" && other.Group != p.Group {
			return status.Errorf(codes.FailedPrecondition, "the pod's fsGroup is %s, and pod %s/%s writes to this checkpoint volume with fsGroup %s: give both one group, or mount it with readOnly: true", p.Group, other.Namespace, other.Name, other.Group)
		}
	}
	return nil
}

// makeDirectory makes the directory of a checkpoint volume, and gives it to the group of a pod that writes there.
func (h *Host) makeDirectory(w volume.Want) error {
	if !w.Checkpoints {
		return nil
	}
	return place.Make(h.opt.AllowCheckpoints, w.Source, w.Group)
}

// dropTime is how long a daemon may take to remove drafts, which may be large, when its mount is over.
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
	if out, err := aside.Output(ctx, v.host.opt.HBMFS, "checkpoint", "clean", "--all-users", s.Source); err != nil {
		v.host.log.Error("drafts may be left of a volume: hbmfs checkpoint clean --all-users removes them", "volume", v.key, "directory", s.Source, "error", err)
	} else if len(out) > 0 {
		v.host.log.Info("removed what a dead daemon left", "volume", v.key, "said", string(out))
	}
}
