package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/commands/plan"
)

func runPlanLine(t *testing.T, args ...string) packed {
	t.Helper()
	code, stdout, stderr := said(append([]string{"plan"}, args...)...)
	return packed{code, stdout, stderr}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const oneGPUNode = "nodes: [{name: desk, gpus: [{name: a, gen: 5, lanes: 16}], storage: [{name: s, gb_per_s: 5}]}]\n"

func TestPlanOfADescription(t *testing.T) {
	node := writeFile(t, "node.yaml", oneGPUNode)
	got := runPlanLine(t, node, "--epoch", "1TB", "--weights", "10GB", "--checkpoint", "50GB", "--price", "36")
	if got.code != exitOK {
		t.Fatalf("exit %d: %s", got.code, got.stderr)
	}
	for _, part := range []string{"desk: 1 GPU", "an epoch: epoch of 1 TB", "a load of weights", "a checkpoint each half hour", "mapped only reads", "direct is not proven"} {
		if !strings.Contains(got.stdout, part) {
			t.Errorf("it does not say %q:\n%s", part, got.stdout)
		}
	}
}

// A calibration changes what is computed: a wall of half the rate halves it.
func TestPlanIsCalibrated(t *testing.T) {
	node := writeFile(t, "node.yaml", oneGPUNode)
	result := writeFile(t, "bench.json", `{"gpus":[{}],"threads":4,"wall_gb_per_s":27.6,"rows":[{"path":"staged","mode":"sequential","gb_per_s":20}]}`)
	pinned := func(args ...string) float64 {
		got := runPlanLine(t, append([]string{node, "--json"}, args...)...)
		var r plan.Report
		if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
			t.Fatalf("%v: %s", err, got.stderr)
		}
		return r.Nodes[0].Sweeps[0].Points[0].Aggregate.Mid
	}
	if all, half := pinned(), pinned("--calibrate", result); half < 0.499*all || half > 0.501*all {
		t.Errorf("half the wall gives %g of %g", half, all)
	}
}

func TestPlanWritesAPage(t *testing.T) {
	page := filepath.Join(t.TempDir(), "report.html")
	got := runPlanLine(t, writeFile(t, "node.yaml", oneGPUNode), "--html", page)
	text, err := os.ReadFile(page)
	if got.code != exitOK || err != nil || !bytes.HasPrefix(text, []byte("<!doctype html>")) || !bytes.Contains(text, []byte(`"name":"desk"`)) {
		t.Errorf("exit %d %s: %v, %d bytes", got.code, got.stderr, err, len(text))
	}
}

// This node is found in sysfs, and put beside the described ones.
func TestPlanOfThisNode(t *testing.T) {
	sys := t.TempDir()
	gpu := filepath.Join(sys, "bus/pci/devices/0000:05:00.0")
	if err := os.MkdirAll(gpu, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"class": "0x030200", "vendor": "0x10de", "max_link_speed": "16.0 GT/s PCIe", "max_link_width": "16"} {
		if err := os.WriteFile(filepath.Join(gpu, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	alone := runPlanLine(t, "--sys", sys)
	if alone.code != exitOK || !strings.Contains(alone.stdout, "this node: 1 GPU; from sysfs") {
		t.Errorf("exit %d %s: %s", alone.code, alone.stderr, alone.stdout)
	}
	both := runPlanLine(t, "--sys", sys, "--here", writeFile(t, "node.yaml", oneGPUNode))
	if both.code != exitOK || !strings.Contains(both.stdout, "this node: 1 GPU") || !strings.Contains(both.stdout, "desk: 1 GPU") {
		t.Errorf("exit %d %s: %s", both.code, both.stderr, both.stdout)
	}
}

func TestPlanExampleIsUnderstood(t *testing.T) {
	example := runPlanLine(t, "--example")
	if _, err := plan.Parse(strings.NewReader(example.stdout)); err != nil || example.code != exitOK {
		t.Errorf("exit %d: %v", example.code, err)
	}
}

func TestPlanRefuses(t *testing.T) {
	node := writeFile(t, "node.yaml", oneGPUNode)
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"a size":            {[]string{node, "--epoch", "much"}, exitUsage, "--epoch"},
		"a price":           {[]string{node, "--price", "-1"}, exitUsage, "--price"},
		"two formats":       {[]string{node, "--json", "--html", "x"}, exitUsage, "--html"},
		"two descriptions":  {[]string{node, node}, exitUsage, "one description"},
		"no such file":      {[]string{node + "x"}, exitFailed, "node.yamlx"},
		"no description":    {[]string{writeFile(t, "bad.yaml", "nodes: 7")}, exitFailed, "--example"},
		"no calibration":    {[]string{node, "--calibrate", writeFile(t, "bad.json", "{}")}, exitFailed, "bad.json"},
		"a machine without": {[]string{"--sys", t.TempDir()}, exitFailed, "--example"},
	} {
		if got := runPlanLine(t, c.args...); got.code != c.code || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%s: exit %d and %q, not %d and %q", name, got.code, got.stderr, c.code, c.says)
		}
	}
}

func TestPlanOfStandardInput(t *testing.T) {
	root := newRootCommand()
	var stdout bytes.Buffer
	root.SetArgs([]string{"plan", "-"})
	root.SetIn(strings.NewReader(oneGPUNode))
	root.SetOut(&stdout)
	if err := root.Execute(); err != nil || !strings.Contains(stdout.String(), "desk: 1 GPU") {
		t.Errorf("%v:\n%s", err, stdout.String())
	}
}

func TestPlanOfManyNodes(t *testing.T) {
	got := runPlanLine(t, "--fan-out", "4,20", "--epoch", "10GB", "--origin-rate", "100MB/s")
	if got.code != exitOK || strings.Count(got.stdout, "<- enough") != 2 || !strings.Contains(got.stdout, "20 nodes read 10.0 GB at once; the origin sends 100.0 MB/s") {
		t.Errorf("exit %d: %s%s", got.code, got.stdout, got.stderr)
	}
	var said struct {
		FanOut []struct {
			Nodes int
			Rows  []struct {
				Caches int
				Time   float64 `json:"time_s"`
			}
		} `json:"fan_out"`
	}
	got = runPlanLine(t, "--fan-out", "8", "--epoch", "10GB", "--origin-rate", "100MB/s", "--json")
	if err := json.Unmarshal([]byte(got.stdout), &said); err != nil || len(said.FanOut) != 1 || said.FanOut[0].Nodes != 8 || said.FanOut[0].Rows[0].Time != 800 {
		t.Errorf("%v: %s", err, got.stdout)
	}
	for _, args := range [][]string{{"--fan-out", "8"}, {"--fan-out", "0", "--epoch", "1TB"}, {"--origin-rate", "1GB/s"}, {"--fan-out", "8", "--epoch", "1TB", "--here"}, {"--fan-out", "8", "--epoch", "1TB", "node.yaml"}} {
		if got := runPlanLine(t, args...); got.code != exitUsage || got.stderr == "" {
			t.Errorf("%q: exit %d: %s", args, got.code, got.stderr)
		}
	}
}
