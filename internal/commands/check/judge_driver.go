package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

func (j *judge) judgeDriver() {
	m := j.m
	if len(m.GPUs) == 0 && m.Driver == "" && !m.Silent {
		j.ok(inDriver, "NVIDIA driver", "none, and no GPU that needs one")
		return
	}
	version := parseVersion(m.Driver)
	loaded := m.Modules["nvidia"].Loaded || m.Driver != ""
	switch {
	case m.Silent:
		j.add(finding{Finding{inDriver, "NVIDIA driver", Fail, "it does not answer", "/proc/driver/nvidia hung, so everything that uses a GPU will", m.onHost("dmesg | grep -E 'NVRM|Xid'; reboot")}, rankGPU, both, false, true})
		return
	case m.Modules["nouveau"].Loaded && !loaded:
		j.add(finding{Finding{inDriver, "NVIDIA driver", Fail, "nouveau has the GPU", "it has no CUDA and keeps NVIDIA's driver out",
			m.configure("printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' > /etc/modprobe.d/nouveau.conf")}, rankGPU, both, false, true})
		return
	case j.gpu != nil && j.gpu.Driver == "vfio-pci":
		j.add(finding{Finding{inDriver, "NVIDIA driver", Fail, "vfio-pci has the GPU", "it was given to a virtual machine",
			fmt.Sprintf("echo %s > /sys/bus/pci/drivers/vfio-pci/unbind && echo %s > /sys/bus/pci/drivers/nvidia/bind", j.gpu.Address, j.gpu.Address)}, rankGPU, both, false, true})
		return
	case !loaded:
		fix := m.hostInstall("nvidia-open", "nvidia-open", "modprobe nvidia")
		if m.Modules["nvidia"].Installed != "" {
			fix = m.onHost("modprobe nvidia")
		}
		j.add(finding{Finding{inDriver, "NVIDIA driver", Fail, "the NVIDIA driver is not loaded", "", fix}, rankGPU, both, false, true})
		return
	case m.Open:
		j.ok(inDriver, "NVIDIA driver", "%s, open kernel modules", m.Driver)
	case m.Driver == "":
		j.unknown(inDriver, "NVIDIA driver", "loaded, version not readable", "cat /proc/driver/nvidia/version")
	default:
		f := finding{Finding{inDriver, "NVIDIA driver", Warn, m.Driver + ", closed kernel modules", "PCI P2PDMA and nvidia-fs 2.17.5 and later need the open ones",
			m.hostInstall("nvidia-open", "nvidia-open", "reboot")}, rankModule, p2p, false, false}
		if m.NVFS != "" && parseVersion(m.NVFS).atLeast(2, 17, 5) {
			f.Level, f.blocks = Fail, both
		}
		j.add(f)
	}
	if m.Modules["nouveau"].Loaded {
		j.add(finding{Finding: Finding{inDriver, "conflict", Warn, "nouveau is loaded beside the NVIDIA driver", "it may take a GPU at the next boot", m.configure("echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf")}})
	}
	j.judgeNVFS()
	j.judgeP2P(version)
	j.judgeRDMA()
}

// filesystemModule gives nvidia-fs's name of the kernel's part of a filesystem or device (nvfs-dma.h of nvidia-fs).
func (j *judge) filesystemModule() string {
	if j.target != nil {
		for _, p := range j.target.Places {
			if mount := j.mountOfPlace(p); mount != nil {
				if rule, ok := remoteFilesystems()[mount.Type]; ok {
					return rule.module
				}
			}
			for _, leaf := range j.m.leaves(j.m.blockOf(p.Dev)) {
				if leaf.Transport == "rdma" {
					return "nvme_rdma"
				}
			}
		}
	}
	return "nvme"
}

