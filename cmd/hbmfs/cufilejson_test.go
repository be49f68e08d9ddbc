package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/commands/cufilejson"
)

func TestCuFileJSONLint(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	good := write("good.json", `{ "properties": { "io_batchsize": 64 } }`)
	warned := write("warned.json", `{ "properties": { "force_compat_mode": true } }`)
	bad := write("bad.json", "{\n  // kept\n  \"properties\": { \"io_batchsize\": \"64\" }\n}\n")
	broken := write("broken.json", `{ "properties": `)

	for _, c := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string // is in it
	}{
		{"good", []string{"--lint", good}, exitOK, "nothing is wrong", ""},
		{"warnings", []string{"--lint", warned}, exitOK, "1:40: warning: properties.force_compat_mode", ""},
		{"errors", []string{"--lint", bad}, exitProblems, bad + ":3:35: error: properties.io_batchsize", ""},
		{"no JSON", []string{"--lint", broken}, exitProblems, "syntax error", ""},
		{"a proof is wanted", []string{"--lint", good, "--require", "direct"}, exitProblems, "properties.allow_compat_mode", ""},
		{"no such file", []string{"--lint", filepath.Join(dir, "none")}, exitFailed, "", "no such file"},
		{"--require alone", []string{"--require", "direct"}, exitUsage, "", "--lint"},
		{"an unknown workload", []string{"--for", "games"}, exitUsage, "", "checkpoint"},
		{"two paths", []string{"a", "b"}, exitUsage, "", "at most 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := said(append([]string{"cufile-json"}, c.args...)...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
				t.Errorf("exit %d, want %d; stdout\n%s\nstderr\n%s", code, c.code, stdout, stderr)
			}
		})
	}

	code, stdout, _ := said("cufile-json", "--lint", bad, "--json")
	var result struct {
		Errors   int                  `json:"errors"`
		Findings []cufilejson.Finding `json:"findings"`
	}
	if err := json.Unmarshal([]byte(stdout), &result); err != nil || code != exitProblems || result.Errors != 1 ||
		result.Findings[0].Line != 3 || result.Findings[0].Column != 35 {
		t.Errorf("--json: exit %d, %v, %+v", code, err, result)
	}
}

// TestCuFileJSONWrites makes a file from a recorded machine, and checks it against the same.
func TestCuFileJSONWrites(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"sys/bus/pci/devices/0000:18:00.0/class":  "0x030200\n",
		"sys/bus/pci/devices/0000:18:00.0/vendor": "0x10de\n",
		"sys/bus/pci/devices/0000:18:00.0/device": "0x2335\n",
		"proc/sys/kernel/osrelease":               "6.8.0\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(root, "cufile.json")
	if code, _, stderr := said("cufile-json", "--root", root, "--for", "weights", "--output", file); code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const h200 = `"max_device_pinned_mem_size_kb": 147849216` // 141 GiB
	if !strings.Contains(string(text), h200) {
		t.Errorf("no %s in\n%s", h200, text)
	}
	if code, stdout, stderr := said("cufile-json", "--root", root, "--gpu", "0", "--lint", file); code != exitOK || !strings.Contains(stdout, "nothing is wrong") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	if code, _, stderr := said("cufile-json", "--root", root, "--gpu", "1", "--lint", file); code != exitFailed || !strings.Contains(stderr, "no GPU 1") {
		t.Errorf("a GPU that is not there: exit %d: %s", code, stderr)
	}
}

func TestCheckOfDeepSpeed(t *testing.T) {
	good := writeFile(t, "good.json", `{"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "`+t.TempDir()+`"}}, "aio": {"block_size": 1048576, "queue_depth": 16}}`)
	bad := writeFile(t, "bad.json", `{"aio": {"use_dgs": true}}`)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{good}, exitOK, "nothing is wrong"},
		{[]string{bad}, exitProblems, "1:21: error: aio.use_dgs: is not known, and ignored: did you mean use_gds?"},
		{[]string{"--json", bad}, exitProblems, `"key": "aio.use_dgs"`},
		{[]string{bad + ".not"}, exitFailed, "no such file"},
		{[]string{bad, "/data"}, exitUsage, "leave PATH"},
		{[]string{"--require", "direct", bad}, exitUsage, "leave PATH"},
	} {
		args := append([]string{"check"}, c.args...)
		at := slices.IndexFunc(args, func(a string) bool { return strings.Contains(a, ".json") })
		code, stdout, stderr := said(slices.Insert(args, at, "--deepspeed")...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%q: exit code %d, %q and %q, want %d and %q", c.args, code, stdout, stderr, c.code, c.says)
		}
	}
}
