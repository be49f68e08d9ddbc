package host

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
)

// Service is the host as gRPC: the calls of CSI's Node service that do something on the node, and Probe. The plugin
// forwards them.
type Service struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	*Host
}

// Probe says that the host is there.
func (s Service) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func missing(what string) error {
	return status.Errorf(codes.InvalidArgument, "the request has no %s", what)
}

// incomplete refuses a request without a volume id, or without the path that is called kind.
func incomplete(id, kind, path string) error {
	switch {
	case id == "":
		return missing("volume id")
	case path == "":
		return missing(kind)
	}
	return nil
}

// readerModes are the access modes in which nobody writes.
func readerModes() []csi.VolumeCapability_AccessMode_Mode {
	return []csi.VolumeCapability_AccessMode_Mode{csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY}
}

// checkCapability refuses capabilities that a volume cannot have. Datasets are read-only in every access mode; kubelet sends
// SINGLE_NODE_WRITER for inline volumes, and for claims that say nothing better. A volume that pods change has every mode: on each node
// it has a directory of its own.
func checkCapability(c *csi.VolumeCapability, written bool) (group string, err error) {
	modes := append(readerModes(), csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	mode := c.GetAccessMode().GetMode()
	switch {
	case c == nil:
		return "", missing("volume capability")
	case c.GetBlock() != nil:
		return "", status.Error(codes.InvalidArgument, "volumeMode Block: a dataset is files, use volumeMode Filesystem")
	case !slices.Contains(modes, mode) && (!written || mode == csi.VolumeCapability_AccessMode_UNKNOWN):
		return "", status.Errorf(codes.InvalidArgument, "access mode %s: datasets are read-only, use ReadOnlyMany", mode)
	case c.GetMount().GetFsType() != "":
		return "", status.Errorf(codes.InvalidArgument, "fsType %q: there is nothing to format, leave it out", c.GetMount().GetFsType())
	case len(c.GetMount().GetMountFlags()) > 0:
		return "", status.Errorf(codes.InvalidArgument, "mountOptions %q: use volumeAttributes", c.GetMount().GetMountFlags())
	}
	return c.GetMount().GetVolumeMountGroup(), nil
}

// NodeStageVolume starts the volume's daemon, so that pods need not wait for it. Nothing is mounted at the staging path.
func (s Service) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	id, path := req.GetVolumeId(), req.GetStagingTargetPath()
	if err := incomplete(id, "staging target path", path); err != nil {
		return nil, err
	}
	r := volume.Request{ID: id, Attributes: req.GetVolumeContext(), Secrets: req.GetSecrets(), Staging: true}
	var err error
	if r.MountGroup, err = checkCapability(req.GetVolumeCapability(), r.Written()); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, s.do(ctx, "volume "+id, func(ctx context.Context) error {
		w, err := s.want(ctx, r)
		w.Group = ""                                // the pods say it
		if err != nil || w.Auth == volume.AuthPod { // which is served with the token of a pod
			return err
		}
		return s.stage(ctx, w, id, path)
	})
}

// stage is the work of NodeStageVolume.
func (h *Host) stage(ctx context.Context, w volume.Want, id, path string) error {
	h.mu.Lock()
	old := h.staged(id)
	if old != nil && !old.rec.Spec.Same(w.Spec) {
		h.mu.Unlock()
		return status.Errorf(codes.AlreadyExists, "volume %s is staged with other attributes: unstage it first", id)
	}
	if old != nil { // perhaps with new secrets
		old.rec.Spec.Identity = w.Identity
	}
	h.mu.Unlock()
	return h.use(ctx, w, old, use{
		add: func(r *record) { r.stage(id, path) }, drop: func(r *record) { delete(r.Staged, id) },
		show: func(*nodeVolume) error { return nil }, hide: func() error { return nil },
	})
}

// use is one use of a volume: how it is recorded, and seen.
type use struct {
	namespace string // of the pod, "" for a staged volume
	pod       pod
	add, drop func(*record)
	show      func(*nodeVolume) error
	hide      func() error
}

// use has a volume served to a new user, or to an old one again. Where that fails, a new user is forgotten.
func (h *Host) use(ctx context.Context, w volume.Want, old *nodeVolume, u use) error {
	v, err := h.claim(w, old, u)
	if err == nil {
		err = h.serve(ctx, v, w, u.show)
	}
	if err == nil || old != nil || v == nil {
		return err
	}
	if dropErr := h.unuse(h.ctx, v, u); dropErr != nil { // also where this work was called off
		h.log.Error("cannot end what could not be served", "volume", v.key, "error", dropErr)
	}
	return err
}

