package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A failed test runs once more, alone, when all others have ended. If it passes, it is flaky: the run stays green and shows it. That is for assertions and
// bounds of time only. The rules below say which failures count at once.

// mostFlaky is how many flaky tests a green run may have.
const mostFlaky = 3

// mostAgain is how many failed tests run again. More have a common cause, and would take long.
const mostAgain = 12

// grave has the words of failures that never run again, and their names.
//
// A test that finds other bytes than it wants says so in one of these words, or in a branch whose condition compares bytes: see comparesBytes.
//
//nolint:gochecknoglobals // a table
var grave = []struct {
	what  string
	words *regexp.Regexp
}{
	{"a data race", regexp.MustCompile(`(?i)data race|race detected`)},
	{"a timeout", regexp.MustCompile(regexp.QuoteMeta(hungMark) + "|" + regexp.QuoteMeta(overtime))},
	{"a crash", regexp.MustCompile(`(?i)\bpanic\b|goroutine \d+ \[|fatal error|fatal python error|internal error|signal: |SIG(SEGV|BUS|ABRT)|segmentation fault|core dumped|` + regexp.QuoteMeta(unusual))},
	{"a leak", regexp.MustCompile(`(?i)leak|unexpected goroutines|descriptors|still (open|held|mounted)|\bleft .*mounted`)},
	{"other bytes", regexp.MustCompile(`(?i)(wrong|other|lost) (bytes|tokens|content)|bytes .*\b(wrong|lost|not (the|those))\b|differ|corrupt|checksum`)},
}

// graveOfPython has the words of failed assertions of Python that compare bytes, arrays or tensors. pytest shows the statement after > and the values
// after E.
var graveOfPython = regexp.MustCompile(`(?m)^[>E] .*(\bequal\(|built-in method equal|array_equal|assert_close|method all of|\.all\(\)|tobytes|read_bytes|\bb['"])`)

// location is where a test reported a failure: `    file_test.go:12: text`.
var location = regexp.MustCompile(`^\s+([\w.-]+\.go):(\d+): `)

// gravity says why a failure with this output counts at once, or nothing. Dir has the package's files.
func gravity(output []string, dir string) string {
	text := strings.Join(output, "")
	asserted := text
	if said, ok := pytestOf(text); ok {
		asserted = said.failures
		if said.errors {
			return "an error beside a test of pytest"
		}
		if graveOfPython.MatchString(stripped(asserted)) {
			return "other bytes"
		}
	}
	for _, g := range grave {
		if g.words.MatchString(asserted) {
			return g.what
		}
	}
	for _, line := range output {
		if at := location.FindStringSubmatch(line); at != nil && comparesBytes(filepath.Join(dir, at[1]), at[2]) {
			return "other bytes"
		}
	}
	return ""
}

// comparesBytes tells whether the line is in a branch whose condition compares bytes: that of an if, or a case.
func comparesBytes(path, line string) bool {
	number, err := strconv.Atoi(line)
	files := token.NewFileSet()
	file, parseErr := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil || parseErr != nil {
		return false // it is of another package
	}
	found := false
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil || files.Position(n.Pos()).Line > number || files.Position(n.End()).Line < number {
			return false
		}
		switch n := n.(type) {
		case *ast.IfStmt:
			found = found || usesBytes(n.Init) || usesBytes(n.Cond)
		case *ast.CaseClause:
			found = found || slices.ContainsFunc(n.List, func(e ast.Expr) bool { return usesBytes(e) })
		}
		return true
	})
	return found
}

// usesBytes tells whether an expression compares bytes, or their sums.
func usesBytes(of ast.Node) (uses bool) {
	if of == nil {
		return false
	}
	ast.Inspect(of, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			name := fmt.Sprintf("%v.%s", n.X, n.Sel.Name)
			uses = uses || slices.Contains([]string{"bytes.Equal", "bytes.Compare", "sha256.Sum256", "crc32.Checksum"}, name)
		case *ast.CallExpr:
			name, ok := n.Fun.(*ast.Ident)
			uses = uses || ok && slices.Contains([]string{"sum", "hexSum"}, name.Name)
		}
		return !uses
	})
	return uses
}

// pytestRun is pytest's report in the output of a Go test that ran it.
type pytestRun struct {
	failed   []string // tests, as pytest names them
	failures string   // its section of that name
	errors   bool     // fixtures failed, or files could not be read
}

var (
	pytestFailures = regexp.MustCompile(`(?s)=+ FAILURES =+\n(.*?)\n\s*=+ (warnings summary|slowest |short test summary)`)
	pytestFailed   = regexp.MustCompile(`(?m)^\s*FAILED (\S+\.py::.*?)( - .*)?$`)
	pytestError    = regexp.MustCompile(`(?m)^\s*ERROR \S+\.py`)
)

func pytestOf(text string) (p pytestRun, ok bool) {
	section := pytestFailures.FindStringSubmatch(text)
	if section == nil {
		return p, false
	}
	for _, m := range pytestFailed.FindAllStringSubmatch(text, -1) {
		p.failed = append(p.failed, m[1])
	}
	p.failures, p.errors = section[1], pytestError.MatchString(text)
	return p, len(p.failed) > 0
}

