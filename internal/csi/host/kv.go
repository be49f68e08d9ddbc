package host

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// The memory tiers of KV volumes are memory of the host's container, where kubelet and the scheduler see it: daemons allocate it. So the
// chart says how much that may be, and no volume gets more. Their disk tiers are allocated, too, and may not take the space that kubelet
// wants free.

// memoryFor refuses a KV volume for whose memory tier there is no room. Where one that nobody uses any more can end for it, memoryFor returns
// that one. namespace is that of a pod, or empty for an administrator's volume. It needs mu.
func (h *Host) memoryFor(w volume.Want, namespace string) (ends *nodeVolume, err error) {
	if w.Memory == 0 {
		return nil, nil
	}
	limit, share := h.opt.KVMemory, h.opt.KVMemory/2
	taken, its := w.Memory, w.Memory
	for _, v := range h.volumes {
		n := v.rec.Spec.Memory
		taken += n
		switch {
		case n > 0 && v.rec.idle():
			ends = soonest(ends, v)
		case namespace != "" && v.rec.countsFor(namespace):
			its += n
		}
	}
	const names = "(hbmfs-csi host --kv-memory, kvMemory of the chart)"
	switch {
	case w.Memory > limit:
		return nil, status.Errorf(codes.FailedPrecondition, "volume attribute memory=%s: all KV volumes of this node together may take %s of memory %s: name less, or raise that", size.Binary(w.Memory), size.Binary(limit), names)
	case namespace != "" && w.Memory > share:
		return nil, status.Errorf(codes.FailedPrecondition, "volume attribute memory=%s: the pods of one namespace may take half of the %s that KV volumes of this node may take of memory %s, so that others get theirs: name less, or use a persistent volume", size.Binary(w.Memory), size.Binary(limit), names)
	case namespace != "" && its > share:
		return nil, status.Errorf(codes.ResourceExhausted, "the pods of namespace %s would take %s of this node's memory for KV volumes, and may take half of %s %s, so that others get theirs: give volumes of one directory the same attributes, so that they share one, or name less", namespace, size.Binary(its), size.Binary(limit), names)
	case taken > limit && ends != nil:
		return ends, status.Errorf(codes.Unavailable, "the memory is that of a KV volume that nobody uses any more, %s, which just ends: try again", ends.rec.Spec.Source)
	case taken > limit:
		return nil, status.Errorf(codes.ResourceExhausted, "KV volumes would take %s of this node's memory, and may take %s %s: name less, have the pod run on another node, or raise that", size.Binary(taken), size.Binary(limit), names)
	}
	return nil, nil
}

// diskFor refuses a KV volume whose disk tier would have kubelet evict pods. The present files of its directory count for
// it.
func (h *Host) diskFor(s volume.Spec) error {
	if !s.KV {
		return nil
	}
	disk, err := deviceOf(s.Source)
	if err != nil {
		return fmt.Errorf("find the disk of a KV volume: %w", err)
	}
	if kubelet, err := deviceOf(h.opt.KubeletDir); err != nil || kubelet != disk {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.Source, &st); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	stays := h.opt.CacheMinFree
	if stays == 0 {
		stays = int64(st.Blocks) * st.Bsize / watchedPart
	}
	wants := max(s.Size-takenBy(s.Source), 0)
	if free := int64(st.Bavail) * st.Bsize; wants > 0 && free-wants < stays {
		return status.Errorf(codes.ResourceExhausted, "volume attribute size=%s: %s is on kubelet's disk, which has %s free, and %s stay free there so that kubelet evicts no pods (hbmfs-csi host --cache-min-free): name less, or a directory of another disk", size.Binary(s.Size), s.Source, size.Decimal(free), size.Decimal(stays))
	}
	return nil
}

// takenBy is the disk space of the files of a KV volume.
func takenBy(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error { // files that cannot be looked at count nothing
		if err != nil {
			return nil //nolint:nilerr // the others count
		}
		if e.IsDir() && filepath.Dir(filepath.Dir(path)) == filepath.Clean(dir) {
			return fs.SkipDir // a namespace is a directory of files
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	return bytes
}
