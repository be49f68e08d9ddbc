package cache

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout"
)

// ChangeKind says how an object differs from the one that was listed.
type ChangeKind uint8

// The kinds, with the numbers that docs/reference/control-protocol.md gives them.
const (
	Cut       ChangeKind = iota + 1 // the same file is shorter
	Rewritten                       // the same file was written to
	Replaced                        // another file has its name
	Removed                         // no file has its name
)

// Change is an object that is no longer as it was listed.
type Change struct {
	Object *layout.Object
	Kind   ChangeKind
	Since  int64 // CLOCK_MONOTONIC, ns: it was as listed then, or later
}

// Watch looks at objects of a Dir until each has changed. The kernel notifies of most changes (inotify, of their directories). A sweep finds the others: it
// compares one object after the other with its listed version.
//
// A reported change holds for good: an object that gets its listed version back has changed all the same.
type Watch struct {
	dir   *Dir
	found func(changes []Change, looked int64)
	wake  int    // an eventfd
	queue *queue // nil where the kernel does not notify
	done  chan struct{}

	mu    sync.Mutex // guards the fields below
	fresh []*layout.Object
	ended bool

	// The fields below belong to the goroutine.
	entries []*watched
	due     []*watched // those to compare next
	sweep   int        // the entry that a sweep compares next; len(entries) where none runs
	every   time.Duration
	began   time.Time // the last sweep
	looked  int64     // CLOCK_MONOTONIC, ns: notifications until then are in due or were compared
	swept   int64     // likewise: when the last complete sweep began
	begun   int64     // likewise: when the sweep that runs began
}

// watched is an object of a Watch.
type watched struct {
	object  *layout.Object
	since   int64 // when it was as listed, as far as notifications tell
	due     bool
	changed bool
}

// A Watch takes a turn when the kernel notifies, and each BeatEvery. A turn compares for lookCPU of processor time and lookWall at most. After it the Watch
// rests for 20 times the processor time that the turn took, and lookRest at least. So it uses a 20th of a processor at most. A sweep begins SweepEvery after the one
// before, or RemoteSweepEvery where other machines may change files of which the kernel does not notify, and later where that takes longer.
const (
	BeatEvery        = 100 * time.Millisecond
	SweepEvery       = 10 * time.Second
	RemoteSweepEvery = 2 * time.Second

	lookCPU  = 5 * time.Millisecond
	lookWall = 50 * time.Millisecond
	lookRest = 20 * time.Millisecond

	lookShare = 20
	lookSome  = 32 // objects that are compared before the time is looked at
)

// Watch begins to look. looked is when another one has looked last, CLOCK_MONOTONIC, or 0. found is told of changes at the end of each turn, also where there are
// none. It also hears until when the kernel's notices are known.
func (d *Dir) Watch(looked int64, found func(changes []Change, looked int64)) (*Watch, error) {
	q, every := newQueue(), RemoteSweepEvery
	if q != nil && notifies(d.fd) {
		every = SweepEvery
	}
	return d.watchBy(q, every, looked, found)
}

func (d *Dir) watchBy(q *queue, every time.Duration, looked int64, found func(changes []Change, looked int64)) (*Watch, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		q.close()
		return nil, os.NewSyscallError("eventfd", err)
	}
	if looked == 0 {
		looked = Monotonic()
	}
	w := &Watch{dir: d, found: found, wake: wake, queue: q, done: make(chan struct{}), every: every, looked: looked, swept: looked}
	go w.run()
	return w, nil
}

// Monotonic is CLOCK_MONOTONIC in ns, which all processes of a machine share.
func Monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	return t.Nano()
}

// notifies says whether all changes of a file system pass through this kernel.
func notifies(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return false
	}
	const cifs, smb2, ceph, lustre, gpfs, beegfs = 0xff534d42, 0xfe534d42, 0x00c36400, 0x0bd00bd0, 0x47504653, 0x19830326
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC, unix.AFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, cifs, smb2, ceph, lustre, gpfs, beegfs:
		return false
	}
	return true
}

// Add has the Watch look at objects, each once.
func (w *Watch) Add(objects ...*layout.Object) {
	w.mu.Lock()
	w.fresh = append(w.fresh, objects...)
	w.mu.Unlock()
}

// Close ends the looking.
func (w *Watch) Close() {
	w.mu.Lock()
	ended := w.ended
	w.ended = true
	w.mu.Unlock()
	if ended {
		return
	}
	_, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // it has room
	<-w.done
	w.queue.close()
	_ = unix.Close(w.wake)
}

