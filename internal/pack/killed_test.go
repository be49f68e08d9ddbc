package pack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/pack/corpus/corpustest"
)

// killed returns copies of the output of a run, after each of its batches, as a kill would leave it.
func killed(t *testing.T, run func(context.Context, Options) (Result, error), o Options) (copies []string) {
	t.Helper()
	top := t.TempDir()
	o.Out = filepath.Join(top, "out")
	o.Progress = func(int64, int64) {
		copies = append(copies, filepath.Join(top, fmt.Sprint(len(copies))))
		copyDir(t, o.Out, copies[len(copies)-1], "more")
	}
	if _, err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return copies
}

// temps are the temporary files in a directory.
func temps(t *testing.T, dir string) []string {
	t.Helper()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(readDir(t, dir))), func(name string) bool { return !strings.HasPrefix(name, tempPrefix) })
}

// A run that is killed before it saves a state leaves no more than temporary files, and the same command begins anew.
func TestKilledBeforeAState(t *testing.T) {
	o := Options{Sources: []string{sampleCorpus(t)}, ShardTokens: 20_000}
	_, want := runPack(t, o)
	part := o
	part.Part, part.Out = Part{0, 1}, filepath.Join(t.TempDir(), "part")
	if _, err := run(t.Context(), part); err != nil {
		t.Fatal(err)
	}
	tokens := Options{Sources: []string{part.Out}, Index: memoryIndex, Format: MDS, SampleTokens: 128}
	_, wantTokens := runPack(t, tokens)
	for _, tc := range []struct {
		what string
		run  func(context.Context, Options) (Result, error)
		o    Options
		want map[string][]byte
	}{
		{"text", run, o, want},
		{"join", Join, Options{Sources: []string{part.Out}, Index: memoryIndex}, want},
		{"tokens", run, tokens, wantTokens},
	} {
		copies := killed(t, tc.run, tc.o)
		for _, dir := range []string{copies[len(copies)/2], copies[len(copies)-1]} {
			if len(temps(t, dir)) == 0 {
				t.Errorf("%s: a kill left no temporary file in %s", tc.what, dir)
			}
			tc.o.Out = dir
			if _, err := tc.run(t.Context(), tc.o); err != nil {
				t.Errorf("%s, killed in %s of %d: %v", tc.what, dir, len(copies), err)
			}
			same(t, fmt.Sprintf("%s, killed in %s", tc.what, dir), readDir(t, dir), tc.want)
		}
	}
}

// A lock on a directory excludes no run on another machine, nor one by another mount. So the files of such a run stay.
func TestRunOfAnotherMachineKeepsItsFiles(t *testing.T) {
	o := Options{Sources: []string{sampleCorpus(t)}, Format: NPY, ShardTokens: 10_000}
	_, want := runPack(t, o)
	copies := killed(t, run, o)
	dir := copies[len(copies)-1]
	out, err := newOutput(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	out.close()
	mine := temps(t, dir)
	if len(mine) < 2 || out.base == tempPrefix || !strings.HasPrefix(mine[0], out.base) {
		t.Fatalf("the files of a run that had the lock of %q are %v", out.base, mine)
	}
	refused := func(what string, err error, words string, names ...string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: got %v, want %s", what, err, words)
		}
		if left := temps(t, dir); !slices.Equal(left, names) {
			t.Errorf("%s: %v are left of %v", what, left, names)
		}
	}
	const elsewhere = "may still run on another machine: when none runs there, use --restart"
	refused("without a lock", (&output{dir: dir, base: tempPrefix}).clear(false), elsewhere, mine...)
	refused("by another mount", (&output{dir: dir, base: out.base[:len(out.base)-1] + "0-"}).clear(false), elsewhere, mine...)

	theirs := strings.Replace(mine[0], strings.TrimPrefix(out.base, tempPrefix), "another-", 1)
	if err := os.Rename(filepath.Join(dir, mine[0]), filepath.Join(dir, theirs)); err != nil {
		t.Fatal(err)
	}
	both := append(slices.Clone(mine[1:]), theirs)
	slices.Sort(both)
	o.Out = dir
	_, err = run(t.Context(), o)
	refused("beside another run's", err, elsewhere, both...)

	// A run on another machine that went on with files of this one publishes them: its state is gone.
	if err := os.WriteFile(filepath.Join(dir, successorName), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	both = append(both, successorName)
	slices.Sort(both)
	refused("beside a publish", out.clear(true), "another pack writes into "+dir+" now", both...)
	if err := os.Remove(filepath.Join(dir, successorName)); err != nil {
		t.Fatal(err)
	}

	forced := o
	forced.Out, forced.Force = filepath.Join(t.TempDir(), "forced"), true
	copyDir(t, dir, forced.Out, "")
	if _, err := run(t.Context(), forced); err != nil || !slices.Equal(temps(t, forced.Out), []string{theirs}) {
		t.Errorf("--force: %v, left: %v", err, temps(t, forced.Out))
	}
	o.Restart = true
	_, got := runPack(t, o)
	same(t, "--restart", got, want)
}

// While a run that has saved a state gives files their names, other machines always see its state or the new manifest.
// If a change fails, the earlier dataset has its names again.
func TestStateGoesWhenNamesAreGiven(t *testing.T) {
	docs := [][]uint32{{1, 2, 3}, {4, 5}}
	o := Options{Out: corpustest.Dir(t, map[string]string{"mine": "keep"}), Format: NPY, Name: "old", Force: true}
	_, earlier, err := packTokens(t, o, docs, 100)
	if err != nil {
		t.Fatal(err)
	}
	o.Name = "new"
	for n, done := 1, false; !done; n++ {
		in := &input{source: listed(docs), tokens: true, vocabulary: 100}
		p, err := newPlan(&o, in)
		if err != nil {
			t.Fatal(err)
		}
		out, err := newOutput(o.Out, true)
		if err != nil {
			t.Fatal(err)
		}
		w := p.newWriter(out)
		if err := errors.Join(w.begin(false), w.save()); err != nil {
			t.Fatal(err)
		}
		fail, left := failing(n, false), n
		out.before = func() error {
			if left--; left < 0 { // it gives up, and its files with it
				return nil
			}
			entries, err := os.ReadDir(o.Out)
			if err != nil {
				t.Error(err)
			}
			if slices.ContainsFunc(entries, isTemp) && !exists(filepath.Join(o.Out, stateName)) && !exists(filepath.Join(o.Out, successorName)) {
				t.Errorf("change %d: neither state nor manifest: %v", n, entries)
			}
			return fail()
		}
		_, err = p.run(t.Context(), out, in, w)
		if done = err == nil; done && n < 8 {
			t.Errorf("a pack changes only %d names", n)
		}
		if err != nil {
			if !errors.Is(err, errInjected) {
				t.Fatal(err)
			}
			complete := strings.Contains(err.Error(), "is complete")
			if w.leaveState() {
				if err := w.begin(true); err != nil { // nothing was changed yet
					t.Error(err)
				}
			} else if err := out.abort(); err != nil {
				t.Errorf("failure %d: %v", n, err)
			}
			if !complete {
				same(t, fmt.Sprintf("failure %d", n), readDir(t, o.Out), earlier)
			}
			done = complete
		}
		out.close()
	}
}
