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

	"github.com/hbmfs/hbmfs/internal/handover"
	"github.com/hbmfs/hbmfs/internal/pause"
)

// A keeper dies with its container, as the daemon does. So the host has copies of what keepers have, and gives them to the plugin,
// whose container is another: the next host gets them back, and its daemons go on with the mounts.

// held are the copies, by the key of their volume. Its own lock comes after the host's.
type held struct {
	mu      sync.Mutex
	copies  map[string]handover.Copy
	holders map[int]bool  // connections of plugins
	told    chan struct{} // closed, and made anew, when a plugin has told of a mount
}

// sendTime bounds the time in which a plugin must take what it is told.
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
	h.copies[key] = c
	h.tell(key, c)
	close(h.told)
	h.told = make(chan struct{})
}

// drop forgets a volume, here and in plugins: what is open there would keep its filesystem.
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

// keepCopy gets a copy of what the keeper of a volume's daemon has. It goes on beside other work: a daemon that is never replaced needs none.
func (v *nodeVolume) keepCopy() {
	h := v.host
	h.held.mu.Lock()
	has := h.held.copies[v.key] != nil // a mount that ended took its copy along
	h.held.mu.Unlock()
	if has {
		return
	}
	const patience, most = 5 * time.Second, 200 * time.Millisecond
	var err error
	wait := 5 * time.Millisecond                                                                                    // until there is a copy, the mount ends with its keeper
	for end := time.Now().Add(patience); time.Now().Before(end) && h.ctx.Err() == nil; _ = pause.For(h.ctx, wait) { // it may be starting
		wait = min(2*wait, most)
		var keepers []int
		if keepers, err = keepersBelow(v.dir()); err != nil || len(keepers) != 1 {
			continue
		}
		var c handover.Copy
		if c, err = handover.CopyOf(keepers[0]); err != nil {
			continue
		}
		if v.acquire(h.ctx) != nil {
			c.Close()
			return
		}
		defer v.unlock()
		if v.daemon.alive() && c.Connected() { // else it has ended meanwhile
			h.held.put(v.key, c)
		} else {
			c.Close()
		}
		return
	}
	if h.ctx.Err() == nil {
		h.log.Info("the mount of a volume ends with this container", "volume", v.key, "error", err)
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
