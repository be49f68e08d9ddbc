package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/layout"
)

// changes has the changes at the source for readers past FUSE: a list, and a counter that they map. Objects that have no number are not watched: no reader
// has them. The list has each object once, so it is no longer than that of the numbers.
type changes struct {
	file    *os.File // of the counter; nil where it could not be made
	counter *control.Counter

	mu       sync.Mutex // guards the fields below
	watching int        // connections that have asked for the counter
	watch    *cache.Watch
	list     []cache.Change
	listed   map[*layout.Object]bool
	looked   int64                // of the daemon before
	told     func([]cache.Change) // of new entries
}

// open makes the counter, or goes on with that of the daemon before. Its readers then connect again, and ask this daemon.
func (c *changes) open(before *os.File) (err error) {
	c.listed = map[*layout.Object]bool{}
	if c.file = before; before == nil {
		if c.file, err = newCounterFile(); err != nil {
			return err
		}
	}
	if c.counter, _, err = control.MapCounter(int(c.file.Fd()), true); err != nil {
		c.file = nil
		return err
	}
	c.looked = c.counter.Looked.Load()
	if before != nil {
		c.counter.Changes.Add(1)
	}
	return nil
}

// openChanges makes ready to tell of changes, where the source is no checkpoint volume: published files do not change.
func (s *Server) openChanges(before *os.File) {
	if s.opt.Drafts != nil {
		return
	}
	c := &s.changes
	c.told = s.tellChanges
	err := c.open(before)
	if err == nil && before == nil && s.opt.Life.Adopts() { // the daemon before was an older program
		err = s.opt.Life.Keep(keptChanges, c.file)
	}
	if err != nil {
		s.opt.Log.Warn("readers past FUSE look at their files by themselves", "error", err)
	}
}

// newCounterFile makes a file in memory of which others than this user can only have descriptors that read.
func newCounterFile() (*os.File, error) {
	f, err := handover.NewMemory("changes")
	if err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if err = errors.Join(f.Chmod(0o600), f.Truncate(control.CounterSize)); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the counter of changes: %w", err), f.Close())
	}
	return f, nil
}

// number has an object watched that got a number, if anything is watched.
func (c *changes) number(o *layout.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watching > 0 {
		c.add(o)
	}
}

// begin watches for one connection more. numbered gives the objects that have a number.
func (c *changes) begin(numbered func() []*layout.Object) {
	c.mu.Lock()
	c.watching++
	first := c.watching == 1
	c.mu.Unlock()
	if !first {
		return
	}
	list := numbered() // takes the lock that number is called with
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range list {
		if c.watching > 0 {
			c.add(o)
		}
	}
}

// add needs mu. Where nothing can be watched, the counter does not tell of looks, and readers look by themselves.
func (c *changes) add(o *layout.Object) {
	dir, local := o.Origin.(*cache.Dir)
	if !local {
		return
	}
	if c.watch == nil {
		watch, err := dir.Watch(c.looked, c.found)
		if err != nil {
			return
		}
		c.watch = watch
	}
	c.watch.Add(o)
}

// end is the opposite of begin.
func (c *changes) end() {
	c.mu.Lock()
	c.watching--
	watch := c.watch
	if c.watching > 0 || watch == nil {
		c.mu.Unlock()
		return
	}
	c.watch = nil
	c.mu.Unlock()
	watch.Close() // it may be in found
}

// found takes the changes of one turn of the watch.
func (c *changes) found(list []cache.Change, looked int64) {
	c.enter(list)
	c.mu.Lock()
	c.looked = looked
	c.mu.Unlock()
	c.counter.Looked.Store(looked)
}

// suspect compares an object that could not be opened as the version that was listed, so that its reader can ask for its change at once.
func (c *changes) suspect(o *layout.Object) {
	c.mu.Lock()
	watched, looked := c.watch != nil, c.looked
	c.mu.Unlock()
	if dir, local := o.Origin.(*cache.Dir); watched && local {
		if kind := dir.Compare(o); kind != 0 {
			c.enter([]cache.Change{{Object: o, Kind: kind, Since: looked}})
		}
	}
}

// enter adds to the list.
func (c *changes) enter(list []cache.Change) {
	var fresh []cache.Change
	c.mu.Lock()
	for _, change := range list {
		if !c.listed[change.Object] {
			c.listed[change.Object] = true
			fresh = append(fresh, change)
		}
	}
	c.list = append(c.list, fresh...)
	c.mu.Unlock()
	if len(fresh) > 0 {
		c.counter.Changes.Add(uint64(len(fresh)))
		c.told(fresh)
	}
}

// from gives entries of the list.
func (c *changes) from(first uint64, most int) (list []cache.Change, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list = c.list[min(first, uint64(len(c.list))):]
	if more = len(list) > most; more {
		list = list[:most]
	}
	return list, more
}

// count gives the length of the list.
func (c *changes) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.list)
}

// tellChanges logs changes.
func (s *Server) tellChanges(list []cache.Change) {
	first := list[0]
	s.opt.Log.Warn("files of the source have changed: readers get errors for them", "files", len(list), "first", first.Object.Name, "how", control.ChangeKind(first.Kind).String())
}

// changesAtOnce bounds the entries that one answer looks at.
const changesAtOnce = 1024

// changes answers CHANGES with entries for files that the peer may read, by the rules of LOOKUP.
func (s *session) changes(ctx context.Context, payload []byte, a *answer) error {
	q, err := control.ParseAskChanges(payload)
	if err != nil {
		return err
	}
	c := &s.server.changes
	if c.file == nil {
		return errProtocol // WELCOME did not offer it
	}
	if q.Counter {
		if err := s.watchChanges(a); err != nil {
			return err
		}
	}
	now := cache.Monotonic()
	list, more := c.from(q.From, changesAtOnce)
	said := control.Changes{Next: q.From, More: more}
	s.peer.process.forget()
	for _, change := range list {
		name := change.Object.Name
		if found, _ := s.objectAt(ctx, name); found != change.Object {
			said.Withheld++
		} else if said.Room(name) {
			said.List = append(said.List, control.Change{
				Object: s.server.objects.id(change.Object), Kind: control.ChangeKind(change.Kind), Ago: time.Duration(max(0, now-change.Since)), Name: name,
			})
		} else {
			said.More = true
			break
		}
		said.Next++
	}
	a.header.Type, a.payload = control.TypeChanged, said.AppendTo
	return nil
}

// watchChanges gives the connection the counter, to read.
func (s *session) watchChanges(a *answer) error {
	c := &s.server.changes
	if !s.watches {
		s.watches = true
		c.begin(s.server.objects.all)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", c.file.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &control.Refusal{Errno: unix.EAGAIN, Text: "the counter of changes cannot be opened: " + err.Error()}
	}
	a.fds = append(a.fds, fd)
	return nil
}
