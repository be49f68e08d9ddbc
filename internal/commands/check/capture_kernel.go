package check

import (
	"bytes"
	"compress/gzip"
	"io"
	"path"
	"strings"
)

// kernelSettings are the lines of a kernel's configuration that we judge.
func kernelSettings() cleaner {
	return keepLines("CONFIG_PCI_P2PDMA=", "CONFIG_ZONE_DEVICE=", "CONFIG_FUSE_PASSTHROUGH=", "CONFIG_BLK_DEV_NVME=", "CONFIG_MODULES=", "# CONFIG_PCI_P2PDMA is",
		"CONFIG_DMABUF_MOVE_NOTIFY=", "CONFIG_IOMMU_DEFAULT_")
}

// Where the facts about the kernel lie in a recording, wherever the machine has them.
const (
	keptConfig  = "proc/config"
	keptSymbols = "proc/kallsyms"
	keptModules = "lib/modules/installed"
)

// kernel keeps the kernel's settings and which of the modules that matter are installed. Symbols are looked at only
// where there are no settings, as in many containers: they are 10 MB of text.
func (c *capturer) kernel() {
	release, _ := c.s.text("proc/sys/kernel/osrelease")
	found := false
	for _, name := range []string{keptConfig, "proc/config.gz", "boot/config-" + release, "lib/modules/" + release + "/config"} {
		if at := c.step(".", name); !found && at != "" {
			found = c.copyTo(keptConfig, at, kernelSettings())
		}
	}
	if at := c.step(".", "proc/kallsyms"); !found && at != "" {
		c.copyTo(keptSymbols, at, keepSymbols("p2pdma_pgmap_ops", "pci_p2pdma_add_resource"))
	}
	for _, name := range []string{keptModules, "lib/modules/" + release + "/modules.dep"} {
		if at := c.step(".", name); at != "" && c.copyTo(keptModules, at, cleanInstalled) {
			return
		}
	}
}

// copyTo keeps a file under another name, and says whether it could be read.
func (c *capturer) copyTo(name, from string, clean cleaner) bool {
	if strings.HasSuffix(from, ".gz") {
		plain := clean
		clean = func(w *bytes.Buffer, r io.Reader) error {
			z, err := gzip.NewReader(r)
			if err != nil {
				return err
			}
			return plain(w, io.LimitReader(z, 4*mostFile))
		}
	}
	data, err := c.read(from, clean)
	if err != nil {
		return false
	}
	c.s.put(name, &entry{kind: kindFile, data: data})
	return true
}

// cleanInstalled keeps of modules.dep the paths of the modules that we judge: its place names the package that brought
// it.
func cleanInstalled(w *bytes.Buffer, r io.Reader) error {
	return lines(r, func(line string) {
		module, _, _ := strings.Cut(line, ":")
		name, _, _ := strings.Cut(path.Base(module), ".ko")
		switch strings.ReplaceAll(name, "-", "_") {
		case "nvidia", "nvidia_fs", "nvidia_peermem", "nvme", "nvme_core", "nvme_rdma", "rpcrdma", "mlx5_core", "mlx_compat":
			w.WriteString(module + ":\n")
		}
	})
}
