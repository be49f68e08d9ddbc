package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
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
	for _, source := range []string{dir, "../../tests/data/testdata/npy", "../../tests/data/testdata/npy-fortran"} {
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

// An archive that is cut off is one problem, though its members are a view too.
func TestInspectTellsADamagedArchiveOnce(t *testing.T) {
	dir := t.TempDir()
	for name, end := range map[string]int{"a.tar": -1, "b.tar": 2000} {
		data, err := os.ReadFile("../../tests/data/testdata/tar/gnu.tar")
		if err != nil {
			t.Fatal(err)
		}
		if end > 0 {
			data = data[:end]
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, _ := said("inspect", dir)
	if code != exitProblems || !strings.Contains(stdout, "\n1 problems:\n  b.tar: at ") || !strings.Contains(stdout, "no members/b.tar ") {
		t.Errorf("exit code %d: %s", code, stdout)
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
		{[]string{"s3://bucket/pile?endpoint=nowhere"}, exitUsage, "or http://HOST:PORT"},
		{[]string{filepath.Join(dir, "absent")}, exitFailed, "no such file"},
		{[]string{"s3:/bucket/pile"}, exitFailed, "an address has two slashes, as in s3://bucket/pile"},
		{[]string{"--format", "npy", dir}, exitFailed, "no npy dataset is here: hbmfs inspect without --format names the formats"},
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

// TestInspectGivesEachReasonOnce has a set name the views that it lacks in one line, and the files that no set has.
func TestInspectGivesEachReasonOnce(t *testing.T) {
	dir := t.TempDir()
	noise := make([]byte, 10_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // which never fails
	for name, data := range map[string][]byte{"a/noise.bin": noise, "a/flags.bin": bytes.Repeat([]byte{0, 1}, 100)} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a"), 0o755), os.WriteFile(filepath.Join(dir, name), data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, _ := said("inspect", dir)
	if code != exitOK || !strings.Contains(stdout, "not shown: a/noise.bin: it has no header") || !strings.Contains(stdout, "not shown: a/flags.bin: ") {
		t.Errorf("exit code %d, want that the files are named:\n%s", code, stdout)
	}
	code, stdout, _ = said("inspect", "--format", "nanogpt", "--dtype", "torch.uint16", dir)
	if why := "the format does not say where documents begin"; code != exitOK || strings.Count(stdout, why) != 1 || !strings.Contains(stdout, "no a/documents.npy, a/megatron.bin, a/megatron.idx") {
		t.Errorf("exit code %d, want one line that says %q:\n%s", code, why, stdout)
	}
}

// TestInspectReadsTheTypeOfOneFile inspects one file that hbmfs pack wrote: the manifest beside it has the type. Without it, and where it is of
// another file, the type is not known: the few texts repeat themselves, so pairs of tokens look like larger elements.
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
			{"not shown: train.bin: it has no header", "{"},
			{"not shown: train.bin: it has no header", ""},
		} {
			code, stdout, stderr := said("inspect", filepath.Join(out, "train.bin"))
			if code != exitOK || !strings.Contains(stdout, c.says) || c.then == `"size": 1` && !strings.Contains(stdout, " "+dtype+" ") {
				t.Errorf("%s: exit code %d, want that %s:\n%s%s", dtype, code, c.says, stdout, stderr)
			}
			if err := os.WriteFile(manifest, []byte(c.then), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestInspectListsFields wants each field with its size and form, and the reason for one that is not shown.
func TestInspectListsFields(t *testing.T) {
	for dataset, want := range map[string][]string{
		"mds-multi":   {"field text    350 B, ragged uint8\n", "field weight  80 B, dense float32\n"},
		"mds":         {"5.1 kB, dense int32 [64]\n"},
		"npy-fortran": {"no field data", "is in Fortran order"},
	} {
		code, stdout, _ := said("inspect", "../../tests/data/testdata/"+dataset)
		for _, line := range want {
			if says := strings.Join(strings.Fields(line), " "); code != exitOK || !strings.Contains(strings.Join(strings.Fields(stdout), " "), says) {
				t.Errorf("%s: exit code %d, want %q:\n%s", dataset, code, says, stdout)
			}
		}
	}
}
