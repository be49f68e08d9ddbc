package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// remote is a network filesystem that nvidia-fs can serve, with its name of the kernel's part.
type remote struct{ module, name string }

func remoteFilesystems() map[string]remote {
	return map[string]remote{
		"nfs": {"rpcrdma", "NFS"}, "nfs4": {"rpcrdma", "NFS"}, "lustre": {"lnet", "Lustre"}, "beegfs": {"beegfs", "BeeGFS"},
		"gpfs": {"mmfslinux", "Spectrum Scale"}, "wekafs": {"wekafsio", "WekaFS"}, "scatefs": {"scatefs", "ScaTeFS"},
	}
}

// mountOfPlace gives the mount of a place: the one with its device number, of several the one above its name. Files of
// btrfs and of some overlays have device numbers that no mount has; there the name decides.
func (j *judge) mountOfPlace(p Device) *Mount {
	name := p.Name
	if j.target.HBMFS { // the name is below the mount's source
		if mount := j.m.mountOf(j.target.Path); mount != nil {
			name = mount.Source
		}
	}
	byName := j.m.mountOf(name)
	if byName != nil && byName.Dev == p.Dev {
		return byName
	}
	if byDev := j.m.mountOfDev(p.Dev); byDev != nil {
		return byDev
	}
	return byName
}

func (j *judge) judgeStorage() {
	if j.target == nil {
		j.judgeDrives()
		return
	}
	if j.target.Silent {
		j.fail(rankPath, "path", j.target.Path+" does not answer", "the server or the daemon behind it is gone, or very slow", "dmesg | tail; umount -f -l "+j.target.Path)
		return
	}
	if len(j.target.Places) == 0 {
		mount := j.m.mountOf(j.target.Path)
		if mount == nil {
			j.unknown(inStorage, "filesystem", "no mount is known for "+j.target.Path, "hbmfs check "+j.target.Path)
			return
		}
		j.judgeFUSE(mount)
		return
	}
	if j.target.HBMFS {
		j.add(finding{Finding: Finding{inStorage, "other programs", Warn, "cuFile is never direct on " + j.target.File + " itself, a file of a FUSE mount",
			"readers of hbmfs ask where its bytes lie; a program that calls cuFile itself needs the path of a local file", "hbmfs locate " + j.target.File}})
	}
	for _, p := range j.target.Places {
		j.judgePlace(p)
	}
}

func (j *judge) fail(rank int, name, found, why, fix string) {
	j.add(finding{Finding{inStorage, name, Fail, found, why, fix}, rank, both, false, false})
}

func (j *judge) judgePlace(p Device) {
	mount := j.mountOfPlace(p)
	if mount == nil {
		j.unknown(inStorage, "filesystem", "no mount has the device "+p.Dev, "findmnt -T "+j.target.Path)
		return
	}
	if strings.HasPrefix(mount.Type, "fuse") {
		j.judgeFUSE(mount)
		return
	}
	through := ""
	if j.target.HBMFS {
		through = "hbmfs, which reads from "
	}
	if !j.judgeFilesystem(mount, through) {
		return
	}
	top := j.m.blockOf(mount.Dev)
	if top == nil {
		j.unknown(inStorage, "device", fmt.Sprintf("%s (%s) is not in /sys/class/block", mount.Source, mount.Dev), "lsblk "+mount.Source)
		return
	}
	j.judgeStack(top)
	j.judgeUdev(top)
	switch {
	case p.Direct != "":
		j.fail(rankDirectIO, "O_DIRECT", p.Direct, "cuFile needs reads past the page cache", "mv the file to ext4 or XFS on an NVMe drive")
	case j.target.File != "" && j.target == j.m.Target:
		j.ok(inStorage, "O_DIRECT", "a page was read past the page cache")
	}
	j.judgeDistance(top)
}

