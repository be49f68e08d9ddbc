package source

import (
	"math/bits"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Map says where all bytes of a file lie, as long as they stay there. Finding a byte costs the same for any number of runs.
type Map struct {
	Runs   []Run      // ordered, without gaps
	Files  []*Backing // of each run
	Places []Place    // of each run

	Using sync.Mutex // held by the thread that uses Places

	first []int32 // the run that holds the byte at i << shift
	shift int
}

// Place is a run's state on a device's thread. It has the run's borders, so that finding a row reads no other memory of the run.
type Place struct {
	Begin, End int64          // of the run in the file
	Base       driver.Pointer // where the device sees the run's first byte, if it sees the whole run
	Generation uint32         // of the device's registrations that Base is valid in; 0 for none
	Turn       uint32         // of the Watch that looks at the run's file
}

// Registered is where devices see the windows of a file. Any thread uses the elements.
type Registered struct {
	length int64           // of the file
	window int64           // bytes of a window
	At     []atomic.Uint64 // a driver.Pointer, the same for all devices; 0 for a window that they do not see
	Used   []atomic.Uint32 // the round in which a window was read last
	Copied bool            // they see a copy: changes of the file do not reach it

	End atomic.Pointer[End] // of the last window that the device sees; nil where none is known
}

// NewRegistered makes room for the windows of a file of so many bytes.
func NewRegistered(length, window int64) *Registered {
	n := (length + window - 1) / window
	return &Registered{length: length, window: window, At: make([]atomic.Uint64, n), Used: make([]atomic.Uint32, n)}
}

// Placed is a File that gives a Map of itself, nil while it does not know where all its bytes lie.
type Placed interface{ Map() *Map }

// mostPlaced bounds the runs of a Map, which takes about 130 bytes for each.
const mostPlaced = 1 << 20

// buckets is how many entries a Map has for a run. In most of them no run ends, so that the processor guesses right.
const buckets = 8

// newMap needs runs that cover a file which has bytes.
func newMap(runs []Run, backing func(*Run) *Backing) *Map {
	size := runs[len(runs)-1].End()
	m := &Map{Runs: runs, Files: make([]*Backing, len(runs)), Places: make([]Place, len(runs)),
		shift: bits.Len64(uint64(size) / uint64(buckets*len(runs)))}
	for i := range runs {
		m.Files[i], m.Places[i] = backing(&runs[i]), Place{Begin: runs[i].Logical, End: runs[i].End()}
	}
	m.first = make([]int32, (size-1)>>m.shift+2)
	i := int32(0)
	for k := range m.first[:len(m.first)-1] {
		for m.Places[i].End <= int64(k)<<m.shift {
			i++
		}
		m.first[k] = i
	}
	m.first[len(m.first)-1] = int32(len(runs) - 1)
	return m
}

// Find gives the index of the run that holds the file's byte at offset. The file has that byte.
func (m *Map) Find(offset int64) int {
	k := offset >> m.shift
	first, last := int(m.first[k]), int(m.first[k+1])
	if m.Places[first].End > offset {
		return first
	}
	return first + 1 + sort.Search(last-first-1, func(i int) bool { return m.Places[first+1+i].End > offset })
}

// At gives where in its object a run has the file's byte at offset, and how many bytes follow it there.
func (r *Run) At(offset int64) (place, n int64) {
	if r.whole() {
		return r.Offset + offset - r.Logical, r.End() - offset
	}
	k, skip := (offset-r.Logical)/r.Length, (offset-r.Logical)%r.Length
	return r.Offset + k*r.Stride + skip, r.Length - skip
}

// whole says whether a run's bytes follow each other in its object.
func (r *Run) whole() bool { return r.Count == 1 || r.Stride == r.Length }

// Inside says whether a run's bytes follow each other in one window of its object: in that which begins at first.
func (r *Run) Inside(first, window int64) bool {
	return r.whole() && r.Offset >= first && r.Offset+r.Length*r.Count <= first+window
}
