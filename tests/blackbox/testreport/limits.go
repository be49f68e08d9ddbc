package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const module = "github.com/hbmfs/hbmfs"

// defaultSpare is the time that a package's tests have beside three times their quiet duration. So a busy machine never comes near the end of it.
const defaultSpare = 10 * time.Minute

// quietest is the least duration, in seconds, that deserves a line in the table.
const quietest = 30

// heading is the first lines of tests/limits.txt.
const heading = `# How long the tests of packages take on a quiet machine with two CPUs, in seconds. Packages that are missing take less than half a minute.
#
# testreport ends a package's tests after three times this duration and ten minutes more, and names what still ran.
# make test WRITE_LIMITS=1 measures all packages anew and rewrites this file. Run it on a quiet machine.

`

// limits has the quiet durations of packages by their path below the module, such as "tests/suites/mount".
type limits map[string]time.Duration

func readLimits(path string) (limits, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read how long packages take: %w", err)
	}
	l, err := parseLimits(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

func parseLimits(text string) (limits, error) {
	l := limits{}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) != 2 {
			return nil, fmt.Errorf("line %d: want PACKAGE SECONDS, got %q", i+1, line)
		}
		seconds, err := strconv.ParseUint(words[1], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("line %d: want PACKAGE SECONDS: %w", i+1, err)
		}
		l[words[0]] = time.Duration(seconds) * time.Second
	}
	return l, nil
}

// limits has how long the tests of this run's packages took.
func (r *results) limits() limits {
	l := limits{}
	for pkg, seconds := range r.took {
		l[strings.TrimPrefix(pkg, module+"/")] = time.Duration(seconds * float64(time.Second))
	}
	return l
}

// write writes the table that parseLimits reads, longest first.
func (l limits) write(path string) error {
	text := &strings.Builder{}
	text.WriteString(heading)
	for _, pkg := range l.longestFirst() {
		if seconds := math.Ceil(l[pkg].Seconds()); seconds >= quietest {
			fmt.Fprintf(text, "%s %.0f\n", pkg, seconds)
		}
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

func (l limits) longestFirst() []string {
	return slices.SortedFunc(maps.Keys(l), func(a, b string) int { return cmp.Or(cmp.Compare(l[b], l[a]), cmp.Compare(a, b)) })
}

// order names the packages of the table before ./... in the arguments of go test, longest first. Go starts packages in the order of its arguments,
// and a long package that starts last leaves CPUs idle at the end of the run.
func (l limits) order(args []string) []string {
	all := slices.Index(args, "./...")
	if all < 0 {
		return args
	}
	var long []string
	for _, pkg := range l.longestFirst() {
		long = append(long, "./"+pkg)
	}
	return slices.Insert(slices.Clone(args), all, long...)
}
