package blackbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// CanInject returns why system calls of other processes cannot be made to fail here, or nil. It takes strace, and the
// right to trace a process that is no child of it.
func CanInject() error {
	sleeper := exec.Command("sleep", "600")
	if err := sleeper.Start(); err != nil {
		return fmt.Errorf("no process to try it on: %w", err)
	}
	pid := strconv.Itoa(sleeper.Process.Pid)
	strace := exec.Command("strace", "-qq", "-p", pid, "-e", "inject=fsync:error=EIO")
	defer func() { // the tracer ends with its tracee
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait() // by the signal
		if strace.Process != nil {
			_ = strace.Wait()
		}
	}()
	if err := strace.Start(); err != nil {
		return err
	}
	refused := errors.New("it cannot attach to a process")
	if !Within(time.Minute, func() bool {
		text, err := os.ReadFile("/proc/" + pid + "/status")
		if err == nil && bytes.Contains(text, []byte("\nTracerPid:\t"+strconv.Itoa(strace.Process.Pid)+"\n")) {
			refused = nil
		}
		return refused == nil || Ended(strace.Process.Pid)
	}) {
		refused = errors.New("it does not attach to a process")
	}
	return refused
}

// Traced tells whether a tracer has got hold of every thread of a process. It takes one after the other, and a process that is busy goes on in those that are left.
func Traced(pid, tracer int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, path := range threads {
		text, readErr := os.ReadFile(path)
		if errors.Is(readErr, os.ErrNotExist) { // it has ended
			continue
		}
		if readErr != nil || !bytes.Contains(text, fmt.Appendf(nil, "\nTracerPid:\t%d\n", tracer)) {
			return false
		}
	}
	return err == nil && len(threads) > 0
}
