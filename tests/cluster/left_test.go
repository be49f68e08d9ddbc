package cluster_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// leftovers are what volumes left on the node, of which no pod is to have one.
func (c *cluster) leftovers() (left []string) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.FSType != "fuse.hbmfs", false })
	if err != nil {
		return []string{err.Error()}
	}
	for _, m := range mounts {
		left = append(left, "mount "+m.Mountpoint)
	}
	for _, p := range programs() {
		left = append(left, fmt.Sprint("process ", p))
	}
	for _, pattern := range []string{
		"/var/lib/hbmfs/volumes/*", "/var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/*", "/var/lib/kubelet/plugins/kubernetes.io/csi/" + driver + "/*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return []string{err.Error()}
		}
		left = append(left, found...)
	}
	return left
}

// processOf is a process of hbmfs's in the cluster.
type processOf struct {
	pid  int
	args []string
}

// programs finds the daemons and keepers.
func programs() (found []processOf) {
	all, _ := filepath.Glob("/proc/[0-9]*") // of a pattern that is one
	for _, dir := range all {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(cmdline) == 0 {
			continue // it has ended
		}
		args := strings.Split(string(bytes.TrimSuffix(cmdline, []byte{0})), "\x00")
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && filepath.Base(args[0]) == "hbmfs" {
			found = append(found, processOf{pid, args})
		}
	}
	return found
}

func (p processOf) isKeeper() bool { return len(p.args) > 1 && p.args[1] == "keeper" }

// daemons are the programs that serve mounts, or wait to.
func daemons() (found []processOf) {
	for _, p := range programs() {
		if !p.isKeeper() {
			found = append(found, p)
		}
	}
	return found
}
