// Command testreport runs `go test` and says in plain words what happened.
//
// It prints one line for each package, the output of what failed, the reason of every skip, and as the last
// line `N passed, N failed, N skipped`. It fails when a test failed, when nothing ran, and when a test listed
// by --must-not-skip (see must.go) skipped or is gone although the machine has what that test needs.
//
//	go run ./tests/cmd/testreport --must-not-skip tests/must_not_skip.txt -race ./...
//
// Everything after its own flags goes to `go test`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

// run tests as args say and writes the report to out. The report's tally is written even when it returns an
// error, and always last, so that the last line of a log is the verdict.
func run(ctx context.Context, args []string, out io.Writer) error {
	mustFile, goArgs := splitArgs(args)
	var must []requirement
	if mustFile != "" {
		data, err := os.ReadFile(mustFile)
		if err != nil {
			return fmt.Errorf("read the list of tests that must not skip: %w", err)
		}
		if must, err = parseRequirements(string(data)); err != nil {
			return fmt.Errorf("%s: %w", mustFile, err)
		}
	}

	results := newResults(out)
	runErr := goTest(ctx, goArgs, results)
	problems := unmet(must, results, machineHas)
	for _, p := range problems {
		fmt.Fprintf(out, "MUST NOT SKIP: %s\n", p)
	}
	results.summary()
	switch {
	case results.failed > 0:
		return errors.New("tests failed")
	case runErr != nil:
		return runErr
	case len(problems) > 0:
		return errors.New("tests that must run did not")
	case results.passed == 0:
		return errors.New("no test ran")
	}
	return nil
}

// splitArgs takes our one flag off the front; package flag would trip over the flags of `go test`.
func splitArgs(args []string) (mustFile string, goArgs []string) {
	if len(args) >= 2 && args[0] == "--must-not-skip" {
		return args[1], args[2:]
	}
	return "", args
}

// goTest runs `go test -json` and feeds its events to results.
func goTest(ctx context.Context, args []string, results *results) error {
	// Not from go's cache of results: it does not know that the black-box suites test a binary that they build.
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count=1"}, args...)...)
	// An interrupt lets the tests unmount and clean up; a kill would not.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	readErr := results.readAll(stdout)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return readErr
}
