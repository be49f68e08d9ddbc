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

// start starts a daemon that takes the mount over after another one: at once, or as a spare when its turn comes. news is a pipe from that one, -1 for none.
func (k *keeper) start(program int, spare bool, after *daemon, news int) (*daemon, error) {
	if program <= 0 || len(k.argv) == 0 {
		return nil, errors.New("the daemon has not said how it is started")
	}
	held := say("HELD=1", "NICE="+strconv.Itoa(k.nice), "DAEMON="+strconv.Itoa(after.pid)).with(news)
	if k.died == 0 || after != k.now {
		held.fields["SERVED"] = "1"
	}
	if k.died != 0 || after != k.now {
		held.fields["REST"] = "1"
	}
	cmd := command(fmt.Sprintf("/proc/self/fd/%d", program), k.argv, k.kind, spare)
	switch {
	case spare:
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, min(k.nice+spareNice, niceLeast))
	case k.died == 0:
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, k.nice) // else the daemon hurries from its start
	}
	socket, err := startWith(cmd, k.store, after.pidfd, held)
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, niceMost) // as before
	if err != nil {
		return nil, err
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		_ = unix.Close(socket) // nobody listens
		return nil, fmt.Errorf("watch the next daemon: %w", err)
	}
	d := watched(cmd.Process.Pid, pidfd, socket)
	d.child = cmd
	if spare {
		niceAll(strconv.Itoa(d.pid), min(k.nice+spareNice, niceLeast)) // until its turn comes
	}
	return d, nil
}

// command is that of a daemon, whose holder is of a kind.
func command(program string, argv []string, kind string, spare bool) *exec.Cmd {
	cmd := exec.Command(program, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), Env+"=3 "+kind)
	if spare {
		cmd.Env = append(cmd.Env, SpareEnv+"=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// queued is how many descriptors surely have room in a socket that nobody reads yet.
const queued = 64

// startWith starts a daemon and gives it the kept descriptors. after is a pidfd of the daemon whose end it waits for, -1 for none; held the last
// word. The kept descriptors wait in the socket before the daemon starts. So it holds the mount from its first moment, even if any process is
// killed then.
func startWith(cmd *exec.Cmd, store map[string]int, after int, held message) (socket int, err error) {
	ours, theirs, err := pair()
	if err != nil {
		return -1, err
	}
	end := os.NewFile(uintptr(theirs), "holder")
	defer func() { _ = end.Close() }() // the daemon has its own
	cmd.ExtraFiles = []*os.File{end}
	tell := func() (err error) {
		for name, fd := range store {
			err = errors.Join(err, send(ours, say("FDNAME="+name).with(fd)))
		}
		if after >= 0 {
			err = errors.Join(err, send(ours, say("PIDFD=1").with(after)))
		}
		if err = errors.Join(err, send(ours, held)); err != nil {
			err = fmt.Errorf("tell the next daemon: %w", err)
		}
		return err
	}
	if len(store) <= queued {
		err = errors.Join(tell(), cmd.Start())
	} else if err = cmd.Start(); err == nil {
		_ = tell() // where it has died meanwhile, that is seen
	}
	if err != nil {
		_ = unix.Close(ours) // nobody is at the other end
		return -1, err
	}
	return ours, nil
}

// drop ends a daemon that shall not serve.
func (k *keeper) drop(d *daemon) {
	if d == nil {
		return
	}
	if d.pidfd >= 0 {
		_ = unix.PidfdSendSignal(d.pidfd, unix.SIGKILL, nil, 0) // it may have died
		hasten(d.pid)
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
