package source

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"
)

// packedRuns are runs in order, without gaps, as variable-length integers. Samples of many lengths take about 6 bytes each, where a Run
// takes 48.
type packedRuns struct {
	bytes []byte
	marks []packedMark
	count int
}

// packedMark is the place of every runsApart-th run.
type packedMark struct {
	logical int64
	at      int // in bytes
}

// runsApart is how many runs are read, at most, to find one.
const runsApart = 64

// add appends a run. before is the one before, which begins a mark's runs where it is zero.
func (p *packedRuns) add(before, r *Run) {
	if p.count%runsApart == 0 {
		p.marks = append(p.marks, packedMark{r.Logical, len(p.bytes)})
		before = &Run{}
	}
	p.count++
	regular := uint64(0)
	if r.Count > 1 {
		regular = 1
	}
	p.bytes = binary.AppendVarint(p.bytes, int64(r.Object-before.Object))
	p.bytes = binary.AppendVarint(p.bytes, r.Offset-before.Offset-before.Length)
	p.bytes = binary.AppendUvarint(p.bytes, uint64(r.Length)<<1|regular)
	if regular > 0 {
		p.bytes = binary.AppendUvarint(p.bytes, uint64(r.Stride))
		p.bytes = binary.AppendUvarint(p.bytes, uint64(r.Count))
	}
}

// within appends the runs that hold bytes of [offset, end).
func (p *packedRuns) within(list []Run, offset, end int64) []Run {
	mark := sort.Search(len(p.marks), func(i int) bool { return p.marks[i].logical > offset }) - 1
	at, logical, before := p.bytes[p.marks[mark].at:], p.marks[mark].logical, Run{}
	for i := mark * runsApart; i < p.count && logical < end; i++ {
		if i%runsApart == 0 {
			before = Run{}
		}
		object, n := binary.Varint(at)
		gap, k := binary.Varint(at[n:])
		length, j := binary.Uvarint(at[n+k:])
		at = at[n+k+j:]
		r := Run{logical, int64(length >> 1), before.Object + uint64(object), before.Offset + before.Length + gap, int64(length >> 1), 1}
		if length&1 != 0 {
			stride, n := binary.Uvarint(at)
			count, k := binary.Uvarint(at[n:])
			at = at[n+k:]
			r.Stride, r.Count = int64(stride), int64(count)
		}
		if before, logical = r, r.End(); logical > offset {
			list = append(list, r)
		}
	}
	return list
}

// of gives the runs of spans, each once.
func (p *packedRuns) of(spans []Span) []Run {
	var list []Run
	for i := range spans {
		if s := &spans[i]; s.N > 0 {
			list = p.within(list, s.Offset, s.Offset+s.N)
		}
	}
	slices.SortFunc(list, func(a, b Run) int { return cmp.Compare(a.Logical, b.Logical) })
	return slices.CompactFunc(list, func(a, b Run) bool { return a.Logical == b.Logical })
}
