package host

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// told has the fields of a mount's status that the host reads. A daemon may be older than the host, so the host reads no
// others.
type told struct {
	PID         int   `json:"pid"`
	Objects     int64 `json:"objects"`
	Bytes       int64 `json:"bytes"`
	Passthrough struct {
		On  bool   `json:"on"`
		Why string `json:"why"`
	} `json:"passthrough"`
	Cache *struct {
		Sick bool   `json:"sick"`
		Why  string `json:"why"`
	} `json:"cache"`
	Checkpoints *struct {
		Free      int64 `json:"free_bytes"`
		Published []struct {
			Size int64 `json:"size"`
		} `json:"published"`
		Drain *struct {
			Destination string `json:"destination"`
			Trouble     string `json:"trouble"`
			States      struct {
				Failed int64 `json:"failed"`
			} `json:"states"`
		} `json:"drain"`
	} `json:"checkpoints"`
	KV *struct {
		Limit      int64 `json:"disk_limit_bytes"`
		Namespaces []struct {
			Name string `json:"name"`
			Disk struct {
				Allocated int64  `json:"allocated_bytes"`
				Fault     string `json:"fault"`
				Down      bool   `json:"down"`
			} `json:"disk"`
		} `json:"namespaces"`
	} `json:"kv"`
}

// usage is how full a volume is, as df shows it. A dataset cannot run full.
func (t *told) usage() []*csi.VolumeUsage {
	if t.KV != nil {
		used := int64(0)
		for _, n := range t.KV.Namespaces {
			used += n.Disk.Allocated
		}
		return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: t.KV.Limit, Available: max(t.KV.Limit-used, 0), Used: used}}
	}
	if t.Checkpoints == nil {
		return []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: t.Bytes, Available: t.Bytes},
			{Unit: csi.VolumeUsage_INODES, Total: t.Objects, Available: t.Objects},
		}
	}
	used := int64(0)
	for _, p := range t.Checkpoints.Published {
		used += p.Size
	}
	return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: used + t.Checkpoints.Free, Available: t.Checkpoints.Free, Used: used}}
}

// drain describes the drain's fault, and is empty where there is none.
func (t *told) drain() string {
	if t.Checkpoints == nil || t.Checkpoints.Drain == nil {
		return ""
	}
	switch d := t.Checkpoints.Drain; {
	case d.States.Failed > 0:
		return fmt.Sprintf("%d checkpoints are not at %s: hbmfs status says why", d.States.Failed, d.Destination)
	case d.Trouble != "":
		return fmt.Sprintf("the drain to %s is tried again: %s", d.Destination, d.Trouble)
	}
	return ""
}

// diskFault says why blocks of a KV volume do not go to the disk, and is empty where they do.
func (t *told) diskFault() string {
	if t.KV == nil {
		return ""
	}
	for _, n := range t.KV.Namespaces {
		if n.Disk.Down {
			return fmt.Sprintf("the disk of namespace %s failed and is left alone for a moment, so blocks are in memory alone: %s", n.Name, n.Disk.Fault)
		}
	}
	return ""
}

// NodeGetVolumeStats returns the size of the dataset, and whether it can be read.
func (s Service) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	id, path := req.GetVolumeId(), req.GetVolumePath()
	switch {
	case id == "":
		return nil, missing("volume id")
	case path == "":
		return nil, missing("volume path")
	}
	v := s.at(id, path)
	if v == nil {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", id, path)
	}
	var t told
	text, err := v.ask(ctx, "status")
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	condition := &csi.VolumeCondition{Message: "the volume is served"}
	switch {
	case err != nil:
		condition = &csi.VolumeCondition{Abnormal: true, Message: s.why(v, err)}
	case t.Cache != nil && t.Cache.Sick:
		condition = &csi.VolumeCondition{Abnormal: true, Message: "the cache's disk failed and is left alone for a while, so bytes come from the source: " + t.Cache.Why}
	case t.drain() != "":
		condition = &csi.VolumeCondition{Abnormal: true, Message: t.drain()}
	case t.diskFault() != "":
		condition = &csi.VolumeCondition{Abnormal: true, Message: t.diskFault()}
	case !t.Passthrough.On && t.KV == nil: // which has no files
		condition.Message = "the volume is served, without passthrough: " + t.Passthrough.Why
	}
	return &csi.NodeGetVolumeStatsResponse{
		Usage:           t.usage(),
		VolumeCondition: condition,
	}, nil
}

// at finds the volume of an id at a path.
func (h *Host) at(id, path string) *nodeVolume {
	target, err := h.checkTarget(path)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		if v, p := h.published(target); v != nil && p.VolumeID == id {
			return v
		}
	}
	if v := h.staged(id); v != nil && v.rec.Staged[id] == path {
		return v
	}
	return nil
}

// why returns the reason why a volume does not answer.
func (h *Host) why(v *nodeVolume, err error) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v.failed != "" {
		return "its daemon died and cannot be started again: " + v.failed
	}
	return err.Error()
}
