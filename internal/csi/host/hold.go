package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// A keeper dies with its container, as the daemon does. So the host copies the keepers' descriptors, and gives them to the plugin,
// whose container is another. The next host gets them back, and its daemons go on with the mounts.

// held are the copies, by the key of their volume. Its own lock comes after the host's.
type held struct {
	mu      sync.Mutex
	copies  map[string]handover.Copy
	serves  map[string]*daemon // whose keeper is followed
	holders map[int]bool       // connections of plugins
	told    chan struct{}      // closed, and made anew, when a plugin has told of a mount
}

// sendTime bounds the time in which a plugin must take a message.
const sendTime = time.Second

// tell tells all plugins of a volume. The lock must be held.
func (h *held) tell(key string, c handover.Copy) {
	for conn := range h.holders {
		if handover.NewMirror(conn).Send(key, c) != nil {
			h.leave(conn)
		}
	}
}

// leave forgets a plugin. The lock must be held.
func (h *held) leave(conn int) {
	if h.holders[conn] {
		delete(h.holders, conn)
		_ = unix.Shutdown(conn, unix.SHUT_RDWR) // its goroutine closes it
	}
}

// put keeps a copy, unless there is one.
func (h *held) put(key string, c handover.Copy) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.copies[key] != nil {
		c.Close()
		return
	}
	h.set(key, c)
}

// replace keeps a copy in place of the one before, if the daemon still serves the same mount.
func (h *held) replace(key string, d *daemon, c handover.Copy) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.serves[key] != d || !d.alive() || !c.Connected() {
		c.Close()
		return false
	}
	h.copies[key].Close()
	h.set(key, c)
	return true
}

// serve says which daemon serves a volume from now on.
func (h *held) serve(key string, d *daemon) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serves[key] = d
}

// end forgets a volume whose mount ends: no copy of it comes any more.
func (h *held) end(key string) {
	h.mu.Lock()
	delete(h.serves, key)
	h.mu.Unlock()
	h.drop(key)
}

// set keeps a copy, and tells all plugins. The lock must be held.
func (h *held) set(key string, c handover.Copy) {
	h.copies[key] = c
	h.tell(key, c)
	close(h.told)
	h.told = make(chan struct{})
}

// drop forgets a volume, here and in plugins: descriptors there would keep its filesystem.
func (h *held) drop(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.copies[key]; c != nil {
		c.Close()
		delete(h.copies, key)
	}
	h.tell(key, nil)
}

// await returns a copy for a volume, which the caller closes. It waits for a plugin to bring it.
func (h *held) await(ctx context.Context, key string, limit time.Duration) handover.Copy {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		h.mu.Lock()
		c, told := h.copies[key], h.told
		if c != nil {
			defer h.mu.Unlock()
			return c.Clone()
		}
		h.mu.Unlock()
		select {
		case <-told:
		case <-ctx.Done():
			return nil
		}
	}
}

// Between two attempts to follow a keeper. Until there is a copy, the mount ends with the keeper.
const (
	followFirst = 5 * time.Millisecond  // doubled by each further one
	followSoon  = 50 * time.Millisecond // at most, while a keeper may be starting: clients wait
	followMost  = 30 * time.Second      // at most, later
	starting    = 5 * time.Second       // so long a keeper may be starting
	steady      = time.Second           // of a keeper that was followed: its daemon has another soon
)

// calm is how long after changes a keeper is asked again, unless a client waits for that: changes come in groups.
const calm = 20 * time.Millisecond