func (j *judge) judgeNVFS() {
	m := j.m
	const name = "nvidia-fs"
	module := m.Modules["nvidia_fs"]
	need := j.filesystemModule()
	fail := func(found, why, fix string) {
		j.add(finding{Finding{inDriver, name, Fail, found, why, fix}, rankModule, nvfs, false, false})
	}
	_, registered := m.NVFSModules[need]
	switch {
	case !module.Loaded && m.NVFS == "" && m.Kubernetes && !m.driverOnHost():
		fail("nvidia_fs is not loaded", "", "kubectl patch clusterpolicies.nvidia.com/cluster-policy --type merge -p '{\"spec\":{\"gds\":{\"enabled\":true}}}'")
	case !module.Loaded && m.NVFS == "" && module.Installed != "":
		fail("nvidia_fs is installed and not loaded", "", m.onHost("modprobe nvidia-fs && echo nvidia-fs > /etc/modules-load.d/nvidia-fs.conf"))
	case !module.Loaded && m.NVFS == "":
		fail("nvidia_fs is not installed", "", m.hostInstall("nvidia-gds", "nvidia-gds", "modprobe nvidia-fs"))
	case m.NVFSDevices == 0 && m.Container != "":
		fail("/dev/nvidia-fs* is not in the container", "nvidia_fs is loaded on the host, and libcufile talks to it through these", "docker run $(printf -- '--device=%s ' /dev/nvidia-fs*) ...")
	case m.NVFSDevices == 0:
		fail("nvidia_fs is loaded and /dev/nvidia-fs* is missing", "libcufile talks to it through these", "modprobe -r nvidia-fs && modprobe nvidia-fs")
	case m.NVFS == "":
		j.unknown(inDriver, name, "loaded, version not readable", "cat /proc/driver/nvidia-fs/version")
	case !registered && need == "nvme":
		fail("nvidia_fs "+m.NVFS+" is loaded and the nvme driver does not know it", "the distribution's own nvme driver has no hooks for nvidia-fs", m.hostInstall("doca-ofed mlnx-nvme-dkms", "doca-ofed mlnx-nvme", m.rebuild()))
	case !registered && need == "rpcrdma":
		fail("nvidia_fs "+m.NVFS+" is loaded and rpcrdma does not know it", "NFS over RDMA with GPUs needs the client of DOCA or MLNX_OFED", m.hostInstall("doca-ofed mlnx-nfsrdma-dkms", "doca-ofed mlnx-nfsrdma", m.rebuild()))
	case !registered:
		fail(fmt.Sprintf("nvidia_fs %s is loaded and %s does not know it", m.NVFS, need), "the filesystem's client must be loaded before, in a version with GPUDirect Storage", m.onHost("modprobe "+need+" && modprobe -r nvidia-fs && modprobe nvidia-fs"))
	default:
		j.ok(inDriver, name, "%s, %d devices, knows %s", m.NVFS, m.NVFSDevices, need)
	}
}

// staticBAR says whether the options of PCI P2PDMA are set for the NVIDIA driver.
func (m *Machine) staticBAR() bool { return strings.Contains(m.Options, "RMForceStaticBar1=1") }

// judgeP2P looks at all that PCI P2PDMA needs beside the kernel.
func (j *judge) judgeP2P(driver Version) {
	m := j.m
	const name = "P2PDMA mode"
	fail := func(rank int, found, why, fix string) {
		j.add(finding{Finding{inDriver, name, Fail, found, why, fix}, rank, p2p, false, false})
	}
	multipath := false
	for _, d := range j.peers() {
		for _, b := range m.Blocks {
			multipath = multipath || strings.HasPrefix(b.Name, "nvme") && strings.Contains(b.path, "nvme-subsystem/") && slices.Contains(m.controllers(b), d)
		}
	}
	useP2P := m.Properties.Properties.P2PDMA
	switch {
	case driver != (Version{}) && !driver.atLeast(565):
		fail(rankModule, "driver "+m.Driver, "PCI P2PDMA needs 565 or later", m.hostInstall("nvidia-open", "nvidia-open", "reboot"))
	case j.gpu != nil && !j.gpu.P2PDMA:
		fail(rankModule, j.gpu.Name, "NVIDIA names A100, A40, L4, L40S, H100, H200 and Blackwell for PCI P2PDMA", "use nvidia-fs")
	case j.gpu != nil && j.gpu.BAR1 > 0 && j.gpu.BAR1 < j.gpu.HBM:
		fail(rankModule, fmt.Sprintf("BAR1 shows %d MiB of %d GiB", j.gpu.BAR1>>20, j.gpu.HBM>>30), "PCI P2PDMA needs all of the GPU's memory in BAR1", firmware)
	case !m.staticBAR() && m.Arch != "aarch64":
		fail(rankModule, "the driver's static BAR1 is off", "", m.configure(`echo 'options nvidia NVreg_RegistryDwords="RMForceStaticBar1=1;RmForceDisableIomapWC=1;"' > /etc/modprobe.d/nvidia-p2pdma.conf`))
	case multipath:
		fail(rankModule, "nvme multipath is on", "the kernel's multipath passes no addresses of other devices on", m.configure("echo 'options nvme_core multipath=N' > /etc/modprobe.d/nvme.conf"))
	case useP2P == nil || !*useP2P:
		fail(rankConfig, "use_pci_p2pdma is not set in cufile.json", "", `set "properties": {"use_pci_p2pdma": true} in `+m.configName())
	default:
		j.ok(inDriver, name, "driver, GPU, nvme and cufile.json are set for it")
	}
}

func (m *Machine) configName() string {
	if m.Config == "" {
		return "/etc/cufile.json"
	}
	return m.Config
}

