package control

import (
	"maps"
	"slices"
	"sync"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/layout"
)

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
	if storage.Of(o).Segment != nil {
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

// forget drops the numbers of files that are gone.
func (t *objectIDs) forget(gone []*layout.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range gone {
		if id, ok := t.byObject[o]; ok {
			delete(t.byObject, o)
			delete(t.byID, id)
		}
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
func (s *Server) extentOf(r layout.Run) control.Extent {
	where := storage.Of(r.Object)
	if where.Local == nil {
		length, flags := r.Length*r.Count, control.ExtentMount
		if where.Segmented != nil {
			flags |= control.ExtentPending
		}
		return control.Extent{Logical: r.Logical, Length: length, Stride: length, Count: 1, Flags: flags}
	}
	return control.Extent{
		Logical: r.Logical, Length: r.Length, Offset: r.Offset, Object: s.objects.id(r.Object), Stride: r.Stride, Count: r.Count,
	}
}

// facts are the part of INFO's answer that takes a walk over a body.
type facts struct {
	flags     control.InfoFlags
	alignment int64
}

// factsOf walks a body, once if it is long.
func (s *Server) factsOf(number int, b *layout.Body) facts {
	const long = 64 // runs
	if b.Runs() > long {
		if f, ok := s.facts.Load(number); ok {
			return f.(facts)
		}
	}
	f := facts{alignment: b.Alignment()}
	if o := b.Whole(); o != nil && storage.Of(o).Local != nil {
		f.flags = control.InfoWhole
	}
	for r := range b.RunsWithin(0, b.Size()) {
		where := storage.Of(r.Object)
		here, later := where.Local != nil, where.Segmented != nil
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
		s.facts.Store(number, f)
	}
	return f
}

// info answers INFO for a file whose body is known.
func (s *Server) info(f File, number int, b *layout.Body) control.FileInfo {
	known := s.factsOf(number, b)
	i := control.FileInfo{
		Flags: known.flags, Size: b.Size(), Tokens: -1, Alignment: known.alignment, Runs: int64(b.Runs()), Generation: f.Generation(s.Epoch), Epoch: s.Epoch,
	}
	if v := f.View(); v != nil {
		i.DType, i.ElementSize, i.Tokens = uint32(v.DType), uint32(v.DType.Size()), v.Tokens
	}
	return i
}
