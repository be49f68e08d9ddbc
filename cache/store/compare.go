package store

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/sys/uncached"
	"github.com/hbmfs/hbmfs/layout"
)

// comparedName is the extended attribute of a segment whose object had, as a whole, the hash that its version is. It goes with the segment.
const comparedName = "user.hbmfs.compared"

// comparisons are objects that are here as a whole, and are to be compared with the hash of their source.
type comparisons struct {
	mu      sync.Mutex // guards the fields below
	waiting []comparison
	running bool // the goroutine that compares

	once uncached.Once // reads segments that a loader may have dropped from the page cache
}

type comparison struct {
	origin *Cached
	file   *file
	object *layout.Object
}

// hashed tells whether an object is compared. MD5s are not compared: Azure stores those that its clients send, and does not check them.
func hashed(o *layout.Object) bool {
	return !o.Whole && o.Size > 0 && !strings.HasPrefix(o.Version, layout.MD5Version) && layout.VersionHash(o.Version, o.Size) != nil
}

// compareSoon has an object compared, if all of its segments are published.
func (x *Cached) compareSoon(f *file, o *layout.Object) {
	if !hashed(o) || f.refusal(o) != nil || !x.isPublished(f, o) {
		return
	}
	c := &x.store.comparisons
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, comparison{x, f, o})
	if !c.running {
		c.running = true
		x.store.wg.Go(x.store.compareAll)
	}
}

// isPublished reports whether all of an object is here, on the disk.
func (x *Cached) isPublished(f *file, o *layout.Object) bool {
	for at := int64(0); at < o.Size; at = x.segment(o, at).end() {
		e := x.store.ledger.find(keyOf(f.identity, x.segment(o, at).index))
		if e == nil {
			return false
		}
		if _, fill := x.store.ledger.look(e); fill != nil {
			return false
		}
	}
	return true
}

// compareAll compares objects until none waits, or the store is closed.
func (s *Store) compareAll() {
	buf := make([]byte, 1<<20)
	for c := (comparison{}); s.comparisons.next(&c); {
		if s.ctx.Err() != nil {
			return
		}
		if err := s.compare(c, buf); err != nil && s.ctx.Err() == nil {
			s.opt.Log.Debug("an object was not compared with the hash of its source", "object", c.object.Name, "error", err)
		}
	}
}

func (c *comparisons) next(to *comparison) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running = len(c.waiting) > 0; !c.running {
		c.waiting = nil
		return false
	}
	*to, c.waiting = c.waiting[0], c.waiting[1:]
	return true
}

