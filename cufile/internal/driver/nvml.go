//go:build cgo && linux && !nogpu && !nonvml

package driver

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// describeNVML asks NVML for facts that libcuda lacks about the GPU at a PCI address.
func describeNVML(name, pci string, g *GPU) error {
	var options []nvml.LibraryOption
	if name != "" {
		options = append(options, nvml.WithLibraryPath(name))
	}
	lib := nvml.New(options...)
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return fmt.Errorf("%w: NVML: %s", ErrNoLibrary, nvmlText(ret))
	}
	defer func() { _ = lib.Shutdown() }() // it has answered by then
	device, ret := lib.DeviceGetHandleByPciBusId(pci)
	if ret != nvml.SUCCESS {
		return fmt.Errorf("NVML has no GPU at %s: %s", pci, nvmlText(ret))
	}
	// A fact that a driver cannot tell stays unknown; the rest is of use without it.
	if bar, ret := device.GetBAR1MemoryInfo(); ret == nvml.SUCCESS {
		g.BAR1 = int64(bar.Bar1Total)
	}
	if generation, ret := device.GetMaxPcieLinkGeneration(); ret == nvml.SUCCESS {
		g.PCIeGeneration = generation
	}
	if width, ret := device.GetMaxPcieLinkWidth(); ret == nvml.SUCCESS {
		g.PCIeWidth = width
	}
	return nil
}

// nvmlText names a return code without nvmlErrorString, which crashes where the library could not be loaded.
func nvmlText(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "libnvidia-ml.so.1 is not there: install the NVIDIA driver"
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return "a function is missing: update the NVIDIA driver"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the NVIDIA driver is not loaded"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission"
	}
	return fmt.Sprintf("error %d", int(ret))
}
