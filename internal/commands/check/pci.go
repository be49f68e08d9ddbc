package check

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"
)

// PCIDevice is a GPU, an NVMe controller, a network card or a bridge.
type PCIDevice struct {
	Address string `json:"pci"`            // domain:bus:device.function
	Name    string `json:"name,omitempty"` // of a GPU: its model; of a drive: nvme0; of a card: mlx5_0
	NUMA    int    `json:"numa"`           // node, -1 where not known
	Driver  string `json:"driver"`         // of the kernel
	BAR1    int64  `json:"bar1,omitempty"` // of a GPU, bytes, 0 where not known
	HBM     int64  `json:"hbm,omitempty"`  // of a GPU, bytes, 0 where the model is not known
	IOMMU   string `json:"iommu"`          // how DMA is translated: "", identity, DMA, DMA-FQ, as the kernel says it
	Link    string `json:"link,omitempty"` // where it is slower than it can be: "8.0 GT/s x8 of 32.0 GT/s x16"
	P2PDMA  bool   `json:"-"`              // of a GPU: NVIDIA names it for PCI P2PDMA
	path    string // in sysfs
	acs     uint16 // control register of a bridge
	hasACS  Known
}

// gpuModel is a data-centre GPU, known by its PCI device number.
type gpuModel struct {
	name string
	gib  int64 // of HBM
}

// gpuModels are the GPUs that NVIDIA names for PCI P2PDMA, by PCI device number (The PCI ID Repository, 2026). All of
// Ampere and later; others work through nvidia-fs.
func gpuModels() map[string]gpuModel {
	return map[string]gpuModel{
		"0x20b0": {"A100-SXM4-40GB", 40}, "0x20b2": {"A100-SXM4-80GB", 80}, "0x20b5": {"A100-PCIE-80GB", 80}, "0x20f1": {"A100-PCIE-40GB", 40},
		"0x2235": {"A40", 45}, "0x26b9": {"L40S", 45}, "0x27b8": {"L4", 23},
		"0x2330": {"H100-SXM5-80GB", 80}, "0x2331": {"H100-PCIE-80GB", 80}, "0x2335": {"H200-SXM5-141GB", 141}, "0x233b": {"H200-NVL-141GB", 141},
		"0x2901": {"B200", 180}, "0x3182": {"B300", 270},
	}
}

const nvidiaVendor = "0x10de"

func (m *Machine) readPCI(s *Recording) {
	const bus = "sys/bus/pci/devices/"
	for _, address := range s.list(strings.TrimSuffix(bus, "/")) {
		class, _ := s.text(bus + address + "/class")
		d := readPCIDevice(s, bus+address)
		m.Buses[address] = &d
		vendor, _ := s.text(bus + address + "/vendor")
		device, _ := s.text(bus + address + "/device")
		isGPU := strings.HasPrefix(class, "0x0300") || strings.HasPrefix(class, "0x0302") || strings.HasPrefix(class, "0x12")
		switch {
		case isGPU && vendor == nvidiaVendor:
			model, known := gpuModels()[device]
			d.Name, d.HBM, d.P2PDMA = model.name, model.gib<<30, known
			if !known {
				d.Name = "NVIDIA GPU " + strings.TrimPrefix(device, "0x")
			}
			for _, line := range s.lines("proc/driver/nvidia/gpus/" + address + "/information") {
				if name, ok := strings.CutPrefix(line, "Model:"); ok {
					d.Name = strings.TrimPrefix(strings.TrimSpace(name), "NVIDIA ")
				}
			}
			if m.mayUse(s, address) {
				m.GPUs = append(m.GPUs, d)
			}
		case strings.HasPrefix(class, "0x0108"):
			m.Drives = append(m.Drives, d)
		}
	}
	for _, name := range s.list("sys/class/nvme") {
		at := s.real("sys/class/nvme/" + name + "/device")
		for i := range m.Drives {
			if m.Drives[i].path == at {
				m.Drives[i].Name = name
			}
		}
	}
	for _, name := range s.list("sys/class/infiniband") {
		at := s.real("sys/class/infiniband/" + name + "/device")
		if d := m.Buses[path.Base(at)]; d != nil {
			card := *d
			card.Name = name
			m.NICs = append(m.NICs, card)
		}
	}
}

// hasGPUNode says whether there is /dev/nvidia0 or another with a number. A host makes them when they are first used.
func (m *Machine) hasGPUNode() bool {
	return slices.ContainsFunc(m.GPUNodes, func(name string) bool { return name != "nvidiactl" })
}

