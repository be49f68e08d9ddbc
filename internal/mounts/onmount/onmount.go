// Package onmount does the work of commands on files of mounts. A process that waits for a stuck daemon may wait where no signal reaches, so
// such work has a process of its own, which can be left behind. So Ctrl-C ends the command all the same.
//
//	err := onmount.Do(ctx, paths, stderr, work) // in main's process or in one that it starts
package onmount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// env marks the process that does the work of a command on a mount.
const env = "HBMFS_ON_MOUNT"

// ErrInterrupted says that a signal ended the work.
var ErrInterrupted = errors.New("interrupted")

// Ended is the exit code of a process that did the work of this one, and has said why.
type Ended int

func (Ended) Error() string { return "" }

// Do does the work of a command on paths. Where one lies in a mount of hbmfs, this program is started again for it, with the same arguments.
func Do(ctx context.Context, paths []string, stderr io.Writer, work func(ctx context.Context) error) error {
	if os.Getenv(env) != "" {
		return work(ctx)
	}
	mounts, err := Mounts(paths)
	if err != nil {
		return err
	}
	if len(mounts) == 0 {
		return work(ctx)
	}
	if err := Await(ctx, mounts, stderr); err != nil {
		return err
	}
	return again(ctx)
}

// Mounts finds the hbmfs mounts that paths lie in, each once.
func Mounts(paths []string) (mounts []*mountpoint.Location, err error) {
	seen := map[string]bool{}
	for _, path := range paths {
		if cli.IsRemote(path) {
			continue
		}
		place, err := mountpoint.Locate(path)
		if err != nil {
			return nil, err
		}
		if place.Over == nil || seen[place.Over.Mountpoint] {
			continue
		}
		seen[place.Over.Mountpoint] = true
		place.Path, place.On = place.Over.Mountpoint, place.Over
		mounts = append(mounts, place)
	}
	return mounts, nil
}

// Ask asks a mount for a file, once, and leaves a process behind that is stuck.
func Ask(ctx context.Context, name string) aside.Answer {
	asker := aside.Asker{Program: Self(), Patience: pause.Patience}
	return asker.Ask(ctx, name, name)
}

// Self is this program's file.
func Self() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0] // /proc is not mounted: nothing of this will work
	}
	return path
}

// Await returns when the daemons of all mounts have answered. It says of which it waits for.
func Await(ctx context.Context, mounts []*mountpoint.Location, stderr io.Writer) error {
	asker := aside.Asker{Program: Self(), Patience: forever}
	asked := make([]chan aside.Answer, len(mounts))
	for i, m := range mounts {
		asked[i] = make(chan aside.Answer, 1)
		go func() { asked[i] <- asker.Ask(ctx, m.Path, m.Path) }() // ends with ctx
	}
	said := time.After(pause.Patience)
	for i := 0; i < len(mounts); {
		point := mounts[i].Path
		select {
		case a := <-asked[i]:
			if ctx.Err() == nil && a.State == aside.Dead {
				return fmt.Errorf("the daemon of the mount at %s is gone: mount it again, or take it away with hbmfs umount %s", point, point)
			}
			i++
		case <-said:
			daemon, err := mountpoint.FindDaemon(mounts[i].On)
			if err != nil && !errors.Is(err, mountpoint.ErrUntold) {
				return err
			}
			fmt.Fprintf(stderr, "hbmfs: waiting, since %s; hbmfs umount --force %s ends the mount for all that use it\n", Silence(mounts[i], daemon), point)
			if daemon != nil {
				daemon.Close()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// forever is the patience of a question that only its context ends.
const forever = 1000 * time.Hour

// Silence says that the daemon of a mount does not answer, as far as it is known why.
func Silence(place *mountpoint.Location, daemon *mountpoint.Daemon) string {
	switch {
	case daemon == nil:
		return fmt.Sprintf("the daemon of %s does not answer", place.Path)
	case daemon.Stopped():
		return fmt.Sprintf("the daemon of %s (pid %d) does not answer: it is stopped, and kill -CONT %d lets it go on", place.Path, daemon.PID, daemon.PID)
	}
	return fmt.Sprintf("the daemon of %s (pid %d) does not answer", place.Path, daemon.PID)
}

// OrderlyTime is how long an interrupted command or daemon may take to clean up.
const OrderlyTime = 3 * time.Second

// again starts this program again for the same command, and gives its exit code. When ctx ends, so does that process; where it
// is stuck, it is left behind.
func again(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(self, os.Args[1:]...)
	child.Args[0] = os.Args[0]
	child.Env = append(os.Environ(), env+"=1")
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread() // Pdeathsig means the end of the thread
	if err := child.Start(); err != nil {
		return fmt.Errorf("start a process for work that may get stuck: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }() // ends with the child, or with this process
	for _, end := range []struct {
		signal syscall.Signal
		within time.Duration
	}{{0, forever}, {syscall.SIGTERM, OrderlyTime}, {syscall.SIGKILL, aside.Grace}} {
		if end.signal != 0 {
			_ = child.Process.Signal(end.signal) // it may have ended
			ctx = context.WithoutCancel(ctx)
		}
		select {
		case err := <-ended:
			if end.signal == syscall.SIGKILL {
				return ErrInterrupted
			}
			return endOf(child, err)
		case <-time.After(end.within):
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("%w: process %d waits for a daemon that does not answer, and is left behind", ErrInterrupted, child.Process.Pid)
}

// endOf makes the end of the process that did the work the end of this one.
func endOf(child *exec.Cmd, err error) error {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return err
	case exit.ExitCode() >= 0:
		return Ended(exit.ExitCode())
	}
	if status, ok := child.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		if status.Signal() == syscall.SIGPIPE {
			return Ended(128 + int(syscall.SIGPIPE)) // nobody reads the output on, as behind | head: this process would have ended as silently
		}
		return fmt.Errorf("process %d, which did the work, was ended by a signal: %v", child.Process.Pid, status.Signal())
	}
	return err
}
