package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// superviseVerb makes this program the parent of a package's tests: `go test -exec` runs it.
const superviseVerb = "supervise"

// marker is a variable of all processes that a package's tests started, in any session.
const marker = "HBMFS_TESTREPORT"

// overtime, in the output of a package's tests, says that they were ended when their time was over. [hungMark] is Go's own word for it.
const (
	overtime = "testreport: the tests are over their time"
	hungMark = "panic: test timed out after"
)

// unusual begins the line about tests that ended with a signal, or with neither status 0 nor 1: package testing has no others.
const unusual = "testreport: the tests ended with "

// patience has the times that a supervisor gives.
type patience struct {
	stacks    time.Duration // to a package's tests that print their goroutines at the end of their time
	quit      time.Duration // then, after SIGQUIT, which has Go's runtime print them
	interrupt time.Duration // to the running tests to end, when the user interrupts
	output    time.Duration // to other processes to close the output, when the tests have ended
}

func defaultPatience() patience {
	return patience{stacks: 30 * time.Second, quit: 20 * time.Second, interrupt: time.Minute, output: 20 * time.Second}
}

// supervised is a package's tests and all the processes that they start.
//
// The tests are a process group of their own, which a terminal's Ctrl-C does not reach: they may end by themselves, and unmount. Their output goes
// through a pipe of the supervisor's, so that `go test` never waits for a process that they left.
type supervised struct {
	cmd      *exec.Cmd
	mark     string // marker=value
	out      io.Writer
	patience patience
}

// superviseMain is the program that `go test -exec` runs: arguments of newRunner, then the tests' own.
func superviseMain(args []string) int {
	if len(args) < 5 {
		fmt.Fprintln(os.Stderr, "testreport: supervise is for go test -exec")
		return 2
	}
	table, spare, root, until, tests := args[0], args[1], args[2], args[3], args[4:]
	limit, err := timeFor(table, spare, root, until)
	if err != nil {
		fmt.Println("testreport:", err)
		return 1
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	return supervise(os.Stdout, tests, limit, signals, defaultPatience())
}

// quoted is the value of a flag of `go test` that has several words.
func quoted(words ...string) string {
	for i, word := range words {
		words[i] = "'" + word + "'"
	}
	return strings.Join(words, " ")
}

// timeFor says how long the tests of the package in the working directory may run. They end when the run must end, too.
func timeFor(table, spare, root, until string) (time.Duration, error) {
	l, err := readLimits(table)
	if err != nil {
		return 0, err
	}
	beside, spareErr := time.ParseDuration(spare)
	milliseconds, untilErr := strconv.ParseInt(until, 10, 64)
	dir, dirErr := os.Getwd()
	pkg, pkgErr := filepath.Rel(root, dir)
	if err := errors.Join(spareErr, untilErr, dirErr, pkgErr); err != nil {
		return 0, fmt.Errorf("find the time for a package: %w", err)
	}
	left := time.Until(time.UnixMilli(milliseconds)).Round(time.Millisecond)
	if left <= 0 {
		return 0, errors.New("the time of the whole run was over before these tests began")
	}
	return min(beside+3*l[pkg], left), nil
}

// supervise runs a package's tests for limit at most, and gives their exit status. Tests that are over their time print their goroutines and the
// names of the tests that still run; those that do not are killed with all that they started.
func supervise(out io.Writer, tests []string, limit time.Duration, signals <-chan os.Signal, p patience) int {
	args := slices.DeleteFunc(slices.Clone(tests), func(arg string) bool { return strings.HasPrefix(arg, "-test.timeout=") })
	args = slices.Insert(args, 1, "-test.timeout="+limit.String())
	s := &supervised{cmd: exec.Command(args[0], args[1:]...), mark: fmt.Sprintf("%s=%d.%d", marker, os.Getpid(), time.Now().UnixNano()), out: out, patience: p}
	// No file, so that it is a pipe; the same one, so that lines keep their order.
	s.cmd.Stdout = struct{ io.Writer }{out}
	s.cmd.Stdin, s.cmd.Stderr = os.Stdin, s.cmd.Stdout
	s.cmd.Env = append(os.Environ(), s.mark)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 { // mounts of one suite are not copied to the mount namespaces that another makes: a copy keeps the filesystem busy
		s.cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	s.cmd.WaitDelay = p.output
	if err := s.cmd.Start(); err != nil {
		fmt.Fprintln(out, "testreport: start the tests:", err)
		return 1
	}
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	err := s.wait(ended, limit, signals)
	if err != nil {
		s.endAll()
	}
	return s.status(err)
}

// wait waits for the end of the tests and takes the next step whenever the time for the last one is over.
func (s *supervised) wait(ended <-chan error, limit time.Duration, signals <-chan os.Signal) error {
	step := time.NewTimer(limit + s.patience.stacks)
	interrupted, asked, killed := false, false, false
	for {
		select {
		case err := <-ended:
			return err
		case <-signals:
			if !interrupted {
				fmt.Fprintf(s.out, "testreport: interrupted; running tests have %v to end\n", s.patience.interrupt)
				interrupted = true
				step.Reset(s.patience.interrupt)
				continue
			}
		case <-step.C:
			if !interrupted && !asked {
				fmt.Fprintf(s.out, "%s of %v and have not ended: SIGQUIT\n", overtime, limit)
				_ = s.cmd.Process.Signal(syscall.SIGQUIT) // it may have ended by now
				asked = true
				step.Reset(s.patience.quit)
				continue
			}
		}
		if killed {
			return errors.New("SIGKILL, and have not ended")
		}
		killed = true
		fmt.Fprintln(s.out, "testreport: the tests have not ended: SIGKILL")
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // as above
		s.endAll()                                            // tests that wait for a mount do not end before the mount's daemon does
		step.Reset(s.patience.output + s.patience.quit)
	}
}

// endAll ends all that the tests started and names it: a daemon unmounts at SIGTERM.
func (s *supervised) endAll() {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		left := s.started()
		for _, pid := range left {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended by now
			fmt.Fprintf(s.out, "testreport: the tests left process %d, %s: %v\n", pid, bytes.ReplaceAll(bytes.TrimRight(command, "\x00"), []byte{0}, []byte{' '}), sig)
			_ = syscall.Kill(pid, sig) // as above
		}
		for end := time.Now().Add(5 * time.Second); len(left) > 0 && time.Now().Before(end); left = s.started() {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// started lists the processes that have the tests' marker, in any group or session.
func (s *supervised) started() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is sound
	for _, name := range all {
		environ, err := os.ReadFile(name) // empty of a process that has ended
		if err != nil || !slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return string(v) == s.mark }) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// status is the exit status for the end of the tests. It names an end that package testing does not know.
func (s *supervised) status(err error) int {
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return 1
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = fmt.Errorf("status 0, but a process that they started kept their output open for %v", s.patience.output)
	}
	fmt.Fprintf(s.out, "%s%v\n", unusual, err)
	return 1
}
