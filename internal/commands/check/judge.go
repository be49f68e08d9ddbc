package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Report is the findings about one path and one GPU.
type Report struct {
	Path     string    `json:"path,omitempty"`
	GPU      int       `json:"gpu"` // as nvidia-smi counts them, by PCI address
	Verdict  Verdict   `json:"verdict"`
	Findings []Finding `json:"findings"`
	Nearest  []Near    `json:"nearest,omitempty"` // the nearest GPU of each drive and RDMA card
	Policy   string    `json:"cluster_policy,omitempty"`
}

// Near says which GPU is nearest to a device, and how far the judged one is.
type Near struct {
	Device   string   `json:"device"`
	NUMA     int      `json:"numa"`
	GPU      int      `json:"gpu"`
	Distance Distance `json:"distance"`
	ToJudged Distance `json:"distance_to_judged_gpu"`
}

// Failed says whether a line of the report is FAIL.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Level == Fail })
}

// judge collects findings about one GPU and one path.
type judge struct {
	m      *Machine
	gpu    *PCIDevice // nil where there is none
	index  int
	target *Target // nil where only the machine is judged
	list   []finding
}

// Judge judges a machine for a path and a GPU. Without a path (and without one in the recording) it judges the machine
// alone. It reads nothing but m.
func Judge(m *Machine, name string, gpu int) *Report {
	j := &judge{m: m, index: gpu, target: m.Target}
	if name != "" && (j.target == nil || j.target.Path != name && j.target.File != name) {
		j.target = m.guess(name)
	}
	if gpu >= 0 && gpu < len(m.GPUs) {
		j.gpu = &m.GPUs[gpu]
	}
	j.judgeKernel()
	j.judgeDriver()
	j.judgeGPU()
	j.judgeStorage()
	j.judgeCuFile()
	j.judgeContainer()
	r := &Report{GPU: gpu, Verdict: j.verdict(), Nearest: j.near()}
	if j.target != nil {
		r.Path = j.target.Path
	}
	if m.Kubernetes {
		r.Policy = m.clusterPolicy()
	}
	for _, f := range j.list {
		r.Findings = append(r.Findings, f.Finding)
	}
	order := []string{inKernel, inDriver, inGPU, inStorage, inCuFile, inContainer}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Compare(slices.Index(order, a.Group), slices.Index(order, b.Group))
	})
	return r
}

// guess makes a target of a path that nobody looked at, by the mounts alone.
func (m *Machine) guess(name string) *Target {
	t := &Target{Path: name, File: name}
	if mount := m.mountOf(name); mount != nil && !strings.HasPrefix(mount.Type, "fuse") {
		t.Places = []Device{{Dev: mount.Dev, Name: name}}
	}
	return t
}

func (j *judge) add(f finding) { j.list = append(j.list, f) }

func (j *judge) ok(group, name, found string, args ...any) {
	j.add(finding{Finding: Finding{group, name, OK, fmt.Sprintf(found, args...), "", ""}})
}

func (j *judge) unknown(group, name, found, fix string) {
	j.add(finding{Finding: Finding{group, name, Unknown, found, "", fix}})
}

// blocked gives the ways that findings rule out.
func (j *judge) blocked() (w ways) {
	for _, f := range j.list {
		w |= f.blocks
	}
	return w
}

// first gives the finding of the lowest rank that fits, nil where none does.
func (j *judge) first(fits func(*finding) bool) *finding {
	var best *finding
	for i := range j.list {
		if f := &j.list[i]; fits(f) && (best == nil || f.rank < best.rank) {
			best = f
		}
	}
	return best
}

func (f *finding) verdict(path string) Verdict {
	reason := f.Found
	if f.Why != "" {
		reason += ": " + f.Why
	}
	return Verdict{path, reason, f.Fix}
}