func (w *Watch) run() {
	defer close(w.done)
	runtime.LockOSThread() // whose processor time is counted; it ends with the goroutine
	for w.adopt() {
		cpu := threadTime()
		w.found(w.turn(time.Now()), w.looked)
		rest := max(lookRest, lookShare*(threadTime()-cpu))
		w.wait(rest, false)
		if len(w.due) == 0 && w.sweep >= len(w.entries) {
			w.wait(BeatEvery-rest, true)
		}
	}
}

// wait returns after a while, or when the Watch ends, or the kernel notifies and that shall count.
func (w *Watch) wait(most time.Duration, notified bool) {
	poll := []unix.PollFd{{Fd: int32(w.wake), Events: unix.POLLIN}}
	if notified && w.queue != nil {
		poll = append(poll, unix.PollFd{Fd: int32(w.queue.fd), Events: unix.POLLIN})
	}
	if most > 0 {
		_, _ = unix.Poll(poll, int(most.Milliseconds())) // EINTR: a turn more
	}
}

// adopt takes objects that were added. It is false at the end.
func (w *Watch) adopt() bool {
	w.mu.Lock()
	fresh, ended := w.fresh, w.ended
	w.fresh = nil
	w.mu.Unlock()
	if ended {
		return false
	}
	idle := w.sweep >= len(w.entries)
	for _, o := range fresh {
		e := &watched{object: o}
		w.entries = append(w.entries, e)
		w.queue.add(w.dir, e)
		w.notice(e) // it may have changed before the kernel was asked to notify
	}
	if idle {
		w.sweep = len(w.entries)
	}
	return true
}

// notice has an object compared.
func (w *Watch) notice(e *watched) {
	if e.due || e.changed {
		return
	}
	e.due, e.since = true, w.looked
	w.due = append(w.due, e)
}

// turn gives the objects that are found to have changed.
func (w *Watch) turn(began time.Time) (changes []Change) {
	looked := Monotonic()
	more, all := w.queue.read(w.notice)
	if more {
		w.startSweep(looked)
	}
	if all {
		w.looked = looked
	}
	if w.sweep >= len(w.entries) && time.Since(w.began) >= w.every {
		w.startSweep(looked)
	}
	cpu := threadTime()
	goOn := func(n int) bool { return n%lookSome != 0 || time.Since(began) < lookWall && threadTime()-cpu < lookCPU }
	n := 1
	for ; len(w.due) > 0 && goOn(n); n++ {
		e := w.due[0]
		w.due = w.due[1:]
		e.due = false
		changes = w.compare(e, e.since, changes)
	}
	if len(w.due) > 0 {
		return changes
	}
	w.due = nil
	for ; w.sweep < len(w.entries) && goOn(n); n++ {
		changes = w.compare(w.entries[w.sweep], w.swept, changes)
		if w.sweep++; w.sweep == len(w.entries) {
			w.swept = w.begun
		}
	}
	return changes
}

func (w *Watch) startSweep(now int64) {
	w.sweep, w.began, w.begun = 0, time.Now(), now
}

// compare adds an object to changes if it is not as it was listed.
func (w *Watch) compare(e *watched, since int64, changes []Change) []Change {
	if e.changed {
		return changes
	}
	kind := w.dir.Compare(e.object)
	if kind == 0 {
		return changes
	}
	e.changed = true
	return append(changes, Change{e.object, kind, since})
}

// Compare says how an object differs from its listed version; 0: it does not, or the file system does not say.
func (d *Dir) Compare(o *layout.Object) ChangeKind {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd, o.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Size == o.Size && d.by.stamp(&st).is(o.Version) {
		return 0
	}
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG { // perhaps a link, or a directory that is one now
		to, missing := d.resolve([]openDir{{fd: d.fd}}, o.Name)
		switch {
		case errors.Is(missing, fs.ErrNotExist), errors.Is(missing, unix.ENOTDIR), errors.Is(missing, errNoTarget):
			return Removed
		case missing != nil:
			return 0
		}
		if st = to.at; st.Size == o.Size && d.by.stamp(&st).is(o.Version) {
			return 0
		}
	}
	switch ino, _, _ := strings.Cut(o.Version, "-"); {
	case st.Mode&unix.S_IFMT != unix.S_IFREG, ino != strconv.FormatUint(st.Ino, 10):
		return Replaced
	case st.Size < o.Size:
		return Cut
	}
	return Rewritten
}

// threadTime is the processor time of this thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // cannot fail
	return time.Duration(t.Nano())
}
