package main

import (
	"encoding/json"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// newCheckpoint publishes a checkpoint of one file.
func newCheckpoint(t *testing.T, path, text string) {
	t.Helper()
	d, err := checkpoint.Begin(t.Context(), path, checkpoint.Part{Index: 1, Of: 2})
	if err == nil {
		err = os.WriteFile(filepath.Join(d.Dir(), "weights"), []byte(text), 0o644)
	}
	if err == nil {
		err = d.Publish(t.Context(), []checkpoint.File{{Name: "weights", Size: int64(len(text)), Sums: []uint32{crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli))}}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCheckpointCommands(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	newCheckpoint(t, at("step_9"), "nine")
	newCheckpoint(t, at("step_10"), "ten")
	newCheckpoint(t, at("step_11"), "eleven")
	newCheckpoint(t, at("step_12"), "twelve")
	writing, err := checkpoint.Begin(t.Context(), at("step_20"), checkpoint.Part{Of: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writing.Drop() }() // the directory goes anyway
	for path, text := range map[string]string{"step_10/weights": "TEN", "step_11/weights": "short", "step_12/" + checkpoint.ManifestName: "{}"} {
		if err := os.WriteFile(at(path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{".step_8.hbmfs.tmp", ".step_7.hbmfs.old", "else"} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args  []string
		code  int
		wants []string
	}{
		{[]string{"ls", dir}, exitOK, []string{"NAME     STATE     PART  FILES  SIZE  CREATED", "step_9   complete  2/2   1      4 B", "file \"weights\": it has 5 bytes, 6 were published",
			"step_12  damaged", "step_20  in work                      process", "step_8   leftover                     its writer has ended", "step_7   leftover                     it is half removed"}},
		{[]string{"ls", at("none")}, exitFailed, []string{"no such file"}},
		{[]string{"ls"}, exitUsage, []string{"it takes 1 argument, not 0"}},
		{[]string{"verify"}, exitUsage, []string{"name the checkpoints"}},
		{[]string{"verify", at("step_9")}, exitOK, []string{"step_9: 1 files, of which 4 B are right", "0 damaged"}},
		{[]string{"verify", at("step_9"), at("step_10")}, exitProblems, []string{"1 damaged\n  file \"weights\", chunk 0, 3 bytes from 0 on: crc32c is 06416707, b833f1cf was published"}},
		{[]string{"verify", at("step_11")}, exitProblems, []string{"it has 5 bytes, 6 were published"}},
		{[]string{"verify", at("step_12")}, exitProblems, []string{"its end or its checksum is not what was published"}},
		{[]string{"verify", dir}, exitProblems, []string{"step_9: 1 files, of which 4 B are right", "step_10: ", "it has 5 bytes, 6 were published", "its end or its checksum is not what was published"}},
		{[]string{"verify", at("none")}, exitFailed, []string{"no such file"}},
		{[]string{"verify", at("else")}, exitFailed, []string{"is no checkpoint of hbmfs's"}},
		{[]string{"rm", at("else")}, exitFailed, []string{"remove it by other means"}},
		{[]string{"rm", at("step_20")}, exitFailed, []string{"no such file"}},
		{[]string{"rm", at("step_10"), at("step_12")}, exitOK, []string{"removed " + at("step_10"), "removed " + at("step_12")}},
		{[]string{"clean", dir}, exitOK, []string{"removed " + at(".step_7.hbmfs.old"), "removed " + at(".step_8.hbmfs.tmp")}},
		{[]string{"clean", "--json", dir}, exitOK, []string{`"removed": []`}},
	} {
		code, stdout, stderr := said(append([]string{"checkpoint"}, c.args...)...)
		for _, want := range c.wants {
			if !strings.Contains(stdout+stderr, want) {
				t.Errorf("%q says no %q:\n%s%s", c.args, want, stdout, stderr)
			}
		}
		if code != c.code {
			t.Errorf("%q: exit code %d, want %d: %s%s", c.args, code, c.code, stdout, stderr)
		}
	}
	var listed struct{ Checkpoints []map[string]any }
	code, stdout, stderr := said("checkpoint", "ls", "--json", dir)
	if err := json.Unmarshal([]byte(stdout), &listed); err != nil || code != exitOK || len(listed.Checkpoints) != 3 || listed.Checkpoints[0]["part"] != 1.0 || listed.Checkpoints[0]["parts"] != 2.0 {
		t.Errorf("%v, exit code %d: %s%s", err, code, stdout, stderr)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 5 { // step_9, step_11, else, and the draft of step_20 with its lock
		t.Errorf("%v, %v are there", names, err)
	}
}

// A shell completes directories.
func TestCompletionOfCheckpoints(t *testing.T) {
	_, stdout, _ := said("__complete", "checkpoint", "rm", "/nvme/")
	if !slices.Contains(strings.Split(stdout, "\n"), ":16") { // cobra.ShellCompDirectiveFilterDirs
		t.Errorf("it completes %q, want directories", stdout)
	}
}
