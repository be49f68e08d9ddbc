// Command testreport runs `go test` and reports the outcome in plain words.
//
// It prints one line for each package, the output of failed tests, the reason of every skip, and as the last
// line `N passed, N failed, N skipped`. It fails when a test failed, when nothing ran, and when a test listed
// by --must-not-skip (see must.go) skipped or is gone although the machine has the tools that it needs.
//
// Each package has a limit of time (--limits, see limits.go), and so has the run (--whole). Of ./... the longest packages come first. At its end the tests print their goroutines, and
// testreport names those that hang (see supervise.go). A failed assertion runs once more, alone; where it passes then, the line before the last
// is `N flaky`, and the run is green with three flaky tests at most (see flaky.go).
//
//	go run ./tests/blackbox/testreport --must-not-skip tests/must_not_skip.txt --limits tests/limits.txt -race ./...
//
// Everything after its own flags goes to `go test`: first flags, then packages, each of which begins with a dot.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == superviseVerb {
		os.Exit(superviseMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == toolexecVerb {
		os.Exit(toolexecMain(os.Args[2:]))
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := run(os.Args[1:], os.Stdout, signals); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

// options are the flags that come before those of `go test`.
type options struct {
	mustNotSkip, limits, writeLimits, linked string
	spare, whole                             time.Duration
}

// splitArgs takes our own flags off the front; package flag would trip over the flags of `go test`.
func splitArgs(args []string) (o options, goArgs []string, err error) {
	own := flag.NewFlagSet("testreport", flag.ContinueOnError)
	own.StringVar(&o.mustNotSkip, "must-not-skip", "", "`file` of the tests that must not skip")
	own.StringVar(&o.limits, "limits", "", "`file` of how long packages take")
	own.StringVar(&o.writeLimits, "write-limits", "", "write how long packages took to `file`")
	own.StringVar(&o.linked, "linked", "", "keep the tests that were linked in `dir`, for the next run")
	own.DurationVar(&o.spare, "spare", defaultSpare, "the `time` of a package beside three times its quiet duration")
	own.DurationVar(&o.whole, "whole", 24*time.Hour, "the `time` of all packages together")
	n := 0
	for n < len(args) && strings.HasPrefix(args[n], "--") {
		n++
		if !strings.Contains(args[n-1], "=") {
			n = min(n+1, len(args))
		}
	}
	return o, args[n:], own.Parse(args[:n])
}

// run tests as args say and writes the report to out. The report's tally is written even when it returns an
// error, and always last, so that the last line of a log is the verdict.
func run(args []string, out io.Writer, signals <-chan os.Signal) error {
	o, goArgs, err := splitArgs(args)
	if err != nil {
		return err
	}
	must, err := readRequirements(o.mustNotSkip)
	if err != nil {
		return err
	}
	known, err := readLimits(o.limits)
	if err != nil {
		return err
	}
	goArgs = known.order(goArgs)
	r, err := newRunner(o, signals)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "HBMFS_SEED=%s\n", os.Getenv(seedEnv))

	results := newResults(out)
	runErr := r.goTest(goArgs, nil, results)
	if runErr != nil && r.stopped == nil {
		r.again(goArgs, results)
	}
	problems := unmet(must, results, machineHas)
	for _, p := range problems {
		fmt.Fprintf(out, "MUST NOT SKIP: %s\n", p)
	}
	results.summary()
	switch flaky := results.flakyTests(); {
	case r.stopped != nil:
		return r.stopped
	case results.failed > 0:
		return errors.New("tests failed")
	case flaky > mostFlaky:
		return fmt.Errorf("more than %d tests are flaky", mostFlaky)
	case runErr != nil && flaky == 0:
		return runErr
	case len(problems) > 0:
		return errors.New("tests that must run did not")
	case results.passed == 0:
		return errors.New("no test ran")
	case o.writeLimits != "":
		return results.limits().write(o.writeLimits)
	}
	return nil
}

// seedEnv is the seed of all random tests.
const seedEnv = "HBMFS_SEED"

// runner runs `go test`.
type runner struct {
	exec    string    // value of -exec
	link    []string  // -toolexec and its value, where linked tests are kept
	end     time.Time // of the whole run
	signals <-chan os.Signal
	stopped error // why go test did not run all
}

func newRunner(o options, signals <-chan os.Signal) (*runner, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find testreport itself: %w", err)
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the module: %w", err)
	}
	table := o.limits
	if table != "" && !filepath.IsAbs(table) {
		table = filepath.Join(root, table)
	}
	if os.Getenv(seedEnv) == "" {
		if err := os.Setenv(seedEnv, "1"); err != nil {
			return nil, err
		}
	}
	end := time.Now().Add(o.whole)
	r := &runner{exec: quoted(self, superviseVerb, table, o.spare.String(), root, strconv.FormatInt(end.UnixMilli(), 10)), end: end, signals: signals}
	if o.linked != "" {
		dir, err := filepath.Abs(o.linked)
		if err != nil {
			return nil, fmt.Errorf("find the directory of linked tests: %w", err)
		}
		r.link = []string{"-toolexec=" + quoted(self, toolexecVerb, dir)}
	}
	return r, nil
}

// goTest runs `go test -json` and feeds its events to results.
func (r *runner) goTest(args, env []string, results *results) error {
	// Not from go's cache of results: it does not know that the black-box suites test a binary that they build. The supervisors of packages
	// have the limits.
	cmd := exec.Command("go", append([]string{"test", "-json", "-count=1", "-timeout=0", "-exec=" + r.exec}, append(r.link, args...)...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // all of it gets a signal once, from us
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		r.watch(cmd.Process.Pid, ended)
	}()
	readErr := results.readAll(stdout)
	err = cmd.Wait()
	close(ended)
	<-watched
	if err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return readErr
}

// watch passes signals on to `go test` and the supervisors of packages. Supervisors end tests in time; where go itself goes on when the time of the
// run is over, building more, it is interrupted, and killed in the end.
func (r *runner) watch(group int, ended <-chan struct{}) {
	const late = 2 * time.Minute // more than supervisors take
	over := time.NewTimer(time.Until(r.end.Add(late)))
	defer over.Stop()
	for sig := syscall.SIGINT; ; {
		select {
		case <-ended:
			return
		case <-r.signals:
			r.stopped = errors.New("interrupted")
			_ = syscall.Kill(-group, syscall.SIGINT) // it may have ended by now
		case <-over.C:
			r.stopped = errors.New("the time of the whole run is over")
			_ = syscall.Kill(-group, sig) // as above
			sig = syscall.SIGKILL
			over.Reset(late)
		}
	}
}
