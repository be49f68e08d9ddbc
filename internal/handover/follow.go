package handover

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Follower hears of changes in what a keeper has.
type Follower struct{ conn *os.File }

// Follow is [CopyOf], and hears of changes from then on. A keeper of an older program ends the connection instead.
func Follow(keeper int) (*Follower, Copy, error) {
	conn, err := dial(keeper)
	if err != nil {
		return nil, nil, err
	}
	err = send(conn, say("COPY=1", "FOLLOW=1"))
	var c Copy
	if err == nil {
		_, c, err = (&Mirror{conn: conn}).Next()
	}
	if err == nil {
		err = unix.SetNonblock(conn, true) // so that no thread waits
	}
	if err != nil {
		c.Close()
		_ = unix.Close(conn) // the answer will not come
		return nil, nil, err
	}
	return &Follower{os.NewFile(uintptr(conn), "a keeper")}, c, nil
}

// Changed waits until the keeper has something else than it had. An error says that it has ended, or ctx has; then nothing more is heard.
func (f *Follower) Changed(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = f.conn.SetReadDeadline(time.Unix(1, 0)) })()
	raw, err := f.conn.SyscallConn()
	if err != nil {
		return err
	}
	heard := false
	var got error
	err = raw.Read(func(fd uintptr) bool {
		for {
			var m message
			switch m, got = receive(int(fd)); {
			case errors.Is(got, unix.EAGAIN) && heard:
				got = nil
				return true
			case got != nil:
				return !errors.Is(got, unix.EAGAIN)
			}
			m.close()
			heard = true
		}
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, got)
}

// Close ends it.
func (f *Follower) Close() { _ = f.conn.Close() }

// following is what a keeper knows of those who want copies.
type following struct {
	whole     bool  // the daemon has told all it had
	followers []int // connections of those who hear of changes
}

// mostFollowers is how many processes a keeper tells of changes.
const mostFollowers = 4

// copies answers a request for a copy, on a connection that becomes the keeper's. A keeper that has not been told all yet has no answer:
// a copy that lacks something would be of no use, and nobody would ask again.
func (k *keeper) copies(conn int, follows bool) {
	_ = unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 1}) // the daemon may need this keeper
	switch {
	case !k.whole:
		_ = send(conn, say("REFUSED=it is being told of the mount: try again")) // who has gone needs no answer
	case sendCopy(conn, "", k.store) == nil && follows && len(k.followers) < mostFollowers:
		k.followers = append(k.followers, conn)
		return
	}
	_ = unix.Close(conn) // the answer has been given
}

// changed tells followers that this keeper has something else by now. One that has not read that yet needs no more words.
func (k *keeper) changed() {
	for _, conn := range k.followers {
		m := say("CHANGED=1")
		_ = unix.Sendmsg(conn, m.text(), nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	}
}

// watchFollowers has connections watched on which nobody says anything.
func (k *keeper) watchFollowers(watch func(fd int, do func())) {
	for _, conn := range k.followers {
		watch(conn, func() { k.unfollow(conn) })
	}
}

// unfollow forgets a follower that has gone, or says what makes no sense.
func (k *keeper) unfollow(conn int) {
	for i, c := range k.followers {
		if c == conn {
			k.followers = append(k.followers[:i:i], k.followers[i+1:]...)
			_ = unix.Close(conn) // nothing more is said
			return
		}
	}
}
