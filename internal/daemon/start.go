package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/mounts/onmount"
	"github.com/hbmfs/hbmfs/internal/mounts/ready"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// start starts this program again, as a daemon that stays when its command has returned.
type start struct {
	Point          string // of its mount
	LogName        string
	Log            func() (log io.Writer, closeLog func(), err error) // opens it
	Stdout, Stderr io.Writer
	Mistake        int // exit code of a daemon whose command line is wrong
}

// run starts the daemon and returns when the mount can be used. A Go program cannot fork, so the command starts itself again,
// in a session of its own.
func (s *start) run(ctx context.Context) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = read.Close() }() // opened for reading: nothing is lost
	// The daemon and its helpers write here until the log takes standard error. A pipe could outlive its reader.
	fd, err := unix.MemfdCreate("stderr", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make a file for the words of the daemon: %w", err)
	}
	words := os.NewFile(uintptr(fd), "stderr")
	defer func() { _ = words.Close() }() // it is in memory

	daemon := exec.Command("/proc/self/exe", os.Args[1:]...)
	daemon.Args[0] = os.Args[0]
	daemon.Env = append(os.Environ(), ready.Env+"=1")
	daemon.Stderr = words
	daemon.ExtraFiles = []*os.File{write}
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = daemon.Start()
	_ = write.Close() // the daemon has its own
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	over := make(chan struct{})
	defer close(over)
	stays := context.AfterFunc(ctx, func() { // ends with this process, at the latest
		_ = daemon.Process.Signal(syscall.SIGTERM) // it may be gone already
		select {
		case <-over:
		case <-time.After(onmount.OrderlyTime): // it waits where a signal does not reach, for a dead network filesystem for one
			_ = daemon.Process.Kill()
		}
	})
	defer stays()
	said := bufio.NewReader(read)
	state, text, err := ready.Listen(said, s.showNote)
	if state == ready.Mounted && stays() {
		_, _ = io.Copy(s.Stderr, io.NewSectionReader(words, 0, wordsMax)) // the mount is there without it
		fmt.Fprintf(s.Stdout, "%s\n", text)
		s.hearNotes(ctx, read, said)
		return daemon.Process.Release()
	}
	how := endOfDaemon(daemon)
	wrote, readErr := io.ReadAll(io.NewSectionReader(words, 0, wordsMax))
	switch {
	case ctx.Err() != nil && state == ready.Mounted:
		return errors.Join(fmt.Errorf("%w: the mount is taken away again", onmount.ErrInterrupted), s.clearKilled(how))
	case ctx.Err() != nil:
		return errors.Join(onmount.ErrInterrupted, s.clearKilled(how))
	case err == nil:
		_, _ = s.Stderr.Write(wrote) // the error stands without it
		if how != nil && how.ExitCode() == s.Mistake {
			return cli.Mistake{Err: errors.New(text)}
		}
		return errors.New(text)
	}
	return s.died(how, wrote, errors.Join(readErr, s.keepWords(wrote)))
}

// endOfDaemon waits for the end of a daemon that makes no mount, and returns how it ended, nil where it has not in time.
func endOfDaemon(daemon *exec.Cmd) *os.ProcessState {
	ended := make(chan *os.ProcessState, 1)
	go func() { // ends with the daemon, or with this process
		_ = daemon.Wait() // its state says more
		ended <- daemon.ProcessState
	}()
	select {
	case state := <-ended:
		return state
	case <-time.After(onmount.OrderlyTime + aside.Grace):
		return nil
	}
}

// clearKilled takes away the mount of a daemon that had to be killed.
func (s *start) clearKilled(state *os.ProcessState) error {
	place, err := mountpoint.Locate(s.Point)
	if err != nil || !place.HBMFS() || state == nil || state.Exited() {
		return err
	}
	return mountpoint.Detach(s.Point)
}

// died says how a daemon ended that did not say why. The log has all its words.
func (s *start) died(state *os.ProcessState, said []byte, logErr error) error {
	how := "it does not end"
	if state != nil {
		how = state.String()
		if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
			how += ", by somebody or for want of memory, of which dmesg knows"
		}
	}
	if first, _, _ := strings.Cut(string(said), "\n"); first != "" {
		how += ": " + first
	}
	return errors.Join(fmt.Errorf("the daemon died before the mount was ready (%s): see %s", how, s.LogName), logErr)
}

// wordsMax bounds the words of a daemon that dies early: of a panic, the goroutines that matter.
const wordsMax = 64 << 10

// keepWords puts the last words of a daemon where it would have logged.
func (s *start) keepWords(said []byte) error {
	if len(said) == 0 {
		return nil
	}
	out, closeLog, err := s.Log()
	if err != nil {
		return err
	}
	defer closeLog()
	_, err = out.Write(said)
	return err
}

// noteTime is how long the command stays after the mount is ready, to show problems that the daemon finds. Small datasets
// need milliseconds. Later findings of the daemon are in its log and in the status.
const noteTime = 120 * time.Millisecond

// showNote shows a note of the daemon.
func (s *start) showNote(text string) {
	fmt.Fprintf(s.Stderr, "hbmfs: %s\n", cli.Printable(text))
}

// hearNotes shows problems that the daemon finds in a ready mount, within noteTime.
func (s *start) hearNotes(ctx context.Context, read *os.File, from *bufio.Reader) {
	_ = read.SetReadDeadline(time.Now().Add(noteTime + aside.Grace)) // a pipe has deadlines
	defer context.AfterFunc(ctx, func() { _ = read.SetReadDeadline(time.Unix(1, 0)) })()
	_, _, _ = ready.Listen(from, s.showNote) // there is none after "ready", but the end
}

// tellNotes reports problems that the daemon finds in a ready mount, within noteTime.
func tellNotes(ctx context.Context, m *fs.Mount, report *ready.Report) {
	soon := time.NewTimer(noteTime)
	defer soon.Stop()
	whole := false
	select {
	case <-m.Looked():
		whole = true
	case <-soon.C:
	case <-ctx.Done():
	}
	for _, note := range m.Notes() {
		report.Note(note)
	}
	if !whole {
		report.Note(fmt.Sprintf("the formats are still being recognized: problems will be in %s/%s/status", m.Point(), mountpoint.ControlName))
	}
}

// stayBehind makes the daemon independent of the command that started it. A panic, and all else that goes to standard error
// from now on, is in the log.
func stayBehind(out io.Writer) error {
	log, ok := out.(*os.File)
	if !ok {
		return errors.New("the log is no file")
	}
	for _, fd := range []int{unix.Stdout, unix.Stderr} {
		if err := unix.Dup3(int(log.Fd()), fd, 0); err != nil {
			return fmt.Errorf("have the log take standard error: %w", err)
		}
	}
	return os.Chdir("/") // all that was named by a relative path is open
}
