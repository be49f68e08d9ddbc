package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// stream is what `go test -json` writes: a table with one skip and one failure, and a package that does not build.
const stream = `
{"Action":"run","Package":"m/a","Test":"TestTable"}
{"Action":"run","Package":"m/a","Test":"TestTable/ok"}
{"Action":"run","Package":"m/a","Test":"TestTable/skips"}
{"Action":"output","Package":"m/a","Test":"TestTable/skips","Output":"    a_test.go:7: needs FUSE\n"}
{"Action":"pass","Package":"m/a","Test":"TestTable/ok"}
{"Action":"skip","Package":"m/a","Test":"TestTable/skips"}
{"Action":"pass","Package":"m/a","Test":"TestTable"}
{"Action":"run","Package":"m/a","Test":"TestBad"}
{"Action":"run","Package":"m/a","Test":"TestBad/inner"}
{"Action":"output","Package":"m/a","Test":"TestBad/inner","Output":"    got 1, want 2\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad/inner"}
{"Action":"fail","Package":"m/a","Test":"TestBad"}
{"Action":"fail","Package":"m/a","Elapsed":0.5}
{"ImportPath":"m/b","Action":"build-output","Output":"b.go:3: undefined: x\n"}
{"Action":"fail","Package":"m/b","Elapsed":0}
{"Action":"run","Package":"m/c","Test":"TestWaits"}
{"Action":"output","Package":"m/c","Test":"TestWaits","Output":"=== PAUSE TestWaits\n"}
{"Action":"pause","Package":"m/c","Test":"TestWaits"}
{"Action":"run","Package":"m/c","Test":"TestHangs"}
{"Action":"output","Package":"m/c","Test":"TestHangs","Output":"=== RUN   TestHangs\n"}
{"Action":"output","Package":"m/c","Test":"TestHangs","Output":"panic: test timed out after 2s\n"}
{"Action":"fail","Package":"m/c","Elapsed":2}
`

func collect(t *testing.T, events string) (*results, *strings.Builder) {
	t.Helper()
	out := &strings.Builder{}
	r := newResults(out)
	if err := r.readAll(strings.NewReader(strings.TrimSpace(events) + "\n")); err != nil {
		t.Fatal(err)
	}
	return r, out
}

func TestReport(t *testing.T) {
	r, out := collect(t, stream)
	r.summary()
	text := out.String()
	if !strings.HasSuffix(text, "\n1 passed, 3 failed, 1 skipped\n") {
		t.Errorf("the last line is not the tally of leaves:\n%s", text)
	}
	for _, want := range []string{
		"FAIL m/a  0.5s", "got 1, want 2", "skipped TestTable/skips: a_test.go:7: needs FUSE",
		"b.go:3: undefined: x", "FAIL m/b: failed outside any test",
		"hung TestHangs: it still ran", "did not end TestHangs\n=== RUN   TestHangs\npanic: test timed out after 2s\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("report lacks %q:\n%s", want, text)
		}
	}
}

func TestUnmet(t *testing.T) {
	r, _ := collect(t, stream)
	list, err := parseRequirements("# why\na TestTable fuse\na TestGone\na TestRoot root # only root can\n")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		has  []string
		want []string
	}{
		{"without fuse only the absent one is missed", nil, []string{"a TestGone did not run (renamed or removed?)"}},
		{"with fuse a skipped subtest counts", []string{"fuse"}, []string{
			"a TestGone did not run (renamed or removed?)",
			"a TestTable/skips skipped: a_test.go:7: needs FUSE",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := unmet(list, r, func(need string) bool { return slices.Contains(tt.has, need) })
			if !slices.Equal(got, tt.want) {
				t.Errorf("unmet = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestParseRequirementsRefuses(t *testing.T) {
	for _, text := range []string{"fs", "fs TestX moon"} {
		if list, err := parseRequirements(text); err == nil {
			t.Errorf("parseRequirements(%q) = %v, want an error", text, list)
		}
	}
}

func TestShippedListParses(t *testing.T) {
	data, err := os.ReadFile("../../must_not_skip.txt")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseRequirements(string(data)); err != nil {
		t.Error(err)
	}
}
