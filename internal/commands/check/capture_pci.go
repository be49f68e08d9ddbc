package check

import (
	"bytes"
	"encoding/binary"
	"io"
	"path"
	"strings"
)

// pci keeps of the PCI bus the GPUs, the drives, the network cards, and the bridges above them.
func (c *capturer) pci() error {
	const bus = "sys/bus/pci/devices"
	dir := c.step(".", bus)
	if dir == "" {
		return nil
	}
	for _, name := range c.names(dir) {
		at := c.step(dir, name)
		if at == "" {
			continue
		}
		class, err := c.read(path.Join(at, "class"), nil)
		if err != nil {
			continue
		}
		list := []string{"class", "vendor", "device", "driver", "numa_node", "iommu_group", "resource", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width"}
		switch prefix := strings.TrimSpace(string(class)); {
		case strings.HasPrefix(prefix, "0x0604"):
			list = []string{"class", "vendor", "device"}
			if data, err := c.read(path.Join(at, "config"), cleanPCIConfig); err == nil && len(data) > 0 {
				c.s.put(path.Join(at, "config"), &entry{kind: kindFile, data: data})
			}
		case !strings.HasPrefix(prefix, "0x01") && !strings.HasPrefix(prefix, "0x02") && !strings.HasPrefix(prefix, "0x03") && !strings.HasPrefix(prefix, "0x12"):
			continue
		}
		for _, file := range list {
			if found := c.step(at, file); found != "" {
				var clean cleaner
				if file == "resource" {
					clean = cleanResource
				}
				if err := c.keep(found, clean); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// PCI Express Base Specification 6.0: extended capabilities begin at 0x100; Access Control Services are number 13, with
// their control register at 6.
const (
	pciExtended   = 0x100
	pciConfig     = 4096
	capabilityACS = 13
	acsControl    = 6
)

// cleanPCIConfig keeps of a bridge's configuration its ACS capability alone, moved to the front: another capability is
// a serial number. Only root is given more than the first 64 bytes; then nothing is kept.
func cleanPCIConfig(w *bytes.Buffer, r io.Reader) error {
	config, err := io.ReadAll(io.LimitReader(r, pciConfig))
	if err != nil || len(config) <= pciExtended {
		return err
	}
	w.Write(make([]byte, pciExtended))
	if at := findACS(config); at > 0 {
		acs := bytes.Clone(config[at : at+8])
		binary.LittleEndian.PutUint32(acs, 1<<16|capabilityACS) // the last in the list
		w.Write(acs)
	} else {
		w.Write(make([]byte, 8))
	}
	return nil
}

// findACS gives where a bridge's ACS capability lies, 0 where it has none.
func findACS(config []byte) int {
	for at, steps := pciExtended, 0; at >= pciExtended && at+8 <= len(config) && steps < pciConfig/8; steps++ {
		header := binary.LittleEndian.Uint32(config[at:])
		if header&0xffff == capabilityACS {
			return at
		}
		at = int(header >> 20 &^ 3)
	}
	return 0
}
