package check

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// want is a pattern of paths to keep, in the form of path.Match, and the cleaner that takes secrets out of the files.
type want struct {
	pattern string
	clean   cleaner // nil: the file is kept as it is. "named" keeps nothing but the name
}

// wanted are the paths that matter, but for PCI devices, which are many, and for the files of the driver.
func wanted() []want {
	return []want{
		{"proc/sys/kernel/osrelease", nil}, {"proc/sys/kernel/arch", nil}, {"etc/os-release", keepLines("ID=", "VERSION_ID=", "PRETTY_NAME=")},
		{"proc/cmdline", cleanCmdline}, {"proc/modules", cleanModules},
		{"sys/module/nvidia*/version", nil}, {"sys/module/mlx5_core/version", nil}, {"sys/module/mlx_compat/version", nil},
		{"sys/module/nvidia_fs/parameters/rw_stats_enabled", nil}, {"sys/module/nvme_core/parameters/multipath", nil},
		{"sys/module/{nvidia,nvidia_fs,nvidia_peermem,nv_peer_mem,nouveau,nvme,nvme_core,nvme_rdma,rpcrdma,mlx5_core,mlx_compat}", nil},
		{"usr/bin/ofed_info", named}, {"etc/modprobe.d/*.conf", keepLines("options nvidia", "options nvme", "blacklist nouveau", "blacklist nvidia")},
		{"proc/self/mountinfo", cleanMounts}, {"proc/fs/ext4/*/options", nil},
		{"sys/class/iommu/*", nil}, {"sys/kernel/iommu_groups/*/type", nil},
		{"sys/class/block/*/{dev,partition,dm/uuid,dm/name,md/level}", cleanDM}, {"sys/class/block/*/slaves/*", nil},
		{"sys/class/nvme/*/{transport,numa_node}", nil}, {"sys/class/nvme/*/device", nil}, {"sys/class/nvme-subsystem/*/nvme*", nil},
		{"sys/class/infiniband/*/device", nil}, {"sys/class/infiniband/*/ports/*/{link_layer,state}", nil},
		{"run/udev/data/b*", keepLines("E:ID_FS_TYPE=", "E:ID_FS_USAGE=")}, {"run/udev", nil},
		{"dev/nvidia*", nil}, {"dev/nvidia-caps/*", nil}, {"dev/infiniband/*", nil}, {"dev/dxg", nil},
		{"etc/cufile.json", cleanCuFile}, {"usr/local/cuda*/gds/cufile.json", cleanCuFile},
		{"usr/lib/{x86_64-linux-gnu,aarch64-linux-gnu}/libcufile.so*", named}, {"usr/{lib64,lib,local/lib}/libcufile.so*", named},
		{"usr/local/cuda*/targets/*/lib/libcufile.so*", named}, {"usr/local/cuda*/lib64/libcufile.so*", named},
		{"usr/local/lib/python3*/{dist-packages,site-packages}/nvidia/*/lib/libcufile.so*", named},
		{".dockerenv", named}, {"run/.containerenv", named}, {"run/secrets/kubernetes.io", nil}, {"var/run/secrets/kubernetes.io", nil}, {"var/lib/kubelet", nil},
		{"run/nvidia/driver/{etc,usr}", nil}, {"run/nvidia/validations/*", named},
		{"proc/self/status", keepLines("CapEff:", "Seccomp:", "NoNewPrivs:")}, {"proc/self/limits", keepLines("Max locked memory")},
		{"sys/fs/cgroup/{memory.max,cpu.max}", nil}, {"sys/fs/cgroup/memory/memory.limit_in_bytes", nil},
	}
}

// wantedOfDriver are files that the NVIDIA modules answer themselves. A wedged driver answers never.
func wantedOfDriver() []want {
	return []want{
		{"proc/driver/nvidia/version", cleanDriver}, {"proc/driver/nvidia/params", keepLines("RegistryDwords:", "OpenRmEnableUnsupportedGpus:", "EnableResizableBar:", "GrdmaPciTopoCheckOverride:")},
		{"proc/driver/nvidia/gpus/*/information", keepLines("Model:", "Bus Location:", "Device Minor:", "GPU Excluded:", "GPU Firmware:")},
		{"proc/driver/nvidia-fs/version", nil}, {"proc/driver/nvidia-fs/modules", nil}, {"proc/driver/nvidia-fs/bridges", nil},
		{"proc/driver/nvidia-fs/stats", cleanNVFS},
	}
}

// Capture keeps the files that matter of a tree: of the live machine or of a copy of one, each an os.Root's FS. Links
// are followed as if the tree's root were the machine's. It notes files that cannot be read; they are no error.
func Capture(root fs.FS) (*Recording, error) {
	c := &capturer{root: root, s: NewRecording(), seen: map[string]string{}}
	err := c.all(wanted())
	c.kernel()
	return c.s, errors.Join(err, c.pci())
}

