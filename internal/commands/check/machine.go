package check

import (
	"bytes"
	"encoding/json"
	"io"
	"path"
	"strconv"
	"strings"
)

// Known is an answer that may be missing.
type Known int

// The answers.
const (
	Unsure Known = iota
	No
	Yes
)

func known(yes bool) Known {
	if yes {
		return Yes
	}
	return No
}

// Version is a number of two to four parts, such as 6.8.0 or 580.159.04.
type Version [3]int

// parseVersion reads the digits at the start of a version, and ignores the rest.
func parseVersion(text string) (v Version) {
	for i, part := range strings.SplitN(text, ".", 4) {
		if i == len(v) {
			break
		}
		digits := part
		if end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = part[:end]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			break
		}
		v[i] = n
		if digits != part {
			break
		}
	}
	return v
}

func (v Version) atLeast(parts ...int) bool {
	for i, want := range parts {
		if v[i] != want {
			return v[i] > want
		}
	}
	return true
}

// Module is a kernel module.
type Module struct {
	Loaded    bool
	Version   string // where it says one
	Installed string // its file below /lib/modules, where it is
}

// Machine is a recording in types.
type Machine struct {
	Arch, Kernel, OS string
	P2PDMA           Known // the kernel was built with CONFIG_PCI_P2PDMA
	Modules          map[string]Module
	Options          string // of nvidia and nvme modules, from /etc/modprobe.d and the running driver

	Driver      string // NVIDIA's version, "" where none is loaded
	Open        bool   // it is the open kernel module
	Silent      bool   // it did not answer in time
	NVFS        string // version of nvidia-fs
	NVFSModules map[string]string
	NVFSDevices int

	GPUs   []PCIDevice
	Drives []PCIDevice // NVMe controllers
	NICs   []PCIDevice // those that can RDMA
	Buses  map[string]*PCIDevice
	Groups int // of IOMMU

	Mounts []Mount
	Blocks map[string]*Block // by name

	Libraries  []string // paths of libcufile
	Config     string   // path of cufile.json, "" where there is none
	Properties cufileConfig
	Forced     bool // the environment has CUFILE_FORCE_COMPAT_MODE

	Container  string // the sign that this is one, "" where there is none
	Kubernetes bool   // it is a pod or a node of a cluster
	// OperatorDriver says that gpu-operator brought the driver, or that this cannot be seen from inside a pod.
	OperatorDriver bool
	Udev           bool // /run/udev is there
	GPUNodes       []string
	MOFED          bool
	MemoryLock     string // limit, bytes or "unlimited"
	MemoryLimit    string // of the cgroup
	Target         *Target
	Proof          *Proof
}

// Names of the files that hbmfs adds to a recording.
const (
	ownTarget = ".hbmfs/target.json"
	ownProof  = ".hbmfs/proof.json"
	ownSilent = ".hbmfs/driver-silent"
	ownConfig = ".hbmfs/cufile.json"
	ownForced = ".hbmfs/force-compat"
)

// Proof is the result of the active read.
type Proof struct {
	Verdict string `json:"verdict"` // proven, refuted, unknown
	Why     string `json:"why"`
}

// SetProof adds the result of the active read.
func (s *Recording) SetProof(p Proof) error { return s.putJSON(ownProof, p) }

// SetTarget adds the findings at the path that is judged.
func (s *Recording) SetTarget(t Target) error { return s.putJSON(ownTarget, t) }

// SetDriverSilent notes that the NVIDIA modules did not answer in time.
func (s *Recording) SetDriverSilent() { s.put(ownSilent, &entry{kind: kindFile}) }

// SetForcedCompat notes that the environment has CUFILE_FORCE_COMPAT_MODE. Nothing else of the environment is kept.
func (s *Recording) SetForcedCompat() { s.put(ownForced, &entry{kind: kindFile}) }

// SetConfig adds the cufile.json that the environment names, which cuFile takes instead of the system's.
func (s *Recording) SetConfig(r io.Reader) error {
	var out bytes.Buffer
	err := cleanCuFile(&out, r)
	s.put(ownConfig, &entry{kind: kindFile, data: out.Bytes()})
	return err
}

func (s *Recording) putJSON(name string, v any) error {
	data, err := json.Marshal(v)
	s.put(name, &entry{kind: kindFile, data: data})
	return err
}

// Read makes a Machine of a recording. Facts that a recording lacks, or has in a form that is not known, stay unknown.
func Read(s *Recording) *Machine {
	m := &Machine{Modules: map[string]Module{}, NVFSModules: map[string]string{}, Blocks: map[string]*Block{}, Buses: map[string]*PCIDevice{}}
	m.readKernel(s)
	m.readDriver(s)
	m.readPCI(s)
	mounts, _ := s.raw("proc/self/mountinfo")
	m.Mounts = parseMounts(mounts)
	m.readBlocks(s)
	m.readCuFile(s)
	m.readContainer(s)
	m.Forced = s.exists(ownForced)
	m.Target, m.Proof = readJSON[Target](s, ownTarget), readJSON[Proof](s, ownProof)
	return m
}

// readJSON gives the value that putJSON put, nil where it is missing or not understood.
func readJSON[T any](s *Recording, name string) *T {
	var v T
	if data, ok := s.raw(name); !ok || json.Unmarshal(data, &v) != nil {
		return nil
	}
	return &v
}

