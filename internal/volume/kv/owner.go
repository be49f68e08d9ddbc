package kv

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

// owner is a process that has the volume open, and its holds. It lasts as long as a connection of it, or as the process where it holds something.
type owner struct {
	id    uint64 // the number that the client knows it by
	uid   uint32
	pid   int
	pidfd *os.File // nil where the kernel does not tell the process: all ends with the connection
	inode uint64   // of pidfd: see inodeOf

	mu       sync.Mutex // guards the fields below
	holds    map[uint64]*hold
	sessions int
	latest   *Session // that goes on with the holds of the others: these are given nothing more. nil: of a daemon before
	over     bool
}

// attach makes a session of the process the one that goes on. It gives the tokens beyond those that the process has seen: answers that had
// them were lost.
func (o *owner) attach(c *Session, seen uint64) (lost []uint64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over || !sameProcess(o.pidfd, c.pidfd) { // pidfd is open as long as it is not over
		return nil, false
	}
	o.sessions++
	o.latest, c.owner = c, o
	for token := range o.holds {
		if token > seen {
			lost = append(lost, token)
		}
	}
	return lost, true
}

// keptOwner begins the names of the processes' descriptors that the holder of the mount keeps.
const keptOwner = "kv-owner-"

func (o *owner) kept() string {
	return keptOwner + strconv.FormatUint(uint64(o.uid), 10) + "-" + strconv.FormatUint(o.id, 16)
}

// parseOwner reads such a name.
func parseOwner(name string) (uid uint32, id uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, keptOwner)
	user, number, found := strings.Cut(rest, "-")
	u, userErr := strconv.ParseUint(user, 10, 32)
	id, err := strconv.ParseUint(number, 16, 64)
	return uint32(u), id, ok && found && userErr == nil && err == nil
}

// nonblocking gives a descriptor that the runtime waits for without a thread.
func nonblocking(pidfd *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(pidfd.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, fmt.Errorf("watch a process: %w", err)
	}
	return os.NewFile(uintptr(fd), "client"), nil
}

// pidOf reads the number of a process: 0 where it is of another PID namespace, or gone.
func pidOf(pidfd *os.File) (pid int) {
	f, err := os.Open("/proc/self/fdinfo/" + strconv.Itoa(int(pidfd.Fd())))
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

// sameProcess tells whether two descriptors are of one process: by their inodes (Linux 6.9), and by its number on older kernels.
func sameProcess(a, b *os.File) bool {
	var x, y unix.Stat_t
	if unix.Fstat(int(a.Fd()), &x) != nil || unix.Fstat(int(b.Fd()), &y) != nil {
		return false
	}
	pid := pidOf(a)
	return x.Dev == y.Dev && x.Ino == y.Ino && pid == pidOf(b) && (pid != 0 || pidfsMagic(a))
}

// pidfsMagic tells whether inodes name processes.
func pidfsMagic(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && st.Type == 0x50494446 // PID_FS_MAGIC
}

// inodeOf names a process as long as the machine runs. It is 0 before Linux 6.9.
func inodeOf(pidfd *os.File) uint64 {
	var st unix.Stat_t
	if !pidfsMagic(pidfd) || unix.Fstat(int(pidfd.Fd()), &st) != nil {
		return 0
	}
	return st.Ino
}

// mostOwners bounds the owners of all users.
const mostOwners = 4096

// ownersOf bounds owners by the descriptors of this process, and of systemd's store where that keeps them. One that holds something stays when its
// connection ends.
func ownersOf(life *handover.Life) *shares.Shares {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024 // the default of Linux
	}
	n := min(mostOwners, int64(min(limit.Cur, 1<<20))/16) // each takes two
	if room, bounded := life.Room(); bounded {
		n = min(n, room/2)
	}
	return shares.New(n, n/2, 1)
}

// newOwner makes the owner of a session's process.
func (s *Store) newOwner(c *Session) (*owner, error) {
	if !s.owning.Reserve(c.user.UID, 1) {
		return nil, refuse(unix.EDQUOT, "user %d has the volume open %d times, or holds blocks since, and gets no more: end some of these processes",
			c.user.UID, s.owning.Of(c.user.UID))
	}
	o, err := s.makeOwner(c)
	if err != nil {
		s.owning.Book(c.user.UID, -1)
	}
	return o, err
}

func (s *Store) makeOwner(c *Session) (*owner, error) {
	o := &owner{id: newID(), uid: c.user.UID, holds: map[uint64]*hold{}, sessions: 1, latest: c}
	if c.pidfd != nil {
		var err error
		if o.pidfd, err = nonblocking(c.pidfd); err != nil {
			return nil, err
		}
		o.pid, o.inode = pidOf(o.pidfd), inodeOf(o.pidfd)
		if room, bounded := s.opt.Life.Room(); bounded && int64(len(s.opt.Life.Names())) >= room {
			return nil, errors.Join(refuse(unix.EAGAIN, "the holder of the mount has no room for another process: raise FileDescriptorStoreMax="), o.pidfd.Close())
		}
		if s.opt.Life != nil {
			if err := s.opt.Life.Keep(o.kept(), o.pidfd); err != nil {
				return nil, errors.Join(err, o.pidfd.Close())
			}
		}
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, refuse(unix.ESHUTDOWN, "the mount ends")
	}
	s.owners[o.id] = o
	s.mu.Unlock()
	s.watch(o)
	return o, nil
}

