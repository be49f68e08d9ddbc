package check

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Mount is a mounted filesystem.
type Mount struct {
	Dev     string // major:minor
	Point   string
	Type    string // ext4, overlay, fuse.hbmfs
	Source  string
	Options []string // of the mount and of the filesystem
}

// parseMounts reads mountinfo. Another format gives no mounts.
func parseMounts(data []byte) []Mount {
	list, err := mountinfo.GetMountsFromReader(bytes.NewReader(data), nil)
	if err != nil {
		return nil
	}
	var all []Mount
	for _, i := range list {
		all = append(all, Mount{
			Dev: join(i.Major, i.Minor), Point: i.Mountpoint, Type: i.FSType, Source: i.Source,
			Options: append(strings.Split(i.VFSOptions, ","), strings.Split(i.Options, ",")...),
		})
	}
	return all
}

func join(major, minor int) string { return fmt.Sprintf("%d:%d", major, minor) }

// option gives the value of an option, and whether it is there.
func (m *Mount) option(name string) (string, bool) {
	for _, o := range m.Options {
		if key, value, _ := strings.Cut(o, "="); key == name {
			return value, true
		}
	}
	return "", false
}

// mountOf gives the mount that a path lies on, by name alone: the last of those with the longest mount point.
func (m *Machine) mountOf(name string) *Mount {
	var best *Mount
	for i := range m.Mounts {
		point := m.Mounts[i].Point
		if point != "/" && name != point && !strings.HasPrefix(name, point+"/") {
			continue
		}
		if best == nil || len(point) >= len(best.Point) {
			best = &m.Mounts[i]
		}
	}
	return best
}

// mountOfDev gives the mount with a device number, for files that have no path here: the lent ones of hbmfs.
func (m *Machine) mountOfDev(dev string) *Mount {
	for i := range m.Mounts {
		if m.Mounts[i].Dev == dev {
			return &m.Mounts[i]
		}
	}
	return nil
}

// Block is a block device: a drive, a partition, or a device of device mapper or md.
type Block struct {
	Name      string
	Dev       string   // major:minor
	Disk      string   // of a partition: the device that it is a part of
	Below     []string // of dm and md: the devices that it is made of
	DM        string   // "", LVM, CRYPT, mpath, or another kind of device mapper; "none" without a kind
	Level     string   // of md
	Transport string   // of NVMe: pcie, rdma, tcp, fc
	Hosts     []string // of NVMe: the controllers that lead to it
	FSType    string   // from udev
	FSUsage   string   // from udev; libcufile refuses a device without it
	path      string
}

func (m *Machine) readBlocks(s *Recording) {
	const class = "sys/class/block/"
	for _, name := range s.list(strings.TrimSuffix(class, "/")) {
		b := &Block{Name: name}
		b.path = s.real(class + name)
		b.Dev, _ = s.text(class + name + "/dev")
		if s.exists(class + name + "/partition") {
			b.Disk = path.Base(path.Dir(b.path))
		}
		b.Below = s.list(class + name + "/slaves")
		b.Level, _ = s.text(class + name + "/md/level")
		if uuid, ok := s.text(class + name + "/dm/uuid"); ok {
			if b.DM, _, _ = strings.Cut(uuid, "-"); b.DM == "" {
				b.DM = "none"
			}
		}
		for _, line := range s.lines("run/udev/data/b" + b.Dev) {
			if value, ok := strings.CutPrefix(line, "E:ID_FS_TYPE="); ok {
				b.FSType = value
			}
			if value, ok := strings.CutPrefix(line, "E:ID_FS_USAGE="); ok {
				b.FSUsage = value
			}
		}
		if strings.HasPrefix(name, "nvme") && b.Disk == "" {
			b.Hosts = nvmeHosts(s, b.path)
			for _, host := range b.Hosts {
				if transport, ok := s.text("sys/class/nvme/" + host + "/transport"); ok {
					b.Transport = transport
				}
			}
		}
		m.Blocks[name] = b
	}
}

// nvmeHosts gives the controllers of a namespace: the directory above it, or those of its subsystem with multipath.
func nvmeHosts(s *Recording, at string) []string {
	above := path.Base(path.Dir(at))
	if !strings.HasPrefix(above, "nvme-subsys") {
		return []string{above}
	}
	return slices.DeleteFunc(s.list("sys/class/nvme-subsystem/"+above), func(name string) bool {
		return !strings.HasPrefix(name, "nvme") || strings.Contains(strings.TrimPrefix(name, "nvme"), "n")
	})
}

// blockOf gives the block device with a number.
func (m *Machine) blockOf(dev string) *Block {
	for _, b := range m.Blocks {
		if b.Dev == dev && dev != "" {
			return b
		}
	}
	return nil
}

// leaves gives the disks at the bottom of a device.
func (m *Machine) leaves(b *Block) []*Block {
	var all []*Block
	m.walkBlocks(b, 0, func(at *Block) {
		if at.Disk == "" && len(at.Below) == 0 && !slices.Contains(all, at) {
			all = append(all, at)
		}
	})
	return all
}

// walkBlocks visits a device and all below it, top first. Made-up trees may have cycles.
func (m *Machine) walkBlocks(b *Block, depth int, f func(*Block)) {
	if b == nil || depth > 16 {
		return
	}
	f(b)
	if b.Disk != "" {
		m.walkBlocks(m.Blocks[b.Disk], depth+1, f)
	}
	for _, name := range b.Below {
		m.walkBlocks(m.Blocks[name], depth+1, f)
	}
}

// controllers gives the PCI devices that a block device hangs on.
func (m *Machine) controllers(b *Block) []*PCIDevice {
	var all []*PCIDevice
	for _, leaf := range m.leaves(b) {
		for i := range m.Drives {
			d := &m.Drives[i]
			if (strings.HasPrefix(leaf.path, d.path+"/") || slices.Contains(leaf.Hosts, d.Name)) && !slices.Contains(all, d) {
				all = append(all, d)
			}
		}
	}
	return all
}
