package layout

import (
	"encoding/binary"
	"iter"
	"sort"
)

// runsApart is how many runs are read, at most, to find one among packed ones.
const runsApart = 64

// packedRuns are runs as variable-length integers: the gap between two of one object, the length, and stride and count
// of pieces. Most take 4 to 6 bytes.
type packedRuns struct {
	bytes []byte
	marks []runMark
	count int
}

// runMark is where runs of one object begin.
type runMark struct {
	logical int64
	object  *Object
	at      int // in bytes
	number  int // of the first run
}

// add packs runs, which follow those before.
func (p *packedRuns) add(runs []Run) {
	var end int64 // of the run before in the object
	for i, r := range runs {
		if last := len(p.marks) - 1; i == 0 || p.marks[last].object != r.Object || p.count-p.marks[last].number == runsApart {
			p.marks = append(p.marks, runMark{r.Logical, r.Object, len(p.bytes), p.count})
			end = 0
		}
		p.count++
		p.bytes = binary.AppendVarint(p.bytes, r.Offset-end)
		many := uint64(0)
		if r.Count > 1 {
			many = 1
		}
		p.bytes = binary.AppendUvarint(p.bytes, uint64(r.Length)<<1|many)
		if many > 0 {
			p.bytes = binary.AppendUvarint(p.bytes, uint64(r.Stride-r.Length))
			p.bytes = binary.AppendUvarint(p.bytes, uint64(r.Count))
		}
		end = r.Offset + (r.Count-1)*r.Stride + r.Length
	}
}

// from yields the runs with their numbers, from the one that has the byte at off.
func (p *packedRuns) from(off int64) iter.Seq2[int, Run] {
	return func(yield func(int, Run) bool) {
		mark := max(0, sort.Search(len(p.marks), func(i int) bool { return p.marks[i].logical > off })-1)
		for ; mark < len(p.marks); mark++ {
			m := &p.marks[mark]
			last := p.count
			if mark+1 < len(p.marks) {
				last = p.marks[mark+1].number
			}
			bytes, logical, end := p.bytes[m.at:], m.logical, int64(0)
			for number := m.number; number < last; number++ {
				gap, n := binary.Varint(bytes)
				length, k := binary.Uvarint(bytes[n:])
				bytes = bytes[n+k:]
				r := Run{logical, m.object, end + gap, int64(length >> 1), int64(length >> 1), 1}
				if length&1 != 0 {
					more, n := binary.Uvarint(bytes)
					count, k := binary.Uvarint(bytes[n:])
					bytes = bytes[n+k:]
					r.Stride, r.Count = r.Length+int64(more), int64(count)
				}
				logical += r.Length * r.Count
				end = r.Offset + (r.Count-1)*r.Stride + r.Length
				if logical > off && !yield(number, r) {
					return
				}
			}
		}
	}
}
