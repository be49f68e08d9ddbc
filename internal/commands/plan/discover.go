package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	mostDevices   = 4096
	mostAttribute = 256 // bytes
	// betweenSockets is assumed, as sysfs does not tell it: about one UPI (48 GB/s raw) or xGMI link (64).
	betweenSockets = 50
)

// Discover describes the GPUs, switches and NVMe drives of the computer whose sysfs is at root (normally /sys). It
// takes the links' highest rates, since an idle GPU runs its link slowly. Notes has its assumptions.
func Discover(root string) (*Node, error) {
	entries, err := os.ReadDir(filepath.Join(root, "bus/pci/devices"))
	if err != nil {
		return nil, fmt.Errorf("list the PCI devices: %w; describe the node in a file instead (hbmfs plan --example)", err)
	}
	if len(entries) > mostDevices {
		return nil, fmt.Errorf("%d PCI devices are more than %d: describe the node in a file instead (hbmfs plan --example)", len(entries), mostDevices)
	}
	d := discovery{node: &Node{Name: "this node", Source: "sysfs", Memory: memoryDefault}}
	for _, e := range entries {
		path, err := filepath.EvalSymlinks(filepath.Join(root, "bus/pci/devices", e.Name()))
		if err != nil {
			continue // it went away
		}
		d.device(path)
	}
	n := d.node
	if len(n.GPUs) == 0 {
		return nil, errors.New("there is no NVIDIA GPU here: hbmfs plan --example > node.yaml writes a description to edit, and hbmfs plan node.yaml reads it")
	}
	n.Notes = append(n.Notes, fmt.Sprintf("assumed: %d GB/s of host memory, and that the data lies in the memory of NUMA node 0", memoryDefault))
	if len(n.Storage) > 0 {
		n.Notes = append(n.Notes, "a drive's rate is taken as its link's, which few drives reach; direct is left out until hbmfs check has proven it: describe the node in a file to change that")
	}
	if err := n.check(); err != nil {
		return nil, fmt.Errorf("sysfs describes a node that makes no sense: %w", err)
	}
	return n, nil
}

type discovery struct{ node *Node }

// device adds a GPU or a drive, and the links above it.
func (d *discovery) device(path string) {
	class := attribute(path, "class")
	gpu := strings.HasPrefix(class, "0x0302") || strings.HasPrefix(class, "0x0300")
	gpu = gpu && attribute(path, "vendor") == "0x10de"
	nvme := strings.HasPrefix(class, "0x010802")
	if !gpu && !nvme || gpu && len(d.node.GPUs) == mostThings || nvme && len(d.node.Storage) == mostThings {
		return
	}
	w, known := wireOf(path)
	if !known {
		w = Wire{Gen: 4, Lanes: 16}
		if nvme {
			w.Lanes = 4
		}
		d.note(fmt.Sprintf("%s does not tell its link: assumed PCIe %d.0 x%d", filepath.Base(path), w.Gen, w.Lanes))
	}
	parent := d.above(path)
	if gpu {
		d.node.GPUs = append(d.node.GPUs, GPU{Name: filepath.Base(path), Parent: parent, Wire: w})
		return
	}
	d.node.Storage = append(d.node.Storage, Storage{Name: filepath.Base(path), Parent: parent, Wire: w})
}

func (d *discovery) note(text string) {
	if !slices.Contains(d.node.Notes, text) {
		d.node.Notes = append(d.node.Notes, text)
	}
}

// above adds the links between a device and host memory and gives the lowest one's name. In sysfs a device lies in its
// bridge's folder. From the root on, bridges alternate: a root port, a switch's upper port, its lower port, an upper port.
// Only the upper ports have a wire above them that others share; the rest is inside a chip, or the device's own.
func (d *discovery) above(path string) string {
	var chain []string // from the root
	for at := filepath.Dir(path); isPCI(filepath.Base(at)); at = filepath.Dir(at) {
		chain = append(chain, at)
	}
	slices.Reverse(chain)
	parent := d.socket(path)
	for i, bridge := range chain {
		if i%2 == 0 {
			continue
		}
		name := "uplink of " + filepath.Base(bridge)
		w, known := wireOf(bridge)
		if !known {
			continue
		}
		if d.node.find(name) < 0 {
			if len(d.node.Links) == mostThings {
				return parent
			}
			d.node.Links = append(d.node.Links, Link{Name: name, Parent: parent, Wire: w})
		}
		parent = name
	}
	return parent
}

// socket gives the link to the memory of NUMA node 0, and nothing for devices that hang on it.
func (d *discovery) socket(path string) string {
	numa, err := strconv.Atoi(attribute(path, "numa_node"))
	if err != nil || numa <= 0 {
		return ""
	}
	name := fmt.Sprintf("between NUMA nodes 0 and %d", numa)
	if d.node.find(name) < 0 && len(d.node.Links) < mostThings {
		d.node.Links = append(d.node.Links, Link{Name: name, Wire: Wire{GBps: betweenSockets, Uncertainty: 0.3}})
		d.note(fmt.Sprintf("assumed: %d GB/s between the sockets; measure one GPU of the other socket with hbmfs bench", betweenSockets))
	}
	if d.node.find(name) < 0 {
		return ""
	}
	return name
}

// wireOf reads the highest rate of a device's link upwards.
func wireOf(path string) (Wire, bool) {
	speed, _, _ := strings.Cut(attribute(path, "max_link_speed"), " ")
	lanes, err := strconv.Atoi(attribute(path, "max_link_width"))
	gen := slices.Index([]string{"", "2.5", "5.0", "8.0", "16.0", "32.0", "64.0"}, speed)
	w := Wire{Gen: gen, Lanes: lanes}
	return w, err == nil && gen > 0 && w.raw() > 0
}

// isPCI says whether a folder's name is a device's address: 0000:3b:00.0.
func isPCI(name string) bool {
	var domain, bus, slot, function uint
	n, err := fmt.Sscanf(name+"\n", "%x:%x:%x.%x\n", &domain, &bus, &slot, &function)
	return n == 4 && err == nil
}

// attribute reads a small file of sysfs, without surrounding spaces.
func attribute(path, name string) string {
	f, err := os.Open(filepath.Join(path, name))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // it is only read
	text := make([]byte, mostAttribute)
	n, _ := f.Read(text) // an error leaves the text empty
	return strings.TrimSpace(string(text[:n]))
}
