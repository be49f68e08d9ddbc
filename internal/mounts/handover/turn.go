package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Waits tells whether another daemon serves still, so that there is time until this one's turn.
func (l *Life) Waits() bool { return l != nil && l.served && l.death.Load() == nil }

// Spare tells whether this daemon may wait long for its turn.
func (l *Life) Spare() bool { return l != nil && l.spare }

// ErrNoTurn ends a spare that is not needed any more, because its keeper has gone or has another, or it was told to end.
var ErrNoTurn = errors.New("this daemon is not needed")

// Prepared says that the state can be adopted, and waits until nobody else serves, or until ctx ends. A spare does meanwhile from
// time to time.
func (l *Life) Prepared(ctx context.Context, meanwhile func() error) (Death, error) {
	switch {
	case l.death.Load() != nil:
		return *l.death.Load(), nil
	case l.notify != "":
		return Death{How: "crash"}, nil
	}
	if err := send(l.socket, say("PREPARED=1")); err != nil && !l.orphan.may() { // that its keeper has gone is seen below
		return Death{}, err
	}
	if l.spare {
		debug.FreeOSMemory() // of the read data
	}
	defer l.orphan.close()
	m, err := l.await(ctx, meanwhile)
	if errors.Is(err, errEnds) {
		return Death{}, ErrNoTurn
	}
	switch {
	case err != nil && l.orphaned(ctx):
		Rename(DaemonComm)
		l.stay()
		hurry(os.Getpid()) // no keeper does it
		l.bereft = true
		death := Death{How: "crash", At: now(), PID: l.before}
		l.death.Store(&death)
		return death, nil
	case err != nil && l.spare:
		return Death{}, ErrNoTurn
	case err != nil:
		return Death{}, fmt.Errorf("wait for the daemon before: %w", err)
	case l.spare:
		Rename(DaemonComm)
		l.stay()
	}
	m.close()
	at, err := strconv.ParseInt(m.fields["DIED"], 10, 64)
	death := Death{How: m.fields["ADOPT"], At: at, PID: l.before}
	l.death.Store(&death)
	return death, err
}

// Taken says that another daemon has gone on with the mount, which has a keeper of its own.
func (l *Life) Taken() error {
	_ = send(l.socket, say("TAKEN=1")) // a holder that has gone needs no telling
	return ErrNoTurn
}

// errEnds says that a spare was told to end.
var errEnds = errors.New("it was told to end")

// await waits for the word that this daemon's turn has come, and takes the changes until then.
func (l *Life) await(ctx context.Context, meanwhile func() error) (m message, err error) {
	for {
		if l.spare {
			if err := l.idle(ctx, meanwhile); err != nil {
				return m, err
			}
		}
		switch m, err = receive(l.socket); {
		case err != nil:
			return m, err
		case m.fields["NEWS"] != "":
			l.orphan.hears(m.fd)
		case m.fields["TELLS"] != "":
			l.mu.Lock()
			l.hearTells(m.fd)
			l.mu.Unlock()
		case m.fields["FDNAME"] != "":
			l.update(m.fields["FDNAME"], m.fd)
		default:
			return m, nil
		}
	}
}

// idle waits for a message of the holder.
func (l *Life) idle(ctx context.Context, meanwhile func() error) error {
	const often = 5 * time.Second                                                        // between two runs of meanwhile
	defer context.AfterFunc(ctx, func() { _ = unix.Shutdown(l.socket, unix.SHUT_RD) })() // wakes the wait below
	for poll := []unix.PollFd{{Fd: int32(l.socket), Events: unix.POLLIN}}; ; {
		n, err := unix.Poll(poll, int(often/time.Millisecond))
		switch {
		case ctx.Err() != nil:
			return errEnds
		case n > 0:
			return nil
		case err == nil:
			err = meanwhile()
		case errors.Is(err, unix.EINTR):
			err = nil
		}
		if err != nil {
			return err
		}
	}
}

// rest lets readers come first, who wait for the daemon before this one. News, and the end of the holder, end the rest.
func (l *Life) rest() {
	poll := []unix.PollFd{{Fd: int32(l.socket), Events: unix.POLLIN}}
	_, _ = unix.Poll(poll, int(spareDelay/time.Millisecond)) // an interruption shortens it
}

// update takes a file that the daemon before has kept meanwhile, or has forgotten: -1.
func (l *Life) update(name string, fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.kept[name]; ok {
		_ = unix.Close(old) // the newer one takes its place
		delete(l.kept, name)
	}
	if fd >= 0 {
		l.kept[name] = fd
	}
}

// Goes says that this daemon goes on with the mount: from now on its end is a new one, and no failed attempt.
func (l *Life) Goes() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.notify == "" { // the report of readiness tells systemd
		_ = l.tell(say("READY=1")) // a holder that is gone needs no telling
	}
	if l.socket >= 0 {
		const soon = 200 * time.Millisecond // readers have waited
		time.AfterFunc(soon, func() { ease(l.nice) })
	}
}

// keptFailures has a byte for each daemon in a row that could not go on.
const keptFailures = "failures"

// Failed tells the holder why there is no next daemon. systemd counts starts by time alone, and would start daemons that fail slowly without end. So the third
// that fails in a row gives the mount up: the error says so, too.
func (l *Life) Failed(err error) error {
	switch {
	case l == nil:
	case l.socket >= 0:
		_ = send(l.socket, say("FAILED="+strings.ReplaceAll(err.Error(), "\n", "; "))) // the holder sees the end, too
	case l.notify != "" && l.adopts:
		return l.failedAgain(err)
	}
	return err
}

func (l *Life) failedAgain(err error) error {
	f, size := l.Took(keptFailures), int64(0)
	if f == nil {
		var none error
		if f, none = NewMemory(keptFailures); none != nil {
			return errors.Join(err, none)
		}
	}
	defer func() { _ = f.Close() }() // systemd has its own
	if info, none := f.Stat(); none == nil {
		size = info.Size() + 1
	}
	if size < triesMax {
		return errors.Join(err, f.Truncate(size), l.Keep(keptFailures, f))
	}
	for _, name := range l.Names() {
		l.Drop(name) // the connection ends with this process
	}
	return fmt.Errorf("the mount is given up: no daemon went on with it, in %d attempts: %w", size, err)
}