func (j *judge) judgeRDMA() {
	m := j.m
	const name = "RDMA"
	peermem := m.Modules["nvidia_peermem"]
	switch {
	case peermem.Loaded && m.Modules["nv_peer_mem"].Loaded:
		j.add(finding{Finding: Finding{inDriver, name, Warn, "nv_peer_mem and nvidia_peermem are both loaded", "only one can serve a card", m.onHost("modprobe -r nv_peer_mem && rm -f /etc/modules-load.d/nv_peer_mem.conf")}})
	case len(m.NICs) == 0:
		j.ok(inDriver, name, "no RDMA card, not needed for local drives")
	case peermem.Loaded:
		by := "the kernel's own mlx5_core"
		if m.MOFED {
			by = "MLNX_OFED or DOCA, mlx5_core " + m.Modules["mlx5_core"].Version
		}
		j.ok(inDriver, name, "nvidia_peermem is loaded, cards: %d, %s", len(m.NICs), by)
	default:
		fix := "modprobe nvidia-peermem && echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf"
		if m.Kubernetes {
			fix = "kubectl patch clusterpolicies.nvidia.com/cluster-policy --type merge -p '{\"spec\":{\"driver\":{\"rdma\":{\"enabled\":true}}}}'"
		}
		f := finding{Finding: Finding{inDriver, name, Warn, fmt.Sprintf("nvidia_peermem is not loaded, cards: %d", len(m.NICs)), "GPUDirect RDMA needs it; local drives do not", m.onHost(fix)}, rank: rankVersion}
		f.suspect = j.filesystemModule() != "nvme"
		j.add(f)
	}
}

// firmware is the setting that makes BAR1 as large as the GPU's memory.
const firmware = "enable \"Above 4G decoding\" and \"Resizable BAR\" in the firmware set-up"

func (j *judge) judgeGPU() {
	m := j.m
	if len(m.GPUs) == 0 && m.hasGPUNode() {
		j.add(finding{Finding{inGPU, "GPU", Unknown, "the PCI bus of the GPU cannot be seen from here", "a sandbox stands between this process and the GPU, so that a drive cannot reach it", "run it outside of the sandbox"}, rankGPU, both, false, false})
		return
	}
	if len(m.GPUs) == 0 {
		j.add(finding{Finding{inGPU, "GPU", Fail, "no NVIDIA GPU is on the PCI bus", "", "choose a machine with a GPU, or hand one to this virtual machine (lspci -d 10de: lists them)"}, rankGPU, both, false, true})
		return
	}
	if j.gpu == nil {
		j.add(finding{Finding{inGPU, "GPU", Fail, fmt.Sprintf("gpu %d does not exist", j.index), fmt.Sprintf("this machine has gpu 0 to %d", len(m.GPUs)-1), "hbmfs check --gpu 0"}, rankGPU, both, false, true})
		return
	}
	j.ok(inGPU, "GPU", "%d: %s at %s, NUMA node %s", j.index, j.gpu.Name, j.gpu.Address, node(j.gpu.NUMA))
	if m.Container != "" && !m.hasGPUNode() {
		j.add(finding{Finding{inGPU, "device", Fail, "/dev/nvidia0 is not in the container", "", "docker run --gpus all ..."}, rankGPU, both, false, true})
	}
	const gib = 1 << 30
	switch {
	case j.gpu.BAR1 == 0:
		j.unknown(inGPU, "BAR1", "its size cannot be read", "nvidia-smi -q | grep -A3 BAR1")
	case j.gpu.HBM == 0:
		j.ok(inGPU, "BAR1", "%d MiB; the GPU's memory is not known to this program", j.gpu.BAR1>>20)
	case j.gpu.BAR1 < j.gpu.HBM:
		j.add(finding{Finding{inGPU, "BAR1", Warn, fmt.Sprintf("%d MiB for %d GiB of HBM", j.gpu.BAR1>>20, j.gpu.HBM/gib), "only as much as BAR1 holds can be registered with cuFile", firmware}, rankBAR, 0, true, false})
	default:
		j.ok(inGPU, "BAR1", "%d GiB for %d GiB of HBM", j.gpu.BAR1/gib, j.gpu.HBM/gib)
	}
	if j.gpu.Link != "" {
		j.judgeLink()
	}
}

// judgeLink looks at the lanes alone: an idle GPU lowers its speed to save power.
func (j *judge) judgeLink() {
	now, most, _ := strings.Cut(j.gpu.Link, " of ")
	lanes := func(text string) string { return text[strings.LastIndex(text, "x")+1:] }
	if lanes(now) != lanes(most) {
		j.add(finding{Finding: Finding{inGPU, "PCIe link", Warn, j.gpu.Link, "the card or its slot is seated badly, or the slot has fewer lanes", "move the card, or reseat it"}})
	}
}

func node(n int) string {
	if n < 0 {
		return "unknown"
	}
	return strconv.Itoa(n)
}
