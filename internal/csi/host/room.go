package host

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// watchedPart is the part of a disk that the cache leaves free where kubelet watches that disk, one fifth. Kubelet
// removes images once 85 % are taken, and evicts pods from 90 % on (imageGCHighThresholdPercent and evictionHard's
// nodefs.available, defaults of KubeletConfiguration v1beta1). A cache that took the daemon's default of 95 % would have
// pods evicted, and kubelet could remove nothing to make room.
const watchedPart = 5

// minFree is how many bytes of its disk the cache leaves free at least; 0 is the daemon's default. watched tells whether
// kubelet's directory is on that disk.
func (h *Host) minFree() (bytes int64, watched bool, err error) {
	cache, err := deviceOf(h.opt.CacheDir)
	if err != nil {
		return 0, false, fmt.Errorf("find the disk of the cache: %w", err)
	}
	kubelet, err := deviceOf(h.opt.KubeletDir)
	if err != nil {
		return 0, false, fmt.Errorf("find kubelet's disk: %w", err)
	}
	watched = cache == kubelet
	if h.opt.CacheMinFree > 0 || !watched {
		return h.opt.CacheMinFree, watched, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(h.opt.KubeletDir, &st); err != nil {
		return 0, watched, os.NewSyscallError("statfs", err)
	}
	return int64(st.Blocks) * st.Bsize / watchedPart, watched, nil
}

// deviceOf is the filesystem that a path is on, or will be on once it is made.
func deviceOf(path string) (uint64, error) {
	info, err := os.Stat(path)
	for os.IsNotExist(err) && filepath.Dir(path) != path {
		path = filepath.Dir(path)
		info, err = os.Stat(path)
	}
	if err != nil {
		return 0, err
	}
	return info.Sys().(*syscall.Stat_t).Dev, nil
}

// warnOfTheDisk says once that a cache on kubelet's disk stays small.
func (h *Host) warnOfTheDisk() {
	bytes, watched, err := h.minFree()
	switch {
	case err != nil:
		h.log.Error("cannot tell whether the cache is on a disk that kubelet watches", "error", err)
	case watched:
		h.log.Warn("the cache is on a disk that kubelet watches: it is kept small there, so that pods are not evicted; give it a disk of its own (--cache-dir)",
			"cache", h.opt.CacheDir, "stays_free", bytes)
	}
}
