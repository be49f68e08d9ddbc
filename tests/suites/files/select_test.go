package files_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// Documents whose numbers a file has are views of their own, which any loader reads; the others stay as they are.
func TestSelectedDocuments(t *testing.T) {
	source, list := mounttest.Golden(t, "megatron"), filepath.Join(suite.NewDir(t), "list")
	must(t, os.WriteFile(list, []byte("0\n3\n4\n12\n"), 0o600))
	m := mount(t, source, "--select", "few="+list)
	views := func(name string) string { return m.Path(".hbmfs", "views", name) }
	whole, err := os.ReadFile(views("tokens.bin"))
	must(t, err)
	raw, err := os.ReadFile(views("documents.npy"))
	must(t, err)
	start := func(d int) int { return int(binary.LittleEndian.Uint64(raw[128+8*d:])) }
	var want, borders []byte
	var few []int64
	for _, d := range []int{0, 3, 4, 12} {
		few = append(few, int64(len(want)/2))
		want = append(want, whole[2*start(d):2*start(d+1)]...)
	}
	few = append(few, int64(len(want)/2))
	for _, at := range few {
		borders = binary.LittleEndian.AppendUint64(borders, uint64(at))
	}
	checkArray(t, views("few/tokens.npy"), "<u2", want)
	checkArray(t, views("few/documents.npy"), "<i8", borders)
	if !checkMegatron(t, views("few/megatron"), want, few) {
		t.Error("there is no Megatron pair")
	}
}

// The next daemon shows the documents that were named at the mount, whatever became of the list.
func TestASelectionOutlivesItsDaemon(t *testing.T) {
	list := filepath.Join(suite.NewDir(t), "list")
	must(t, os.WriteFile(list, []byte("0\n3\n4\n12\n"), 0o600))
	m := mount(t, mounttest.Golden(t, "megatron"), "--select", "few="+list)
	m.NeedHandover(t)
	name := m.Path(".hbmfs", "views", "few", "tokens.npy")
	want, err := os.ReadFile(name)
	must(t, err)
	must(t, os.Remove(list))
	m.Crash(t)
	got, err := os.ReadFile(name)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("the view has %d bytes after the hand-over and had %d, or other ones", len(got), len(want))
	}
}

func TestSelectionsAreRefused(t *testing.T) {
	dir := suite.NewDir(t)
	list := filepath.Join(dir, "list")
	must(t, os.WriteFile(list, []byte("2\n1\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "one"), []byte("1"), 0o600))
	for _, tt := range []struct {
		given string
		code  int
		says  string
	}{
		{"few", 2, "NAME=FILE"},
		{"few=" + list, 2, "line 2: document 1 comes after document 2"},
		{"few=" + list + "-none", 1, "no such file"},
		{"elsewhere/few=" + filepath.Join(dir, "one"), 1, "elsewhere"},
	} {
		r := run(t, "mount", "--log-file", filepath.Join(dir, "log"), "--select", tt.given, mounttest.Golden(t, "megatron"), filepath.Join(dir, "mnt"))
		if r.Code != tt.code || !strings.Contains(r.Stderr, tt.says) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", tt.given, r.Code, r.Stderr, tt.code, tt.says)
		}
	}
}
