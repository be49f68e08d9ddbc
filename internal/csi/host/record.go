package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
)

// record is the content of volume.json. It has no secrets in it.
type record struct {
	Spec      volume.Spec       `json:"spec"`
	Staged    map[string]string `json:"staged,omitempty"`    // volume ids and their staging paths
	Published map[string]pod    `json:"published,omitempty"` // targets
	Last      string            `json:"last,omitempty"`      // the namespace of the last pod, "" where an administrator has it staged
	Draining  bool              `json:"draining,omitempty"`  // nobody uses it, and it lingers until all is drained
	Kept      time.Time         `json:"kept,omitzero"`       // nobody uses it, and it lingers until then
}

// pod is the user of a target.
type pod struct {
	VolumeID  string `json:"volume_id"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"pod,omitempty"`
	Identity  string `json:"identity,omitempty"` // that it was last published with

	ReadOnly bool   `json:"read_only,omitempty"` // of a volume that others change
	Group    string `json:"group,omitempty"`     // with which the pod writes there; "" for none
}

// someUser names a user of a volume for one of a namespace, who learns of no other namespace's pods.
func (r *record) someUser(namespace string) string {
	for _, target := range slices.Sorted(maps.Keys(r.Published)) {
		if p := r.Published[target]; p.Name != "" && p.Namespace == namespace {
			return "pod " + p.Namespace + "/" + p.Name
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.Staged)) {
		return "volume " + id
	}
	return "a pod"
}

func (r *record) idle() bool { return len(r.Staged)+len(r.Published) == 0 }

// hasPod reports whether the volume is published for a pod of a kind.
func (r *record) hasPod(is func(pod) bool) bool {
	for _, p := range r.Published {
		if is(p) {
			return true
		}
	}
	return false
}

func (r *record) stage(id, path string) {
	if r.Staged == nil {
		r.Staged = map[string]string{}
	}
	r.Staged[id] = path
}

func (r *record) publish(target string, p pod) {
	if r.Published == nil {
		r.Published = map[string]pod{}
	}
	r.Published[target] = p
	if r.Last = p.Namespace; len(r.Staged) > 0 {
		r.Last = ""
	}
}

const recordName = "volume.json"

// save writes the record where it has changed; the host's mu must be held. A reader sees the old one or the new one.
func (v *nodeVolume) save() error {
	text, err := json.MarshalIndent(&v.rec, "", "  ")
	if err != nil || bytes.Equal(text, v.saved) {
		return err
	}
	if err := replaceFile(v.path(recordName), append(text, '\n')); err != nil {
		return err
	}
	v.saved = text
	return nil
}

// change changes the record and writes it; the host's mu must be held. A record that cannot be written stays as it was, so that kubelet's
// next try finds it.
func (v *nodeVolume) change(do func(*record)) error {
	was := v.rec
	was.Staged, was.Published = maps.Clone(was.Staged), maps.Clone(was.Published)
	do(&v.rec)
	err := v.save()
	if err != nil {
		v.rec = was
	}
	return err
}

// replaceFile writes a file that only root can read. Power loss may lose it, with all mounts.
func replaceFile(path string, content []byte) error {
	next := path + ".new"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return os.Rename(next, path)
}

// load reads the record of a volume's directory.
func load(dir string) (r record, err error) {
	text, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read %s: %w", filepath.Join(dir, recordName), err)
	}
	return r, nil
}
