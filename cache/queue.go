package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// queue is where the kernel notifies of changes in directories: inotify(7). nil is one that knows of none.
type queue struct {
	fd   int
	of   map[int32]*directory
	by   map[string]*directory // by name
	full bool                  // no directory more: the kernel refuses one, or there are too many
	buf  [64 << 10]byte
}

// directory is one whose changes the kernel notifies of.
type directory struct {
	objects map[string]*watched // by their last name; nil where none is watched
}

// mostDirectories bounds those that a Watch has the kernel notify of. The kernel keeps about a kilobyte for each, and all programs of a user share
// a limit (fs.inotify.max_user_watches). A sweep finds changes in others.
const mostDirectories = 8192

// noticed are the events: contents, times and links, and names that come and go. A file that was mapped for writing says so when it is closed.
const noticed = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CLOSE_WRITE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// newQueue gives nil where the kernel has none for this user.
func newQueue() *queue {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	return &queue{fd: fd, of: map[int32]*directory{}, by: map[string]*directory{}}
}

func (q *queue) close() {
	if q != nil {
		_ = unix.Close(q.fd) // nothing was written
	}
}

// add has the kernel notify of changes of an object, and of the directories on its way. Where a link leads to it, only of changes of the link.
func (q *queue) add(d *Dir, e *watched) {
	if q == nil {
		return
	}
	dir, base := path.Split(e.object.Name)
	at := q.directory(d, strings.TrimSuffix(dir, "/"))
	if at == nil {
		return
	}
	if at.objects == nil {
		at.objects = map[string]*watched{}
	}
	at.objects[base] = e
}

func (q *queue) directory(d *Dir, name string) *directory {
	if at := q.by[name]; at != nil {
		return at
	}
	if q.full || len(q.by) >= mostDirectories {
		q.full = true
		return nil
	}
	if name != "" { // else renaming a parent would not be noticed
		above, _ := path.Split(name)
		q.directory(d, strings.TrimSuffix(above, "/"))
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	below := name
	if below == "" {
		below = "."
	}
	fd, err := unix.Openat2(d.fd, below, &how)
	if err != nil {
		return nil
	}
	wd, err := unix.InotifyAddWatch(q.fd, fmt.Sprintf("/proc/self/fd/%d", fd), noticed)
	_ = unix.Close(fd) // it was only named
	if err != nil {
		q.full = errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM)
		return nil
	}
	at := q.of[int32(wd)]
	if at == nil { // else another name of the same directory
		at = &directory{}
		q.of[int32(wd)] = at
	}
	q.by[name] = at
	return at
}

// mostReads bounds the events that one turn takes: about as many as the kernel keeps (fs.inotify.max_queued_events).
const mostReads = 16

// read takes events, and calls notice for the objects that they are about. more is true where other objects may have changed, too, and all where no
// event is left.
func (q *queue) read(notice func(*watched)) (more, all bool) {
	if q == nil {
		return false, true
	}
	for range mostReads {
		n, err := unix.Read(q.fd, q.buf[:])
		if err != nil || n <= 0 {
			return more, errors.Is(err, unix.EAGAIN)
		}
		for p := q.buf[:n]; len(p) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(p)), binary.NativeEndian.Uint32(p[4:])
			length := int(binary.NativeEndian.Uint32(p[12:]))
			name, _, _ := bytes.Cut(p[unix.SizeofInotifyEvent:][:length], []byte{0})
			p = p[unix.SizeofInotifyEvent+length:]
			more = q.event(wd, mask, name, notice) || more
		}
	}
	return more, false
}

func (q *queue) event(wd int32, mask uint32, name []byte, notice func(*watched)) (more bool) {
	at := q.of[wd]
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0:
		return true
	case at == nil:
		return false
	case mask&unix.IN_IGNORED != 0:
		delete(q.of, wd)
		return true
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) != 0:
		return true
	}
	if e := at.objects[string(name)]; e != nil {
		notice(e)
		return false
	}
	const names = unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE
	return mask&unix.IN_ISDIR != 0 && mask&names != 0
}
