package check

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

func (j *judge) judgeCuFile() {
	m := j.m
	if len(m.GPUs) == 0 && len(m.Libraries) == 0 && m.Proof == nil {
		j.ok(inCuFile, "libcufile", "none, and no GPU that it could serve")
		return
	}
	var version Version
	fail := func(rank int, name, found, why, fix string) {
		j.add(finding{Finding{inCuFile, name, Fail, found, why, fix}, rank, both, false, false})
	}
	if len(m.Libraries) == 0 {
		fail(rankLibrary, "libcufile", "libcufile is in no usual place", "it reads into the GPU", "pip install nvidia-cufile (or, from NVIDIA's repository: "+m.install("libcufile-13-0 gds-tools-13-0", "libcufile-13-0 gds-tools-13-0")+")")
	} else {
		version = libraryVersion(m.Libraries[0])
		switch {
		case version == (Version{}):
			j.ok(inCuFile, "libcufile", "%s", m.Libraries[0])
		case !version.atLeast(1, 15):
			j.add(finding{Finding: Finding{inCuFile, "libcufile", Warn, m.Libraries[0], "before 1.15 (CUDA 13) cuFile cannot be asked how it moved bytes, so nothing can be proven", m.install("cuda-toolkit-13-0", "cuda-toolkit-13-0")}})
		default:
			j.ok(inCuFile, "libcufile", "%s", m.Libraries[0])
		}
	}
	j.judgeConfig(fail)
	j.judgeDenylist(fail)
	proof := j.proof()
	switch proof.Verdict {
	case "proven":
		j.ok(inCuFile, "read", "%s", proof.Why)
	case "refuted":
		j.add(finding{Finding: Finding{inCuFile, "read", Fail, "a read without compat mode failed", proof.Why, "the lines above, from the first that is not OK"}})
	default:
		j.unknown(inCuFile, "read", proof.Why, j.proofFix())
	}
}

func (j *judge) judgeConfig(fail func(rank int, name, found, why, fix string)) {
	m, name := j.m, "cufile.json"
	if m.Forced {
		fail(rankConfig, name, "the environment has CUFILE_FORCE_COMPAT_MODE", "cuFile reads with the CPU, always", "unset CUFILE_FORCE_COMPAT_MODE")
	}
	if m.Config == "" {
		j.ok(inCuFile, name, "none, cuFile takes its defaults")
		return
	}
	if m.Properties.Malformed {
		fail(rankConfig, name, m.Config+" cannot be parsed", "cuFile ignores it, or does not start", "sed 's,//.*,,' "+m.Config+" | python3 -m json.tool")
		return
	}
	p := m.Properties.Properties
	bad := false
	if p.ForceCompat != nil && *p.ForceCompat {
		bad = true
		fail(rankConfig, name, "force_compat_mode is true", "cuFile reads with the CPU, always", "sed -i 's/\"force_compat_mode\" *: *true/\"force_compat_mode\": false/' "+m.Config)
	}
	if p.PinnedKB != nil && j.gpu != nil && int64(*p.PinnedKB)<<10 < j.gpu.HBM {
		bad = true
		j.add(finding{Finding: Finding{inCuFile, name, Warn, fmt.Sprintf("max_device_pinned_mem_size_kb is %d GiB", int64(*p.PinnedKB)>>20), fmt.Sprintf("of %d GiB of HBM; a larger buffer is refused with error 5016", j.gpu.HBM>>30),
			fmt.Sprintf(`set "max_device_pinned_mem_size_kb": %d in %s`, j.gpu.HBM>>10, m.Config)}})
	}
	if !bad {
		mode := "true, as by default: other programs fall back to the CPU without a word"
		if p.AllowCompat != nil && !*p.AllowCompat {
			mode = "false: reads that cannot be direct are an error"
		}
		j.ok(inCuFile, name, "%s; allow_compat_mode is %s", m.Config, mode)
	}
}

// judgeDenylist looks for the target on the list of things that an administrator took away from cuFile.
func (j *judge) judgeDenylist(fail func(rank int, name, found, why, fix string)) {
	d := j.m.Properties.Denylist
	report := func(what, entry string) {
		fail(rankConfig, "denylist", fmt.Sprintf("%s %s is on cuFile's denylist", what, entry), "", `take it out of "denylist" in `+j.m.Config)
	}
	if slices.Contains(d.Drivers, "nvidia-fs") || slices.Contains(d.Drivers, "nvme") && j.filesystemModule() == "nvme" {
		report("driver", strings.Join(d.Drivers, ", "))
	}
	if j.target == nil {
		return
	}
	for _, p := range j.target.Places {
		mount := j.mountOfPlace(p)
		if mount == nil {
			continue
		}
		if slices.Contains(d.Filesystems, mount.Type) {
			report("filesystem", mount.Type)
		}
		if slices.Contains(d.Mounts, mount.Point) {
			report("mount", mount.Point)
		}
		if slices.Contains(d.Devices, mount.Source) || slices.Contains(d.Devices, path.Base(mount.Source)) {
			report("device", mount.Source)
		}
	}
}

func (j *judge) judgeContainer() {
	m := j.m
	if m.Container == "" {
		j.ok(inContainer, "container", "this is none")
	} else {
		found := m.Container
		if m.MemoryLimit != "" {
			found += ", memory limit " + m.MemoryLimit + " bytes"
		}
		j.ok(inContainer, "container", "yes (%s)", found)
	}
	if m.Container != "" && len(m.NICs) > 0 && m.MemoryLock != "" && m.MemoryLock != "unlimited" {
		j.add(finding{Finding: Finding{inContainer, "locked memory", Warn, m.MemoryLock + " bytes", "RDMA locks its buffers", "docker run --ulimit memlock=-1 --cap-add IPC_LOCK ..."}})
	}
	if m.Kubernetes {
		j.ok(inContainer, "Kubernetes", "a ClusterPolicy for this node is below")
	}
}