// verdict also settles how bad the findings are: the lack of something that one way needs is no failure where the other
// works.
func (j *judge) verdict() Verdict {
	proof := j.proof()
	if proof.Verdict == "proven" {
		j.soften(nvfs, OK, "not needed: the read was proven to be direct")
		j.soften(p2p, OK, "not needed: the read was proven to be direct")
		j.soften(both, Warn, "yet the read was proven to be direct")
		return Verdict{Path: Direct, Reason: proof.Why}
	}
	if f := j.first(func(f *finding) bool { return f.noGPU }); f != nil {
		// Neither way is tried, so that a lack of only one of them stops nothing.
		j.soften(nvfs, Warn, "")
		j.soften(p2p, Warn, "")
		return f.verdict(Host)
	}
	if j.target != nil && j.target.Silent {
		return j.first(func(f *finding) bool { return f.rank == rankPath }).verdict(Unproven)
	}
	if f, others := j.blocker(); f != nil {
		j.soften(others, Warn, "")
		return f.verdict(Staged)
	}
	if blocked := j.blocked(); blocked != 0 {
		j.soften(blocked, OK, "not needed: reads can go by "+(both&^blocked).String())
	}
	suspect := j.first(func(f *finding) bool { return f.suspect && f.Level != OK })
	switch {
	case proof.Verdict == "refuted" && suspect != nil:
		v := suspect.verdict(Staged)
		v.Reason += "; " + proof.Why
		return v
	case proof.Verdict == "refuted":
		return Verdict{Staged, "cuFile cannot read it without compat mode: " + proof.Why, "CUFILE_LOGGING_LEVEL=DEBUG CUFILE_LOGFILE_PATH=/tmp/cufile.log hbmfs read --require direct " + j.path() + "; cat /tmp/cufile.log"}
	case suspect != nil:
		return suspect.verdict(Unproven)
	}
	return Verdict{Unproven, "nothing speaks against the direct path and nothing proves it: " + proof.Why, j.proofFix()}
}

// blocker gives the first finding that rules the direct path out, nil where none does. others is the way that is not
// worth setting up, because less is missing for the other.
func (j *judge) blocker() (first *finding, others ways) {
	if j.blocked() != both {
		return nil, 0
	}
	way := j.nearer()
	all := j.first(func(f *finding) bool { return f.blocks == both })
	one := j.first(func(f *finding) bool { return f.blocks == way })
	other := j.first(func(f *finding) bool { return f.blocks == both&^way })
	if all == nil || one != nil && other != nil && one.rank < all.rank {
		return one, both &^ way
	}
	return all, both &^ way
}

// soften lowers the level of findings that block nothing but these ways.
func (j *judge) soften(w ways, level Level, why string) {
	for i := range j.list {
		f := &j.list[i]
		if f.Level == Fail && f.blocks != 0 && f.blocks&^w == 0 {
			f.Level = level
			if why != "" {
				f.Why = why
			}
			if level == OK {
				f.Fix = ""
			}
		}
	}
}

// nearer gives the way of which less is missing: the one that somebody began to set up, else nvidia-fs.
func (j *judge) nearer() ways {
	lacks := func(w ways) (n int) {
		for _, f := range j.list {
			if f.blocks == w {
				n++
			}
		}
		return n
	}
	begunP2P := j.m.staticBAR() || j.m.Properties.Properties.P2PDMA != nil && *j.m.Properties.Properties.P2PDMA
	switch {
	case j.m.Modules["nvidia_fs"].Loaded:
		return nvfs
	case begunP2P:
		return p2p
	case j.m.Modules["nvidia_fs"].Installed != "":
		return nvfs
	case lacks(p2p) < lacks(nvfs):
		return p2p
	}
	return nvfs
}

func (j *judge) path() string {
	if j.target == nil {
		return "FILE"
	}
	return j.target.Path
}

func (j *judge) proof() Proof {
	switch {
	case j.target == nil:
		return Proof{"unknown", "it is proven file by file, and none was named"}
	case j.target.Silent:
		return Proof{"unknown", j.target.Path + " does not answer"}
	case j.m.Proof == nil || j.target != j.m.Target:
		return Proof{"unknown", "no read was tried on " + j.target.Path}
	}
	return *j.m.Proof
}

func (j *judge) proofFix() string {
	if j.target != nil && j.target.File == "" {
		return "hbmfs check " + j.target.Path + "/SOMEFILE"
	}
	return fmt.Sprintf("hbmfs check --gpu %d %s", j.index, j.path())
}

func (j *judge) near() []Near {
	var all []Near
	for _, list := range [][]PCIDevice{j.m.Drives, j.m.NICs} {
		for i := range list {
			d := &list[i]
			if gpu, far := j.m.nearest(d); gpu >= 0 {
				n := Near{Device: d.Name, NUMA: d.NUMA, GPU: gpu, Distance: far, ToJudged: far}
				if n.Device == "" {
					n.Device = d.Address
				}
				if j.gpu != nil {
					n.ToJudged = distance(d, j.gpu)
				}
				all = append(all, n)
			}
		}
	}
	return all
}
