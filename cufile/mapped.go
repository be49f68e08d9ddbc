package cufile

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// part is bytes of one window and where in the view they go.
type part struct {
	window int   // index into windowSet.list
	skip   int64 // in the window
	to     int64 // in the view
	n      int64
}

// windowSet is the windows that a request needs, each once. Looking one up costs an array access, since a gather of
// thousands of samples must be planned in less time than it takes to move them.
type windowSet struct {
	size  int64 // of a window
	list  []windowRef
	files map[*source.Backing][]int // by the window's index in the file: one more than its place in list, 0 for none
	last  *source.Backing
	known []int // files[last]
}

type windowRef struct {
	file  *source.Backing
	index int64
}

// place gives a window's place in the list, where it is put when it is new.
func (s *windowSet) place(b *source.Backing, index int64) int {
	if b != s.last {
		known, ok := s.files[b]
		if !ok {
			known = make([]int, b.Length/s.size+1)
			s.files[b] = known
		}
		s.last, s.known = b, known
	}
	if s.known[index] == 0 {
		s.list = append(s.list, windowRef{b, index})
		s.known[index] = len(s.list)
	}
	return s.known[index] - 1
}

// whole fails when one of the files has become shorter than it was when it was opened.
func (s *windowSet) whole() error {
	for b := range s.files {
		var st unix.Stat_t
		if err := unix.Fstat(b.FD, &st); err != nil {
			return fmt.Errorf("stat %s: %w", b.Name, err)
		}
		if st.Size < b.Length {
			return fmt.Errorf("read %s at %d: %w: %w", b.Name, st.Size, ErrShort, io.ErrUnexpectedEOF)
		}
	}
	return nil
}

// windows cuts pieces where windows end.
func windows(pieces []source.Piece, size int64) ([]part, *windowSet) {
	s := &windowSet{size: size, files: map[*source.Backing][]int{}}
	parts := make([]part, 0, len(pieces)+len(pieces)/8)
	for _, p := range pieces {
		for p.N > 0 {
			index := p.Offset / size
			n := min(p.N, (index+1)*size-p.Offset)
			parts = append(parts, part{s.place(p.File, index), p.Offset - index*size, p.To, n})
			p.Offset, p.To, p.N = p.Offset+n, p.To+n, p.N-n
		}
	}
	return parts, s
}

// smallPiece is the average size under which one launch of the kernel beats a copy call per piece (a call costs
// microseconds, in which PCIe moves some 100 KB).
const smallPiece = 256 << 10

// moveMapped lets the GPU read pieces from registered page cache.
func (t *transfer) moveMapped(ctx context.Context, pieces []source.Piece) (<-chan struct{}, error) {
	f := t.f
	parts, set := windows(pieces, f.r.maps.window)
	total := int64(0)
	for i := range parts {
		total += parts[i].n
	}
	if len(parts) == 0 {
		return closedChannel(), nil
	}
	if err := set.whole(); err != nil {
		return closedChannel(), err
	}
	if err := f.r.maps.expect(set.list); err != nil {
		return closedChannel(), err
	}
	var finished <-chan struct{}
	var err error
	if total/int64(len(parts)) < smallPiece && f.r.cu.Launches() {
		finished, err = f.r.gatherParts(ctx, &t.to, parts, set.list)
	} else {
		finished, err = f.r.mapper.Run(ctx, 1, int64(len(parts)), func(w *crew.Worker, i int64) error {
			if err := t.to.ready(w); err != nil {
				return err
			}
			return copyPart(w, f.r.maps, &parts[i], set.list[parts[i].window], t.to.hbm)
		})
	}
	if err == nil {
		err = set.whole() // nothing else would tell: what was cut off has become zeros
	}
	if err == nil {
		t.moved.count(Mapped, total)
	}
	return finished, err
}

// copyPart starts a copy. The window stays until the slot that stands for the copy is settled.
func copyPart(w *crew.Worker, maps *mappings, p *part, ref windowRef, base driver.Pointer) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	m, err := maps.acquire(w, ref)
	if err != nil {
		return err
	}
	err = w.CUDA.CopyIn(base+driver.Pointer(p.to), m.memory[p.skip:p.skip+p.n], w.Stream)
	return w.SentHolding(s, func() { release([]*mapping{m}) }, err)
}

