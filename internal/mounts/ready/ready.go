// Package ready carries a daemon's word to the command that started it, or to systemd. It says that the mount can be
// used, why there is none, or its faults.
//
// The daemon writes lines to descriptor 3: "ready TEXT" or "failed TEXT", once. Lines of "note TEXT" may come before, and after
// "ready" until the end. In the foreground, under the CSI host for one, there are no notes.
package ready

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Env is set in the environment of a daemon whose descriptor 3 is listened to.
	Env = "HBMFS_DAEMON"
	// Mounted is the state that Listen returns of a mount that can be used.
	Mounted = "ready"

	descriptor = 3
)

// Listen reads a daemon's lines until it is ready or has failed, and passes its notes on. Its error is the end of the
// lines.
func Listen(from *bufio.Reader, note func(text string)) (state, text string, err error) {
	for {
		line, err := from.ReadString('\n')
		state, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if state != "note" {
			return state, text, err
		}
		note(text)
	}
}

// Report is how the daemon tells the command that started it how it went. In the foreground it tells systemd, if
// that has started it.
type Report struct {
	mu    sync.Mutex // guards to: the origin of a mount that is ready still has its notes
	to    *os.File
	notes bool // wanted
}

// New is the report of this process. In the foreground it has no notes: the log has them.
func New(foreground bool) *Report {
	if os.Getenv(Env) == "" {
		return &Report{}
	}
	_ = unix.SetNonblock(descriptor, true) // so that Abandoned can wait for it
	unix.CloseOnExec(descriptor)           // the daemon's children must not keep the listener waiting,
	_ = os.Unsetenv(Env)                   // nor take another descriptor for it
	return &Report{to: os.NewFile(descriptor, "readiness"), notes: !foreground}
}

// Ready says that the mount can be used.
func (r *Report) Ready(text string) {
	if !r.say(Mounted, text) {
		notifySystemd(text)
	}
}

// Failed says why there is no mount, and reports whether anybody listens.
func (r *Report) Failed(err error) (heard bool) { return r.say("failed", err.Error()) }

// Note says why it is not ready yet, or reports a problem of the mount.
func (r *Report) Note(text string) {
	if r.notes {
		r.say("note", text)
	}
}

// say reports whether anybody listens.
func (r *Report) say(state, text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.to == nil {
		return false
	}
	fmt.Fprintf(r.to, "%s %s\n", state, strings.ReplaceAll(text, "\n", " "))
	return true
}

// Abandoned calls end if the command that listens for notes is gone before it has heard whether there is a mount. stop ends the wait.
func (r *Report) Abandoned(end func()) (stop func()) {
	if !r.notes { // in the foreground a service manager decides the fate of this process
		return func() {}
	}
	conn, err := r.to.SyscallConn()
	if err != nil {
		return func() {}
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = conn.Read(func(fd uintptr) bool { // the end that writes can be read where the other end is closed
			poll := []unix.PollFd{{Fd: int32(fd)}}
			_, err := unix.Poll(poll, 0)
			gone := err == nil && poll[0].Revents&unix.POLLERR != 0
			if gone {
				end()
			}
			return gone
		})
	}()
	return func() {
		_ = r.to.SetReadDeadline(time.Unix(1, 0)) // fails where the lines are over, and so is the wait
		<-over
	}
}

// Close ends the lines.
func (r *Report) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.to != nil {
		_ = r.to.Close() // if nobody reads, nobody waits
		r.to = nil
	}
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