func (h *Host) serve(ctx context.Context, v *nodeVolume, w volume.Want, show func(*nodeVolume) error) error {
	if err := v.acquire(ctx); err != nil {
		return err
	}
	defer v.unlock()
	if err := h.makeDirectory(w); err != nil {
		return err
	}
	if err := v.serve(ctx, w); err != nil {
		return err
	}
	return show(v)
}

// NodeUnstageVolume ends the use that staging is.
func (s Service) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id := req.GetVolumeId()
	if err := incomplete(id, "staging target path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, s.undo(ctx, "volume "+id, func(ctx context.Context) error {
		s.mu.Lock()
		v := s.staged(id)
		s.mu.Unlock()
		if v == nil {
			return nil
		}
		return s.unuse(ctx, v, use{drop: func(r *record) { delete(r.Staged, id) }, hide: func() error { return nil }})
	})
}

// NodePublishVolume shows the volume to a pod. Kubelet calls it again and again, with secrets and tokens as they are then.
func (s Service) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id := req.GetVolumeId()
	if err := incomplete(id, "target path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	attributes := req.GetVolumeContext()
	r := volume.Request{ID: id, Attributes: attributes, Secrets: req.GetSecrets()}
	var err error
	if r.MountGroup, err = checkCapability(req.GetVolumeCapability(), r.Written()); err != nil {
		return nil, err
	}
	target, err := s.checkTarget(req.GetTargetPath())
	if err != nil {
		return nil, err
	}
	if err := checkPlace(target); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, s.do(ctx, "target "+target, func(ctx context.Context) error {
		w, err := s.want(ctx, r)
		if err != nil {
			return err
		}
		p := pod{VolumeID: id, Namespace: attributes[volume.PodNamespace], Name: attributes[volume.PodName], Identity: w.Identity}
		if w.Written() {
			p.ReadOnly = req.GetReadonly() || slices.Contains(readerModes(), req.GetVolumeCapability().GetAccessMode().GetMode())
		}
		if p.ReadOnly {
			w.Group = ""
		}
		p.Group = w.Group
		return s.publish(ctx, w, target, p)
	})
}

// publish is the work of NodePublishVolume.
func (h *Host) publish(ctx context.Context, w volume.Want, target string, p pod) error {
	h.mu.Lock()
	old, was := h.published(target)
	switch {
	case old == nil:
	case was.VolumeID != p.VolumeID || !old.rec.Spec.Same(w.Spec) || was.ReadOnly != p.ReadOnly:
		h.mu.Unlock()
		return status.Errorf(codes.AlreadyExists, "target path %s shows volume %s, or this one with other attributes: unpublish it first", target, was.VolumeID)
	case w.Identity == was.Identity && old.rec.hasPod(func(p pod) bool { return p.Identity == old.rec.Spec.Identity }):
		// It has nothing new to say. Where it shares the daemon with a pod whose secret was changed, those keys stay.
		// Else the two would put each other's in place each time that kubelet calls.
		w.Credentials = nil
	case w.Identity != "": // perhaps with new secrets
		old.rec.Spec.Identity = w.Identity
	}
	h.mu.Unlock()
	return h.use(ctx, w, old, use{
		namespace: p.Namespace, pod: p,
		add: func(r *record) { r.publish(target, p) }, drop: func(r *record) { delete(r.Published, target) },
		show: func(v *nodeVolume) error { return v.show(target) }, hide: func() error { return hide(target) },
	})
}

// NodeUnpublishVolume takes the volume away from a pod.
func (s Service) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	id := req.GetVolumeId()
	if err := incomplete(id, "target path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	target, err := s.checkTarget(req.GetTargetPath())
	if err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, s.undo(ctx, "target "+target, func(ctx context.Context) error {
		return s.unpublish(ctx, id, target)
	})
}

// unpublish is the work of NodeUnpublishVolume.
func (h *Host) unpublish(ctx context.Context, id, target string) error {
	h.mu.Lock()
	v, p := h.published(target)
	h.mu.Unlock()
	if v == nil {
		return hide(target)
	}
	if p.VolumeID != id {
		return status.Errorf(codes.NotFound, "target path %s shows volume %s, and not %s", target, p.VolumeID, id)
	}
	return h.unuse(ctx, v, use{drop: func(r *record) { delete(r.Published, target) }, hide: func() error { return hide(target) }})
}
