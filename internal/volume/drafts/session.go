package drafts

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// Session is one connection of a client. Its methods are called by one goroutine at a time.
type Session struct {
	server *Server
	user   asuser.User
	pidfd  *os.File       // nil where the kernel tells none
	began  []*clientDraft // that end with the connection
	writes bool           // it may
}

// Answer is the answer to a client: a frame, with open files that the caller closes.
type Answer struct {
	Type    control.FrameType
	Payload func([]byte) []byte // nil for an empty one
	Files   []*os.File
}

// Session begins a connection of a user. pidfd is of the process that connected (SO_PEERPIDFD), and becomes the session's.
func (s *Server) Session(user asuser.User, pidfd *os.File) *Session {
	return &Session{server: s, user: user, pidfd: pidfd}
}

// End ends the connection.
func (c *Session) End() {
	for _, d := range c.began {
		c.server.end(d, "its writer's connection has ended")
	}
	if c.pidfd != nil {
		_ = c.pidfd.Close() // drafts have their own
	}
}

// IsDraft tells whether a frame is one that Handle takes.
func IsDraft(t control.FrameType) bool {
	return t >= control.TypeBegin && t <= control.TypeDrop && t != control.TypeDraft
}

// Handle answers a frame. An error that is a [control.Refusal] is told to the client; after any other one the connection ends.
func (c *Session) Handle(ctx context.Context, t control.FrameType, payload []byte) (a Answer, err error) {
	a.Type = control.TypeDone
	var parsed, failed error
	switch t {
	case control.TypeBegin:
		var m control.Begin
		if m, parsed = control.ParseBegin(payload); parsed == nil {
			if failed = c.mayWrite(); failed == nil {
				a, failed = c.begin(ctx, &m)
			}
		}
	case control.TypeAdd:
		var m control.AddFiles
		if m, parsed = control.ParseAddFiles(payload); parsed == nil {
			if failed = c.mayWrite(); failed == nil {
				a, failed = c.add(ctx, &m)
			}
		}
	case control.TypeSeal:
		var m control.Seal
		if m, parsed = control.ParseSeal(payload); parsed == nil {
			failed = c.of(m.ID, func(d *clientDraft) error { return d.seal(&m) })
		}
	case control.TypePublish:
		var m control.PublishDraft
		if m, parsed = control.ParsePublishDraft(payload); parsed == nil {
			failed = c.publish(ctx, &m)
		}
	case control.TypeDrop:
		var m control.DropDraft
		if m, parsed = control.ParseDropDraft(payload); parsed == nil {
			failed = c.drop(m.ID)
		}
	default:
		return a, fmt.Errorf("frame %d is none of a draft's", t)
	}
	switch {
	case parsed != nil:
		return Answer{}, parsed
	case failed != nil:
		return Answer{}, refusalOf(failed)
	}
	return a, nil
}

// mayWrite asks whether the client may make files, until it may. Another process could get its number once it has ended, so it must
// live afterwards.
func (c *Session) mayWrite() error {
	if c.server.opt.MayWrite == nil || c.writes {
		return nil
	}
	pid := 0
	if c.pidfd != nil {
		pid = pidOf(int(c.pidfd.Fd()))
	}
	err := c.server.opt.MayWrite(pid)
	if err == nil && pid != 0 && pidOf(int(c.pidfd.Fd())) != pid {
		err = refuse(unix.ESRCH, "process %d, which connected, has ended", pid)
	}
	c.writes = err == nil
	return err
}

