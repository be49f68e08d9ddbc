package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// event is one line of `go test -json` (source: `go doc test2json`).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output, which has no Package
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// key names a test; the test of a whole package is "".
type key struct{ pkg, test string }

// results collects events as they come and writes them to out in readable form.
//
// Tests are counted as leaves: a parent of subtests counts only when it failed by itself.
type results struct {
	out     io.Writer
	outcome map[key]string   // "pass", "fail", "skip", or "flaky" of a test that failed and then passed
	output  map[key][]string // lines of a test that still runs, or failed, or skipped
	parents map[key]bool
	running map[key]bool       // neither ended nor paused
	took    map[string]float64 // seconds that the tests of a package took
	flaky   []candidate
	packs   map[string][]string // failed and skipped tests of a package, in the order in which they ended

	passed, failed, skipped int
}

func newResults(out io.Writer) *results {
	return &results{
		out:     out,
		outcome: map[key]string{},
		output:  map[key][]string{},
		parents: map[key]bool{},
		running: map[key]bool{},
		took:    map[string]float64{},
		packs:   map[string][]string{},
	}
}

// readAll reads events until EOF. A line that is no event (a crash of the go command itself) is shown as it is.
func (r *results) readAll(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(r.out, "%s", line)
			} else {
				r.add(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the events of go test: %w", err)
		}
	}
}

func (r *results) add(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "pause":
		delete(r.running, k)
	case "run", "cont":
		r.running[k] = true
		if parent, _, found := cutLast(e.Test); found {
			r.parents[key{e.Package, parent}] = true
		}
	case "output":
		r.output[k] = append(r.output[k], e.Output)
	case "pass", "fail", "skip":
		r.outcome[k] = e.Action
		delete(r.running, k)
		if e.Test == "" {
			r.endPackage(e)
			return
		}
		if e.Action == "pass" {
			delete(r.output, k) // the output of a passing test helps nobody
		} else {
			r.packs[e.Package] = append(r.packs[e.Package], e.Test)
		}
	}
}

// endPackage prints a package's line, then its failures and skips.
func (r *results) endPackage(e event) {
	word := map[string]string{"pass": "ok  ", "fail": "FAIL", "skip": "-   "}[e.Action]
	note := ""
	if e.Action == "skip" {
		note = "  [no test files]"
	}
	fmt.Fprintf(r.out, "%s %s  %.1fs%s\n", word, e.Package, e.Elapsed, note)
	r.took[e.Package] = e.Elapsed
	for _, test := range r.packs[e.Package] {
		k := key{e.Package, test}
		if r.outcome[k] == "skip" {
			fmt.Fprintf(r.out, "     skipped %s: %s\n", test, reason(r.output[k]))
			continue
		}
		fmt.Fprintf(r.out, "     failed %s\n%s", test, strings.Join(r.output[k], ""))
	}
	if e.Action == "fail" {
		r.endHung(e.Package)
		for _, test := range r.unfinished(e.Package) {
			fmt.Fprintf(r.out, "     did not end %s\n%s", test, strings.Join(r.output[key{e.Package, test}], ""))
		}
		// A crash, a race report at exit or a failed TestMain belongs to no test.
		fmt.Fprint(r.out, strings.Join(r.output[key{e.Package, ""}], ""))
	}
}

// endHung fails the tests that still ran when their package's time was over, and names them.
func (r *results) endHung(pkg string) {
	over := false
	for k, lines := range r.output {
		over = over || k.pkg == pkg && slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, hungMark) || strings.HasPrefix(line, overtime) })
	}
	if !over {
		return
	}
	for _, test := range r.ran(pkg) {
		fmt.Fprintf(r.out, "     hung %s: it still ran when the time of its package was over\n", test)
		r.outcome[key{pkg, test}] = "fail"
	}
}

// ran lists the tests of a package that ran when it ended. A test that waits for one below it is not among them.
func (r *results) ran(pkg string) (tests []string) {
	for k := range r.running {
		if k.pkg == pkg && k.test != "" && !slices.ContainsFunc(slices.Collect(maps.Keys(r.running)), func(b key) bool { return b.pkg == pkg && strings.HasPrefix(b.test, k.test+"/") }) {
			tests = append(tests, k.test)
		}
	}
	slices.Sort(tests)
	return tests
}

// unfinished lists the tests of a package that said something and did not end. The report of a panic, and of a time that is over, is the output of
// the test that ran last.
func (r *results) unfinished(pkg string) (tests []string) {
	for k, lines := range r.output {
		if k.pkg == pkg && k.test != "" && (r.outcome[k] == "" || r.running[k]) && says(lines) {
			tests = append(tests, k.test)
		}
	}
	slices.Sort(tests)
	return tests
}

// summary counts, shows the first failures of flaky tests, and prints the last lines.
func (r *results) summary() {
	failedBelow := map[key]bool{}
	for k, outcome := range r.outcome {
		for t := k.test; outcome == "fail" || outcome == "flaky"; {
			parent, _, found := cutLast(t)
			if !found {
				break
			}
			failedBelow[key{k.pkg, parent}] = true
			t = parent
		}
	}
	failedPackages := r.failuresWithoutTest()
	for k, outcome := range r.outcome {
		leaf := !r.parents[k]
		switch {
		case k.test == "":
		case outcome == "fail" && (leaf || !failedBelow[k]):
			r.failed++
		case (outcome == "pass" || outcome == "flaky") && leaf:
			r.passed++
		case outcome == "skip" && leaf:
			r.skipped++
		}
	}
	r.failed += len(failedPackages)
	for _, p := range failedPackages {
		fmt.Fprintf(r.out, "FAIL %s: failed outside any test (does not build, crashed, or TestMain)\n", p)
	}
	for _, c := range r.flaky {
		fmt.Fprintf(r.out, "flaky %s: it passed when it ran again, alone. It failed first with\n%s", c, strings.Join(r.about(c.key), ""))
	}
	if n := r.flakyTests(); n > 0 {
		fmt.Fprintf(r.out, "%d flaky\n", n)
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}

// flakyTests is the number of flaky tests, of which Python's count one by one.
func (r *results) flakyTests() (n int) {
	for _, c := range r.flaky {
		n += c.count()
	}
	return n
}

// failuresWithoutTest lists the packages that failed although none of their tests did.
func (r *results) failuresWithoutTest() []string {
	testFailed := map[string]bool{}
	for k, outcome := range r.outcome {
		if k.test != "" && (outcome == "fail" || outcome == "flaky") {
			testFailed[k.pkg] = true
		}
	}
	var packages []string
	for k, outcome := range r.outcome {
		if k.test == "" && outcome == "fail" && !testFailed[k.pkg] {
			packages = append(packages, k.pkg)
		}
	}
	slices.Sort(packages)
	return packages
}

// reason finds the text of t.Skip in a test's output: the one line that is not test2json's framing.
func reason(output []string) string {
	var lines []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return "no reason given"
	}
	return strings.Join(lines, "; ")
}

// cutLast splits a subtest's name at its last slash.
func cutLast(test string) (parent, name string, found bool) {
	i := strings.LastIndexByte(test, '/')
	if i < 0 {
		return "", test, false
	}
	return test[:i], test[i+1:], true
}