// judgeFilesystem judges the filesystem, and says whether a block device lies below that can be judged.
func (j *judge) judgeFilesystem(mount *Mount, through string) bool {
	const name = "filesystem"
	move := "put the data on ext4 or XFS on a local NVMe drive"
	if net, ok := remoteFilesystems()[mount.Type]; ok {
		proto, _ := mount.option("proto")
		_, rdma := mount.option("rdma")
		if net.module == "rpcrdma" && !strings.HasPrefix(proto, "rdma") && !rdma {
			j.fail(rankFilesystem, name, through+"NFS over TCP", "the kernel's TCP copies every byte through host memory",
				fmt.Sprintf("umount %s && mount -o proto=rdma,port=20049 SERVER:/EXPORT %s", mount.Point, mount.Point))
			return false
		}
		found := through + net.name
		if net.module == "rpcrdma" {
			found += " over RDMA"
		}
		j.add(finding{Finding: Finding{inStorage, name, OK, found + " on " + mount.Point, "", ""}, blocks: p2p})
		return false
	}
	switch mount.Type {
	case "xfs":
		j.ok(inStorage, name, "%sXFS on %s", through, mount.Point)
		return true
	case "ext4":
		j.judgeExt4(mount, through)
		return true
	case "overlay":
		j.fail(rankFilesystem, name, through+"overlay on "+mount.Point, "an overlay hides the device below it from cuFile", "give the container a volume on ext4 or XFS: docker run -v /data:/data ..., or in Kubernetes a hostPath or local PersistentVolume")
	case "tmpfs", "ramfs", "devtmpfs", "hugetlbfs":
		j.fail(rankFilesystem, name, through+mount.Type+" on "+mount.Point, "its bytes are in host memory, on no drive", move)
	case "btrfs", "zfs", "bcachefs":
		j.fail(rankFilesystem, name, through+mount.Type+" on "+mount.Point, "it checks and may decompress every block with the CPU; cuFile reads it in compat mode only", move)
	case "virtiofs", "9p":
		j.fail(rankFilesystem, name, through+mount.Type+" on "+mount.Point, "the hypervisor serves it from its own memory", "hand an NVMe drive to the virtual machine by PCI passthrough")
	case "squashfs", "erofs", "iso9660":
		j.fail(rankFilesystem, name, through+mount.Type+" on "+mount.Point, "it is unpacked by the CPU", move)
	default:
		j.fail(rankFilesystem, name, through+mount.Type+" on "+mount.Point, "cuFile does not know it", move)
	}
	return false
}

// judgeExt4 looks for data=ordered, which libcufile looks for in the table of mounts. The kernel shows it there only
// when it was asked for, though it is the default.
func (j *judge) judgeExt4(mount *Mount, through string) {
	fix := j.m.onHost(fmt.Sprintf("umount %s && mount -o data=ordered %s %s", mount.Point, mount.Source, mount.Point)) + " (and the same option in /etc/fstab)"
	if mount.Point == "/" {
		fix = j.m.bootWith("rootflags=data=ordered")
	}
	found := through + "ext4 on " + mount.Point
	switch data, said := mount.option("data"); {
	case data == "ordered":
		j.ok(inStorage, "filesystem", "%s, data=ordered", found)
	case said:
		j.fail(rankMount, "filesystem", found+", data="+data, "GPUDirect Storage needs data=ordered", fix)
	default:
		j.add(finding{Finding{inStorage, "filesystem", Warn, found + ", without data=ordered among its options", "libcufile looks for the word in the table of mounts, and the kernel shows no default",
			fix}, rankMount, 0, true, false})
	}
}

func (j *judge) judgeFUSE(mount *Mount) {
	if mount.Type == "fuse.hbmfs" {
		j.unknown(inStorage, "filesystem", "hbmfs on "+mount.Point+": its control channel did not say where the bytes lie", "hbmfs locate --extents "+j.path())
		return
	}
	j.fail(rankFilesystem, "filesystem", fmt.Sprintf("%s on %s", mount.Type, mount.Point), "a FUSE daemon moves its bytes, and cuFile cannot see past it", "name the directory that the daemon reads, or mount it with hbmfs")
}