func (c *Session) begin(ctx context.Context, m *control.Begin) (Answer, error) {
	if m.Flags&control.BeginAttach != 0 {
		d := c.server.named(c.user.UID, m.Name)
		if d == nil {
			return Answer{}, refuse(unix.ENOENT, "user %d has no draft of %q to write into: its first writer begins it, on this node", c.user.UID, m.Name)
		}
		return c.into(ctx, d, m.Files)
	}
	d := &clientDraft{
		key: key{c.user.UID, m.ID}, server: c.server, user: c.user, name: m.Name, part: checkpoint.Part{Index: int(m.Part), Of: int(m.Parts)},
		umask: m.Umask, began: time.Now(), byName: map[string]int{},
	}
	d.mu.Lock()
	there, err := c.server.add(d)
	switch {
	case err != nil:
		d.mu.Unlock()
		return Answer{}, err
	case there != d: // the answer to the first was lost
		d.mu.Unlock()
		if there.name != d.name || there.part != d.part {
			return Answer{}, refuse(unix.EINVAL, "this number is that of the draft of %q: draw another", there.name)
		}
	default:
		if err = c.start(ctx, d); err != nil {
			if d.over = true; d.made != nil {
				_ = d.made.Drop() // it is empty
				d.books.end(0)
			}
			if d.writer != nil {
				_ = d.writer.pidfd.Close() // it was only asked
			}
			c.server.remove(d, false)
		}
		d.mu.Unlock()
		if err != nil {
			return Answer{}, err
		}
		if d.watch(); d.writer == nil {
			c.began = append(c.began, d)
		}
	}
	a, err := there.answer(there.add(m.Files))
	if err != nil && there == d {
		_, _ = d.drop() // the refusal of the files matters more
	}
	if err == nil {
		c.server.opt.Life.Settle(ctx)
	}
	return a, err
}

// start begins a new draft, whose mu is held.
func (c *Session) start(ctx context.Context, d *clientDraft) (err error) {
	if c.pidfd != nil {
		if d.writer, err = processOf(c.pidfd); err != nil {
			return err
		}
	}
	return d.begin(ctx)
}

// processOf gives a process that a draft can wait for.
func processOf(pidfd *os.File) (*process, error) {
	fd, err := unix.FcntlInt(pidfd.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that no thread waits
	}
	if err != nil {
		return nil, fmt.Errorf("watch the process that writes: %w", err)
	}
	p := &process{pidfd: os.NewFile(uintptr(fd), "writer"), pid: pidOf(fd)}
	return p, nil
}

// pidOf reads the number of a process, which is for people: 0 where it is of another PID namespace, or gone.
func pidOf(fd int) (pid int) {
	f, err := os.Open(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }() // opened for reading
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "Pid:"); ok {
			_, _ = fmt.Sscan(text, &pid) // 0 where it is none
		}
	}
	return max(pid, 0)
}

func (d *clientDraft) answer(first uint32, pens []*os.File, err error) (Answer, error) {
	m := control.DraftFiles{ID: d.id, First: first, Count: uint32(len(pens))}
	return Answer{control.TypeDraft, m.AppendTo, pens}, err
}

func (c *Session) add(ctx context.Context, m *control.AddFiles) (a Answer, err error) {
	err = c.of(m.ID, func(d *clientDraft) error {
		a, err = c.into(ctx, d, m.Files)
		return err
	})
	return a, err
}

// into makes files of a draft, which the next daemon has even where the holder of the mount ends with this one.
func (c *Session) into(ctx context.Context, d *clientDraft, files []control.NewFile) (Answer, error) {
	a, err := d.answer(d.add(files))
	if err == nil && len(files) > 0 {
		c.server.opt.Life.Settle(ctx)
	}
	return a, err
}

// of calls f with a draft of the user.
func (c *Session) of(id control.DraftID, f func(*clientDraft) error) error {
	d := c.server.find(key{c.user.UID, id})
	if d == nil {
		return refuse(unix.ENOENT, "there is no such draft: it was published, or dropped, its first writer has ended, or it is another user's")
	}
	return f(d)
}

func (c *Session) publish(ctx context.Context, m *control.PublishDraft) error {
	if c.server.wasPublished(key{c.user.UID, m.ID}) {
		return nil
	}
	return c.of(m.ID, func(d *clientDraft) error { return d.publish(ctx, m) })
}

func (c *Session) drop(id control.DraftID) error {
	d := c.server.find(key{c.user.UID, id})
	if d == nil {
		return nil
	}
	_, err := d.drop()
	return err
}
