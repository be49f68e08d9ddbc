package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A command whose result cannot be written has failed, however it prints.
func TestLostOutputIsAFailure(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs /dev/full: %v", err)
	}
	defer func() { _ = full.Close() }() // nothing can be written to it
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 100_000), 0o644); err != nil {
		t.Fatal(err)
	}
	bench := []string{"bench", "--to", "host", "--modes", "sequential", "--seconds", "0.01", "--block", "4KiB", "--sample", "1KiB", file}
	for _, args := range [][]string{
		{"--help"}, {"--version"}, {"inspect", "../../tests/data/testdata/npy"}, {"inspect", "--json", "../../tests/data/testdata/npy"},
		{"read", "--to", "host", file}, {"read", "--to", "host", "--json", file}, bench, {"plan", "--example"}, {"top", "--once", "--interval", "1ms"},
		{"pack", "--to", "npy", "../../tests/data/testdata/npy", filepath.Join(t.TempDir(), "new")}, {"pack", "--tokenizer", "list"},
	} {
		var stderr bytes.Buffer
		code := run(context.Background(), append([]string{"hbmfs"}, args...), full, &stderr)
		if code != exitFailed || !strings.Contains(stderr.String(), "no space left on device") {
			t.Errorf("%q: exit code %d and %q, want %d and why", args, code, stderr.String(), exitFailed)
		}
	}
}

// A bench that measured nothing of what it was asked for has failed.
func TestBenchOfNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 100_000), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		paths, flag string
		code        int
	}{{"direct", "--json", exitFailed}, {"direct", "--refill=false", exitFailed}, {"direct,host", "--json", exitOK}} {
		code, stdout, stderr := said("bench", "--to", "host", "--paths", c.paths, c.flag, "--modes", "sequential", "--seconds", "0.01", "--block", "4KiB", "--sample", "1KiB", file)
		if code != c.code || !strings.Contains(stdout, "direct needs a GPU") || (code == exitFailed) != strings.Contains(stderr, "no path could be measured") {
			t.Errorf("%s: exit code %d, want %d: %s%s", c.paths, code, c.code, stdout, stderr)
		}
	}
}

// What was left out of a dataset is not in what is packed of it, which is said.
func TestPackSaysWhatWasLeftOut(t *testing.T) {
	source := t.TempDir()
	if err := os.CopyFS(source, os.DirFS("../../tests/data/testdata/npy")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(source, "linked")); err != nil {
		t.Fatal(err)
	}
	r := runPackLine(t, "--to", "npy", "--document-end", "0", source, filepath.Join(t.TempDir(), "new"))
	if r.code != exitOK || !strings.Contains(r.stderr, "warning: linked: ") {
		t.Errorf("exit code %d, and it says %q", r.code, r.stderr)
	}
}