// judgeStack looks at a block device and at all that it is made of.
func (j *judge) judgeStack(top *Block) {
	before := len(j.list)
	seen := map[string]bool{}
	j.m.walkBlocks(top, 0, func(b *Block) {
		if !seen[b.Name] {
			seen[b.Name] = true
			j.judgeBlock(b)
		}
	})
	if slices.ContainsFunc(j.list[before:], func(f finding) bool { return f.Level != OK }) {
		return
	}
	leaves := map[string]bool{}
	for _, leaf := range j.m.leaves(top) {
		leaves[leaf.Name] = true
	}
	j.ok(inStorage, "device", "%s on %s", top.Name, strings.Join(slices.Sorted(maps.Keys(leaves)), ", "))
}

func (j *judge) judgeBlock(b *Block) {
	const name = "device"
	warn := func(found, why, fix string, blocks ways) {
		j.add(finding{Finding{inStorage, name, Warn, found, why, fix}, rankDevice, blocks, true, false})
	}
	kernel := parseVersion(j.m.Kernel)
	switch {
	case b.DM == "CRYPT":
		j.fail(rankDevice, name, b.Name+" is encrypted (dm-crypt)", "the CPU decrypts every byte", "put the data on a partition without dm-crypt, or use the drive's own encryption (sedutil-cli)")
	case b.DM == "mpath":
		j.fail(rankDevice, name, b.Name+" is a multipath device", "cuFile does not follow it", "multipath -f "+b.Name+" && mount the drive itself")
	case b.DM == "VERITY", b.DM == "INTEGRITY":
		j.fail(rankDevice, name, b.Name+" is a dm-"+strings.ToLower(b.DM)+" device", "the CPU checks every byte", "put the data on a plain partition")
	case b.DM == "LVM":
		warn(b.Name+" is an LVM volume", "NVIDIA does not list LVM as supported", "mkfs.xfs on a partition or on the whole drive instead", p2p)
	case b.DM != "":
		warn(b.Name+" is a device mapper device", "NVIDIA does not list it as supported", "mount the drive below it: lsblk -s /dev/"+b.Name, p2p)
	case b.Level == "raid0":
		if !kernel.atLeast(7, 1) {
			j.add(finding{Finding: Finding{inStorage, name, OK, b.Name + " is a RAID 0, for nvidia-fs", "", ""}, blocks: p2p})
		}
	case b.Level == "raid1", b.Level == "raid10":
		if !kernel.atLeast(7, 2) {
			warn(b.Name+" is a "+b.Level, "cuFile 1.19 and Linux 7.2 are the first that can read it directly", "mdadm --create a raid0 instead, or use single drives", p2p)
		}
	case b.Level != "":
		j.fail(rankDevice, name, b.Name+" is a "+b.Level, "of md, cuFile reads RAID 0 alone", "mdadm --create a raid0 instead, or use single drives")
	case b.Disk == "" && len(b.Below) == 0:
		j.judgeDisk(b)
	}
}

// judgeDisk looks at the bottom of a stack.
func (j *judge) judgeDisk(b *Block) {
	const name, move = "device", "put the data on a local NVMe drive"
	passthrough := "hand an NVMe drive to the virtual machine by PCI passthrough, or choose an instance with local NVMe drives"
	has := func(text string) bool { return strings.Contains(b.path, text) }
	prefix := strings.TrimRight(b.Name, "0123456789")
	switch {
	case b.Transport == "tcp", b.Transport == "fc":
		j.fail(rankDevice, name, b.Name+" is NVMe over "+strings.ToUpper(b.Transport), "its bytes arrive in host memory", "connect it by RDMA (nvme connect -t rdma ...), or use a local NVMe drive")
	case b.Transport == "rdma":
		j.add(finding{Finding: Finding{inStorage, name, OK, b.Name + " is NVMe over RDMA", "", ""}, blocks: p2p})
	case strings.HasPrefix(b.Name, "nvme"):
	case strings.HasPrefix(b.Name, "vd"), has("/virtio"), strings.HasPrefix(b.Name, "xvd"), has("/vmbus"), has("/vbd-"):
		j.fail(rankDevice, name, b.Name+" is a virtual disk", "the hypervisor moves its bytes into the machine's memory; no drive is there that could reach the GPU", passthrough)
	case has("/usb"):
		j.fail(rankDevice, name, b.Name+" is a USB drive", "it cannot address the memory of a GPU", move)
	case has("/ata"):
		j.fail(rankDevice, name, b.Name+" is a SATA drive", "its controller cannot address the memory of a GPU", move)
	case strings.HasPrefix(b.Name, "sd"):
		j.fail(rankDevice, name, b.Name+" is a SCSI drive", "cuFile reads NVMe drives alone directly", move)
	case prefix == "loop":
		j.fail(rankDevice, name, b.Name+" is a loop device", "its bytes pass through another filesystem", "mount the device that the image lies on: losetup -l")
	case prefix == "ram", prefix == "zram":
		j.fail(rankDevice, name, b.Name+" is in host memory", "there is no drive", move)
	default:
		j.fail(rankDevice, name, b.Name+" is no NVMe drive", "cuFile reads NVMe drives alone directly", move)
	}
}

