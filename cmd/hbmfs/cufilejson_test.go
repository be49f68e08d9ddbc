package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCuFileJSONMistakes(t *testing.T) {
	for says, args := range map[string][]string{"checkpoint": {"--for", "games"}, "at most 1": {"a", "b"}, "0 or more": {"--gpu", "-1"}} {
		if code, _, stderr := said(append([]string{"cufile-json"}, args...)...); code != exitUsage || !strings.Contains(stderr, says) {
			t.Errorf("%q: exit %d: %s", args, code, stderr)
		}
	}
}

// TestCuFileJSONWrites makes a file from a recorded machine.
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
