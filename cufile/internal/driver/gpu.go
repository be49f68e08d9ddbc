package driver

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GPU describes one GPU.
type GPU struct {
	Index          int    `json:"index"` // CUDA's
	Name           string `json:"name"`
	UUID           string `json:"uuid"`                      // GPU-xxxxxxxx-..., as nvidia-smi prints it
	PCI            string `json:"pci"`                       // domain:bus:device.function
	NUMA           int    `json:"numa"`                      // the node it hangs on, -1 where not known
	BAR1           int64  `json:"bar1,omitempty"`            // bytes, 0 where not known
	PCIeGeneration int    `json:"pcie_generation,omitempty"` // the most that GPU and slot can do, 0 where not known
	PCIeWidth      int    `json:"pcie_width,omitempty"`      // lanes, likewise
	Note           string `json:"note,omitempty"`            // why something is not known

	Device  int32
	RawUUID [16]byte
}

// ErrNoDevice says that a GPU was asked for that is not there.
var ErrNoDevice = errors.New("does not exist")

// Describe fails when there is no such GPU, naming those that there are.
func Describe(cu *CUDA, l Libraries, index int) (GPU, error) {
	n, err := cu.deviceCount()
	if err != nil {
		return GPU{}, err
	}
	if index < 0 || index >= n {
		if n == 0 {
			return GPU{}, &CUDAError{"cuDeviceGetCount", cudaNoDevice, "CUDA_ERROR_NO_DEVICE"}
		}
		return GPU{}, fmt.Errorf("gpu %d %w: this process sees gpu 0 to %d (CUDA_VISIBLE_DEVICES can hide some)", index, ErrNoDevice, n-1)
	}
	g := GPU{Index: index, NUMA: -1}
	if g.Device, g.Name, g.PCI, g.RawUUID, err = cu.device(index); err != nil {
		return GPU{}, err
	}
	u := g.RawUUID
	g.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	g.PCI = strings.ToLower(g.PCI)
	if text, err := os.ReadFile("/sys/bus/pci/devices/" + g.PCI + "/numa_node"); err == nil {
		if node, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			g.NUMA = node
		}
	}
	if err := describeNVML(l.NVML, g.PCI, &g); err != nil {
		g.Note = err.Error()
	}
	return g, nil
}

// NearCPUs gives those of the process's CPUs that are on a NUMA node; nil where that is not known or none is.
func NearCPUs(node int) *unix.CPUSet {
	if node < 0 {
		return nil
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", node))
	if err != nil {
		return nil
	}
	var allowed, near unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil
	}
	cpus, err := parseCPUList(strings.TrimSpace(string(text)))
	if err != nil {
		return nil
	}
	for _, cpu := range cpus {
		if allowed.IsSet(cpu) {
			near.Set(cpu)
		}
	}
	if near.Count() == 0 {
		return nil
	}
	return &near
}

// parseCPUList reads the kernel's list form, such as "0-3,8".
func parseCPUList(text string) ([]int, error) {
	const most = 1 << 16 // the kernel's own limit is 8192
	var cpus []int
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.Atoi(low)
		last, err2 := strconv.Atoi(high)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("list of CPUs %q: %w", text, err)
		}
		if first < 0 || last < first || last >= most {
			return nil, fmt.Errorf("list of CPUs %q: %q is no range", text, part)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
