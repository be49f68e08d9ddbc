package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestGravity(t *testing.T) {
	dir := t.TempDir()
	source := `package p

func TestX(t *testing.T) {
	if got := read(); !bytes.Equal(got, want) {
		t.Errorf("tokens.bin = %x", got)
	}
	if n := len(got); n != 2 {
		t.Errorf("got %d", n)
	}
	switch {
	case bytes.Compare(a, b) != 0:
		t.Error("no")
	case later:
		t.Error("no")
	}
	if sha256.Sum256(got) != want {
		t.Error("no")
	}
}
`
	if err := os.WriteFile(filepath.Join(dir, "x_test.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	pytest := func(failures, summary string) string {
		return "    x_test.go:8: F [100%]\n        ===== FAILURES =====\n" + failures + "\n        ===== slowest 8 durations =====\n        1.0s call test_leaks.py::test_x\n" +
			"        ===== short test summary info =====\n" + summary
	}
	for _, c := range []struct{ output, want string }{
		{"    x_test.go:5: tokens.bin = 61\n", "other bytes"},
		{"    x_test.go:8: got 1\n", ""},
		{"    x_test.go:12: no\n", "other bytes"},
		{"    x_test.go:14: no\n", ""},
		{"    x_test.go:17: no\n", "other bytes"},
		{"    y_test.go:5: it took 5.2s, want 5s\n", ""},
		{"    x_test.go:8: reader 3: 7 bytes at 12: <nil>, or they are wrong\n", "other bytes"},
		{"    x_test.go:8: 300 bytes at 7 differ\n", "other bytes"},
		{"WARNING: DATA RACE\n", "a data race"},
		{"    testing.go:1712: race detected during execution of test\n", "a data race"},
		{"panic: assignment to entry in nil map [recovered]\n", "a crash"},
		{"fatal error: all goroutines are asleep - deadlock!\n", "a crash"},
		{unusual + "signal: killed\n", "a crash"},
		{"    x_test.go:8: the daemon: signal: aborted\n", "a crash"},
		{"panic: test timed out after 10m0s\n", "a timeout"},
		{overtime + " of 5m0s and have not ended: SIGQUIT\n", "a timeout"},
		{"    x_test.go:8: found unexpected goroutines:\n", "a leak"},
		{"    x_test.go:8: 12 descriptors are open, 11 before\n", "a leak"},
		{"a test left /tmp/x mounted\n", "a leak"},
		{pytest("        E       assert 5.2 < 5", "        FAILED test_a.py::test_x[a b] - assert 5.2 < 5\n"), ""},
		{pytest("        >       assert torch.equal(x, y)", "        FAILED test_a.py::test_x - assert False\n"), "other bytes"},
		{pytest("        E       assert b'a' == b'b'", "        FAILED test_a.py::test_x - assert False\n"), "other bytes"},
		{pytest("        E       assert 1 == 2", "        FAILED test_a.py::test_x - assert 1 == 2\n        ERROR test_b.py::test_y - assert\n"), "an error beside a test of pytest"},
		{pytest("        E       AssertionError: 3 descriptors leak", "        FAILED test_a.py::test_x - Asser...\n"), "a leak"},
		{"        Fatal Python error: Segmentation fault\n", "a crash"},
	} {
		if got := gravity(strings.SplitAfter(c.output, "\n"), dir); got != c.want {
			t.Errorf("gravity of %q is %q, want %q", c.output, got, c.want)
		}
	}
	said, ok := pytestOf(pytest("E", "        FAILED test_a.py::test_x[a b] - assert\n        FAILED test_b.py::test_y\n"))
	if want := []string{"test_a.py::test_x[a b]", "test_b.py::test_y"}; !ok || !slices.Equal(said.failed, want) {
		t.Errorf("pytest's failed tests are %q, want %q", said.failed, want)
	}
}

// A failure in a branch that compares bytes is known by its place. Where the branch returns an error, another place reports it: its text has to say so.
func TestErrorsAboutBytesSaySo(t *testing.T) {
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{".git", ".cache", "testdata"}, d.Name()) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if branch, ok := n.(*ast.IfStmt); ok && (usesBytes(branch.Init) || usesBytes(branch.Cond)) {
				for _, text := range returned(branch.Body) {
					if gravity([]string{text}, "") != "other bytes" {
						t.Errorf("%s: an error about bytes should have one of the words of testreport's table, such as wrong bytes: %s", files.Position(branch.Pos()), text)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// returned is the text of errors that a branch returns by fmt.Errorf or errors.New.
func returned(branch *ast.BlockStmt) (texts []string) {
	ast.Inspect(branch, func(n ast.Node) bool {
		r, ok := n.(*ast.ReturnStmt)
		if !ok {
			return true
		}
		for _, result := range r.Results {
			call, ok := result.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				continue
			}
			literal, ok := call.Args[0].(*ast.BasicLit)
			if ok && literal.Kind == token.STRING && !strings.HasPrefix(literal.Value, `"%w `) {
				texts = append(texts, literal.Value)
			}
		}
		return true
	})
	return texts
}

func TestCandidates(t *testing.T) {
	events := `
{"Action":"run","Package":"m/a","Test":"TestTable"}
{"Action":"run","Package":"m/a","Test":"TestTable/a.b"}
{"Action":"output","Package":"m/a","Test":"TestTable/a.b","Output":"    a_test.go:7: took 6s\n"}
{"Action":"fail","Package":"m/a","Test":"TestTable/a.b"}
{"Action":"output","Package":"m/a","Test":"TestTable","Output":"--- FAIL: TestTable (0.00s)\n"}
{"Action":"fail","Package":"m/a","Test":"TestTable"}
{"Action":"run","Package":"m/a","Test":"TestSays"}
{"Action":"run","Package":"m/a","Test":"TestSays/one"}
{"Action":"fail","Package":"m/a","Test":"TestSays/one"}
{"Action":"output","Package":"m/a","Test":"TestSays","Output":"    a_test.go:9: and more\n"}
{"Action":"fail","Package":"m/a","Test":"TestSays"}
{"Action":"run","Package":"m/a","Test":"TestRace"}
{"Action":"output","Package":"m/a","Test":"TestRace","Output":"WARNING: DATA RACE\n"}
{"Action":"fail","Package":"m/a","Test":"TestRace"}
{"Action":"fail","Package":"m/a"}
{"Action":"run","Package":"m/b","Test":"TestX"}
{"Action":"fail","Package":"m/b","Test":"TestX"}
{"Action":"output","Package":"m/b","Output":"a test left /tmp/x mounted\n"}
{"Action":"fail","Package":"m/b"}
{"Action":"run","Package":"m/c","Test":"TestX"}
{"Action":"fail","Package":"m/c","Test":"TestX"}
{"Action":"run","Package":"m/c","Test":"TestY"}
{"Action":"fail","Package":"m/c"}
`
	r, _ := collect(t, events)
	list, others := r.candidates(func(string) string { return "" })
	var patterns []string
	for _, c := range list {
		patterns = append(patterns, c.pattern())
	}
	if want := []string{"^TestSays$", `^TestTable$/^a\.b$`}; !slices.Equal(patterns, want) {
		t.Errorf("%q run again, want %q", patterns, want)
	}
	if want := []string{
		"m/a TestRace: a data race", "m/b TestX: a leak", "m/c TestX: its package did not end as one with failed tests does",
	}; !slices.Equal(others, want) {
		t.Errorf("%q do not run again, want %q", others, want)
	}
	// Once the candidates have passed alone, only the others count.
	for _, c := range list {
		alone := newResults(&strings.Builder{})
		alone.outcome[c.key] = "pass"
		alone.outcome[key{"m/a", "TestSays/one"}] = "pass"
		r.passedAlone(c, alone)
	}
	r.summary()
	if r.passed != 2 || r.failed != 3 || r.flakyTests() != 2 {
		t.Errorf("%d passed, %d failed, %d flaky; want 2, 3, 2", r.passed, r.failed, r.flakyTests())
	}
}