func (m *Machine) readKernel(s *Recording) {
	m.Kernel, _ = s.text("proc/sys/kernel/osrelease")
	m.Arch, _ = s.text("proc/sys/kernel/arch")
	for _, line := range s.lines("etc/os-release") {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			m.OS = strings.Trim(name, `"`)
		}
	}
	if config, ok := s.text(keptConfig); ok {
		m.P2PDMA = known(strings.Contains(config, "CONFIG_PCI_P2PDMA=y"))
	} else if symbols, ok := s.text(keptSymbols); ok {
		m.P2PDMA = known(symbols != "")
	}
	m.readModules(s)
	m.Groups = len(s.list("sys/kernel/iommu_groups"))
}

func (m *Machine) readModules(s *Recording) {
	add := func(name string, f func(*Module)) {
		name = strings.ReplaceAll(name, "-", "_")
		module := m.Modules[name]
		f(&module)
		m.Modules[name] = module
	}
	for _, name := range parseModules(s.lines("proc/modules")) {
		add(name, func(module *Module) { module.Loaded = true })
	}
	for _, name := range s.list("sys/module") { // built into the kernel, they are only here
		add(name, func(module *Module) {
			module.Loaded = true
			module.Version, _ = s.text("sys/module/" + name + "/version")
		})
	}
	for _, line := range s.lines(keptModules) {
		file := strings.TrimSuffix(line, ":")
		name, _, _ := strings.Cut(path.Base(file), ".ko")
		add(name, func(module *Module) { module.Installed = file })
	}
	for _, name := range s.list("etc/modprobe.d") {
		text, _ := s.text("etc/modprobe.d/" + name)
		m.Options += text + "\n"
	}
	m.MOFED = m.Modules["mlx_compat"].Loaded || s.exists("usr/bin/ofed_info")
}

// parseModules gives the names in /proc/modules.
func parseModules(list []string) []string {
	var names []string
	for _, line := range list {
		if f := strings.Fields(line); len(f) >= 3 {
			if _, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				names = append(names, f[0])
			}
		}
	}
	return names
}

func (m *Machine) readDriver(s *Recording) {
	m.Silent = s.exists(ownSilent)
	for _, line := range s.lines("proc/driver/nvidia/version") {
		if after, ok := strings.CutPrefix(line, "NVRM version:"); ok {
			m.Driver, m.Open = parseDriver(after)
		}
	}
	if m.Driver == "" {
		m.Driver = m.Modules["nvidia"].Version
	}
	params, _ := s.text("proc/driver/nvidia/params")
	m.Options += params
	if text, ok := s.text("proc/driver/nvidia-fs/version"); ok {
		m.NVFS = strings.TrimSpace(strings.TrimPrefix(text, "version:"))
	}
	for _, line := range s.lines("proc/driver/nvidia-fs/modules") {
		if name, version, ok := strings.Cut(line, ":"); ok {
			m.NVFSModules[strings.TrimSpace(name)] = strings.TrimSpace(version)
		}
	}
	for _, name := range s.list("dev") {
		switch rest, isGPU := strings.CutPrefix(name, "nvidia"); {
		case strings.HasPrefix(name, "nvidia-fs"):
			m.NVFSDevices++
		case isGPU && rest != "" && rest[0] >= '0' && rest[0] <= '9', name == "nvidiactl":
			m.GPUNodes = append(m.GPUNodes, name)
		}
	}
}

// NVFSReads reads how many reads nvidia-fs has counted since it was loaded. It counts only where its parameter
// rw_stats_enabled is 1, and all processes of the host together.
func NVFSReads(s *Recording) (n uint64, ok bool) {
	for _, line := range s.lines("proc/driver/nvidia-fs/stats") {
		name, rest, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) != "Reads" {
			continue
		}
		for word := range strings.FieldsSeq(rest) {
			if digits, found := strings.CutPrefix(word, "n="); found {
				n, err := strconv.ParseUint(digits, 10, 64)
				return n, err == nil
			}
		}
	}
	return 0, false
}

// parseDriver reads "NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (...)".
func parseDriver(text string) (version string, open bool) {
	for word := range strings.FieldsSeq(text) {
		if parseVersion(word).atLeast(100) && strings.Contains(word, ".") {
			return word, strings.Contains(text, "Open Kernel Module")
		}
	}
	return "", false
}

func (m *Machine) readContainer(s *Recording) {
	for _, name := range []string{".dockerenv", "run/.containerenv", "run/secrets/kubernetes.io", "var/run/secrets/kubernetes.io"} {
		if m.Container == "" && s.exists(name) {
			m.Container = "/" + name
		}
	}
	for _, mount := range m.Mounts {
		if m.Container == "" && mount.Point == "/" && mount.Type == "overlay" {
			m.Container = "an overlay as root"
		}
	}
	m.Kubernetes = s.exists("run/secrets/kubernetes.io") || s.exists("var/run/secrets/kubernetes.io") || s.exists("var/lib/kubelet")
	m.OperatorDriver = len(s.list("run/nvidia/driver")) > 0 || m.Container != ""
	m.Udev = len(s.list("run/udev/data")) > 0
	for _, line := range s.lines("proc/self/limits") {
		if after, ok := strings.CutPrefix(line, "Max locked memory"); ok && len(strings.Fields(after)) > 0 {
			m.MemoryLock = strings.Fields(after)[0]
		}
	}
	for _, name := range []string{"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, _ := s.text(name)
		const mostReal = 1 << 50 // version 1 of cgroups says "no limit" by a number near the largest
		if n, err := strconv.ParseUint(text, 10, 64); err == nil && n < mostReal {
			m.MemoryLimit = text
		}
	}
}
