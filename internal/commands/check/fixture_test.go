package check

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// fixture is a made-up machine: paths with contents. Contents that begin with "->" are symbolic links, paths that end
// with a slash directories.
type fixture map[string]string

// secret stands in every place of a fixture where real machines have serial numbers, addresses, names or passwords.
const secret = "5ec12e7"

// server is bare metal where everything is set up: two H100s, nvme0 below the same switch as GPU 0, XFS on it, and both
// ways to read directly. The read was proven.
func server() fixture {
	f := fixture{
		"proc/sys/kernel/osrelease": "6.8.0-60-generic", "proc/sys/kernel/arch": "x86_64", "etc/os-release": "PRETTY_NAME=\"Ubuntu 24.04 LTS\"\nID=ubuntu",
		"boot/config-6.8.0-60-generic": "CONFIG_PCI_P2PDMA=y\nCONFIG_LOCALVERSION=\"" + secret + "\"",
		"proc/cmdline":                 "BOOT_IMAGE=/vmlinuz password=" + secret + " quiet", "proc/modules": modules("nvidia", "nvidia_fs", "nvme", "nvme_core"),
		"sys/module/nvidia/version": "580.95.05", "sys/module/nvidia_fs/version": "2.29.4", "sys/module/nvme_core/parameters/multipath": "N",
		"lib/modules/6.8.0-60-generic/modules.dep": "updates/dkms/nvidia.ko:\nupdates/dkms/nvidia-fs.ko: x\nkernel/drivers/nvme/host/nvme.ko: y",
		"proc/driver/nvidia/version":               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@" + secret + ")\nGCC version: 13",
		"proc/driver/nvidia/params":                "RegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"\n",
		"proc/driver/nvidia-fs/version":            "version: 2.29.4", "proc/driver/nvidia-fs/modules": "nvme: 2.29",
		"proc/driver/nvidia-fs/stats": "GDS Version: 1.17\nReads\t\t\t\t: n=42 ok=42 err=0\nGPU 0000:1b:00.0 uuid:" + secret + " : Registered_MiB=1",
		"dev/nvidia-fs0":              "", "dev/nvidia-fs1": "", "dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": "",
		"proc/self/mountinfo": "30 1 259:2 / / rw - ext4 /dev/nvme1n1p2 rw\n31 30 259:1 / /data rw,relatime shared:1 - xfs /dev/nvme0n1p1 rw,attr2,password=" + secret + "\n",
		"etc/cufile.json":     "{\n // a comment\n \"logging\": {\"dir\": \"/" + secret + "\"}, \"properties\": {\"use_pci_p2pdma\": true, \"rdma_dev_addr_list\": [\"" + secret + "\"], \"allow_compat_mode\": true}}",
		"usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.1.15.1": "ELF" + secret, "usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.0": "->libcufile.so.1.15.1",
		"proc/self/status": "Name:\t" + secret + "\nCapEff:\t000001ffffffffff", "proc/self/limits": "Max locked memory         unlimited            unlimited            bytes",
	}
	f.bridge("0000:17:00.0", "pci0000:17/0000:17:00.0", 0)
	f.bridge("0000:18:00.0", "pci0000:17/0000:17:00.0/0000:18:00.0", 0)
	f.bridge("0000:19:00.0", "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0", 0)
	f.bridge("0000:19:01.0", "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:01.0", 0)
	f.gpu(0, "0000:1b:00.0", "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1b:00.0", 0, "0x2330", 128)
	f.gpu(1, "0000:9b:00.0", "pci0000:97/0000:9b:00.0", 1, "0x2330", 128)
	f.nvme(0, "0000:1c:00.0", "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:01.0/0000:1c:00.0", 0, "259:0", "259:1")
	f.nvme(1, "0000:c1:00.0", "pci0000:97/0000:c1:00.0", 1, "259:3", "259:2")
	f.udev("259:1", "xfs")
	f.udev("259:2", "ext4")
	f.looked("/data/shard.bin", "259:1")
	f.proven("proven", "cuFile counted 8 reads through nvidia-fs and none by POSIX")
	return f
}

func modules(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "%s 40960 0 - Live 0xffffffff%s\n", name, secret)
	}
	return b.String()
}

func (f fixture) device(address, at, class, vendor, device, driver string, numa int) string {
	dir := "sys/devices/" + at
	f["sys/bus/pci/devices/"+address] = "->../../../devices/" + at
	f[dir+"/class"], f[dir+"/vendor"], f[dir+"/device"], f[dir+"/numa_node"] = class, vendor, device, fmt.Sprint(numa)
	if driver != "" {
		f[dir+"/driver"] = "->" + strings.Repeat("../", strings.Count(dir, "/")) + "bus/pci/drivers/" + driver
		f["sys/bus/pci/drivers/"+driver+"/module_name"] = driver
	}
	return dir
}

func (f fixture) gpu(minor int, address, at string, numa int, device string, barGiB uint64) {
	dir := f.device(address, at, "0x030200", "0x10de", device, "nvidia", numa)
	const first = 0x2000_0000_0000
	f[dir+"/resource"] = fmt.Sprintf("0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n%#018x %#018x 0x000000000014220c\n", first, first+barGiB<<30-1)
	f["proc/driver/nvidia/gpus/"+address+"/information"] = fmt.Sprintf("Model: \t\t NVIDIA Test GPU %s\nGPU UUID: \t GPU-%s\nDevice Minor: \t %d\n", device, secret, minor)
}

