package check

// Level says how good or bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "OK"
	Warn    Level = "WARN"    // it works without, or may not work with it
	Fail    Level = "FAIL"    // the direct path does not work before this is changed
	Unknown Level = "UNKNOWN" // it could not be found out
)

// Finding is one line of a report.
type Finding struct {
	Group string `json:"group"`
	Name  string `json:"name"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	Why   string `json:"why,omitempty"` // its effect, where it is not OK
	Fix   string `json:"fix,omitempty"` // the command that changes it, or advice where no command can
}

// Verdict is which path reads of the judged file take to the judged GPU.
type Verdict struct {
	Path   string `json:"path"` // direct, staged, host, or unknown: nothing speaks against direct and nothing proves it
	Reason string `json:"reason"`
	Fix    string `json:"fix,omitempty"`
}

// The paths of a verdict.
const (
	Direct   = "direct"
	Staged   = "staged"
	Host     = "host"
	Unproven = "unknown"
)

// The groups of findings, in the order of a report.
const (
	inKernel    = "kernel"
	inDriver    = "driver"
	inGPU       = "GPU"
	inStorage   = "storage"
	inCuFile    = "cuFile"
	inContainer = "container"
)

// ways are the ways by which cuFile moves bytes without the CPU.
type ways uint8

const (
	nvfs ways = 1 << iota // through the kernel module nvidia-fs
	p2p                   // through the kernel's PCI P2PDMA
	both = nvfs | p2p
)

func (w ways) String() string {
	if w == p2p {
		return "PCI P2PDMA"
	}
	return "nvidia-fs"
}

// The order in which findings explain a verdict: causes that no setting can change come first, and each cause before
// its effects. Within a rank the first finding counts.
const (
	rankGPU = iota + 1
	rankPath
	rankFilesystem
	rankDevice
	rankKernel
	rankModule
	rankLibrary
	rankConfig
	rankMount
	rankUdev
	rankDirectIO
	rankVersion
	rankIOMMU
	rankACS
	rankBAR
)

// finding is a Finding with its effect on the verdict.
type finding struct {
	Finding
	rank    int
	blocks  ways // those that cannot work before it is changed
	suspect bool // where a read was tried and failed, this may be why
	noGPU   bool // without it bytes do not reach the GPU at all
}
