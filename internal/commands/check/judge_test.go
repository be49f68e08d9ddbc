package check

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// machineCase is a machine and what must be said about it.
type machineCase struct {
	name    string
	machine fixture
	path    string // "" for the one that was looked at
	gpu     int
	want    string // verdict
	reason  string // part of the first reason
	fix     string // part of its fix
	lines   map[string]Level
}

func machineCases() []machineCase {
	return slices.Concat(goodMachines(), storageMachines(), driverMachines(), virtualMachines())
}

func goodMachines() []machineCase {
	p2pOnly := server().withoutNVFS(false)
	p2pOnly.proven("proven", "cuFile counted 8 reads by PCI P2PDMA and none by POSIX")
	mirror := server()
	mirror.stacked("md0", "9:0", "nvme0n1", "nvme1n1")
	mirror["sys/devices/virtual/block/md0/md/level"] = "raid0"
	mirror = mirror.on("xfs", "9:0", "/dev/md0", "rw")
	mirror.proven("proven", "cuFile counted 8 reads through nvidia-fs and none by POSIX")
	rdma := server()
	rdma["proc/driver/nvidia-fs/modules"] = "nvme: 2.29\nrpcrdma: 2.29"
	rdma["proc/modules"] += modules("nvidia_peermem", "rpcrdma")
	rdma.device("0000:1d:00.0", "pci0000:17/0000:17:00.0/0000:1d:00.0", "0x020000", "0x15b3", "0x1021", "mlx5_core", 0)
	rdma["sys/class/infiniband/mlx5_0"] = "->../../devices/pci0000:17/0000:17:00.0/0000:1d:00.0/infiniband/mlx5_0"
	rdma["sys/devices/pci0000:17/0000:17:00.0/0000:1d:00.0/infiniband/mlx5_0/device"] = "->../../../0000:1d:00.0"
	rdma = rdma.on("nfs4", "0:50", secret+":/export", "rw,vers=4.2,proto=rdma,clientaddr="+secret)
	rdma.proven("proven", "cuFile counted 8 reads through nvidia-fs and none by POSIX")
	strict := server()
	iommu(strict, "DMA")
	through := server()
	through["proc/self/mountinfo"] += "50 30 0:60 / /mnt rw - fuse.hbmfs /data rw\n"
	through[ownTarget] = `{"path":"/mnt/view.bin","file":"/mnt/view.bin","hbmfs":true,"places":[{"dev":"259:1","name":"/shard.bin"}]}`
	contradicted := server().without("run/udev/data/b259:1")
	unused := server().without("dev/nvidia0", "dev/nvidia1")
	pass := server()
	iommu(pass, "identity")
	return []machineCase{
		{name: "bare metal with nvidia-fs", machine: server(), want: Direct, reason: "through nvidia-fs",
			lines: map[string]Level{"nvidia-fs": OK, "P2PDMA mode": OK, "udev data": OK, "IOMMU": OK, "ACS": OK, "distance": OK, "read": OK}},
		{name: "P2PDMA without nvidia-fs", machine: p2pOnly, want: Direct, reason: "PCI P2PDMA", lines: map[string]Level{"nvidia-fs": OK, "P2PDMA mode": OK}},
		{name: "RAID 0 through nvidia-fs", machine: mirror, want: Direct, reason: "through nvidia-fs"},
		{name: "NFS over RDMA", machine: rdma, want: Direct, reason: "through nvidia-fs", lines: map[string]Level{"filesystem": OK, "RDMA": OK}},
		{name: "a mount of hbmfs", machine: through, want: Direct, reason: "through nvidia-fs", lines: map[string]Level{"filesystem": OK, "udev data": OK}},
		{name: "proven though the IOMMU is strict", machine: strict, want: Direct, reason: "through nvidia-fs", lines: map[string]Level{"IOMMU": Warn}},
		{name: "proven against a rule", machine: contradicted, want: Direct, reason: "through nvidia-fs", lines: map[string]Level{"udev data": Warn}},
		{name: "passthrough IOMMU", machine: pass, want: Direct, reason: "through nvidia-fs", lines: map[string]Level{"IOMMU": OK}},
		{name: "a host whose GPUs nobody used yet", machine: unused, want: Direct, reason: "through nvidia-fs", lines: map[string]Level{"GPU": OK}},
		{name: "nothing tried", machine: server().without(ownProof), want: Unproven, reason: "no read was tried", fix: "hbmfs check --gpu 0 /data/shard.bin", lines: map[string]Level{"read": Unknown}},
		{name: "another path than was looked at", machine: server(), path: "/data/other", want: Unproven, reason: "no read was tried on /data/other"},
		{name: "the machine alone", machine: server().without(ownTarget, ownProof), want: Unproven, reason: "none was named", lines: map[string]Level{"drives": OK}},
		{name: "far GPU", machine: server(), gpu: 1, want: Direct, reason: "through nvidia-fs", lines: map[string]Level{"distance": Warn}},
	}
}