// bridge adds a PCI bridge whose list of capabilities is a serial number and then ACS with this control register.
func (f fixture) bridge(address, at string, control uint16) {
	dir := f.device(address, at, "0x060400", "0x1000", "0xc030", "pcieport", 0)
	config := make([]byte, pciConfig)
	const serial, acs = pciExtended, 0x148
	binary.LittleEndian.PutUint32(config[serial:], acs<<20|1<<16|3)
	copy(config[serial+4:], secret)
	binary.LittleEndian.PutUint32(config[acs:], 1<<16|capabilityACS)
	binary.LittleEndian.PutUint16(config[acs+acsControl:], control)
	f[dir+"/config"] = string(config)
}

func (f fixture) nvme(n int, address, at string, numa int, dev, partition string) {
	dir := f.device(address, at, "0x010802", "0x144d", "0xa824", "nvme", numa)
	host := fmt.Sprintf("nvme%d", n)
	f["sys/class/nvme/"+host] = "->../../devices/" + at + "/nvme/" + host
	f[dir+"/nvme/"+host+"/transport"] = "pcie"
	f[dir+"/nvme/"+host+"/serial"] = secret
	f[dir+"/nvme/"+host+"/device"] = "->../../../" + filepath.Base(at)
	f.block(host+"n1", at+"/nvme/"+host+"/"+host+"n1", dev, partition)
}

// block adds a disk and its first partition, where it has one.
func (f fixture) block(name, at, dev, partition string) {
	f["sys/class/block/"+name] = "->../../devices/" + at
	f["sys/devices/"+at+"/dev"] = dev
	if partition == "" {
		return
	}
	part := name + "p1"
	if last := name[len(name)-1]; last < '0' || last > '9' {
		part = name + "1"
	}
	f["sys/class/block/"+part] = "->../../devices/" + at + "/" + part
	f["sys/devices/"+at+"/"+part+"/dev"], f["sys/devices/"+at+"/"+part+"/partition"] = partition, "1"
}

// stacked adds a device that is made of others.
func (f fixture) stacked(name, dev string, below ...string) {
	f["sys/class/block/"+name] = "->../../devices/virtual/block/" + name
	f["sys/devices/virtual/block/"+name+"/dev"] = dev
	for _, b := range below {
		f["sys/devices/virtual/block/"+name+"/slaves/"+b] = "->../../../../../class/block/" + b
	}
	f.udev(dev, "xfs")
}

func (f fixture) udev(dev, fsType string) {
	f["run/udev/data/b"+dev] = "S:disk/by-id/" + secret + "\nE:ID_SERIAL=" + secret + "\nE:ID_FS_UUID=" + secret + "\nE:ID_FS_TYPE=" + fsType + "\nE:ID_FS_USAGE=filesystem\n"
}

func (f fixture) looked(path, dev string) {
	f[ownTarget] = fmt.Sprintf(`{"path":%q,"file":%q,"places":[{"dev":%q,"name":%q}]}`, path, path, dev, path)
}

func (f fixture) proven(verdict, why string) {
	f[ownProof] = fmt.Sprintf(`{"verdict":%q,"why":%q}`, verdict, why)
}

// without removes paths and all below them.
func (f fixture) without(paths ...string) fixture {
	for name := range f {
		for _, path := range paths {
			if name == path || strings.HasPrefix(name, path+"/") {
				delete(f, name)
			}
		}
	}
	return f
}

// withoutNVFS takes nvidia-fs away, with what is installed of it or without.
func (f fixture) withoutNVFS(installed bool) fixture {
	f.without("proc/driver/nvidia-fs", "dev/nvidia-fs0", "dev/nvidia-fs1", "sys/module/nvidia_fs")
	f["proc/modules"] = modules("nvidia", "nvme", "nvme_core")
	if !installed {
		f["lib/modules/6.8.0-60-generic/modules.dep"] = "updates/dkms/nvidia.ko:\n"
	}
	return f
}

// withoutP2P takes what PCI P2PDMA needs of the driver away.
func (f fixture) withoutP2P() fixture {
	f["proc/driver/nvidia/params"] = "RegistryDwords: \"\"\n"
	f["etc/cufile.json"] = `{"properties": {"allow_compat_mode": true}}`
	return f
}

// on puts the judged path on a filesystem of its own.
func (f fixture) on(fsType, dev, source, options string) fixture {
	f["proc/self/mountinfo"] += fmt.Sprintf("40 30 %s / /judged rw - %s %s %s\n", dev, fsType, source, options)
	f.looked("/judged/file", dev)
	return f.without(ownProof)
}

// write makes a directory of the fixture, as somebody might have copied it from a machine.
func (f fixture) write(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range f {
		at := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			at = filepath.Join(at, "x")
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			continue
		}
		var err error
		if target, isLink := strings.CutPrefix(content, "->"); isLink {
			err = os.Symlink(target, at)
		} else {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// capture takes the recording of the fixture as a tree in memory.
func (f fixture) capture(t testing.TB) *Recording {
	t.Helper()
	tree := fstest.MapFS{}
	for name, content := range f {
		target, isLink := strings.CutPrefix(content, "->")
		switch {
		case isLink:
			tree[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
		case strings.HasSuffix(name, "/"):
			tree[strings.TrimSuffix(name, "/")] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
		default:
			tree[name] = &fstest.MapFile{Data: []byte(content), Mode: 0o644}
		}
	}
	s, err := CaptureTree(tree)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// captureCopy takes the recording of the fixture as a directory on disk.
func (f fixture) captureCopy(t testing.TB) *Recording {
	t.Helper()
	root, err := os.OpenRoot(f.write(t))
	if err != nil {
		t.Fatal(err)
	}
	s, err := CaptureTree(root.FS())
	if err := errors.Join(err, root.Close()); err != nil {
		t.Fatal(err)
	}
	return s
}
