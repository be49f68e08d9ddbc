package pack

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/pack/corpus/corpustest"
	"github.com/hbmfs/hbmfs/layout"
)

// TestForceFailsAtARename has a name that is taken when the new files get theirs.
func TestForceFailsAtARename(t *testing.T) {
	src := corpustest.Dir(t, map[string]string{"a.txt": strings.Repeat("some words ", 100)})
	out := filepath.Join(t.TempDir(), "out")
	o := Options{Sources: []string{src}, Out: out, Format: NPY, ShardTokens: 50}
	_, earlier := runPack(t, o)
	o.Force, o.Name = true, "next"
	taken := filepath.Join(out, "next_00001.npy")
	o.Progress = func(int64, int64) {
		if err := os.Mkdir(taken, 0o700); err != nil {
			t.Error(err)
		}
	}
	if _, err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), `publish "next_00001.npy"`) {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(taken); err != nil {
		t.Fatal(err)
	}
	if files := readDir(t, out); !reflect.DeepEqual(files, earlier) {
		t.Errorf("of the earlier dataset's %d files, these remain: %v", len(earlier), names(files))
	}
}

func names(files map[string][]byte) (out []string) {
	for name := range files {
		out = append(out, name)
	}
	return out
}

// create writes files of a text.
func create(t *testing.T, o *output, text string, names ...string) {
	t.Helper()
	for _, name := range names {
		f, err := o.create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := f.finish(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// replacement writes two files, of which one has an earlier file's name and size, and gives them the earlier dataset's
// place. before is asked before every change; killed says that nobody cleans up.
func replacement(t *testing.T, dir string, before func() error, killed bool) error {
	t.Helper()
	o, err := newOutput(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	create(t, o, "new", "same.npy", "new.npy")
	o.before = before
	err = o.publish(t.Context(), &layout.Manifest{Version: 1, Format: NPY, DType: "u16"})
	if err != nil && !killed {
		if undone := o.abort(); undone != nil {
			t.Errorf("abort: %v", undone)
		}
	}
	return err
}

// earlierDataset makes a directory with a dataset of two files and somebody's file.
func earlierDataset(t *testing.T) string {
	t.Helper()
	dir := corpustest.Dir(t, map[string]string{"mine": "keep"})
	o, err := newOutput(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	create(t, o, "old", "same.npy", "old.npy")
	if err := o.publish(t.Context(), &layout.Manifest{Version: 1, Format: NPY, DType: "u16"}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// contents returns the files of a directory but for those of a killed run, which have no name yet.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, ".hbmfs-pack-*.tmp"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{}
	for name, data := range readDir(t, dir) {
		files[name] = string(data)
	}
	return files
}

var errInjected = errors.New("injected")

// failing returns a hook that fails at the n-th change, and at all that follow it if it is final.
func failing(n int, final bool) func() error {
	return func() error {
		n--
		if n == 0 || n < 0 && final {
			return errInjected
		}
		return nil
	}
}

// TestOneDatasetIsComplete fails, or kills, a pack at every change of a name that it makes, and kills what cleans up
// after it at every one that that makes.
func TestOneDatasetIsComplete(t *testing.T) {
	old := contents(t, earlierDataset(t))
	dir := earlierDataset(t)
	if err := replacement(t, dir, nil, false); err != nil {
		t.Fatal(err)
	}
	next := contents(t, dir)
	if len(next) != 4 || next["new.npy"] != "new" || next["same.npy"] != "new" || len(old) != 4 {
		t.Fatalf("the datasets are %v and %v", old, next)
	}
	check := func(dir, what string) {
		t.Helper()
		if got := contents(t, dir); !maps.Equal(got, old) && !maps.Equal(got, next) {
			t.Errorf("%s: %v", what, got)
		}
	}
	for n := 1; ; n++ {
		dir := earlierDataset(t)
		err := replacement(t, dir, failing(n, false), false)
		if err == nil {
			if n < 12 {
				t.Errorf("a pack changes only %d names", n)
			}
			break
		}
		if err := os.RemoveAll(filepath.Join(dir, earlierDir)); err != nil { // there where the error says so
			t.Fatal(err)
		}
		got := contents(t, dir)
		want := old
		if strings.Contains(err.Error(), "the new dataset in "+dir+" is complete") {
			want = next
		}
		if !maps.Equal(got, want) {
			t.Errorf("failure %d, %v: %v", n, err, got)
		}
		stopped := earlierDataset(t)
		if err := replacement(t, stopped, failing(n, true), true); !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		for m := 1; ; m++ {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(stopped)); err != nil {
				t.Fatal(err)
			}
			o := &output{dir: dir, before: failing(m, true)}
			killed := o.settle()
			if _, err := newOutput(dir, true); err != nil {
				t.Errorf("kill %d, then kill %d: %v", n, m, err)
			}
			check(dir, fmt.Sprintf("kill %d, then kill %d", n, m))
			if killed == nil {
				break
			}
			if !errors.Is(killed, errInjected) || !strings.Contains(killed.Error(), filepath.Join(dir, earlierDir)) {
				t.Errorf("kill %d, then failure %d: the error is %v", n, m, killed)
			}
		}
	}
}

// TestAfterAKill runs a pack in a directory where another was killed, and one whose name is taken meanwhile.
func TestAfterAKill(t *testing.T) {
	dir := earlierDataset(t)
	for n := 1; !exists(filepath.Join(dir, "new.npy")); n++ {
		if err := replacement(t, dir, failing(n, true), true); err == nil {
			t.Fatal("no kill came after a new name")
		}
	}
	o := Options{Sources: []string{corpustest.Dir(t, map[string]string{"a.txt": "text"})}, Out: dir}
	if _, err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "a pack was stopped in "+dir) {
		t.Errorf("without --force: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "old.npy"), []byte("theirs"), 0o644); err != nil {
		t.Fatal(err)
	}
	o.Force = true
	if _, err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), `"old.npy" has been taken meanwhile`) {
		t.Errorf("a taken name: got %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "old.npy")); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, dir); len(got) != 4 || got["mine"] != "keep" || got["data_text_document.bin"] == "" {
		t.Errorf("left: %v", got)
	}
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
