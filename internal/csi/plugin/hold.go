package plugin

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// Hold holds copies of the descriptors of the node's keepers for the next host, since keepers die with the host's container. The
// plugin only holds them: it never reads one. Where no host comes in time, readers get errors. Hold goes on until ctx ends.
func Hold(ctx context.Context, socket string) {
	copies := map[string]handover.Copy{}
	forget := func() {
		for key, c := range copies {
			c.Close()
			delete(copies, key)
		}
	}
	defer forget()
	const least, most = 5 * time.Millisecond, 100 * time.Millisecond // between two attempts to reach a host
	wait := least                                                    // until a host has the copies, they end with this plugin
	for began := time.Now(); ; wait = min(2*wait, most) {
		if conn, err := connect(socket); err == nil {
			exchange(ctx, conn, copies)
			began, wait = time.Now(), least
		}
		if time.Since(began) > handover.HoldTime {
			forget()
		}
		if pause.For(ctx, wait) != nil {
			return
		}
	}
}

func connect(socket string) (conn int, err error) {
	conn, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Connect(conn, &unix.SockaddrUnix{Name: socket}); err != nil {
		_ = unix.Close(conn) // nothing was said
	}
	return conn, err
}

// exchange gives a host the descriptors of the one before, and hears of all changes until the host ends. It closes the
// connection.
func exchange(ctx context.Context, conn int, copies map[string]handover.Copy) {
	defer func() { _ = unix.Close(conn) }() // of a host that is gone
	defer context.AfterFunc(ctx, func() { _ = unix.Shutdown(conn, unix.SHUT_RDWR) })()
	_ = unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 5}) // a host takes it at once
	m := handover.NewMirror(conn)
	for key, c := range copies {
		if m.Send(key, c) != nil {
			return
		}
	}
	for {
		key, c, err := m.Next()
		if err != nil {
			return
		}
		copies[key].Close()
		if copies[key] = c; c == nil {
			delete(copies, key)
		}
	}
}
