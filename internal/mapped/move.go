package mapped

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// smallPart is the average size under which one launch of the kernel beats a copy call for each part (a call costs
// microseconds, in which PCIe moves some 100 KB).
const smallPart = 256 << 10

// Move lets the GPU read pieces, and gives their bytes where it succeeds. finished is what [crew.Crew.Run]
// gives, nil where nothing was begun.
func (m *Mover) Move(ctx context.Context, to *crew.Destination, pieces []source.Piece) (moved int64, finished <-chan struct{}, err error) {
	parts, needed := cut(pieces, m.windows.size)
	if len(parts) == 0 {
		return 0, nil, nil
	}
	total := int64(0)
	for i := range parts {
		total += parts[i].n
	}
	if err := needed.unshortened(); err != nil {
		return 0, nil, err
	}
	if err := m.windows.expect(needed.list); err != nil {
		return 0, nil, err
	}
	if total/int64(len(parts)) < smallPart && m.cu.Launches() {
		finished, err = m.gatherParts(ctx, to, parts, needed.list)
	} else {
		finished, err = m.Thread.Run(ctx, 1, int64(len(parts)), func(w *crew.Worker, i int64) error {
			if err := to.Ready(w); err != nil {
				return err
			}
			return m.copyPart(w, &parts[i], needed.list[parts[i].window], to.HBM)
		})
	}
	if err == nil {
		err = needed.unshortened() // nothing else would tell: what was cut off has become zeros
	}
	if err != nil {
		return 0, finished, err
	}
	return total, finished, nil
}

// copyPart starts a copy. The window stays until the slot that stands for the copy is settled.
func (m *Mover) copyPart(w *crew.Worker, p *part, r ref, base driver.Pointer) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	held, err := m.windows.acquire(w, r)
	if err != nil {
		return err
	}
	err = w.CUDA.CopyIn(base+driver.Pointer(p.to), held.memory[p.skip:p.skip+p.n], w.Stream)
	return w.SentHolding(s, func() { release([]*window{held}) }, err)
}

// part is bytes of one window, and where in the destination they go.
type part struct {
	window int   // index into needed.list
	skip   int64 // in the window
	to     int64 // in the destination
	n      int64
}

// ref names a window of a file.
type ref struct {
	file  *source.Backing
	index int64
}

// needed is the windows that a request needs, each once. Looking one up costs an array access, since a gather of
// thousands of samples must be planned in less time than it takes to move them.
type needed struct {
	size  int64 // of a window
	list  []ref
	files map[*source.Backing][]int // by the window's index in the file: one more than its place in list, 0 for none
	last  *source.Backing
	known []int // files[last]
}

// place gives a window's place in the list, where it is put when it is new.
func (s *needed) place(b *source.Backing, index int64) int {
	if b != s.last {
		known, ok := s.files[b]
		if !ok {
			known = make([]int, b.Length/s.size+1)
			s.files[b] = known
		}
		s.last, s.known = b, known
	}
	if s.known[index] == 0 {
		s.list = append(s.list, ref{b, index})
		s.known[index] = len(s.list)
	}
	return s.known[index] - 1
}

// unshortened fails when one of the files has become shorter than it was when it was opened.
func (s *needed) unshortened() error {
	for b := range s.files {
		if err := b.Unshortened(); err != nil {
			return err
		}
	}
	return nil
}

// cut makes parts of pieces, which end where windows end. What exists only in the mount has no window and is left out.
func cut(pieces []source.Piece, size int64) ([]part, *needed) {
	s := &needed{size: size, files: map[*source.Backing][]int{}}
	parts := make([]part, 0, len(pieces)+len(pieces)/8)
	for _, p := range pieces {
		if p.File.Inline {
			continue
		}
		for p.N > 0 {
			index := p.Offset / size
			n := min(p.N, (index+1)*size-p.Offset)
			parts = append(parts, part{s.place(p.File, index), p.Offset - index*size, p.To, n})
			p.Offset, p.To, p.N = p.Offset+n, p.To+n, p.N-n
		}
	}
	return parts, s
}

const (
	pieceEntry  = 24       // bytes of a piece in the kernel's table, see gather.cu
	launchBytes = 32 << 10 // more of one part is cut, so that no warp works long after the others
)

// gatherParts runs the kernel over parts. Where their windows exceed what one request may hold, it goes by groups: one is
// moved while the next is registered.
func (m *Mover) gatherParts(ctx context.Context, to *crew.Destination, parts []part, list []ref) (<-chan struct{}, error) {
	groups := m.windows.group(parts, list)
	return m.Thread.Run(ctx, 1, int64(len(groups)), func(w *crew.Worker, i int64) error {
		fn, err := m.gather.Load(m.cu, driver.GatherKernel)
		if err != nil {
			return err
		}
		if err := to.Ready(w); err != nil {
			return err
		}
		g := &groups[i]
		for !g.done() {
			if err := g.launch(w, m.windows, fn, list[g.first:g.last], to.HBM); err != nil {
				return err
			}
		}
		return nil
	})
}

// group is parts whose windows are list[first:last].
type group struct {
	parts       []part
	first, last int

	next int   // the part that the next entry of the table is for
	skip int64 // bytes of it that have an entry
}

// group makes groups of parts: it keeps the order where all windows fit, and sorts by window where they do not.
func (m *Windows) group(parts []part, list []ref) []group {
	limit := m.groupLimit()
	var groups []group
	g, held := group{}, int64(0)
	for i, ref := range list {
		size := m.windowSize(ref.file.Length, ref.index)
		if i > g.first && held+size > limit {
			groups = append(groups, g)
			g, held = group{first: i}, 0
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
func (g *group) launch(w *crew.Worker, m *Windows, fn driver.Handle, list []ref, base driver.Pointer) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	held, from := make([]*window, 0, len(list)), make([]driver.Pointer, len(list))
	for i, ref := range list {
		found, err := m.acquire(w, ref)
		if err != nil {
			release(held)
			return err
		}
		held = append(held, found)
		if from[i], err = m.address(w, found); err != nil {
			release(held)
			return err
		}
	}
	count := g.write(s.Memory, from, base)
	return w.SentHolding(s, func() { release(held) }, w.CUDA.LaunchGather(fn, s.Device(), uint32(count), w.Stream))
}

func (g *group) done() bool { return g.next == len(g.parts) }

// write fills a table with entries for the parts from g.next on, whose windows the GPU sees at windows, and gives how
// many it wrote.
func (g *group) write(table []byte, windows []driver.Pointer, base driver.Pointer) (count int) {
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
