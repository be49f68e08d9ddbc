package volume

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/internal/text/size"
)

// Attributes of KV volumes.
const (
	kvDirectory = "kv"
	kvSize      = "size"
	kvMemory    = "memory"
	keepFor     = "keepFor"
)

// keepTime is how long a KV volume stays once no pod uses it any more, by default. A serving pod takes about as long to start again.
const keepTime = 10 * time.Minute

// Bounds of the attributes of a KV volume. hbmfs mount takes no smaller tier.
const (
	leastTier = 1 << 20
	mostKept  = 24 * time.Hour
)

// KV tells whether a request is for a KV volume.
func (r Request) KV() bool {
	_, is := r.Attributes[kvDirectory]
	return is
}

// Written tells whether a request is for a volume that pods change.
func (r Request) Written() bool { return r.Checkpoints() || r.KV() }

// Written tells whether pods change the volume. Its source is a directory that it has for itself.
func (s Spec) Written() bool { return s.Checkpoints || s.KV }

// settleKV checks the attributes of a KV volume, and refuses them elsewhere.
func (w *Want) settleKV(r Request, values map[string]string) error {
	its := []string{kvDirectory, kvSize, kvMemory, keepFor}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case !r.KV() && slices.Contains(its, name):
			return invalid("volume attribute %s is for KV volumes: name the directory of one with kv, or leave it out", name)
		case r.KV() && name == "source":
			return invalid("volume attributes source and kv contradict each other: a KV volume has its directory in kv, and shows no other")
		case r.KV() && name != "logLevel" && !slices.Contains(its, name):
			return invalid("volume attribute %s is not for a KV volume, which has kv, size, memory, keepFor and logLevel: leave it out", name)
		}
	}
	if !r.KV() {
		return nil
	}
	w.KV, w.Source = true, values[kvDirectory]
	const want = "want an absolute directory of a local disk of the node"
	if !strings.HasPrefix(w.Source, "/") {
		return invalid("volume attribute kv=%q: %s", w.Source, want)
	}
	if err := checkDirectory(kvDirectory, w.Source, want); err != nil {
		return err
	}
	w.Source = filepath.Clean(w.Source)
	return cmp.Or(w.settleTiers(values), w.settleGroup(r.MountGroup))
}

// settleTiers reads how much a KV volume takes, and for how long.
func (w *Want) settleTiers(values map[string]string) error {
	for _, tier := range []struct {
		attribute, of string
		bytes         *int64
	}{{kvSize, "the disk", &w.Size}, {kvMemory, "memory", &w.Memory}} {
		text, given := values[tier.attribute]
		if tier.attribute == kvMemory && (!given || text == "0") {
			continue // no memory tier
		}
		if !given {
			return invalid("volume attribute size is missing: say how much of the disk the blocks may take, such as 200GiB; it is allocated at once")
		}
		n, err := size.Parse(text)
		if err != nil || n < leastTier {
			return invalid("volume attribute %s=%q: want bytes of %s such as 200GiB, and at least 1MiB", tier.attribute, text, tier.of)
		}
		*tier.bytes = n
	}
	w.KeepFor = keepTime
	if text, given := values[keepFor]; given {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 || d > mostKept {
			return invalid("volume attribute keepFor=%q: want a time of at most 24h such as 10m, or 0", text)
		}
		w.KeepFor = d
	}
	return nil
}

// settleGroup takes the group that a pod writes with.
func (w *Want) settleGroup(group string) error {
	if why := number(0, 1<<32-2)(group); group != "" && why != "" {
		return invalid("the volume mount group %q: %s", group, why)
	}
	w.Group = group
	return nil
}
