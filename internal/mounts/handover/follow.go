package handover

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Follower has copies of a keeper's descriptors, and hears of changes.
type Follower struct {
	keeper int
	conn   *os.File
	first  Copy   // until it is given
	asked  string // for that: see settle.go
}

// Follow asks a keeper for a copy, and hears of changes from then on. A keeper of an older program ends the connection instead.
func Follow(keeper int) (*Follower, error) {
	conn, err := dial(keeper)
	if err != nil {
		return nil, err
	}
	c, asked, err := askCopy(conn, "FOLLOW=1")
	if err == nil {
		err = unix.SetNonblock(conn, true) // so that no thread waits
	}
	if err != nil {
		c.Close()
		_ = unix.Close(conn) // the answer will not come
		return nil, err
	}
	return &Follower{keeper, os.NewFile(uintptr(conn), "a keeper"), c, asked}, nil
}

// Copy gives a copy, which the caller closes. Where settled is not nil, the caller calls it once the copy is where it shall be: a client of the
// daemon waits for that.
func (f *Follower) Copy() (c Copy, settled func(), err error) {
	if c = f.first; c != nil {
		f.first = nil
		return c, f.settled(f.asked), nil
	}
	c, asked, err := copyOf(f.keeper)
	return c, f.settled(asked), err
}

// Changed waits until the keeper has something else than it had. Changes come in groups, so it waits for more until the keeper was calm for a
// time. A client that waits for a copy ends that. An error says that the keeper has ended, or ctx has; then nothing more is heard.
func (f *Follower) Changed(ctx context.Context, calm time.Duration) error {
	defer context.AfterFunc(ctx, func() { _ = f.conn.SetReadDeadline(time.Unix(1, 0)) })()
	asks, err := f.hear()
	if err == nil && !asks {
		err = f.conn.SetReadDeadline(time.Now().Add(calm))
		for err == nil && !asks {
			asks, err = f.hear()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		err = errors.Join(err, f.conn.SetReadDeadline(time.Time{}))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// hear waits for words of the keeper, and takes all there are. It tells whether a client waits for a copy.
func (f *Follower) hear() (asks bool, err error) {
	raw, err := f.conn.SyscallConn()
	if err != nil {
		return false, err
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
			heard, asks = true, asks || m.fields["SETTLE"] != ""
		}
	})
	return asks, errors.Join(err, got)
}

// Close ends it.
func (f *Follower) Close() {
	f.first.Close()
	_ = f.conn.Close()
}

// following is a keeper's list of processes that want copies.
type following struct {
	whole     bool   // the daemon has told all it had
	followers []int  // connections of those who hear of changes
	asked     string // the last question of the daemon: see settle.go
}

// mostFollowers is how many processes a keeper tells of changes.
const mostFollowers = 4

// copies answers a request for a copy, on a connection that becomes the keeper's. A keeper that has not been told all yet has no answer.
// An incomplete copy would be of no use, and nobody would ask again.
func (k *keeper) copies(conn int, follows bool) {
	_ = unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 1}) // the daemon may need this keeper
	switch {
	case !k.whole:
		_ = send(conn, say("REFUSED=it is being told of the mount: try again")) // who has gone needs no answer
	case sendCopy(conn, "", k.store, "SETTLE="+k.asked) == nil && follows && len(k.followers) < mostFollowers:
		k.followers = append(k.followers, conn)
		return
	}
	_ = unix.Close(conn) // the answer has been given
}

// changed tells followers that this keeper has something else by now. One that has not read that yet needs no more words.
func (k *keeper) changed(words ...string) {
	for _, conn := range k.followers {
		m := say(append(words, "CHANGED=1")...)
		_ = unix.Sendmsg(conn, m.text(), nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	}
}

// watchFollowers has the connections of followers watched.
func (k *keeper) watchFollowers(watch func(fd int, do func())) {
	for _, conn := range k.followers {
		watch(conn, func() { k.hearFollower(conn) })
	}
}

// unfollow forgets a follower.
func (k *keeper) unfollow(conn int) {
	for i, c := range k.followers {
		if c == conn {
			k.followers = append(k.followers[:i:i], k.followers[i+1:]...)
			_ = unix.Close(conn) // nothing more is said
			return
		}
	}
}
