package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		var stdout, stderr bytes.Buffer
		code := run(context.Background(), append([]string{"hbmfs", "bench", "--to", "host"}, c.args...), &stdout, &stderr)
		if code != exitFailed || !strings.Contains(stderr.String(), c.says) || stdout.Len() > 0 {
			t.Errorf("%q: exit code %d, %q and %q, want %d and %q", c.args, code, stdout.String(), stderr.String(), exitFailed, c.says)
		}
	}
}