const (
	pieceEntry  = 24       // bytes of a piece in the kernel's table, see gather.cu
	launchBytes = 32 << 10 // more of one part is cut, so that no warp works long after the others
)

// gatherParts runs the kernel over parts. Where their windows exceed what one request may hold, it goes by groups: one is
// moved while the next is registered.
func (r *Reader) gatherParts(ctx context.Context, to *destination, parts []part, list []windowRef) (<-chan struct{}, error) {
	groups := r.groupByWindows(parts, list)
	return r.mapper.Run(ctx, 1, int64(len(groups)), func(w *crew.Worker, i int64) error {
		fn, err := r.gather.Load(r.cu, driver.GatherKernel)
		if err != nil {
			return err
		}
		if err := to.ready(w); err != nil {
			return err
		}
		g := &groups[i]
		for !g.done() {
			if err := g.launch(w, r.maps, fn, list[g.first:g.last], to.hbm); err != nil {
				return err
			}
		}
		return nil
	})
}

// partGroup is parts whose windows are list[first:last].
type partGroup struct {
	parts       []part
	first, last int

	next int   // the part that the next entry of the table is for
	skip int64 // bytes of it that have an entry
}

// groupByWindows keeps the order where all windows fit, and sorts by window where they do not.
func (r *Reader) groupByWindows(parts []part, list []windowRef) []partGroup {
	limit := r.maps.groupLimit()
	var groups []partGroup
	g, held := partGroup{}, int64(0)
	for i, ref := range list {
		size := r.maps.windowSize(ref.file.Length, ref.index)
		if i > g.first && held+size > limit {
			groups = append(groups, g)
			g, held = partGroup{first: i}, 0
		}
		g.last = i + 1
		held += size
	}
	groups = append(groups, g)
	if len(groups) == 1 {
		groups[0].parts = parts
		return groups
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.window, b.window) })
	for i := range groups {
		n := 0
		for n < len(parts) && parts[n].window < groups[i].last {
			n++
		}
		groups[i].parts, parts = parts[:n], parts[n:]
	}
	return groups
}

// launch writes a table of pieces into a slot, which the GPU reads as well, and launches. A group whose table is
// longer than a slot takes more than one call.
func (g *partGroup) launch(w *crew.Worker, maps *mappings, fn driver.Handle, list []windowRef, base driver.Pointer) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	held, from := make([]*mapping, 0, len(list)), make([]driver.Pointer, len(list))
	for i, ref := range list {
		m, err := maps.acquire(w, ref)
		if err != nil {
			release(held)
			return err
		}
		held = append(held, m)
		if from[i], err = maps.address(w, m); err != nil {
			release(held)
			return err
		}
	}
	count := g.write(s.Memory, from, base)
	return w.SentHolding(s, func() { release(held) }, w.CUDA.LaunchGather(fn, s.Device(), uint32(count), w.Stream))
}

func (g *partGroup) done() bool { return g.next == len(g.parts) }

// write fills a table with entries for the parts from g.next on, whose windows the GPU sees at windows, and gives how
// many it wrote.
func (g *partGroup) write(table []byte, windows []driver.Pointer, base driver.Pointer) (count int) {
	for ; g.next < len(g.parts); g.next, g.skip = g.next+1, 0 {
		p := &g.parts[g.next]
		from := windows[p.window-g.first] + driver.Pointer(p.skip)
		to := base + driver.Pointer(p.to)
		for g.skip < p.n {
			if len(table) < pieceEntry {
				return count
			}
			n := min(p.n-g.skip, launchBytes)
			binary.NativeEndian.PutUint64(table, uint64(from)+uint64(g.skip))
			binary.NativeEndian.PutUint64(table[8:], uint64(to)+uint64(g.skip))
			binary.NativeEndian.PutUint64(table[16:], uint64(n))
			table = table[pieceEntry:]
			g.skip += n
			count++
		}
	}
	return count
}