func (j *judge) judgeUdev(top *Block) {
	const name = "udev data"
	file := "/run/udev/data/b" + top.Dev
	why := "libcufile asks udev what lies on a device, and refuses without an answer (errors 5027 and 5030)"
	switch {
	case top.FSUsage != "" && top.FSType != "":
		j.ok(inStorage, name, "%s: %s", top.Name, top.FSType)
	case j.m.Container != "" && !j.m.Udev:
		j.fail(rankUdev, name, "/run/udev is not in the container", why, "give it to the container: docker run -v /run/udev:/run/udev:ro ..., or in Kubernetes a hostPath volume")
	case !j.m.Udev:
		j.fail(rankUdev, name, "there is no /run/udev/data", why, "systemctl start systemd-udevd && udevadm trigger --settle")
	default:
		j.fail(rankUdev, name, file+" has no ID_FS_USAGE", why, j.m.onHost("udevadm trigger --action=change --settle /sys/class/block/"+top.Name))
	}
}

func (j *judge) judgeDistance(top *Block) {
	if j.gpu == nil {
		return
	}
	for _, d := range j.m.controllers(top) {
		far := distance(d, j.gpu)
		near, best := j.m.nearest(d)
		found := fmt.Sprintf("%s is %s from gpu %d, %s from gpu %d, its nearest", d.Name, far, j.index, best, near)
		switch far {
		case best:
			j.ok(inStorage, "distance", "%s is %s from gpu %d; no GPU is nearer", d.Name, far, j.index)
		case SYS:
			j.add(finding{Finding: Finding{inStorage, "distance", Warn, found, "its bytes cross the link between the CPUs", fmt.Sprintf("read with gpu %d, or put the data on a drive near gpu %d", near, j.index)}})
		default:
			j.add(finding{Finding: Finding{inStorage, "distance", Warn, found, "a nearer GPU gets its bytes without passing by a CPU", fmt.Sprintf("read with gpu %d", near)}})
		}
	}
}

// judgeDrives looks at the machine where no path was named.
func (j *judge) judgeDrives() {
	if len(j.m.Drives) > 0 {
		j.ok(inStorage, "drives", "%d NVMe drives", len(j.m.Drives))
		return
	}
	rdma := false
	for _, mount := range j.m.Mounts {
		_, known := remoteFilesystems()[mount.Type]
		rdma = rdma || known
	}
	if rdma {
		j.ok(inStorage, "drives", "no NVMe drive, network filesystems only")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(j.m.Blocks)) {
		b := j.m.Blocks[name]
		if prefix := strings.TrimRight(name, "0123456789"); prefix == "loop" || prefix == "ram" || prefix == "zram" || b.Disk != "" || len(b.Below) > 0 {
			continue
		}
		j.judgeDisk(b)
	}
	if len(j.m.Blocks) == 0 {
		j.unknown(inStorage, "drives", "/sys/class/block is empty", "hbmfs check PATH")
	}
}
