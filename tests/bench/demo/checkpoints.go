package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed checkpoint.py
var checkpointScript string

// slowly is the rate, in bytes a second, of the save that is killed: it would take many seconds.
const slowly = "4e6"

// checkpoints saves weights on the CPU, kills the process that saves the next ones, and loads and verifies the
// checkpoints.
func (d *demo) checkpoints(ctx context.Context) error {
	python := os.Getenv("HBMFS_PYTHON")
	if python == "" {
		return errors.New("save checkpoints: HBMFS_PYTHON names no Python with NumPy: run make demo, which finds or makes one")
	}
	if err := d.saved(ctx, python, "save", "1"); err != nil {
		return err
	}
	d.say("   and the next, which is killed (kill -9) in the middle")
	if err := d.killed(ctx, python); err != nil {
		return err
	}
	d.say("   $ hbmfs checkpoint ls ckpt")
	if err := d.show(ctx, "checkpoint", "ls", d.ckpt); err != nil {
		return err
	}
	d.say("   $ hbmfs checkpoint verify ckpt/step-1")
	if err := d.show(ctx, "checkpoint", "verify", filepath.Join(d.ckpt, "step-1")); err != nil {
		return err
	}
	if err := d.saved(ctx, python, "load", "1"); err != nil {
		return err
	}
	d.say("   $ hbmfs checkpoint clean ckpt")
	if err := d.show(ctx, "checkpoint", "clean", d.ckpt); err != nil {
		return err
	}
	return d.saved(ctx, python, "save", "2")
}

func (d *demo) library() string {
	return filepath.Join(filepath.Dir(d.binary.Path()), "libhbmfs.so")
}

// script is the process of one step of the script.
func (d *demo) script(ctx context.Context, python string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, python, append([]string{"-c", checkpointScript}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1", "HBMFS_LIBRARY="+d.library())
	cmd.Stderr = os.Stderr
	return cmd
}

// saved runs the script to its end and shows its last line.
func (d *demo) saved(ctx context.Context, python, what, step string) error {
	out, err := d.script(ctx, python, what, d.ckpt, step).Output()
	if err != nil {
		return fmt.Errorf("%s step %s: %w", what, step, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	d.say("   %s step-%s: %s", what, step, lines[len(lines)-1])
	return nil
}

// killed begins to save step 2 and kills the process when there is a part of it.
func (d *demo) killed(ctx context.Context, python string) error {
	cmd := d.script(ctx, python, "save", d.ckpt, "2", slowly)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("save step 2: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("save step 2: %w", err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n') // nothing, if it fails: then it was not killed
	time.Sleep(time.Second)
	_ = cmd.Process.Kill()
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || line != "saving\n" {
		return fmt.Errorf("save step 2: it should have been killed, and said %q: %w", line, err)
	}
	return nil
}