// iommu puts every PCI device into a group of this type.
func iommu(f fixture, mode string) {
	f["sys/kernel/iommu_groups/7/type"] = mode
	f["sys/class/iommu/dmar0"] = "->../../devices/virtual/iommu/dmar0"
	f["sys/devices/virtual/iommu/dmar0/name"] = ""
	for name := range f {
		if at, ok := strings.CutSuffix(name, "/class"); ok && strings.HasPrefix(name, "sys/devices/pci") {
			f[at+"/iommu_group"] = "->" + strings.Repeat("../", strings.Count(at, "/")) + "kernel/iommu_groups/7"
		}
	}
}

func storageMachines() []machineCase {
	overlay := server().without("run", ownProof)
	overlay[".dockerenv"] = ""
	overlay["proc/self/mountinfo"] = "30 1 0:99 / / rw - overlay overlay rw,lowerdir=" + secret + "\n"
	overlay.looked("/scratch/file", "0:99")
	sata := server()
	sata.block("sda", "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda", "8:0", "8:1")
	sata.udev("8:1", "ext4")
	crypt := server()
	crypt.stacked("dm-0", "253:0", "nvme0n1p1")
	crypt["sys/devices/virtual/block/dm-0/dm/uuid"] = "CRYPT-LUKS2-" + strings.Repeat(secret, 5) + "-data"
	multipath := server()
	multipath.stacked("dm-1", "253:1", "nvme0n1", "nvme1n1")
	multipath["sys/devices/virtual/block/dm-1/dm/uuid"] = "mpath-3600" + strings.Repeat(secret, 5)
	lvm := server()
	lvm.stacked("dm-2", "253:2", "nvme0n1p1")
	lvm["sys/devices/virtual/block/dm-2/dm/uuid"] = "LVM-" + strings.Repeat(secret, 5)
	raid := server()
	raid.stacked("md1", "9:1", "nvme0n1", "nvme1n1")
	raid["sys/devices/virtual/block/md1/md/level"] = "raid5"
	loop := server()
	loop.block("loop3", "virtual/block/loop3", "7:3", "")
	loop.udev("7:3", "ext4")
	tcp := server()
	tcp.block("nvme5n1", "virtual/nvme-fabrics/ctl/nvme5/nvme5n1", "259:9", "")
	tcp["sys/class/nvme/nvme5"] = "->../../devices/virtual/nvme-fabrics/ctl/nvme5"
	tcp["sys/devices/virtual/nvme-fabrics/ctl/nvme5/transport"] = "tcp"
	tcp.udev("259:9", "xfs")
	subvolume := server().on("btrfs", "0:45", "/dev/nvme0n1p1", "rw")
	subvolume.looked("/judged/file", "0:61") // a number of its own
	under := server().on("btrfs", "0:45", "/dev/nvme0n1p1", "rw")
	under["proc/self/mountinfo"] += "50 30 0:60 / /mnt rw - fuse.hbmfs /judged/pile rw\n"
	under[ownTarget] = `{"path":"/mnt/a","file":"/mnt/a","hbmfs":true,"places":[{"dev":"0:61","name":"/a"}]}`
	silent := server()
	silent[ownTarget] = `{"path":"/data/dead","silent":true}`
	unaligned := server().without(ownProof)
	unaligned[ownTarget] = `{"path":"/data/f","file":"/data/f","places":[{"dev":"259:1","name":"/data/f","direct":"open with O_DIRECT: invalid argument"}]}`
	ext4 := server().on("ext4", "259:1", "/dev/nvme0n1p1", "rw")
	ext4.proven("refuted", "cuFileHandleRegister: 5008")
	return []machineCase{
		{name: "overlay in a container", machine: overlay, want: Staged, reason: "overlay on /", fix: "docker run -v /data:/data"},
		{name: "NFS over TCP", machine: server().on("nfs4", "0:50", secret+":/export", "rw,vers=4.2,proto=tcp,addr="+secret), want: Staged, reason: "NFS over TCP", fix: "proto=rdma,port=20049"},
		{name: "SATA", machine: sata.on("ext4", "8:1", "/dev/sda1", "rw,data=ordered"), want: Staged, reason: "sda is a SATA drive", fix: "NVMe"},
		{name: "dm-crypt", machine: crypt.on("xfs", "253:0", "/dev/mapper/data", "rw"), want: Staged, reason: "dm-0 is encrypted", fix: "without dm-crypt"},
		{name: "device mapper multipath", machine: multipath.on("xfs", "253:1", "/dev/mapper/mpatha", "rw"), want: Staged, reason: "dm-1 is a multipath device", fix: "multipath -f"},
		{name: "LVM", machine: lvm.on("xfs", "253:2", "/dev/vg/data", "rw"), want: Unproven, reason: "dm-2 is an LVM volume", fix: "partition"},
		{name: "RAID 5", machine: raid.on("xfs", "9:1", "/dev/md1", "rw"), want: Staged, reason: "md1 is a raid5", fix: "raid0"},
		{name: "loop device", machine: loop.on("ext4", "7:3", "/dev/loop3", "rw,data=ordered"), want: Staged, reason: "loop3 is a loop device", fix: "losetup"},
		{name: "NVMe over TCP", machine: tcp.on("xfs", "259:9", "/dev/nvme5n1", "rw"), want: Staged, reason: "nvme5n1 is NVMe over TCP", fix: "rdma"},
		{name: "tmpfs", machine: server().on("tmpfs", "0:44", "tmpfs", "rw"), want: Staged, reason: "tmpfs on /judged", fix: "NVMe"},
		{name: "btrfs", machine: server().on("btrfs", "0:45", "/dev/nvme0n1p1", "rw"), want: Staged, reason: "btrfs on /judged", fix: "ext4 or XFS"},
		{name: "a subvolume of btrfs", machine: subvolume, want: Staged, reason: "btrfs on /judged", fix: "ext4 or XFS"},
		{name: "a mount of hbmfs over btrfs", machine: under, want: Staged, reason: "hbmfs, which reads from btrfs on /judged", fix: "ext4 or XFS"},
		{name: "another FUSE filesystem", machine: server().on("fuse.s3fs", "0:46", "s3fs", "rw"), want: Staged, reason: "fuse.s3fs on /judged", fix: "hbmfs"},
		{name: "Lustre that nvidia-fs does not know", machine: server().on("lustre", "0:47", secret+"@tcp:/fs", "rw"), want: Staged, reason: "lnet does not know it", fix: "modprobe lnet"},
		{name: "ext4 in journal mode", machine: server().on("ext4", "259:1", "/dev/nvme0n1p1", "rw,data=journal"), want: Staged, reason: "data=journal", fix: "mount -o data=ordered /dev/nvme0n1p1 /judged"},
		{name: "ext4 that does not say ordered, and a failed read", machine: ext4, want: Staged, reason: "without data=ordered", fix: "mount -o data=ordered", lines: map[string]Level{"filesystem": Warn, "read": Fail}},
		{name: "no udev data for the device", machine: server().without("run/udev/data/b259:1", ownProof), want: Staged, reason: "has no ID_FS_USAGE", fix: "udevadm trigger --action=change --settle /sys/class/block/nvme0n1p1"},
		{name: "O_DIRECT refused", machine: unaligned, want: Staged, reason: "open with O_DIRECT", fix: "NVMe"},
		{name: "a path that does not answer", machine: silent, want: Unproven, reason: "/data/dead does not answer", fix: "umount"},
	}
}

