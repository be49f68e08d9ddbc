package handover

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// start starts a daemon that takes the mount over, at once or as a spare when its turn comes.
func (k *keeper) start(program int, spare bool) (*daemon, error) {
	if program <= 0 || len(k.argv) == 0 {
		return nil, errors.New("the daemon has not said how it is started")
	}
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	end := os.NewFile(uintptr(theirs), "holder")
	defer func() { _ = end.Close() }() // the daemon has its own
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", program), k.argv[1:]...)
	cmd.Args[0] = k.argv[0]
	cmd.ExtraFiles = []*os.File{end}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), Env+"=3 "+k.kind)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if spare {
		cmd.Env = append(cmd.Env, SpareEnv+"=1")
		cmd.SysProcAttr.Pdeathsig = syscall.SIGCONT // a spare that somebody has stopped may be all that is left
	}
	if k.died == 0 {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, k.nice) // else the daemon hurries from its start
	}
	err = cmd.Start()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, niceMost) // as before
	var d *daemon
	if err == nil {
		d, err = k.find(cmd.Process.Pid, ours)
	}
	if err != nil {
		_ = unix.Close(ours) // nobody is at the other end
		return nil, err
	}
	d.child = cmd
	for name, fd := range k.store {
		err = errors.Join(err, send(ours, say("FDNAME="+name).with(fd)))
	}
	held := say("HELD=1", "NICE="+strconv.Itoa(k.nice)).with(k.news)
	held.fields["DAEMON"] = strconv.Itoa(k.now.pid)
	if k.died == 0 {
		held.fields["SERVED"] = "1"
	}
	if err = errors.Join(err, send(ours, held)); err != nil {
		k.say("the next daemon cannot be told: %v", err)
	}
	return d, nil
}

// drop ends a daemon that shall not serve.
func (k *keeper) drop(d *daemon) {
	if d == nil {
		return
	}
	if d.pidfd >= 0 {
		_ = unix.PidfdSendSignal(d.pidfd, unix.SIGKILL, nil, 0) // it may have died
		if ends(d.pidfd) {
			_ = d.child.Wait()
		}
		_ = unix.Close(d.pidfd)
	}
	d.forgetSentinel()
	for _, fd := range []int{d.socket, d.asked} {
		if fd >= 0 {
			_ = unix.Close(fd) // nobody is at the other end, or it has its answer
		}
	}
	if d.program > 0 {
		_ = unix.Close(d.program) // opened for this daemon
	}
}
