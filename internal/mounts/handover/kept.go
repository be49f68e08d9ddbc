package handover

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Has tells whether the life before has left a file.
func (l *Life) Has(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.kept[name]
	return ok
}

// Names lists the files of the life before.
func (l *Life) Names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.kept))
}

// Room is how many files the holder keeps, where that is bounded: systemd closes those beyond.
func (l *Life) Room() (files int64, bounded bool) {
	if l == nil || l.notify == "" {
		return 0, false
	}
	files, err := strconv.ParseInt(os.Getenv("FDSTORE"), 10, 64)
	return max(files-ownFiles, 0), err == nil
}

// ownFiles is for those of every mount.
const ownFiles = 8

// Took opens a file of the life before, nil where it left none of this name. The caller closes it.
func (l *Life) Took(name string) *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	fd, ok := l.kept[name]
	if !ok {
		return nil
	}
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), name)
}

// Keep has the holder keep a file, also across lives. The life keeps a descriptor of its own until [Life.Drop].
func (l *Life) Keep(name string, f syscall.Conn) error {
	raw, err := f.SyscallConn() // not Fd, which would have a socket block
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	dup := -1
	dupErr := raw.Control(func(fd uintptr) { dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(dupErr, err); err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.kept[name]; ok {
		_ = unix.Close(old) // the newer one takes its place
	}
	l.kept[name] = dup
	return l.store(name, dup)
}

// store gives the holder a descriptor. The caller has the lock.
func (l *Life) store(name string, fd int) error {
	m := say("FDSTORE=1", "FDNAME="+name).with(fd)
	if l.notify != "" && name != Device {
		m.fields["FDPOLL"] = "0" // of the device, systemd may see its end
	}
	return l.tell(m)
}

// tell sends the holder a message, where there is one. The caller has the lock.
func (l *Life) tell(m message) error {
	switch {
	case l.socket >= 0:
		return send(l.socket, m)
	case l.notify != "":
		return notify(l.notify, m)
	}
	return nil
}

// Device is the name of the connection to the kernel.
const Device = "fuse"

// notify sends a message to systemd. "@name" is an abstract one, as systemd writes it.
func notify(name string, m message) error {
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("tell systemd: %w", err)
	}
	defer func() { _ = unix.Close(socket) }() // all is sent
	if err := unix.Connect(socket, &unix.SockaddrUnix{Name: name}); err != nil {
		return fmt.Errorf("tell systemd: %w", err)
	}
	return send(socket, m)
}

// Drop has the holder forget a file. A daemon that waits for its turn has it until another one is prepared.
func (l *Life) Drop(name string) { l.drop(name) }

// LetGo has the holder forget a file that no other process may have any longer. The holder ends the daemons that wait for their turn, and starts others later.
func (l *Life) LetGo(name string) { l.drop(name, "LETGO=1") }

func (l *Life) drop(name string, more ...string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if fd, ok := l.kept[name]; ok {
		_ = unix.Close(fd) // a copy
		delete(l.kept, name)
	}
	_ = l.tell(say(append(more, "FDSTOREREMOVE=1", "FDNAME="+name)...)) // a holder that is gone has forgotten it
}