// compare compares an object with the hash that its version is, unless that was done. An object that has gone meanwhile is an error.
func (s *Store) compare(c comparison, buf []byte) error {
	segments, done, err := s.toCompare(c)
	if err != nil || done {
		return err
	}
	h := layout.VersionHash(c.object.Version, c.object.Size)
	for _, o := range segments {
		err := s.borrow(o, func(fd int) error {
			for at := int64(0); at < o.Size; {
				began := time.Now()
				p := buf[:min(int64(len(buf)), o.Size-at)]
				if err := readBy(s.comparisons.once.Pread, fd, p, at); err != nil {
					return err
				}
				h.Write(p) // never fails
				at += int64(len(p))
				if err := pause.For(s.ctx, 3*time.Since(began)); err != nil { // a quarter of a processor, and of the disk
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if wrong := layout.CheckHash(c.object.Version, h); wrong != nil {
		return s.mismatch(c, segments, wrong, buf)
	}
	s.stats.compared.Add(1)
	for _, o := range segments {
		if err := s.borrow(o, func(fd int) error { return unix.Fsetxattr(fd, comparedName, nil, 0) }); err != nil {
			return fmt.Errorf("note that it was compared: %w", err) // and the next mount compares it again
		}
	}
	return nil
}

// borrow calls do with a segment's file. A segment that was replaced since it was looked up is an error.
func (s *Store) borrow(o *layout.Object, do func(fd int) error) error {
	fd, done, err := s.dir.Borrow(s.ctx, o)
	if err != nil {
		return err
	}
	defer done()
	return do(fd)
}

// toCompare gives the segments of an object, and tells whether all were compared before.
func (s *Store) toCompare(c comparison) (segments []*layout.Object, done bool, err error) {
	x, done := c.origin, true
	for at := int64(0); at < c.object.Size; {
		g := x.segment(c.object, at)
		e := s.ledger.find(keyOf(c.file.identity, g.index))
		if e == nil {
			return nil, false, errMoved
		}
		if _, fill := s.ledger.look(e); fill != nil {
			return nil, false, errMoved
		}
		o, err := s.published(e)
		if err != nil {
			return nil, false, err
		}
		if o.Size != g.size {
			return nil, false, errPlace
		}
		if done {
			err = s.borrow(o, func(fd int) error {
				_, err := unix.Fgetxattr(fd, comparedName, nil)
				if done = err == nil; errors.Is(err, unix.ENODATA) {
					return nil
				}
				return err
			})
			if err != nil {
				return nil, false, err
			}
		}
		segments, at = append(segments, o), g.end()
	}
	return segments, done, nil
}

// mismatch drops an object whose segments have another hash. Where the disk has changed them, they are fetched again. Else they came so. One
// transfer may have been bad, so they are fetched again once. The second time the object is refused from now on.
func (s *Store) mismatch(c comparison, segments []*layout.Object, wrong error, buf []byte) error {
	x, damaged := c.origin, false
	if err := s.unchanged(c, segments); err != nil {
		x.compareSoon(c.file, c.object)
		return err
	}
	all := s.keysOf(c)
	for _, k := range all {
		g, err := s.inspect(s.ctx, published{key: k}, true, buf)
		if err == nil && g.Damage != "" {
			damaged = true
			s.stats.corrupt.Add(1)
			s.opt.Log.Error("a segment is damaged and was removed", "segment", g.File, "object", c.object.Name, "damage", g.Damage)
			err = s.Remove(g.File)
		}
		if err != nil {
			return err
		}
	}
	if damaged {
		return nil
	}
	if err := s.unchanged(c, segments); err != nil { // what was inspected may not be what was hashed
		x.compareSoon(c.file, c.object)
		return err
	}
	again := !c.file.doubted.Swap(true)
	if !again {
		wrong = fmt.Errorf("%w: %w. It is refused until the next mount, or the next daemon of this one", cache.ErrDamaged, wrong)
		c.file.wrong.Store(&wrong) // before the segments are removed, so that no reader fetches them again
	}
	var err error
	for _, k := range all {
		if e := s.ledger.find(k); e != nil {
			if _, fill := s.ledger.look(e); fill != nil {
				s.ledger.drop(e)
				fill.close()
				continue
			}
		}
		err = errors.Join(err, s.Remove(k.name()))
	}
	c.file.stale.Store(true) // after the removal: the kernel may have pages of the removed segments until now
	s.stats.mismatched.Add(1)
	does := "is refused"
	if again {
		does = "is fetched again when it is read"
	}
	s.opt.Log.Error("an object does not have the hash that its source says, and "+does, "source", x.source, "object", c.object.Name, "error", wrong)
	return err
}

// unchanged returns an error unless an object still consists of these segments. One that another process has replaced is taken off the books.
func (s *Store) unchanged(c comparison, segments []*layout.Object) error {
	for i, k := range s.keysOf(c) {
		e := s.ledger.find(k)
		if e == nil {
			return errMoved
		}
		if o, _ := s.ledger.look(e); o != segments[i] {
			return errMoved
		}
		err := s.borrow(segments[i], func(fd int) error {
			var hashed, named unix.Stat_t
			if err := errors.Join(unix.Fstat(fd, &hashed), unix.Fstatat(s.fd, k.name(), &named, unix.AT_SYMLINK_NOFOLLOW)); err != nil || hashed.Ino != named.Ino {
				return errors.Join(errMoved, err)
			}
			return nil
		})
		if err != nil {
			s.ledger.drop(e)
			s.dir.Forget(segments[i])
			return err
		}
	}
	return nil
}

// keysOf are the keys of an object's segments.
func (s *Store) keysOf(c comparison) (keys []key) {
	for at := int64(0); at < c.object.Size; {
		g := c.origin.segment(c.object, at)
		keys, at = append(keys, keyOf(c.file.identity, g.index)), g.end()
	}
	return keys
}

// refusal is why an object is not given out, nil where it is.
func (f *file) refusal(o *layout.Object) error {
	if why := f.wrong.Load(); why != nil {
		return fmt.Errorf("read %q: %w", o.Name, *why)
	}
	return nil
}

// Stale tells, once, that the kernel may have pages of an object whose bytes had another hash and were dropped.
func (x *Cached) Stale(o *layout.Object) bool {
	f := x.file(o)
	return f.stale.Load() && f.stale.Swap(false)
}
