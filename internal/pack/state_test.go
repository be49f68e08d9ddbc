package pack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// resumable are options whose runs take many batches and write several shards, in each format.
func resumable(t testing.TB) map[string]Options {
	t.Helper()
	dir := sampleCorpus(t)
	files := 3
	if os.Getenv("HBMFS_TEST_LONG") != "" {
		files = 6
	}
	for i := range files {
		lines := strings.Repeat(fmt.Sprintf("{\"text\": \"document of file %d\"}\n", i), 4200) // a batch of each file is full, and one is not
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("x%d.jsonl", i)), []byte(lines), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return map[string]Options{
		"megatron":         {Sources: []string{dir}, Format: Megatron},
		"megatron, shards": {Sources: []string{dir}, Format: Megatron, ShardTokens: 20_000},
		"llmc":             {Sources: []string{dir}, Format: LLMC, ShardTokens: 10_000, ValFraction: 0.1},
		"nanogpt":          {Sources: []string{dir}, Format: NanoGPT, ValFraction: 0.1, BOS: "7", SpecialText: true},
		"npy":              {Sources: []string{dir}, Format: NPY, ShardTokens: 10_000},
		"mds":              {Sources: []string{dir}, Format: MDS, ShardTokens: 10_000},
		"mds, samples":     {Sources: []string{dir}, Format: MDS, ShardTokens: 10_000, SampleTokens: 128},
	}
}

// same are the files of two runs, but for the time they took.
func same(t testing.TB, what string, got, want map[string][]byte) {
	t.Helper()
	for name := range want {
		if !bytes.Equal(got[name], want[name]) {
			t.Errorf("%s: %s differs: %d bytes, want %d", what, name, len(got[name]), len(want[name]))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: files %v, want %v", what, names(got), names(want))
	}
}

func TestInterruptedRunGoesOn(t *testing.T) {
	for what, o := range resumable(t) {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // most of the time is the disk's
			interruptOften(t, o)
		})
	}
}

// interruptOften runs o until it is done, stopped after every fourth batch.
func interruptOften(t *testing.T, o Options) {
	wantResult, want := runPack(t, o)
	o.Out, o.SaveEvery = filepath.Join(t.TempDir(), "out"), 1
	runs := 0
	for done := false; !done && runs < 20; runs++ {
		ctx, cancel := context.WithCancel(t.Context())
		batches := 0
		o.Progress = func(int64, int64) {
			if batches++; batches == 4 { // the long text has three
				cancel()
			}
		}
		result, err := run(ctx, o)
		var kept *KeptError
		switch {
		case err == nil:
			done = true
			result.Seconds, wantResult.Seconds = 0, 0
			if !reflect.DeepEqual(result, wantResult) {
				t.Errorf("result %+v, want %+v", result, wantResult)
			}
		case !errors.Is(err, context.Canceled):
			t.Fatal(err)
		case !errors.As(err, &kept) || !strings.Contains(err.Error(), "the same command goes on there, and --restart begins anew"):
			t.Fatalf("nothing was kept: %v", err)
		}
		cancel()
	}
	if runs < 2 || runs == 20 {
		t.Errorf("%d runs", runs)
	}
	same(t, "interrupted", readDir(t, o.Out), want)
}

// copyDir copies what a kill would leave: files that may have more than what was synced.
func copyDir(t testing.TB, from, to string, more string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(e.Name(), ".tmp") {
			data = append(data, more...)
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKilledRunGoesOn(t *testing.T) {
	for what, o := range resumable(t) {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // as above
			_, want := runPack(t, o)
			top := t.TempDir()
			o.Out, o.SaveEvery = filepath.Join(top, "out"), 1
			batches := 0
			o.Progress = func(int64, int64) { // as if it was killed after this batch
				batches++
				copyDir(t, o.Out, filepath.Join(top, fmt.Sprint(batches)), strings.Repeat("x", batches))
			}
			if _, err := run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			o.Progress = nil
			if batches < 4 {
				t.Errorf("%d batches", batches)
			}
			for i := 2; i < batches; i += 5 {
				o.Out = filepath.Join(top, fmt.Sprint(i+1))
				_, got := runPack(t, o)
				same(t, fmt.Sprintf("killed after batch %d", i+1), got, want)
			}
		})
	}
}

// interrupted leaves a state in a directory of its own.
func interrupted(t *testing.T, o Options) Options {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Out, o.SaveEvery = filepath.Join(t.TempDir(), "out"), 1
	batches := 0
	o.Progress = func(int64, int64) {
		if batches++; batches == 4 {
			cancel()
		}
	}
	var kept *KeptError
	if _, err := run(ctx, o); !errors.As(err, &kept) {
		t.Fatalf("nothing is kept: %v", err)
	}
	o.Progress = nil
	return o
}