// stripped takes from each line the spaces that package testing puts before it.
func stripped(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimLeft(line, " ")
	}
	return strings.Join(lines, "\n")
}

// candidate is a failed test that may be flaky.
type candidate struct {
	key
	python []string // the failed tests of pytest, where it ran that
}

// count is how many flaky tests it is if it passes.
func (c candidate) count() int { return max(1, len(c.python)) }

func (c candidate) String() string {
	return strings.Join(append([]string{c.pkg, c.test}, c.python...), " ")
}

// pattern is -run's argument for this test alone.
func (c candidate) pattern() string {
	names := strings.Split(c.test, "/")
	for i, name := range names {
		names[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	return strings.Join(names, "/")
}

// candidates lists the failed tests to run again, and says why each of the others counts at once. Dir gives the directory of a package.
//
// Of a table of subtests it is each subtest that failed, or the whole test if that says something itself.
func (r *results) candidates(dir func(pkg string) string) (list []candidate, others []string) {
	for k, outcome := range r.outcome {
		if k.test == "" || outcome != "fail" || !r.isCause(k) {
			continue
		}
		why := gravity(r.about(k), dir(k.pkg))
		if why == "" {
			why = r.gravityBeside(k.pkg)
		}
		if why != "" {
			others = append(others, fmt.Sprintf("%s %s: %s", k.pkg, k.test, why))
			continue
		}
		said, _ := pytestOf(strings.Join(r.output[k], ""))
		list = append(list, candidate{k, said.failed})
	}
	slices.SortFunc(list, func(a, b candidate) int { return strings.Compare(a.String(), b.String()) })
	slices.Sort(others)
	return list, others
}

// gravityBeside says why more failed in a package than its tests, or nothing.
func (r *results) gravityBeside(pkg string) string {
	if r.outcome[key{pkg, ""}] != "fail" || len(r.ran(pkg)) > 0 {
		return "its package did not end as one with failed tests does"
	}
	return gravity(r.output[key{pkg, ""}], "")
}

// isCause tells whether a failed test failed by itself: no test below it did, or it says something, and no test above it does.
func (r *results) isCause(k key) bool {
	for above, _, found := cutLast(k.test); found; above, _, found = cutLast(above) {
		if says(r.output[key{k.pkg, above}]) {
			return false
		}
	}
	return says(r.output[k]) || !slices.ContainsFunc(r.below(k), func(b key) bool { return r.outcome[b] == "fail" })
}

// about is the output of a test and of those below it.
func (r *results) about(k key) []string {
	lines := slices.Clone(r.output[k])
	for _, b := range r.below(k) {
		lines = append(lines, r.output[b]...)
	}
	return lines
}

// below lists the tests below a test that have ended.
func (r *results) below(k key) (tests []key) {
	for b := range r.outcome {
		if b.pkg == k.pkg && strings.HasPrefix(b.test, k.test+"/") {
			tests = append(tests, b)
		}
	}
	return tests
}

// says tells whether a test's output is more than the framing of package testing.
func says(output []string) bool {
	return slices.ContainsFunc(output, func(line string) bool {
		line = strings.TrimSpace(line)
		return line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---")
	})
}

// passedAlone notes that a failed test has passed alone, as alone has it.
func (r *results) passedAlone(c candidate, alone *results) {
	for _, b := range append(r.below(c.key), c.key) {
		if alone.outcome[b] != "" {
			r.outcome[b] = alone.outcome[b]
		}
	}
	r.outcome[c.key] = "flaky"
	r.flaky = append(r.flaky, c)
}

// dirOf is the directory of a package's files, which its failures name.
func dirOf(pkg string) string {
	out, _ := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output() // a package that is not there has no failed tests
	return strings.TrimSpace(string(out))
}

// again runs failed tests that may be flaky once more, as args say otherwise, one after the other.
func (r *runner) again(args []string, first *results) {
	list, others := first.candidates(dirOf)
	for _, test := range others {
		fmt.Fprintf(first.out, "does not run again: %s\n", test)
	}
	if len(list) > mostAgain {
		fmt.Fprintf(first.out, "%d tests failed: more than %d do not run again\n", len(list), mostAgain)
		return
	}
	for _, c := range list {
		if time.Now().After(r.end) {
			fmt.Fprintf(first.out, "does not run again: %s: the time of the whole run is over\n", c)
			continue
		}
		said := &strings.Builder{}
		alone := newResults(said)
		if err := r.alone(args, c, alone); err == nil && alone.outcome[c.key] == "pass" {
			fmt.Fprintf(first.out, "passed alone: %s\n", c)
			first.passedAlone(c, alone)
		} else {
			fmt.Fprintf(first.out, "failed alone, too: %s\n%s", c, said)
		}
	}
}

// alone runs one test of a package.
func (r *runner) alone(args []string, c candidate, to *results) error {
	packages := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, ".") })
	if packages < 0 {
		packages = len(args)
	}
	args = append(slices.Clone(args[:packages]), "-run", c.pattern(), c.pkg)
	var env []string
	if len(c.python) > 0 {
		env = []string{"HBMFS_PYTEST_ONLY=" + strings.Join(c.python, "\n")}
	}
	return r.goTest(args, env, to)
}
