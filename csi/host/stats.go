package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// askTime is how long a daemon may take to say how it is.
const askTime = 5 * time.Second

// answer is what `hbmfs top-aside` says: the text of a file in .hbmfs, or the state that the mount is in.
type answer struct {
	State string `json:"state"`
	Error string `json:"error"`
	Text  []byte `json:"text"`
}

// asking is the questions to one mount: one at a time, and none while an answer is late.
type asking struct {
	slot chan struct{}
	late atomic.Bool
}

// errStuck says that a daemon does not answer.
var errStuck = fmt.Errorf("its daemon gave no answer within %v: is it stopped or stuck?", askTime)

// ask reads a file of .hbmfs in a process of its own, since whoever opens a file of a stuck daemon may wait where no signal
// reaches. Such a process is left behind, and its mount not asked again before it has ended.
func (v *held) ask(ctx context.Context, name string) ([]byte, error) {
	if v.asking.late.Load() {
		return nil, errStuck
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	select {
	case v.asking.slot <- struct{}{}:
	case <-ctx.Done():
		return nil, errStuck
	}
	got := make(chan answer, 1)
	go func() { // ends with the process, which a stuck daemon can delay
		got <- v.host.runAside(ctx, filepath.Join(v.mount(), ".hbmfs", name))
		<-v.asking.slot
		v.asking.late.Store(false)
	}()
	select {
	case a := <-got:
		switch {
		case a.State == "ok":
			return a.Text, nil
		case ctx.Err() != nil:
			return nil, errStuck
		}
		return nil, errors.New(a.Error)
	case <-ctx.Done():
		v.asking.late.Store(true)
		if len(v.asking.slot) == 0 { // it came just now
			v.asking.late.Store(false)
		}
		return nil, errStuck
	}
}

func (h *Host) runAside(ctx context.Context, file string) (a answer) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, h.opt.HBMFS, "top-aside", "--", file)
	cmd.Stdout = &out
	err := cmd.Run()
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &a)
	}
	if err != nil {
		return answer{Error: fmt.Sprintf("its status cannot be read: %v", err)}
	}
	return a
}

// told is what is read of a mount's status.
type told struct {
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
}

// NodeGetVolumeStats says how large the dataset is, and whether it can be read.
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
	case !t.Passthrough.On:
		condition.Message = "the volume is served, without passthrough: " + t.Passthrough.Why
	}
	return &csi.NodeGetVolumeStatsResponse{
		Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: t.Bytes, Used: t.Bytes},
			{Unit: csi.VolumeUsage_INODES, Total: t.Objects, Used: t.Objects},
		},
		VolumeCondition: condition,
	}, nil
}

// at finds the volume that an id has at a path.
func (h *Host) at(id, path string) *held {
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

// why says why a volume does not answer.
func (h *Host) why(v *held, err error) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v.failed != "" {
		return "its daemon died and cannot be started again: " + v.failed
	}
	return err.Error()
}
