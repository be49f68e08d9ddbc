package fs

import (
	"crypto/rand"
	"sync"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/layout"
)

// channel is the daemon's end of the control channel: what the ioctls and the socket share.
type channel struct {
	epoch    control.Epoch
	objects  objectIDs
	tickets  *tickets
	prefetch prefetcher
	facts    sync.Map // node number to facts, for bodies that are long to walk

	binding   atomic.Bool   // the daemon is about to make the socket
	bound     atomic.Bool   // it has
	settled   chan struct{} // closed once it has, or cannot
	buffers   sync.Pool     // of *[control.MaxFrame]byte
	answering chan struct{}
	lingering chan struct{}
	leases    atomic.Int64
	refused   atomic.Int64

	mu          sync.Mutex // guards what follows
	off         string     // why there is no socket
	sessions    map[uint32]int
	connections int
	turnedAway  int64
	usages      map[string]*usage
	readers     map[readerID]int // connections of each
}

func newChannel() *channel {
	c := &channel{
		tickets: newTickets(), prefetch: newPrefetcher(), answering: make(chan struct{}, answersAtOnce), lingering: make(chan struct{}, lingerAtOnce), settled: make(chan struct{}),
		sessions: map[uint32]int{}, usages: map[string]*usage{}, readers: map[readerID]int{},
	}
	_, _ = rand.Read(c.epoch[:]) // never fails: crypto/rand ends the program first
	c.objects.byObject = map[*layout.Object]uint64{}
	return c
}

func (c *channel) buffer() *[control.MaxFrame]byte {
	if b, ok := c.buffers.Get().(*[control.MaxFrame]byte); ok {
		return b
	}
	return new([control.MaxFrame]byte)
}

// objectIDs are the names of backing files on the control channel: numbers from 1, given when first asked for. They
// are as many as the source has files, at most.
type objectIDs struct {
	mu       sync.Mutex
	byObject map[*layout.Object]uint64
	byID     []*layout.Object
}

func (t *objectIDs) id(o *layout.Object) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, ok := t.byObject[o]
	if !ok {
		t.byID = append(t.byID, o)
		id = uint64(len(t.byID))
		t.byObject[o] = id
	}
	return id
}

// object returns nil for a number that was never given.
func (t *objectIDs) object(id uint64) *layout.Object {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id == 0 || id > uint64(len(t.byID)) {
		return nil
	}
	return t.byID[id-1]
}

// backed returns the origin of an object that is a file of this machine.
func backed(o *layout.Object) (local, bool) {
	if o.Synthesized() {
		return nil, false
	}
	origin, ok := o.Origin.(local)
	return origin, ok
}

// extentOf describes a run as the channel does. Bytes of no backing file are one extent of the mount.
func (c *channel) extentOf(r layout.Run) control.Extent {
	if _, ok := backed(r.Object); !ok {
		length := r.Length * r.Count
		return control.Extent{Logical: r.Logical, Length: length, Stride: length, Count: 1, Flags: control.ExtentMount}
	}
	return control.Extent{
		Logical: r.Logical, Length: r.Length, Offset: r.Offset, Object: c.objects.id(r.Object), Stride: r.Stride, Count: r.Count,
	}
}

// facts are what INFO says of a body and what takes a walk over it.
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
	if o := b.Whole(); o != nil {
		if _, ok := backed(o); ok {
			f.flags = control.InfoWhole
		}
	}
	for r := range b.RunsWithin(0, b.Size()) {
		if _, ok := backed(r.Object); ok {
			f.flags |= control.InfoBypass
		} else {
			f.flags |= control.InfoMount
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
	if n.kind == kindView { // its inode number stands for the path alone, and its content holds as long as this mount
		i.Generation = inoOf(n.name, string(m.control.epoch[:])) ^ n.ino
		if file := n.view.file; file != nil {
			i.DType, i.ElementSize, i.Tokens = uint32(file.DType), uint32(file.DType.Size()), file.Tokens
		}
	}
	return i
}