func TestOtherOptionsDoNotGoOn(t *testing.T) {
	o := interrupted(t, resumable(t)["llmc"])
	for want, change := range map[string]func(o *Options){
		`--to was "llmc" then, and is "npy" now`:                func(o *Options) { o.Format, o.ValFraction = NPY, 0 },
		`--shard-tokens was "10000" then, and is "100" now`:     func(o *Options) { o.ShardTokens = 100 },
		`--val-fraction was "0.1" then, and is "0" now`:         func(o *Options) { o.ValFraction = 0 },
		`--tokenizer was "gpt2" then, and is "p50k_base" now`:   func(o *Options) { o.Tokenizer = "p50k_base" },
		`--bos was "[]" then, and is "[7]" now`:                 func(o *Options) { o.BOS = "7" },
		`--special-text was "false" then, and is "true" now`:    func(o *Options) { o.SpecialText = true },
		`--eot was "[50256]" then, and is "[]" now`:             func(o *Options) { o.EOT = "none" },
		`--name was "data" then, and is "x" now`:                func(o *Options) { o.Name = "x" },
		`--text-key was "" then, and is "body" now`:             func(o *Options) { o.TextKey = "body" },
		`the sources are others, or have changed since`:         func(o *Options) { o.Sources = []string{filepath.Join(o.Sources[0], "b")} },
		`--include was "" then, and is "*" now`:                 func(o *Options) { o.Include = []string{"*"} },
		`--part was "" then, and is "0/1" now. Repeat its comm`: func(o *Options) { o.Part = Part{0, 1} },
	} {
		other := o
		change(&other)
		_, err := run(t.Context(), other)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "use --restart to begin anew") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	other := o
	other.Format, other.ValFraction, other.Restart = NPY, 0, true
	if _, files := runPack(t, other); len(files) < 3 || files["data_00000.npy"] == nil {
		t.Errorf("restarted: files %v", names(files))
	}
}

func TestChangedSourceDoesNotGoOn(t *testing.T) {
	o := interrupted(t, resumable(t)["npy"])
	path := filepath.Join(o.Sources[0], "a.txt")
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "the sources are others, or have changed since") {
		t.Errorf("got %v", err)
	}
}

