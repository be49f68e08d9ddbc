package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/layout"
)

// TestInspectJSONHasLists wants a list, and never null, where nothing is in it: jq and other programs go through it.
func TestInspectJSONHasLists(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "notes"), []byte("nothing that is known"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{dir, "../../tests/data/testdata/npy"} {
		code, stdout, stderr := said("inspect", "--json", source)
		if code != exitOK {
			t.Fatalf("%s: exit code %d: %s", source, code, stderr)
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal([]byte(stdout), &got); err != nil {
			t.Fatal(err)
		}
		if string(got["problems"]) != "[]" || strings.Contains(stdout, "null") {
			t.Errorf("%s: the problems are %s, want an empty list and null nowhere:\n%s", source, got["problems"], stdout)
		}
	}
}

// All files of a dataset that hbmfs pack has just written are known to it.
func TestInspectKnowsWhatPackWrote(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	if code, _, stderr := said("pack", "inspect_test.go", out); code != exitOK {
		t.Fatal(stderr)
	}
	if code, stdout, stderr := said("inspect", out); code != exitOK || strings.Contains(stdout, "no recognized format") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

func TestInspectMistakes(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--format", "nonsense", dir}, exitUsage, `"nonsense" is none of`},
		{[]string{"--dtype", "u7", dir}, exitUsage, "u7"},
		{[]string{"s3://bucket/pile?endpoint=nowhere"}, exitUsage, "want http://HOST:PORT"},
		{[]string{filepath.Join(dir, "absent")}, exitFailed, "no such file"},
		{[]string{"--format", "npy", dir}, exitFailed, "no npy dataset is here"},
	} {
		code, _, stderr := said(append([]string{"inspect"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%q: exit code %d and %q, want %d and %q", c.args, code, stderr, c.code, c.says)
		}
	}
}

// TestInspectIsHarmlessForTerminals inspects names that would colour a terminal, or worse.
func TestInspectIsHarmlessForTerminals(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "\x1b[31mred.npy"), []byte("\x93NUMPY\x01\x00"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := said("inspect", dir)
	if code != exitProblems || !strings.Contains(stdout, "?[31mred.npy") || strings.Contains(stdout+stderr, "\x1b") {
		t.Errorf("exit code %d: %q %q", code, stdout, stderr)
	}
}

// TestInspectReadsTheTypeOfOneFile inspects one file that hbmfs pack wrote: the manifest beside it has the type. Without it, and where it is of
// another file, the values tell.
func TestInspectReadsTheTypeOfOneFile(t *testing.T) {
	dir := t.TempDir()
	for _, dtype := range []string{"u16", "u32"} {
		out := filepath.Join(dir, dtype)
		if p := runPackLine(t, "--to", "nanogpt", "--dtype", dtype, packSource(t), out); p.code != exitOK {
			t.Fatalf("%+v", p)
		}
		manifest := filepath.Join(out, layout.ManifestName)
		for _, c := range []struct{ says, then string }{
			{"the dtype is that of hbmfs-manifest.json", `"size": 1`},
			{"the dtype was guessed from the values", "{"},
			{"the dtype was guessed from the values", ""},
		} {
			code, stdout, stderr := said("inspect", filepath.Join(out, "train.bin"))
			if code != exitOK || !strings.Contains(stdout, c.says) || !strings.Contains(stdout, " "+dtype+" ") {
				t.Errorf("%s: exit code %d, want that %s:\n%s%s", dtype, code, c.says, stdout, stderr)
			}
			if err := os.WriteFile(manifest, []byte(c.then), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