func driverMachines() []machineCase {
	unpatched := server().withoutP2P().without(ownProof)
	unpatched["proc/driver/nvidia-fs/modules"] = ""
	old := server().without(ownProof)
	old["proc/sys/kernel/osrelease"] = "4.18.0-553.el8.x86_64"
	strict := server().without(ownProof).withoutP2P()
	iommu(strict, "DMA")
	strict["var/lib/kubelet/x"] = ""
	refuted := server()
	iommu(refuted, "DMA-FQ")
	refuted.proven("refuted", "cuFileRead: EIO")
	acs := server()
	acs.bridge("0000:19:01.0", "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:01.0", 0x1d)
	acs.proven("refuted", "cuFileRead: EIO")
	nouveau := server().without(ownProof, "proc/driver", "sys/module/nvidia", "sys/module/nvidia_fs")
	nouveau["proc/modules"] = modules("nouveau", "nvme")
	closed := server().without(ownProof)
	closed["proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5"
	hung := server().without("proc/driver", ownProof)
	hung[ownSilent] = ""
	forced := server().without(ownProof)
	forced["etc/cufile.json"] = `{"properties": {"force_compat_mode": true}}`
	denied := server().without(ownProof)
	denied["etc/cufile.json"] = `{"denylist": {"mounts": ["/data"]}}`
	p2pUnset := server().withoutNVFS(false).without(ownProof)
	p2pUnset["etc/cufile.json"] = `{"properties": {}}`
	library := server().without("usr/local", ownProof)
	small := server().withoutNVFS(false).without(ownProof)
	small.gpu(0, "0000:1b:00.0", "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1b:00.0", 0, "0x2330", 0)
	small["sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1b:00.0/resource"] = "0x0 0x0 0x0\n0x10000000 0x1fffffff 0x0\n"
	heads := server().withoutNVFS(false).without(ownProof)
	heads.block("nvme2n1", "virtual/nvme-subsystem/nvme-subsys0/nvme2n1", "259:20", "")
	heads["sys/class/nvme-subsystem/nvme-subsys0"] = "->../../devices/virtual/nvme-subsystem/nvme-subsys0"
	heads["sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0"] = "->../../../pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:01.0/0000:1c:00.0/nvme/nvme0"
	heads.udev("259:20", "xfs")
	operator := server().withoutNVFS(false).withoutP2P().without(ownProof)
	operator["var/lib/kubelet/x"], operator["run/nvidia/driver/usr/x"] = "", ""
	none := server().withoutNVFS(false).withoutP2P().without(ownProof)
	none["boot/config-6.8.0-60-generic"] = "# CONFIG_PCI_P2PDMA is not set"
	vfio := server().without(ownProof)
	vfio.device("0000:1b:00.0", "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1b:00.0", "0x030200", "0x10de", "0x2330", "vfio-pci", 0)
	return []machineCase{
		{name: "nvidia_fs not loaded", machine: server().withoutNVFS(true).withoutP2P().without(ownProof), want: Staged, reason: "nvidia_fs is installed and not loaded", fix: "modprobe nvidia-fs", lines: map[string]Level{"nvidia-fs": Fail, "P2PDMA mode": Warn}},
		{name: "nvidia_fs not installed, P2PDMA not begun", machine: none, want: Staged, reason: "nvidia_fs is not installed", fix: "apt-get install -y nvidia-gds"},
		{name: "the nvme driver does not know nvidia-fs", machine: unpatched, want: Staged, reason: "the nvme driver does not know it", fix: "mlnx-nvme-dkms"},
		{name: "nvme multipath", machine: heads.on("xfs", "259:20", "/dev/nvme2n1", "rw"), want: Staged, reason: "nvme multipath is on", fix: "nvme_core multipath=N"},
		{name: "a node of a cluster whose operator has GDS off", machine: operator, want: Staged, reason: "nvidia_fs is not loaded", fix: "kubectl patch clusterpolicies.nvidia.com/cluster-policy"},
		{name: "old kernel", machine: old, want: Staged, reason: "nvidia-fs needs Linux 5.4", fix: "reboot", lines: map[string]Level{"version": Fail}},
		{name: "RDMA off, GDS on, strict IOMMU", machine: strict, want: Unproven, reason: "the IOMMU translates (strict)", fix: "iommu=pt", lines: map[string]Level{"IOMMU": Warn, "RDMA": OK, "nvidia-fs": OK, "Kubernetes": OK}},
		{name: "lazy IOMMU and a failed read", machine: refuted, want: Staged, reason: "the IOMMU translates (lazy)", fix: "iommu=pt"},
		{name: "ACS redirects and a failed read", machine: acs, want: Staged, reason: "1 bridges redirect, the first is 0000:19:01.0", fix: "setpci -s $b ECAP_ACS+6.w=0", lines: map[string]Level{"ACS": Warn}},
		{name: "nouveau", machine: nouveau, want: Host, reason: "nouveau has the GPU", fix: "blacklist nouveau"},
		{name: "driver not loaded", machine: server().withoutNVFS(true).without("proc/driver", "proc/modules", "sys/module", ownProof), want: Host, reason: "the NVIDIA driver is not loaded", fix: "modprobe nvidia"},
		{name: "closed driver", machine: closed, want: Staged, reason: "closed kernel modules", fix: "nvidia-open"},
		{name: "a driver that does not answer", machine: hung, want: Host, reason: "it does not answer", fix: "dmesg"},
		{name: "GPU given to a virtual machine", machine: vfio, want: Host, reason: "vfio-pci has the GPU", fix: "drivers/nvidia/bind"},
		{name: "no such GPU", machine: server().without(ownProof), gpu: 5, want: Host, reason: "gpu 5 does not exist", fix: "--gpu 0"},
		{name: "forced compat mode", machine: forced, want: Staged, reason: "force_compat_mode is true", fix: "/etc/cufile.json"},
		{name: "denylist", machine: denied, want: Staged, reason: "mount /data is on cuFile's denylist", fix: "denylist"},
		{name: "P2PDMA not switched on in cufile.json", machine: p2pUnset, want: Staged, reason: "use_pci_p2pdma is not set", fix: `"use_pci_p2pdma": true`},
		{name: "no libcufile", machine: library, want: Staged, reason: "libcufile is in no usual place", fix: "pip install nvidia-cufile"},
		{name: "small BAR1", machine: small, want: Staged, reason: "BAR1 shows 256 MiB of 80 GiB", fix: "Resizable BAR"},
	}
}

func virtualMachines() []machineCase {
	h200 := fixture{
		"proc/sys/kernel/osrelease": "6.18.44-fc", "proc/sys/kernel/arch": "x86_64", "proc/config": "# CONFIG_PCI_P2PDMA is not set", "proc/cmdline": "console=ttyS0",
		"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "sys/module/nvidia/version": "580.159.04",
		"proc/self/mountinfo": "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n", "dev/nvidia0": "", "dev/nvidiactl": "",
	}
	h200.gpu(0, "0000:00:06.0", "pci0000:00/0000:00:06.0", -1, "0x2335", 256)
	h200.block("vda", "pci0000:00/0000:00:01.0/virtio0/block/vda", "254:0", "")
	h200["usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.1.15.1"] = ""
	h200.looked("/data/file", "254:0")
	h200.proven("refuted", "cuFileDriverOpen: 5033")
	nothing := fixture{"proc/sys/kernel/osrelease": "6.12.0", "proc/self/mountinfo": "27 1 8:1 / / rw - ext4 /dev/sda1 rw\n"}
	nothing.block("sda", "pci0000:00/0000:00:17.0/ata1/host0/block/sda", "8:0", "8:1")
	pod := server().without("dev", "run", ownProof)
	pod["run/secrets/kubernetes.io/serviceaccount/token"] = secret
	noFS := server().without("dev/nvidia-fs0", "dev/nvidia-fs1", "run", ownProof).withoutP2P()
	noFS[".dockerenv"] = ""
	oneOfTwo := server().without("dev/nvidia0")
	oneOfTwo[".dockerenv"] = ""
	sandbox := fixture{"dev/nvidia0": "", "dev/nvidiactl": "", "proc/driver/nvidia/version": h200["proc/driver/nvidia/version"], "proc/sys/kernel/osrelease": "4.4.0"}
	udev := server().without("run", ownProof)
	udev[".dockerenv"] = ""
	return []machineCase{
		{name: "the H200 virtual machine", machine: h200, want: Staged, reason: "vda is a virtual disk", fix: "PCI passthrough",
			lines: map[string]Level{"NVIDIA driver": OK, "GPU": OK, "BAR1": OK, "udev data": Fail, "device": Fail, "libcufile": OK, "filesystem": Warn, "read": Fail}},
		{name: "the H200 virtual machine, no path", machine: fixture(cloned(h200)).without(ownTarget, ownProof), want: Staged, reason: "vda is a virtual disk", fix: "PCI passthrough"},
		{name: "nothing NVIDIA", machine: nothing, path: "/home/file", want: Host, reason: "no NVIDIA GPU is on the PCI bus", fix: "GPU", lines: map[string]Level{"GPU": Fail, "NVIDIA driver": OK, "libcufile": OK}},
		{name: "an empty tree", machine: fixture{"etc/x": ""}, want: Host, reason: "no NVIDIA GPU is on the PCI bus", lines: map[string]Level{"version": Unknown}},
		{name: "a pod without a GPU", machine: pod, want: Host, reason: "/dev/nvidia0 is not in the container", fix: "--gpus all"},
		{name: "a container without /dev/nvidia-fs", machine: noFS, want: Staged, reason: "/dev/nvidia-fs* is not in the container", fix: "--device"},
		{name: "a container without /run/udev", machine: udev, want: Staged, reason: "/run/udev is not in the container", fix: "-v /run/udev:/run/udev:ro"},
		{name: "a container with the second GPU alone", machine: oneOfTwo, want: Direct, reason: "nvidia-fs", lines: map[string]Level{"distance": OK, "GPU": OK}},
		{name: "a sandbox that hides the bus", machine: sandbox, want: Staged, reason: "the PCI bus of the GPU cannot be seen", fix: "sandbox"},
	}
}

func cloned(f fixture) map[string]string {
	c := map[string]string{}
	for name, content := range f {
		c[name] = content
	}
	return c
}

// A kernel that is new enough, and was built without an option, needs another build and no newer one.
func TestKernelWithoutP2PDMA(t *testing.T) {
	for release, want := range map[string]string{"6.18.44-fc": "CONFIG_PCI_P2PDMA=y", "5.15.0-60-generic": "reboot"} {
		machine := server().withoutNVFS(false).withoutP2P().without(ownProof)
		machine["proc/sys/kernel/osrelease"], machine["boot/config-"+release] = release, "# CONFIG_PCI_P2PDMA is not set"
		r := Judge(Read(machine.capture(t)), "", 0)
		i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Name == "PCI P2PDMA" })
		if i < 0 || !strings.Contains(r.Findings[i].Fix, want) {
			t.Errorf("Linux %s: %+v", release, r.Findings)
		}
		for _, f := range r.Findings {
			if f.Name == "version" && strings.Contains(f.Found, "simpler way") {
				t.Errorf("Linux %s: %+v", release, f)
			}
		}
	}
}