// keepCopy copies the descriptors of a daemon's keeper, as long as that lives. It goes on beside other work.
func (v *nodeVolume) keepCopy(d *daemon) {
	ctx, stop := context.WithCancel(v.host.ctx)
	defer stop()
	v.host.work.Go(func() { // ends with the daemon, or with this work
		select {
		case <-d.done:
			stop()
		case <-ctx.Done():
		}
	})
	said := false
	for wait, first := followFirst, time.Now(); ; wait = min(2*wait, followMost) {
		began := time.Now()
		err := v.follow(ctx, d)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady {
			wait, first = followFirst, time.Now()
		}
		if time.Since(first) < starting {
			wait = min(wait, followSoon)
		}
		if !said && wait > time.Second {
			said = true
			v.host.log.Info("the mount of a volume ends with this container, or loses its latest drafts then", "volume", v.key, "error", err)
		}
		if pause.For(ctx, wait) != nil {
			return
		}
	}
}

// errKeepers says that the host cannot tell which keeper a daemon has: it may be starting, or be replaced.
var errKeepers = errors.New("the daemon has no keeper, or two")

// follow keeps copies of the descriptors of a daemon's keeper, until that keeper ends.
func (v *nodeVolume) follow(ctx context.Context, d *daemon) error {
	keepers, err := keepersBelow(v.dir())
	if err == nil && len(keepers) != 1 {
		err = errKeepers
	}
	if err != nil {
		return err
	}
	f, err := handover.Follow(keepers[0])
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		c, settled, err := f.Copy()
		if err != nil {
			return err
		}
		if !v.host.held.replace(v.key, d, c) {
			return errKeepers
		}
		if settled != nil { // plugins have been sent the copy, and get it also where this host ends now
			settled()
		}
		if err := f.Changed(ctx, calm); err != nil {
			return err
		}
	}
}

// Hold listens for plugins that hold copies, on a socket for root alone. It goes on until the host is closed.
func (h *Host) Hold(socket string) error {
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err = os.Remove(socket); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = unix.Bind(listener, &unix.SockaddrUnix{Name: socket})
	}
	if err = errors.Join(err, os.Chmod(socket, 0o600)); err == nil {
		err = unix.Listen(listener, 8)
	}
	if err != nil {
		_ = unix.Close(listener) // nobody can have connected
		return fmt.Errorf("listen on %s: %w", socket, err)
	}
	context.AfterFunc(h.ctx, func() { _ = unix.Shutdown(listener, unix.SHUT_RDWR) }) // which ends accept
	h.work.Go(func() {
		defer func() {
			_ = unix.Close(listener) // nobody is served any more
			_ = os.Remove(socket)    // no other host's: this one still has the lock of the directory
		}()
		for {
			conn, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
			switch {
			case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ECONNABORTED):
			case err != nil:
				return
			default:
				h.work.Go(func() { h.holder(conn) })
			}
		}
	})
	return nil
}

// holder serves one plugin, and closes its connection.
func (h *Host) holder(conn int) {
	defer func() { _ = unix.Close(conn) }() // nobody tells it anything any more
	_ = unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: int64(sendTime / time.Second)})
	defer context.AfterFunc(h.ctx, func() { _ = unix.Shutdown(conn, unix.SHUT_RDWR) })()
	h.held.mu.Lock()
	h.held.holders[conn] = true
	for key, c := range h.held.copies {
		if handover.NewMirror(conn).Send(key, c) != nil {
			break // it has gone, as Next sees
		}
	}
	h.held.mu.Unlock()
	defer func() {
		h.held.mu.Lock()
		defer h.held.mu.Unlock()
		h.held.leave(conn)
	}()
	for m := handover.NewMirror(conn); ; {
		key, c, err := m.Next()
		if err != nil {
			return
		}
		if c == nil {
			continue
		}
		h.take(key, c)
	}
}

// take keeps a copy that a plugin has brought, if its volume is known.
func (h *Host) take(key string, c handover.Copy) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held.mu.Lock()
	own := h.held.copies[key] != nil
	h.held.mu.Unlock()
	switch {
	case own:
		c.Close()
	case h.volumes[key] == nil || !c.Connected():
		c.Close()
		h.held.drop(key)
	default:
		h.held.put(key, c)
	}
}

// close forgets all copies. Plugins keep theirs.
func (h *held) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.copies {
		c.Close()
	}
	clear(h.copies)
}