// CaptureDriver keeps the files of the NVIDIA modules. It can hang where they do: run it in a process of its own.
func CaptureDriver(root fs.FS) (*Recording, error) {
	c := &capturer{root: root, s: NewRecording(), seen: map[string]string{}}
	return c.s, c.all(wantedOfDriver())
}

// CaptureTree keeps the files that matter of a copied tree, which cannot hang, and those that hbmfs added to it.
func CaptureTree(root fs.FS) (*Recording, error) {
	s, err := Capture(root)
	if err != nil {
		return nil, err
	}
	driver, err := CaptureDriver(root)
	if err != nil {
		return nil, err
	}
	s.Merge(driver)
	c := &capturer{root: root, s: s, seen: map[string]string{}}
	return s, c.all([]want{{".hbmfs/*", nil}})
}

// capturer walks a tree.
type capturer struct {
	root  fs.FS
	s     *Recording
	seen  map[string]string // path -> the same without links, "" where it leads nowhere
	total int
}

func (c *capturer) all(list []want) error {
	for _, w := range list {
		for _, pattern := range braces(w.pattern) {
			if err := c.expand(".", strings.Split(pattern, "/"), w.clean); err != nil {
				return err
			}
		}
	}
	return nil
}

// braces expands every {a,b} of a pattern, which path.Match does not know.
func braces(pattern string) []string {
	before, rest, ok := strings.Cut(pattern, "{")
	if !ok {
		return []string{pattern}
	}
	choices, after, _ := strings.Cut(rest, "}")
	var all []string
	for choice := range strings.SplitSeq(choices, ",") {
		all = append(all, braces(before+choice+after)...)
	}
	return all
}

// mostNames bounds a directory; a server with 100 drives has fewer.
const mostNames = 8192

func (c *capturer) expand(dir string, parts []string, clean cleaner) error {
	if len(parts) == 0 {
		return c.keep(dir, clean)
	}
	if !strings.ContainsAny(parts[0], "*?[") {
		if next := c.step(dir, parts[0]); next != "" {
			return c.expand(next, parts[1:], clean)
		}
		return nil
	}
	for _, name := range c.names(dir) {
		if ok, _ := path.Match(parts[0], name); !ok { // the patterns are constants, and well formed
			continue
		}
		if next := c.step(dir, name); next != "" {
			if err := c.expand(next, parts[1:], clean); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *capturer) names(dir string) []string {
	f, err := c.root.Open(dir)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // opened for reading
	list, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil
	}
	found, _ := list.ReadDir(mostNames) // names that were read before an error are of use
	names := make([]string, len(found))
	for i, e := range found {
		names[i] = e.Name()
	}
	slices.Sort(names)
	return names
}

// step enters a name of a directory and follows links, which it keeps. "" means that there is nothing.
func (c *capturer) step(dir, name string) string {
	if known, ok := c.seen[path.Join(dir, name)]; ok {
		return known
	}
	found := c.walk(dir, name)
	c.seen[path.Join(dir, name)] = found
	return found
}

func (c *capturer) walk(at, name string) string {
	found, ok := follow(at, name, func(name string) (string, bool) {
		target, err := fs.ReadLink(c.root, name)
		if err != nil {
			return "", false
		}
		c.s.put(name, &entry{kind: kindLink, target: target})
		return target, true
	})
	if _, err := fs.Lstat(c.root, found); !ok || err != nil {
		return ""
	}
	return found
}

// keep adds the file or directory at a path without links.
func (c *capturer) keep(name string, clean cleaner) error {
	info, err := fs.Lstat(c.root, name)
	if err != nil || c.s.entries[name] != nil && c.s.entries[name].kind != kindDir {
		return nil //nolint:nilerr // it went away meanwhile, or is kept already
	}
	e := &entry{kind: kindFile}
	switch mode := info.Mode(); {
	case mode.IsDir():
		e.kind = kindDir
	case mode&fs.ModeDevice != 0:
		e.kind = kindDevice
	case !mode.IsRegular():
		return nil // a pipe or a socket in a copied tree: reading it could wait for ever
	default:
		if e.data, err = c.read(name, clean); err != nil {
			e.denied = true
		}
	}
	c.total += len(e.data)
	if c.total > mostBytes || len(c.s.entries) >= mostEntries {
		return fmt.Errorf("capture %s: %w", name, errTooMuch)
	}
	c.s.put(name, e)
	return nil
}

func (c *capturer) read(name string, clean cleaner) ([]byte, error) {
	f, err := c.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	if clean == nil {
		return io.ReadAll(io.LimitReader(f, mostFile))
	}
	var out bytes.Buffer
	err = clean(&out, f)
	return out.Bytes(), err
}