// TestMachines judges every machine as a copied tree, and again from its recording: both must say the same.
func TestMachines(t *testing.T) {
	for _, c := range machineCases() {
		t.Run(c.name, func(t *testing.T) {
			s := c.machine.capture(t)
			r := Judge(Read(s), c.path, c.gpu)
			if r.Verdict.Path != c.want || !strings.Contains(r.Verdict.Reason, c.reason) || !strings.Contains(r.Verdict.Fix, c.fix) {
				t.Errorf("verdict %s: %s\nfix: %s\nwant %s: %s\nfix: %s", r.Verdict.Path, r.Verdict.Reason, r.Verdict.Fix, c.want, c.reason, c.fix)
			}
			for name, level := range c.lines {
				if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Name == name && f.Level == level }) {
					t.Errorf("no line %s %s", name, level)
				}
			}
			for _, f := range r.Findings {
				if f.Level == OK && f.Fix != "" || f.Level == Fail && f.Fix == "" || f.Found == "" || strings.Contains(f.Fix, "# ") {
					t.Errorf("line that does not help: %+v", f)
				}
			}
			if c.want == Direct && r.Failed() {
				t.Error("direct, and a line is FAIL")
			}
			if c.want == Staged && !r.Failed() || c.want == Host && !r.Failed() {
				t.Errorf("%s, and no line is FAIL", c.want)
			}
			var recording bytes.Buffer
			if err := s.Record(&recording); err != nil {
				t.Fatal(err)
			}
			loaded, err := Load(&recording)
			if err != nil {
				t.Fatal(err)
			}
			if again := Judge(Read(loaded), c.path, c.gpu); !reflect.DeepEqual(r, again) {
				t.Errorf("from its recording: %+v\nwant %+v", again, r)
			}
			if t.Failed() {
				var text bytes.Buffer
				r.Print(&text)
				t.Log(text.String())
			}
		})
	}
}
