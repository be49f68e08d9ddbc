package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/layout"
)

// TestBenchNeedsAFile has files that nothing can be measured with: a table of failures would end with exit code 0.
func TestBenchNeedsAFile(t *testing.T) {
	dir := t.TempDir()
	small := filepath.Join(dir, "small")
	if err := os.WriteFile(small, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{filepath.Join(dir, "absent")}, "no such file"},
		{[]string{dir}, "is no file"},
		{[]string{small}, "--block"},
		{[]string{"--block", "64KiB", "--length", "32KiB", small}, "--block"},
		{[]string{"--block", "64KiB", "--sample", "2MiB", "--samples", "4", small}, "--sample"},
	} {
		code, stdout, stderr := said(append([]string{"bench", "--to", "host"}, c.args...)...)
		if code != exitFailed || !strings.Contains(stderr, c.says) || stdout != "" {
			t.Errorf("%q: exit code %d, %q and %q, want %d and %q", c.args, code, stdout, stderr, exitFailed, c.says)
		}
	}
}

// TestNoGPUGetsAHint has commands that need a GPU say what works without one.
func TestNoGPUGetsAHint(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 256<<20); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"read", "bench"} {
		code, _, stderr := said(command, "--libcuda", "libnone.so", large)
		if code != exitFailed || !strings.Contains(stderr, "--to host works without a GPU") {
			t.Errorf("%s: exit code %d and %q", command, code, stderr)
		}
	}
}

func TestReadSaysWhatItVerified(t *testing.T) {
	source, out := packSource(t), filepath.Join(t.TempDir(), "out")
	if got := runPackLine(t, "--to", "nanogpt", source, out); got.code != exitOK {
		t.Fatal(got.stderr)
	}
	for _, c := range []struct{ file, flag, says string }{
		{filepath.Join(out, "train.bin"), "--offset=0", "bytes against " + layout.ManifestName},
		{filepath.Join(out, "train.bin"), "--length=2", "nothing: what was read holds no whole block"},
		{filepath.Join(out, layout.ManifestName), "--offset=0", layout.ManifestName + " does not list it"},
		{filepath.Join(source, "a.txt"), "--offset=0", "nothing: no " + layout.ManifestName + " lies beside it"},
	} {
		code, stdout, stderr := said("read", "--to", "host", c.flag, c.file)
		if code != exitOK || !strings.Contains(stdout, c.says) {
			t.Errorf("%s %s: exit code %d, %q and %q, want %q", c.file, c.flag, code, stdout, stderr, c.says)
		}
	}
}
