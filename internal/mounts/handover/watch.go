package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// startKeeper starts a keeper and gives it everything. before and duty are of the keeper that it relieves, "" for none. The caller has
// the lock.
func (l *Life) startKeeper(before string, duty *os.File) (err error) {
	ours, theirs, err := pair()
	if err != nil {
		return err
	}
	earlier := l.socket
	defer func() {
		if err != nil && l.socket == ours && l.pid == 0 { // nobody is at the other end
			_ = unix.Close(ours)
			l.socket = earlier
		}
	}()
	ease(l.nice) // the keeper takes this for its daemons
	end := os.NewFile(uintptr(theirs), "keeper")
	defer func() { _ = end.Close() }() // the keeper has its own
	self, err := ownPidfd()
	if err != nil {
		_ = unix.Close(ours) // nobody is at the other end
		return err
	}
	defer func() { _ = self.Close() }() // likewise
	cmd := exec.Command("/proc/self/exe", KeeperArgument, strconv.Itoa(os.Getpid()))
	cmd.Args[0] = os.Args[0]
	cmd.ExtraFiles = []*os.File{end, self}
	if before != "" {
		cmd.Args, cmd.ExtraFiles = append(cmd.Args, before), append(cmd.ExtraFiles, duty)
	}
	cmd.Stderr = os.Stderr
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	l.socket, l.pid = ours, 0
	if len(l.kept) <= queued { // all waits in the socket before the keeper starts
		err = l.tellAll()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start a keeper: %w", err)
	}
	l.pid = cmd.Process.Pid
	go func() { _ = cmd.Wait() }() // ends with the keeper, whose end watch sees
	if len(l.kept) > queued {
		if err := l.tellAll(); err != nil {
			return err
		}
	}
	l.tellOrphans(newsKeeper, l.pid)
	return nil
}

// tellAll tells a new keeper all. The caller has the lock.
func (l *Life) tellAll() error {
	for name, fd := range l.kept {
		if err := l.store(name, fd); err != nil {
			return err
		}
	}
	return l.introduce()
}

// ownPidfd opens this process, for another to watch.
func ownPidfd() (*os.File, error) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return os.NewFile(uintptr(fd), "this process"), nil
}

// keepersMax is how many keepers may die in a row. keeperPause is between the start of the third and the death of the second; then four times as long each time.
const (
	keepersMax  = 5
	keeperPause = 20 * time.Millisecond
)

// watch waits for the end of the keeper, and starts another.
func (l *Life) watch(ctx context.Context, socket int) {
	defer close(l.left)
	began := time.Now()
	for died := 1; ; died++ {
		if socket >= 0 {
			l.listen(socket)
		}
		if time.Since(began) > time.Minute {
			died = 1
		}
		if died > 1 && died < keepersMax {
			_ = pause.For(ctx, keeperPause<<(2*(died-2))) // the end of ctx is seen below
		}
		began = time.Now()
		var over bool
		if socket, over = l.replaceKeeper(ctx, died); over {
			return
		}
	}
}

// listen hears a keeper's messages until it has gone.
func (l *Life) listen(socket int) {
	for {
		m, err := receive(socket)
		if m.fields["TELLS"] != "" && m.fd >= 0 {
			l.mu.Lock()
			l.hearTells(m.fd)
			l.mu.Unlock()
			continue
		}
		m.close()
		number := m.fields["SETTLED"]
		if number != "" {
			l.hearSettled(number)
			continue
		}
		l.mu.Lock()
		if l.next = 0; err == nil {
			l.next, _ = strconv.Atoi(m.fields["SPARE"]) // it says nothing else
			if l.next != 0 {
				l.tellOrphans(newsSpare, l.next)
			}
			l.mu.Unlock()
			continue
		}
		_ = unix.Close(socket) // of a peer that is gone
		l.socket = -1
		l.mu.Unlock()
		return
	}
}

// replaceKeeper starts a keeper in the place of one that has died, the how manieth in a row. over: none is wanted, or too many have died. A socket of -1: the new
// one has died, too.
func (l *Life) replaceKeeper(ctx context.Context, died int) (socket int, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || ctx.Err() != nil || l.kind != ByKeeper {
		l.why = "its holder has gone"
		return -1, true
	}
	err := errors.New("five keepers have died in a row")
	if died < keepersMax {
		if err = l.startKeeper("", nil); err == nil {
			l.why = ""
			l.log.Warn("the keeper was gone: there is another")
			return l.socket, false
		}
		l.log.Warn("a keeper could not be started", "reason", err)
		if l.socket >= 0 {
			_ = unix.Close(l.socket) // of a peer that is gone
			l.socket = -1
		}
	}
	if l.why = err.Error(); died < keepersMax {
		return -1, false
	}
	l.log.Error("nobody holds the mount any more: it ends with this daemon", "reason", err)
	return -1, true
}
