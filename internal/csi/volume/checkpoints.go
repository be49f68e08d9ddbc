package volume

import (
	"maps"
	"slices"
	"strings"

	"github.com/hbmfs/hbmfs/internal/text/size"
)

// Attributes of checkpoint volumes.
const (
	checkpoints = "checkpoints"
	drain       = "drain"
)

// Checkpoints tells whether a request is for a checkpoint volume.
func (r Request) Checkpoints() bool { return r.Attributes[checkpoints] == "true" }

// checkpointOptions are the attributes that a checkpoint volume may have beside its own, and tells which of them are about the drain.
func checkpointOptions() map[string]bool {
	return map[string]bool{"keep": true, "drainRate": true, "connections": true, "readAhead": false, "showViews": false, "logLevel": false}
}

// onlyOfCheckpoints tells whether an attribute makes no sense for a dataset.
func onlyOfCheckpoints(name string) bool {
	return slices.Contains([]string{drain, "keep", "drainRate"}, name)
}

// settleCheckpoints checks the attributes of a checkpoint volume, and refuses them elsewhere.
func (w *Want) settleCheckpoints(r Request, values map[string]string) error {
	if why := oneOf("true", "false")(values[checkpoints]); values[checkpoints] != "" && why != "" {
		return invalid("volume attribute checkpoints=%q: %s", values[checkpoints], why)
	}
	known := checkpointOptions()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		drains, mayHave := known[name]
		_, isOption := options()[name]
		switch {
		case !r.Checkpoints() && onlyOfCheckpoints(name):
			return invalid("volume attribute %s is for checkpoint volumes: add checkpoints: \"true\", or leave it out", name)
		case r.Checkpoints() && isOption && !mayHave:
			return invalid("volume attribute %s is not for a checkpoint volume, where programs write and files have the owners who wrote them: leave it out", name)
		case r.Checkpoints() && drains && values[drain] == "":
			return invalid("volume attribute %s is about the drain, and the volume has none: add drain: s3://BUCKET/RUN, or leave it out", name)
		}
	}
	if !r.Checkpoints() {
		return nil
	}
	w.Checkpoints, w.Drain = true, values[drain]
	if w.Directory() == "" {
		return invalid("volume attribute source=%s: drafts are written to a disk of the node: name a directory", w.Source)
	}
	if err := w.settleGroup(r.MountGroup); err != nil || w.Drain == "" {
		return err
	}
	const want = "want s3://BUCKET/RUN"
	if !strings.HasPrefix(w.Drain, "s3://") {
		return invalid("volume attribute drain: %s", want)
	}
	return checkAddress(drain, w.Drain, want)
}

// rate is a bound of the drain.
func rate(v string) string {
	var n size.Rate
	if err := n.Set(v); err != nil && v != "auto" && v != "none" {
		return "want auto, none, or bytes for each second such as 500MB/s"
	}
	return ""
}

// Asked is the address that is asked with the volume's rights: a source, or the drain's destination. It is "" for neither.
func (s Spec) Asked() string {
	if s.Checkpoints {
		return s.Drain
	}
	if s.Directory() != "" {
		return ""
	}
	return s.Source
}

// Destination is the drain's as hbmfs mount takes it.
func (s Spec) Destination() string { return s.anonymous(s.Drain) }
