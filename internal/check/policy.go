package check

import (
	"fmt"
	"strings"
)

// gdsVersion is the image of nvidia-fs that gpu-operator 26 deploys.
const gdsVersion = "2.29.4"

// clusterPolicy gives what gpu-operator's ClusterPolicy should say for this node, as a patch in YAML.
//
// The operator loads nvidia-fs beside the driver that it deploys itself. Where the driver belongs to the host, so must
// nvidia-fs, and gds.enabled would never become ready.
func (m *Machine) clusterPolicy() string {
	var b strings.Builder
	line := func(indent int, format string, args ...any) {
		fmt.Fprintf(&b, "%s%s\n", strings.Repeat("  ", indent), fmt.Sprintf(format, args...))
	}
	line(0, "# kubectl patch clusterpolicies.nvidia.com/cluster-policy --type merge --patch-file THIS_FILE")
	line(0, "# With Helm, set the same under the chart's values, or the next upgrade undoes it.")
	line(0, "apiVersion: nvidia.com/v1")
	line(0, "kind: ClusterPolicy")
	line(0, "metadata:")
	line(1, "name: cluster-policy")
	line(0, "spec:")
	line(1, "driver:")
	onHost := m.driverOnHost()
	if onHost {
		line(2, "enabled: false # the driver %s is installed on the host", m.Driver)
	} else {
		line(2, "enabled: true")
		if m.Driver != "" {
			line(2, "version: %q # what runs now", m.Driver)
		}
		line(2, "kernelModuleType: open # nvidia-fs 2.17.5 and later and PCI P2PDMA need it")
	}
	line(2, "rdma:")
	if len(m.NICs) == 0 {
		line(3, "enabled: false # no RDMA card here; local drives do not need nvidia-peermem")
		line(3, "useHostMofed: false")
	} else {
		line(3, "enabled: true # loads nvidia-peermem for %d RDMA cards", len(m.NICs))
		if m.MOFED {
			line(3, "useHostMofed: true # MLNX_OFED or DOCA is installed on the host")
		} else {
			line(3, "useHostMofed: false # the Network Operator brings it, or nobody: install DOCA for GPUDirect RDMA")
		}
	}
	line(1, "gds:")
	if onHost {
		line(2, "enabled: false # it comes with the operator's own driver; on this host: %s", m.install("nvidia-gds", "nvidia-gds"))
		return b.String()
	}
	line(2, "enabled: true # loads nvidia-fs")
	version := gdsVersion
	if m.NVFS != "" && strings.Count(m.NVFS, ".") == 2 {
		version = m.NVFS
	}
	line(2, "version: %q", version)
	return b.String()
}

// driverOnHost says whether the driver is the host's own. The operator's containers leave theirs below /run/nvidia/driver.
func (m *Machine) driverOnHost() bool { return m.Driver != "" && !m.OperatorDriver }
