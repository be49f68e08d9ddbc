package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

// readyEnv marks the daemon's process. A Go program cannot fork, so the command starts itself again, in a session of
// its own, and waits on descriptor readyFD for one line: "ready TEXT" or "failed TEXT".
const (
	readyEnv = "HBMFS_DAEMON"
	readyFD  = 3
)

// background starts the daemon and returns when the mount can be used.
func (c *mountCommand) background(ctx context.Context) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = read.Close() }() // opened for reading: nothing is lost
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()

	daemon := exec.Command("/proc/self/exe", os.Args[1:]...)
	daemon.Args[0] = os.Args[0]
	daemon.Env = append(os.Environ(), readyEnv+"=1")
	daemon.ExtraFiles = []*os.File{write}
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = daemon.Start()
	_ = write.Close() // the daemon has its own
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	go func() { // ends with the daemon, or with this process, which is about to
		<-ctx.Done()
		_ = daemon.Process.Signal(syscall.SIGTERM) // it may be gone already
	}()
	line, err := bufio.NewReader(read).ReadString('\n')
	state, text, _ := strings.Cut(strings.TrimSpace(line), " ")
	if state != "ready" {
		_ = daemon.Wait() // its exit code says less than its line or the log
	}
	switch {
	case ctx.Err() != nil && state == "ready":
		return fmt.Errorf("%w: the mount is taken away again", errInterrupted)
	case ctx.Err() != nil:
		return errInterrupted
	case err != nil:
		return fmt.Errorf("the daemon died before the mount was ready: see %s", c.logName())
	case state != "ready":
		return errors.New(text)
	}
	fmt.Fprintf(c.stdout, "%s\n", text)
	return daemon.Process.Release()
}

func (c *mountCommand) logName() string {
	if c.logFile != "" {
		return c.logFile
	}
	return defaultLogFile()
}

// readiness is how the daemon tells the command that started it how it went. In the foreground it tells systemd, if
// that has started it.
type readiness struct{ to *os.File }

func newReadiness() *readiness {
	if os.Getenv(readyEnv) == "" {
		return &readiness{}
	}
	return &readiness{os.NewFile(readyFD, "readiness")}
}

func (r *readiness) ready(text string) {
	if r.to == nil {
		notifySystemd(text)
		return
	}
	r.say("ready", text)
}

func (r *readiness) failed(err error) { r.say("failed", err.Error()) }

func (r *readiness) say(state, text string) {
	if r.to == nil {
		return
	}
	fmt.Fprintf(r.to, "%s %s\n", state, strings.ReplaceAll(text, "\n", " "))
	_ = r.to.Close() // if nobody reads, nobody waits
	r.to = nil
}

// notifySystemd says that the mount can be used, as sd_notify(3) does: units that need the mount are started now. Where no
// service manager asked for it, it does nothing.
func notifySystemd(text string) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	conn, err := net.Dial("unixgram", socket) // which takes "@name" for an abstract one, as systemd writes it
	if err == nil {
		_, err = fmt.Fprintf(conn, "READY=1\nSTATUS=%s\n", strings.ReplaceAll(text, "\n", " "))
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "hbmfs: tell systemd that the mount is ready: %v\n", err)
	}
}
