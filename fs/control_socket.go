package fs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// socketName is the socket in ControlName. It is not there until the daemon has bound it.
const socketName = "control"

// Ready is closed once Serve has made the control socket, or has said why it cannot: readers need not wait for it.
func (m *Mount) Ready() <-chan struct{} { return m.control.settled }

// serveControl runs what the control channel does beside answering ioctls, until ctx ends. Without a socket the mount
// works all the same, and status says why there is none.
func (m *Mount) serveControl(ctx context.Context) {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { m.control.prefetch.run(ctx) })
	listener, device, err := m.bindControl(ctx)
	if sealErr := sealReadOnly(m.point); sealErr != nil && ctx.Err() == nil {
		m.log.Debug("the superblock stays writable, though nothing in it is", "reason", sealErr)
	}
	close(m.control.settled)
	if err != nil {
		m.control.disable(err.Error())
		if ctx.Err() == nil {
			m.log.Warn("there is no control socket: readers cannot pass by FUSE", "reason", err)
		}
		return
	}
	inTree, stop := context.WithCancel(ctx) // a name of its own: the prefetcher still reads ctx
	defer stop()
	parts.Go(func() { // ends with inTree
		defer stop()
		if err := untilUnmounted(inTree, device); err != nil {
			m.log.Error("the mount table cannot be watched, so the control socket is closed", "error", err)
		}
	})
	m.accept(inTree, listener)
	m.control.disable("the mount was taken out of the tree")
}

// Mknod makes the control socket when this process binds it, and nothing else, ever.
func (m *Mount) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	parent := m.tree.get(number(in.NodeId))
	if parent == nil || parent.dir == nil || name != socketName || in.Mode&syscall.S_IFMT != syscall.S_IFSOCK || int(in.Uid) != os.Geteuid() {
		return erofs
	}
	n, i := m.tree.find(parent.dir, name)
	if n == nil || n.kind != kindSocket || !m.control.binding.CompareAndSwap(true, false) {
		return erofs
	}
	m.control.bound.Store(true)
	ctx := newRequest(cancel, &in.InHeader)
	defer ctx.end()
	if _, err := m.attr(ctx, n, &out.Attr); err != nil {
		return m.fail(n, "make", err)
	}
	m.entry(n, i, out)
	return fuse.OK
}

// settle keeps a machine that mounts and unmounts all day from having its mount table parsed all day.
const settle = 20 * time.Millisecond

// untilUnmounted returns when no mount of the device is left in this mount namespace, or ctx ends. Mounts in other
// namespaces, and files that are open, keep the filesystem but no longer its socket: a bound socket, or a connection
// that was made through it, would keep the daemon forever.
func untilUnmounted(ctx context.Context, device string) error {
	// Not an os.File: Go would poll it, too, and each change is told to one who asks only.
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(table) }() // opened for reading: nothing is lost
	var wake [2]int
	if err := unix.Pipe2(wake[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer control.CloseAll(wake[:1])
	var closing sync.Once
	end := func() { closing.Do(func() { control.CloseAll(wake[1:]) }) }
	defer end()
	defer context.AfterFunc(ctx, end)()
	for {
		left, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
			return fmt.Sprintf("%d:%d", i.Major, i.Minor) != device, false
		})
		if err != nil || len(left) == 0 || ctx.Err() != nil {
			return err
		}
		poll := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: int32(wake[0]), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if poll[1].Revents != 0 {
			return nil
		}
		time.Sleep(settle)
	}
}

// endTime is how long sessions may take to end, which is a moment but where the kernel holds one up: it closes what a peer
// has sent along, and the last close of a socket may wait as long as who made it likes. The kernel is told to refuse such
// (SO_PASSRIGHTS); one that cannot is left to the end of the process, which nothing holds up.
const endTime = 3 * time.Second

// accept takes connections until ctx ends, and then ends them.
func (m *Mount) accept(ctx context.Context, listener net.Listener) {
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	var sessions sync.WaitGroup
	defer m.awaitSessions(&sessions)
	for {
		c, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			// Most likely there are too many open files: those who have them will close some.
			select {
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		s, err := m.newSession(c.(*net.UnixConn))
		if err != nil {
			_ = c.Close() // it has been told why, as far as it reads
			continue
		}
		sessions.Go(func() { s.run(ctx) })
	}
}

// awaitSessions waits until all have ended, or endTime is over.
func (m *Mount) awaitSessions(sessions *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() { // ends with the sessions, or the process
		defer close(ended)
		sessions.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(endTime):
		m.log.Error("connections are held up in the kernel, by what their peers have sent along: they end with this process")
	}
}
