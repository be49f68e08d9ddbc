package check

import (
	"bytes"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestVersions(t *testing.T) {
	for text, want := range map[string]Version{"6.8.0-60-generic": {6, 8, 0}, "580.159.04": {580, 159, 4}, "5.14.0-427.el9": {5, 14, 0}, "6.12": {6, 12, 0}, "6.1-rc3": {6, 1, 0}, "": {}, "x": {}} {
		if got := parseVersion(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if !(Version{6, 2, 0}).atLeast(5, 4) || (Version{5, 3, 9}).atLeast(5, 4) || !(Version{5, 4, 0}).atLeast(5, 4) {
		t.Error("atLeast")
	}
}

func TestDistance(t *testing.T) {
	gpu := &PCIDevice{path: "sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1b:00.0", NUMA: 0}
	for want, d := range map[Distance]*PCIDevice{
		PIX:  {path: "sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:01.0/0000:1c:00.0"},
		PXB:  {path: "sys/devices/pci0000:17/0000:17:00.0/0000:20:00.0/0000:21:00.0/0000:22:00.0"},
		PHB:  {path: "sys/devices/pci0000:17/0000:17:01.0/0000:30:00.0"},
		NODE: {path: "sys/devices/pci0000:40/0000:40:00.0/0000:41:00.0", NUMA: 0},
		SYS:  {path: "sys/devices/pci0000:97/0000:97:00.0/0000:98:00.0", NUMA: 1},
	} {
		if got := distance(gpu, d); got != want {
			t.Errorf("%s: %s, want %s", d.path, got, want)
		}
	}
	if got := distance(&PCIDevice{NUMA: -1}, &PCIDevice{NUMA: -1}); got != SYS {
		t.Errorf("devices of which nothing is known: %s", got)
	}
}

func TestNVFSReads(t *testing.T) {
	if n, ok := NVFSReads(server().capture(t)); !ok || n != 42 {
		t.Errorf("%d, %v", n, ok)
	}
	if n, ok := NVFSReads(NewRecording()); ok {
		t.Errorf("%d without nvidia-fs", n)
	}
}

func TestClusterPolicy(t *testing.T) {
	pod := server()
	pod["run/secrets/kubernetes.io/x"] = ""
	pod["run/nvidia/driver/usr/x"] = ""
	host := server()
	host["var/lib/kubelet/x"] = ""
	for _, c := range []struct {
		machine fixture
		want    []string
	}{
		{pod, []string{"kind: ClusterPolicy", "version: \"580.95.05\"", "kernelModuleType: open", "useHostMofed: false", "gds:\n    enabled: true", "version: \"2.29.4\""}},
		{host, []string{"enabled: false # the driver 580.95.05 is installed on the host", "gds:\n    enabled: false"}},
	} {
		got := Judge(Read(c.machine.capture(t)), "", 0).Policy
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	}
	var policy struct {
		Kind string
		Spec struct {
			Driver struct {
				RDMA struct{ Enabled, UseHostMofed *bool }
			}
			GDS struct{ Enabled *bool }
		}
	}
	if err := yaml.Unmarshal([]byte(Judge(Read(pod.capture(t)), "", 0).Policy), &policy); err != nil || policy.Kind != "ClusterPolicy" || policy.Spec.GDS.Enabled == nil || !*policy.Spec.GDS.Enabled ||
		policy.Spec.Driver.RDMA.Enabled == nil || *policy.Spec.Driver.RDMA.Enabled {
		t.Errorf("the policy as YAML: %+v, %v", policy, err)
	}
	if got := Judge(Read(server().capture(t)), "", 0).Policy; got != "" {
		t.Errorf("a policy without a cluster:\n%s", got)
	}
}

func cleaners() map[string]cleaner {
	return map[string]cleaner{
		"cmdline": cleanCmdline, "modules": cleanModules, "dm": cleanDM, "resource": cleanResource, "driver": cleanDriver, "mounts": cleanMounts, "cufile": cleanCuFile, "nvfs": cleanNVFS,
		"symbols": keepSymbols("p2pdma_pgmap_ops"), "installed": cleanInstalled, "config": cleanPCIConfig, "udev": keepLines("E:ID_FS_TYPE=", "E:ID_FS_USAGE="),
	}
}

// FuzzCleaners: cleaning what is clean changes nothing, so that a recording of a recording is the same.
func FuzzCleaners(f *testing.F) {
	for _, content := range everything() {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, clean := range cleaners() {
			var once, twice bytes.Buffer
			if err := clean(&once, bytes.NewReader(data)); err != nil {
				continue
			}
			if err := clean(&twice, bytes.NewReader(once.Bytes())); err != nil {
				t.Fatalf("%s: cleaned twice: %v", name, err)
			}
			if name != "cufile" && !bytes.Equal(once.Bytes(), twice.Bytes()) || name == "cufile" && twice.Len() != once.Len() && once.String() != "malformed\n" {
				t.Fatalf("%s: %q became %q", name, once.Bytes(), twice.Bytes())
			}
		}
	})
}

// FuzzParse: no text of the kernel's, however damaged, does harm; what comes out is bounded by what goes in.
func FuzzParse(f *testing.F) {
	for _, content := range everything() {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text := string(data)
		rows := strings.Split(text, "\n")
		if n := len(parseMounts(data)); n > len(rows) {
			t.Errorf("%d mounts in %d lines", n, len(rows))
		}
		if n := len(parseModules(rows)); n > len(rows) {
			t.Errorf("%d modules in %d lines", n, len(rows))
		}
		if version, _ := parseDriver(text); !strings.Contains(text, version) {
			t.Errorf("version %q", version)
		}
		for bar := range 7 {
			if size := barSize(rows, bar); size < 0 {
				t.Errorf("bar of %d bytes", size)
			}
		}
		if at := findACS(data); at != 0 && at+8 > len(data) {
			t.Errorf("ACS at %d of %d", at, len(data))
		}
		if stripped := stripComments(data); len(stripped) != len(data) || strings.Count(string(stripped), "\n") > strings.Count(text, "\n") {
			t.Errorf("%q became %q", data, stripped)
		}
		parseConfig(text)
		libraryVersion(text)
	})
}

// FuzzLoad: whatever a recording holds, it is judged without harm.
func FuzzLoad(f *testing.F) {
	for _, c := range []fixture{server(), everything()} {
		var b bytes.Buffer
		if err := c.capture(f).Record(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Load(bytes.NewReader(data))
		if err != nil {
			return
		}
		if r := Judge(Read(s), "", 0); r.Verdict.Path == "" || len(r.Findings) == 0 {
			t.Errorf("%+v", r)
		}
	})
}

// FuzzFacts puts any text in the place of each fact of a good machine.
func FuzzFacts(f *testing.F) {
	names := []string{"proc/self/mountinfo", "proc/modules", "proc/driver/nvidia/version", "proc/driver/nvidia-fs/modules", "run/udev/data/b259:1", "etc/cufile.json", ownTarget, ownProof}
	base := server().capture(f)
	for i, name := range names {
		if e := base.find(name); e != nil {
			f.Add(i, e.data)
		}
	}
	f.Fuzz(func(t *testing.T, which int, data []byte) {
		if which < 0 || which >= len(names) {
			return
		}
		s := NewRecording()
		s.Merge(base)
		s.put(names[which], &entry{kind: kindFile, data: data})
		m := Read(s)
		if r := Judge(m, "", 0); r.Verdict.Path == Direct && (m.Proof == nil || m.Proof.Verdict != "proven") {
			t.Errorf("direct without a proof: %+v", r.Verdict)
		}
	})
}
