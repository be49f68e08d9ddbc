package fs

import (
	"crypto/rand"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
	"github.com/hbmfs/hbmfs/layout"
)

// channel is the daemon's end of the control channel. The ioctls and the socket share it.
type channel struct {
	epoch    control.Epoch // of the mount: a daemon that goes on with it keeps it, and the numbers of files
	objects  objectIDs
	tickets  *tickets
	prefetch *prefetcher
	facts    sync.Map // node number to facts, for bodies that are long to walk
	changes  changes

	binding   atomic.Bool // the daemon is about to make the socket
	bound     atomic.Bool // it is there
	listener  *net.UnixListener
	settled   chan struct{} // closed once the socket is there, or cannot be
	buffers   sync.Pool     // of *[control.MaxFrame]byte
	answering *turns
	lingering chan struct{}
	sessions  *shares.Shares // connections
	leases    *shares.Shares
	names     *shares.Shares // of clients, as the status tells them apart
	records   *shares.Shares // that connections have begun
	refused   atomic.Int64

	mu         sync.Mutex // guards the fields below
	off        string     // why there is no socket
	turnedAway int64
	usages     map[client]*usage
	readers    map[readerID]int // connections of each
}

func newChannel() *channel {
	sessions, each, answers := descriptorLimits()
	c := &channel{
		tickets: newTickets(), prefetch: newPrefetcher(), answering: newTurns(answers), lingering: make(chan struct{}, lingerAtOnce), settled: make(chan struct{}),
		sessions: shares.New(sessions, each, 0), leases: shares.New(leasesInAll, leasesInAll/2, leasesAtLeast), names: shares.New(usageNames, usageNames/2, 0),
		records: shares.New(recordsAtOnce, recordsAtOnce/2, 0),
		usages:  map[client]*usage{}, readers: map[readerID]int{},
	}
	_, _ = rand.Read(c.epoch[:]) // never fails: crypto/rand ends the program first
	c.objects.init()
	c.objects.numbered = c.changes.number
	return c
}

func (c *channel) buffer() *[control.MaxFrame]byte {
	if b, ok := c.buffers.Get().(*[control.MaxFrame]byte); ok {
		return b
	}
	return new([control.MaxFrame]byte)
}

// objectIDs number the backing files of the control channel, from 1, when a reader first asks, never twice. Local files
// keep their numbers. Segments come and go: when they are many, the oldest are forgotten.
type objectIDs struct {
	mu        sync.Mutex // guards the fields below
	last      uint64
	byObject  map[*layout.Object]uint64
	byID      map[uint64]*layout.Object
	evictable []uint64                          // of segments, the oldest first
	record    func(id uint64, o *layout.Object) // before anybody hears of a number; nil where the next daemon need not know
	numbered  func(o *layout.Object)            // before anybody hears of a number
}

// mostEvictable bounds the numbers of segments. A reader that asks for a forgotten one gets ESTALE, as for an evicted one,
// and asks for the extents again.
const mostEvictable = 1 << 16

func (t *objectIDs) init() {
	t.byObject, t.byID = map[*layout.Object]uint64{}, map[uint64]*layout.Object{}
}

func (t *objectIDs) id(o *layout.Object) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok := t.byObject[o]; ok {
		return id
	}
	if t.record != nil {
		t.record(t.last+1, o)
	}
	t.last++
	t.byObject[o], t.byID[t.last] = t.last, o
	if t.numbered != nil {
		t.numbered(o)
	}
	if storageOf(o).segment != nil {
		if t.evictable = append(t.evictable, t.last); len(t.evictable) > mostEvictable {
			delete(t.byObject, t.byID[t.evictable[0]])
			delete(t.byID, t.evictable[0])
			t.evictable = t.evictable[1:]
		}
	}
	return t.last
}

// adopt takes a number that an earlier daemon has given, for a file that is still there, or nil.
func (t *objectIDs) adopt(id uint64, o *layout.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last = max(t.last, id); o != nil {
		t.byObject[o], t.byID[id] = id, o
	}
}

// all gives the objects that have a number.
func (t *objectIDs) all() []*layout.Object {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byID))
}

// object returns nil for a number that was never given, or is forgotten.
func (t *objectIDs) object(id uint64) *layout.Object {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// extentOf makes an extent of a run. Bytes that lie in no backing file are one extent of the mount.
func (c *channel) extentOf(r layout.Run) control.Extent {
	s := storageOf(r.Object)
	if s.local == nil {
		length, flags := r.Length*r.Count, control.ExtentMount
		if s.segmented != nil {
			flags |= control.ExtentPending
		}
		return control.Extent{Logical: r.Logical, Length: length, Stride: length, Count: 1, Flags: flags}
	}
	return control.Extent{
		Logical: r.Logical, Length: r.Length, Offset: r.Offset, Object: c.objects.id(r.Object), Stride: r.Stride, Count: r.Count,
	}
}

// facts are the part of INFO's answer that takes a walk over a body.
type facts struct {
	flags     control.InfoFlags
	alignment int64
}

// factsOf walks a body, once if it is long.
func (c *channel) factsOf(number int, b *layout.Body) facts {
	const long = 64 // runs
	if b.Runs() > long {
		if f, ok := c.facts.Load(number); ok {
			return f.(facts)
		}
	}
	f := facts{alignment: b.Alignment()}
	if o := b.Whole(); o != nil && storageOf(o).local != nil {
		f.flags = control.InfoWhole
	}
	for r := range b.RunsWithin(0, b.Size()) {
		s := storageOf(r.Object)
		here, later := s.local != nil, s.segmented != nil
		if here || later {
			f.flags |= control.InfoBypass
		}
		if !here {
			f.flags |= control.InfoMount
		}
		if later {
			f.flags |= control.InfoCached
		}
	}
	if b.Runs() > long {
		c.facts.Store(number, f)
	}
	return f
}

// info answers INFO for a node whose body is known.
func (m *Mount) info(n *node, number int, b *layout.Body) control.FileInfo {
	f := m.control.factsOf(number, b)
	i := control.FileInfo{
		Flags: f.flags, Size: b.Size(), Tokens: -1, Alignment: f.alignment, Runs: int64(b.Runs()), Generation: n.ino, Epoch: m.control.epoch,
	}
	if n.kind == kindView { // its inode number stands for the path alone, its content for this mount alone
		i.Generation = inoOf(n.name, string(m.control.epoch[:])) ^ n.ino
		if file := n.view.file; file != nil {
			i.DType, i.ElementSize, i.Tokens = uint32(file.DType), uint32(file.DType.Size()), file.Tokens
			if file.Guessed {
				i.Flags |= control.InfoGuessed
			}
		}
	}
	return i
}
