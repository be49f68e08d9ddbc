package check

import (
	"fmt"
	"strings"
)

// gdsVersion is the image of nvidia-fs that gpu-operator 26 deploys.
const gdsVersion = "2.29.4"

// clusterPolicy gives gpu-operator's ClusterPolicy for this node, as a patch in YAML.
//
// The operator loads nvidia-fs beside the driver that it deploys itself. Where the driver belongs to the host, so must
// nvidia-fs, and gds.enabled would never become ready.
func (m *Machine) clusterPolicy() string {
	driver := "enabled: true\n"
	if m.Driver != "" {
		driver += fmt.Sprintf("    version: %q # as it runs now\n", m.Driver)
	}
	driver += "    kernelModuleType: open # nvidia-fs 2.17.5 and later and PCI P2PDMA need it"
	version := gdsVersion
	if m.NVFS != "" && strings.Count(m.NVFS, ".") == 2 {
		version = m.NVFS
	}
	gds := fmt.Sprintf("enabled: true # loads nvidia-fs\n    version: %q", version)
	if m.driverOnHost() {
		driver = fmt.Sprintf("enabled: false # the driver %s is installed on the host", m.Driver)
		gds = "enabled: false # it comes with the operator's own driver; on this host: " + m.install("nvidia-gds", "nvidia-gds")
	}
	peermem := fmt.Sprintf("true # loads nvidia-peermem for %d RDMA cards", len(m.NICs))
	mofed := "false # the Network Operator brings it, or nobody: install DOCA for GPUDirect RDMA"
	switch {
	case len(m.NICs) == 0:
		peermem, mofed = "false # no RDMA card here; local drives do not need nvidia-peermem", "false"
	case m.MOFED:
		mofed = "true # MLNX_OFED or DOCA is installed on the host"
	}
	return fmt.Sprintf(`# kubectl patch clusterpolicies.nvidia.com/cluster-policy --type merge --patch-file THIS_FILE
# With Helm, set the same under the chart's values, or the next upgrade undoes it.
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata:
  name: cluster-policy
spec:
  driver:
    %s
    rdma:
      enabled: %s
      useHostMofed: %s
  gds:
    %s
`, driver, peermem, mofed, gds)
}

// driverOnHost says whether the driver is the host's own. The operator's containers leave theirs below /run/nvidia/driver.
func (m *Machine) driverOnHost() bool { return m.Driver != "" && !m.OperatorDriver }