// watch ends an owner's holds once its process ends.
func (s *Store) watch(o *owner) {
	if o.pidfd == nil {
		return
	}
	raw, err := o.pidfd.SyscallConn()
	if err != nil {
		return // it is over
	}
	s.ended.Go(func() { // ends with the process, or the owner
		if raw.Read(func(fd uintptr) bool {
			poll := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, _ := unix.Poll(poll[:], 0) // it does not wait
			return n > 0
		}) == nil {
			s.end(o)
		}
	})
}

// leave ends a session of an owner. Without its process it ends; and so it does where it holds nothing.
func (s *Store) leave(c *Session) {
	o := c.owner
	o.mu.Lock()
	o.sessions--
	over := !o.over && o.sessions == 0 && (o.pidfd == nil || len(o.holds) == 0)
	o.over = o.over || over // no connection goes on with it meanwhile
	o.mu.Unlock()
	if over {
		s.bury(o)
	}
}

// end gives back all that an owner holds.
func (s *Store) end(o *owner) {
	o.mu.Lock()
	over := o.over
	o.over = true
	o.mu.Unlock()
	if !over {
		s.bury(o)
	}
}

// bury gives back all that an owner holds which is over.
func (s *Store) bury(o *owner) {
	o.mu.Lock()
	tokens := make([]uint64, 0, len(o.holds))
	for token := range o.holds {
		tokens = append(tokens, token)
	}
	o.mu.Unlock()
	s.giveBack(o, tokens)
	if o.pidfd != nil {
		s.opt.Life.Drop(o.kept())
		_ = o.pidfd.Close() // it was only asked
	}
	s.mu.Lock()
	delete(s.owners, o.id)
	delete(s.away, o.id)
	s.mu.Unlock()
	s.owning.Book(o.uid, -1)
}

// giveBack ends holds, but those of which a COMMIT is under way.
func (s *Store) giveBack(o *owner, tokens []uint64) {
	for _, token := range tokens {
		h, _ := o.find(token)
		if h == nil {
			continue
		}
		h.space.mu.Lock()
		if _, busy := o.find(token); !busy { // a COMMIT begins with the lock
			s.release(o, token)
		}
		h.space.mu.Unlock()
	}
}

// find gives a hold, nil where there is none of that token.
func (o *owner) find(token uint64) (h *hold, busy bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h = o.holds[token]; h != nil {
		busy = h.busy
	}
	return h, busy
}

// adoptOwners goes on with the processes that the daemon before served.
func (s *Store) adoptOwners() map[uint64]*owner {
	owners := map[uint64]*owner{}
	life := s.opt.Life
	for _, name := range life.Names() {
		uid, id, ok := parseOwner(name)
		if !ok {
			continue
		}
		f := life.Took(name)
		if f == nil {
			continue
		}
		if o := s.adoptOwner(uid, id, f); o != nil {
			owners[id] = o
		} else {
			life.Drop(name)
		}
	}
	return owners
}

// adoptOwner goes on with a process that the daemon before served.
func (s *Store) adoptOwner(uid uint32, id uint64, f *os.File) *owner {
	pidfd, err := nonblocking(f)
	_ = f.Close() // the owner has its own
	if err != nil {
		s.note("a process is not watched, and what it held is given back: %v", err)
		return nil
	}
	o := &owner{id: id, uid: uid, pid: pidOf(pidfd), pidfd: pidfd, inode: inodeOf(pidfd), holds: map[uint64]*hold{}}
	s.mu.Lock()
	s.owners[id], s.away[id] = o, true
	s.mu.Unlock()
	s.owning.Book(uid, 1)
	return o
}

// missedOwner finds the process of a hold that the holder of the mount does not have. It came in the last moment before the daemon and its keeper
// ended. It may be writing to its slots, which nobody else gets then. nil: it has ended.
func (s *Store) missedOwner(e *entry) *owner {
	if e.inode == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(int(e.pid), 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "client")
	if inodeOf(f) != e.inode { // another process has its number by now
		_ = f.Close() // it was only asked
		return nil
	}
	o := s.adoptOwner(e.uid, e.owner, f)
	if o == nil {
		return nil
	}
	if err := s.opt.Life.Keep(o.kept(), o.pidfd); err != nil {
		s.note("the holder of the mount does not keep a process: %v", err)
	}
	return o
}