func TestDamagedState(t *testing.T) {
	whole := resumable(t)["nanogpt"]
	for want, damage := range map[string]func(dir, temp string) error{
		"cannot be read: use --restart":     func(dir, _ string) error { return os.WriteFile(filepath.Join(dir, stateName), []byte("{"), 0o644) },
		"has lost " + tempPrefix:            func(_, temp string) error { return os.Remove(temp) },
		"it has 1 bytes, not":               func(_, temp string) error { return os.Truncate(temp, 1) },
		"too many levels of symbolic links": func(_, temp string) error { return errors.Join(os.Remove(temp), os.Symlink("/etc/passwd", temp)) },
		"state of an interrupted pack in ": func(dir, _ string) error {
			return os.WriteFile(filepath.Join(dir, stateName), []byte(`{"prefix": "../x"}`), 0o644)
		},
		"another version of hbmfs wrote it. Repeat": func(dir, _ string) error {
			return os.WriteFile(filepath.Join(dir, stateName), []byte(`{"prefix": ".hbmfs-pack-1"}`), 0o644)
		},
	} {
		o := interrupted(t, whole)
		temps, err := filepath.Glob(filepath.Join(o.Out, tempPrefix+"*.tmp"))
		if err != nil || len(temps) == 0 {
			t.Fatal(temps, err)
		}
		if err := damage(o.Out, temps[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		o.Restart = true
		if _, files := runPack(t, o); files["train.bin"] == nil {
			t.Errorf("%s: restarted: files %v", want, names(files))
		}
	}
}

func TestOneRunAtATime(t *testing.T) {
	o := resumable(t)["npy"]
	o.Out = filepath.Join(t.TempDir(), "out")
	other := error(nil)
	o.Progress = func(int64, int64) {
		o := o
		o.Progress, o.Force = nil, true
		if other == nil {
			_, other = run(t.Context(), o)
		}
	}
	if _, err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if other == nil || other.Error() != "another pack writes into "+o.Out+" now" {
		t.Errorf("the second run: %v", other)
	}
}

func TestFailureKeepsTheState(t *testing.T) {
	dir := sampleCorpus(t)
	if err := os.WriteFile(filepath.Join(dir, "c.jsonl"), []byte("{\"text\": 5}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	o := Options{Sources: []string{dir}, Out: filepath.Join(t.TempDir(), "out"), SaveEvery: 1}
	_, err := run(t.Context(), o)
	if err == nil || !strings.HasSuffix(err.Error(), fmt.Sprintf(`c.jsonl: line 1: the value of "text" is not a string. 5002 documents are packed and kept in %s: the same command goes on there, and --restart begins anew`, o.Out)) {
		t.Errorf("got %v", err)
	}
}

func TestPartsJoinedAreOneRun(t *testing.T) {
	for what, o := range resumable(t) {
		wantResult, want := runPack(t, o)
		counts := []int{3}
		if what == "llmc" {
			counts = []int{1, 3, 8}
		}
		for _, n := range counts {
			var parts []string
			for i := range n {
				p := o
				p.Part, p.Out, p.Workers = Part{i, n}, filepath.Join(t.TempDir(), "part"), i%3+1
				first, err := run(t.Context(), p)
				if err != nil {
					t.Fatalf("%s, part %d of %d: %v", what, i, n, err)
				}
				if again, err := run(t.Context(), p); err != nil || again.Tokens != first.Tokens || again.Documents != first.Documents {
					t.Errorf("%s, part %d of %d, which is complete: %+v, %v", what, i, n, again, err)
				}
				parts = append([]string{p.Out}, parts...)
			}
			parts[0] = parts[0][:len(parts[0])-1] + "?" // a pattern that no shell has seen
			out := filepath.Join(t.TempDir(), "out")
			result, err := Join(t.Context(), Options{Sources: parts, Out: out, Index: memoryIndex})
			if err != nil {
				t.Fatalf("%s, %d parts: %v", what, n, err)
			}
			same(t, fmt.Sprintf("%s, %d parts", what, n), readDir(t, out), want)
			result.Seconds, wantResult.Seconds = 0, 0
			if !reflect.DeepEqual(result, wantResult) {
				t.Errorf("%s, %d parts: result %+v, want %+v", what, n, result, wantResult)
			}
		}
	}
}

// A part that is packed already is left as it is, and its result is that of the run that packed it.
func TestPartIsThereAlready(t *testing.T) {
	o := Options{Sources: []string{sampleCorpus(t)}, Part: Part{0, 2}, Out: filepath.Join(t.TempDir(), "part")}
	first, err := run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := run(t.Context(), o)
	if first.Seconds, again.Seconds = 0, 0; err != nil || len(again.Shards) == 0 || !reflect.DeepEqual(first, again) {
		t.Errorf("%+v, %v, want %+v", again, err, first)
	}
}

func TestPartsThatDoNotFit(t *testing.T) {
	dir := sampleCorpus(t)
	part := func(i, n int, change func(o *Options)) string {
		t.Helper()
		o := Options{Sources: []string{dir}, Part: Part{i, n}, Out: filepath.Join(t.TempDir(), fmt.Sprintf("part-%d-%d", i, n))}
		if change != nil {
			change(&o)
		}
		if _, err := run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		return o.Out
	}
	first, second, of3 := part(0, 2, nil), part(1, 2, nil), part(1, 3, nil)
	smaller := part(1, 2, func(o *Options) { o.Tokenizer = "p50k_base" })
	elsewhere := part(1, 2, func(o *Options) { o.Sources = []string{sampleCorpus(t), filepath.Join(dir, "a.txt")} })
	cut := part(1, 2, nil)
	if err := os.Truncate(filepath.Join(cut, "part_text_document.bin"), 10); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		parts []string
		want  string
	}{
		{[]string{first}, "1 of the 2 parts are missing: 1"},
		{[]string{second, second}, "are both part 1 of 2: give each once"},
		{[]string{first, second, first}, "are both part 0 of 2: give each once"},
		{[]string{first, of3}, "they are of different runs"},
		{[]string{first, smaller}, `are parts of different runs: --tokenizer was "gpt2" then, and is "p50k_base" now`},
		{[]string{first, elsewhere}, "are parts of different runs: the sources are others"},
		{[]string{first, cut}, "part_text_document.bin has 10 bytes, its manifest says"},
		{[]string{first, dir}, "is no part: it has no hbmfs-part.json, which `hbmfs pack --part` writes last"},
	} {
		out := filepath.Join(t.TempDir(), "out")
		_, err := Join(t.Context(), Options{Sources: tc.parts, Out: out, Index: memoryIndex})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want %s", err, tc.want)
		}
		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the output is there", tc.want)
		}
	}
	for _, text := range []string{"", "1", "2/2", "-1/2", "0/0", "a/b", "0/2000000"} {
		if _, err := ParsePart(text); err == nil || !strings.Contains(err.Error(), "write I/N, with I from 0 to N-1, such as 0/16") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