// mayUse says whether a GPU is one of those that this container was given: sysfs shows all of the host's.
func (m *Machine) mayUse(s *Recording, address string) bool {
	for _, line := range s.lines("proc/driver/nvidia/gpus/" + address + "/information") {
		if minor, ok := strings.CutPrefix(line, "Device Minor:"); ok && m.hasGPUNode() {
			return slices.Contains(m.GPUNodes, "nvidia"+strings.TrimSpace(minor))
		}
	}
	return true
}

func readPCIDevice(s *Recording, at string) PCIDevice {
	d := PCIDevice{Address: path.Base(at), NUMA: -1}
	d.path = s.real(at)
	d.Driver = s.base(at + "/driver")
	if text, ok := s.text(at + "/numa_node"); ok {
		if n, err := strconv.Atoi(text); err == nil {
			d.NUMA = n
		}
	}
	if group := s.base(at + "/iommu_group"); group != "" {
		d.IOMMU, _ = s.text("sys/kernel/iommu_groups/" + group + "/type")
		if d.IOMMU == "" {
			d.IOMMU = "unknown"
		}
	}
	d.BAR1 = barSize(s.lines(at+"/resource"), 1)
	speed, _ := s.text(at + "/current_link_speed")
	width, _ := s.text(at + "/current_link_width")
	maxSpeed, _ := s.text(at + "/max_link_speed")
	maxWidth, _ := s.text(at + "/max_link_width")
	if speed != "" && maxSpeed != "" && (speed != maxSpeed || width != maxWidth) {
		short := func(text string) string { return strings.TrimSuffix(text, " PCIe") }
		d.Link = fmt.Sprintf("%s x%s of %s x%s", short(speed), width, short(maxSpeed), maxWidth)
	}
	if config, ok := s.raw(at + "/config"); ok && len(config) >= pciExtended+8 {
		d.hasACS = No
		if i := findACS(config); i > 0 {
			d.hasACS, d.acs = Yes, binary.LittleEndian.Uint16(config[i+acsControl:])
		}
	}
	return d
}

// barSize reads one line of a device's resource file: first address, last address, flags.
func barSize(resource []string, bar int) int64 {
	if bar >= len(resource) {
		return 0
	}
	f := strings.Fields(resource[bar])
	if len(f) < 2 {
		return 0
	}
	first, err1 := strconv.ParseUint(strings.TrimPrefix(f[0], "0x"), 16, 64)
	last, err2 := strconv.ParseUint(strings.TrimPrefix(f[1], "0x"), 16, 64)
	if err1 != nil || err2 != nil || last <= first || bits.Len64(last-first) > 50 {
		return 0
	}
	return int64(last - first + 1)
}

// Distance is how far two devices are from each other, in the words of nvidia-smi topo, nearest first.
type Distance int

// The distances.
const (
	PIX  Distance = iota // one PCIe bridge between them
	PXB                  // several bridges, below one root port
	PHB                  // through a CPU's root complex
	NODE                 // between root complexes of one NUMA node
	SYS                  // between NUMA nodes
)

func (d Distance) String() string { return [...]string{"PIX", "PXB", "PHB", "NODE", "SYS"}[d] }

// MarshalText gives nvidia-smi's word.
func (d Distance) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// distance compares where two devices hang: sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/...
func distance(a, b *PCIDevice) Distance {
	below := func(p string) []string {
		parts := strings.Split(p, "/")
		for i, part := range parts {
			if strings.HasPrefix(part, "pci") {
				return parts[i:]
			}
		}
		return nil
	}
	x, y := below(a.path), below(b.path)
	common := 0
	for common < len(x) && common < len(y) && x[common] == y[common] {
		common++
	}
	switch {
	case common == 0 && (a.NUMA < 0 || a.NUMA != b.NUMA):
		return SYS
	case common == 0:
		return NODE
	case common == 1: // the root complex alone
		return PHB
	case len(x)-common <= 2 && len(y)-common <= 2: // each below a port of one switch
		return PIX
	}
	return PXB
}

// bridges gives the bridges between a device and the root complex, the nearest first.
func (m *Machine) bridges(d *PCIDevice) []*PCIDevice {
	var all []*PCIDevice
	for at := path.Dir(d.path); at != "." && at != "/"; at = path.Dir(at) {
		if b := m.Buses[path.Base(at)]; b != nil {
			all = append(all, b)
		}
	}
	return all
}

// nearest gives the GPU that is nearest to a device, -1 where there is none.
func (m *Machine) nearest(d *PCIDevice) (gpu int, at Distance) {
	gpu, at = -1, SYS
	for i := range m.GPUs {
		if far := distance(d, &m.GPUs[i]); gpu < 0 || far < at {
			gpu, at = i, far
		}
	}
	return gpu, at
}
