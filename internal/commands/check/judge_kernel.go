package check

import (
	"fmt"
	"slices"
	"strings"
)

func (j *judge) judgeKernel() {
	m := j.m
	version := parseVersion(m.Kernel)
	newer, otherKernel := m.newerKernel(), m.onHost("boot a kernel that was built with CONFIG_PCI_P2PDMA=y, or use nvidia-fs")
	switch {
	case m.Kernel == "":
		j.unknown(inKernel, "version", "/proc/sys/kernel/osrelease is not there", "")
	case !version.atLeast(5, 4):
		j.add(finding{Finding{inKernel, "version", Fail, "Linux " + m.Kernel, "nvidia-fs needs Linux 5.4 or later, PCI P2PDMA 6.2 or later", newer}, rankKernel, both, false, false})
	case version.atLeast(6, 17) && m.P2PDMA == No:
		j.ok(inKernel, "version", "Linux %s (nvidia-fs needs DOCA 3.3 or later on 6.17 and later)", m.Kernel)
	case version.atLeast(6, 17):
		j.ok(inKernel, "version", "Linux %s (nvidia-fs needs DOCA 3.3 or later on 6.17 and later; PCI P2PDMA is the simpler way)", m.Kernel)
	default:
		j.ok(inKernel, "version", "Linux %s", m.Kernel)
	}
	if m.Arch != "" && m.Arch != "x86_64" && m.Arch != "aarch64" {
		j.add(finding{Finding{inKernel, "architecture", Fail, m.Arch, "cuFile is for x86_64 and aarch64", "use another machine"}, rankKernel, both, false, false})
	}
	// Distributions bring P2PDMA for user memory to older kernels (RHEL 9.4), so the symbol or setting counts as well.
	backported := version.atLeast(5, 14) && strings.Contains(m.Kernel, ".el9") && !strings.Contains(m.Kernel, ".el9_0") && !strings.Contains(m.Kernel, ".el9_1") &&
		!strings.Contains(m.Kernel, ".el9_2") && !strings.Contains(m.Kernel, ".el9_3")
	switch {
	case m.P2PDMA == Yes && (version.atLeast(6, 2) || backported):
		j.ok(inKernel, "PCI P2PDMA", "built in")
	case m.P2PDMA == Unsure && version.atLeast(6, 2):
		j.unknown(inKernel, "PCI P2PDMA", "neither the kernel's settings nor its symbols can be read here", m.onHost("grep CONFIG_PCI_P2PDMA /boot/config-$(uname -r)"))
	case version.atLeast(6, 2):
		j.add(finding{Finding{inKernel, "PCI P2PDMA", Fail, "CONFIG_PCI_P2PDMA is not set", "drives cannot address GPUs without nvidia-fs", otherKernel}, rankModule, p2p, false, false})
	case m.Kernel != "" && version.atLeast(5, 4):
		j.add(finding{Finding{inKernel, "PCI P2PDMA", Fail, "Linux " + m.Kernel, "it needs Linux 6.2 or later with CONFIG_PCI_P2PDMA", newer}, rankModule, p2p, false, false})
	}
	j.judgeIOMMU()
	j.judgeACS()
}

// peers are the devices whose DMA must reach the GPU: those under the path, or all drives.
func (j *judge) peers() []*PCIDevice {
	var all []*PCIDevice
	if j.target != nil {
		for _, p := range j.target.Places {
			all = append(all, j.m.controllers(j.m.blockOf(p.Dev))...)
		}
		return all
	}
	for i := range j.m.Drives {
		all = append(all, &j.m.Drives[i])
	}
	return all
}

func (j *judge) judgeIOMMU() {
	devices := j.peers()
	if j.gpu != nil {
		devices = append([]*PCIDevice{j.gpu}, devices...)
	}
	mode := ""
	for _, d := range devices {
		if d.IOMMU != "" && (mode == "" || mode == "identity") {
			mode = d.IOMMU
		}
	}
	const effect = "transfers between devices go up to the CPU; NVIDIA promises neither function nor speed for GPUDirect Storage, and GPUDirect RDMA does not work"
	fix := j.m.bootWith("iommu=pt")
	switch mode {
	case "":
		if j.m.Groups > 0 && len(devices) == 0 {
			j.ok(inKernel, "IOMMU", "on, %d groups", j.m.Groups)
			return
		}
		j.ok(inKernel, "IOMMU", "off")
	case "identity":
		j.ok(inKernel, "IOMMU", "passthrough: addresses are not translated, for GPUDirect Storage and RDMA as good as off")
	case "DMA":
		j.add(finding{Finding{inKernel, "IOMMU", Warn, "the IOMMU translates (strict)", effect, fix}, rankIOMMU, 0, true, false})
	case "DMA-FQ":
		j.add(finding{Finding{inKernel, "IOMMU", Warn, "the IOMMU translates (lazy)", effect, fix}, rankIOMMU, 0, true, false})
	default:
		j.unknown(inKernel, "IOMMU", "on; the mode of the GPU's group cannot be read", "cat /sys/kernel/iommu_groups/*/type | sort | uniq -c")
	}
}

// judgeACS looks at the bridges that a drive and the GPU share, where redirection sends their traffic up to the CPU.
func (j *judge) judgeACS() {
	if j.gpu == nil {
		return
	}
	const redirect = 1<<2 | 1<<3 // P2P request redirect, P2P completion redirect
	var on []string
	unread, shared := false, false
	for _, d := range j.peers() {
		if distance(d, j.gpu) > PXB {
			continue // it goes through the CPU anyway
		}
		shared = true
		for _, b := range append(j.m.bridges(d), j.m.bridges(j.gpu)...) {
			unread = unread || b.hasACS == Unsure
			if b.acs&redirect != 0 && !slices.Contains(on, b.Address) {
				on = append(on, b.Address)
			}
		}
	}
	switch {
	case len(on) > 0:
		slices.Sort(on)
		j.add(finding{Finding{inKernel, "ACS", Warn, fmt.Sprintf("%d bridges redirect, the first is %s", len(on), on[0]),
			"traffic between drive and GPU below one switch goes up to the CPU and back, or nowhere", j.m.onHost("for b in "+strings.Join(on, " ")+"; do setpci -s $b ECAP_ACS+6.w=0; done") + " (it holds until the next boot; for good, turn ACS off in the firmware)"}, rankACS, 0, true, false})
	case unread:
		j.unknown(inKernel, "ACS", "only root can read the bridges' settings", "sudo hbmfs check "+strings.TrimPrefix(j.path(), "FILE"))
	case shared:
		j.ok(inKernel, "ACS", "off between drive and GPU")
	}
}
