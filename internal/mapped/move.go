package mapped

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"unsafe"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// largeFragment is the average size from which each fragment is moved as soon as its window is registered. Smaller ones wait for each
// other: one call moves many of them.
const largeFragment = 2 << 20

// callBytes is what one call copies at most: a request that is cancelled waits for it.
const callBytes = 64 << 20

// Move lets the GPU read the pieces of a plan, which ends with it, and gives their bytes where it succeeds. finished is what
// [crew.Crew.Run] gives, nil where nothing was begun.
func (p *Plan) Move(ctx context.Context, to *crew.Destination) (moved int64, finished <-chan struct{}, err error) {
	m := p.of
	if len(p.fragments) == 0 {
		return 0, nil, nil
	}
	moved, finished, err = m.moveRegistered(ctx, to, p)
	if !errors.Is(err, ErrApart) {
		return moved, finished, err
	}
	if err := p.unchanged(); err != nil {
		return 0, nil, err
	}
	if err := m.windows.expect(p.list); err != nil {
		return 0, nil, err
	}
	if p.mean() < largeFragment {
		finished, err = m.gatherFragments(ctx, to, p)
	} else {
		finished, err = m.Thread.Run(ctx, 1, int64(len(p.fragments)), func(w *crew.Worker, i int64) error {
			if err := to.Ready(w); err != nil {
				return err
			}
			return m.copyFragment(w, &p.fragments[i], p.list[p.fragments[i].window], to.HBM)
		})
	}
	if err == nil {
		err = p.unchanged() // nothing else would tell: bytes that were cut off have become zeros
	}
	if err != nil {
		return 0, finished, err
	}
	return p.End(), finished, nil
}

// End keeps the memory of a plan of which nothing is under way, and gives its bytes.
func (p *Plan) End() (total int64) {
	total = p.total
	clear(p.list)
	clear(p.files)
	*p = Plan{of: p.of, fragments: p.fragments[:0], list: p.list[:0], files: p.files, known: p.known[:0]}
	p.of.ended.Put(p)
	return total
}

// copyFragment starts a copy. The window stays until the slot that stands for the copy is settled.
func (m *Mover) copyFragment(w *crew.Worker, p *fragment, r ref, base driver.Pointer) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	used, err := m.windows.acquire(w, r)
	if err != nil {
		return err
	}
	err = w.CUDA.CopyIn(base+driver.Pointer(p.to), used.memory[p.skip:p.skip+p.n], w.Stream)
	return w.SentReleasing(s, func() { release([]*window{used}) }, err)
}

// fragment is bytes of one window, and where in the destination they go.
type fragment struct {
	window int   // index into plan.list
	skip   int64 // in the window
	to     int64 // in the destination
	n      int64
}

// ref names a window of a file.
type ref struct {
	of    *Windows
	file  *source.Backing
	index int64
}

// Plan is what a request moves, and the windows that it needs, each once. Looking one up costs an array access, since a
// gather of thousands of samples must be planned in less time than it takes to move them.
type Plan struct {
	of        *Mover
	fragments []fragment
	total     int64 // bytes
	list      []ref
	files     map[*source.Backing]int // where the file's windows begin in known
	known     []int                   // of each window of each file: one more than its index in list, 0 for none
	last      *source.Backing
	first     int // files[last]
}

// indexOf gives a window's index in the list, where it is put when it is new.
func (p *Plan) indexOf(m *Windows, b *source.Backing, index int64) int {
	if b != p.last {
		first, ok := p.files[b]
		if !ok {
			first = len(p.known)
			p.known = append(p.known, make([]int, b.Length/m.size+1)...)
			p.files[b] = first
		}
		p.last, p.first = b, first
	}
	known := &p.known[p.first+int(index)]
	if *known == 0 {
		p.list = append(p.list, ref{m, b, index})
		*known = len(p.list)
	}
	return *known - 1
}

// mean is the average size of fragments.
func (p *Plan) mean() int64 { return p.total / int64(max(len(p.fragments), 1)) }

// entries is how many the kernel's table has.
func (p *Plan) entries() (n int64) {
	for i := range p.fragments {
		n += (p.fragments[i].n + launchBytes - 1) / launchBytes
	}
	return n
}

// unchanged fails when one of the files has changed since it was opened.
func (p *Plan) unchanged() error {
	for b := range p.files {
		if err := b.Unchanged(); err != nil {
			return err
		}
	}
	return nil
}

// Plan makes fragments of pieces, which end where windows end. Bytes that exist only in the mount have no window: they are left out.
func (m *Mover) Plan(pieces []source.Piece) *Plan {
	p, _ := m.ended.Get().(*Plan)
	if p == nil {
		p = &Plan{of: m, files: map[*source.Backing]int{}}
	}
	n, size := len(pieces), m.windows.size
	p.fragments = slices.Grow(p.fragments, n+n/8)
	for i := range pieces {
		piece := &pieces[i]
		if piece.File.Inline {
			continue
		}
		p.total += piece.N
		for at, to, left := piece.Offset, piece.To, piece.N; left > 0; {
			index := at / size
			n := min(left, (index+1)*size-at)
			p.fragments = append(p.fragments, fragment{p.indexOf(m.windows, piece.File, index), at - index*size, to, n})
			at, to, left = at+n, to+n, left-n
		}
	}
	return p
}

const (
	pieceEntry  = 24       // bytes of an entry, see gather.cu
	launchBytes = 32 << 10 // more of one fragment is cut, so that no warp works long after the others
)

// gatherFragments moves many fragments by each call. Where their windows exceed groupLimit, it goes by groups: one is moved
// while the next is registered.
func (m *Mover) gatherFragments(ctx context.Context, to *crew.Destination, p *Plan) (<-chan struct{}, error) {
	groups, list, kernel := m.windows.group(p.fragments, p.list), p.list, p.mean() < m.cu.SmallPieces()
	return m.Thread.Run(ctx, 1, int64(len(groups)), func(w *crew.Worker, i int64) error {
		g := &groups[i]
		acquire := func() ([]*window, []driver.Pointer, error) { return m.windows.acquireAll(w, list[g.first:g.last]) }
		return m.moveGroup(w, to, g, kernel, acquire, release)
	})
}

// moveGroup starts moving a group, by as many calls as that takes.
func (m *Mover) moveGroup(w *crew.Worker, to *crew.Destination, g *group, kernel bool, acquire func() ([]*window, []driver.Pointer, error), release func([]*window)) error {
	for !g.done() {
		if err := m.moveSome(w, to, g, kernel, acquire, release); err != nil {
			return err
		}
	}
	return nil
}

// moveSome starts the kernel over a table of pieces, which it writes into a slot that the GPU reads as well; or copies.
func (m *Mover) moveSome(w *crew.Worker, to *crew.Destination, g *group, kernel bool, acquire func() ([]*window, []driver.Pointer, error), release func([]*window)) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	if err := to.Ready(w); err != nil {
		return err
	}
	used, from, err := acquire()
	if err != nil {
		return err
	}
	count := 0
	if kernel {
		count = g.write(s.Memory, from, to.HBM)
	}
	start := func() error { return m.start(w, s, g, count, from, to.HBM) }
	if to.Also == nil {
		err = start()
	} else {
		err = w.Beside(to, func() error { return to.Also(w, s, count*pieceEntry) }, start)
	}
	return w.SentReleasing(s, func() { release(used) }, err)
}

// start starts the kernel over a table of count pieces in a slot, or copies of the fragments that come next.
func (m *Mover) start(w *crew.Worker, s *crew.Slot, g *group, count int, from []driver.Pointer, base driver.Pointer) error {
	if count == 0 {
		return w.CUDA.CopyAll(g.copies(from, base), true, w.Stream)
	}
	fn, err := m.gather.Load(m.cu, driver.GatherKernel)
	if err != nil {
		return err
	}
	return w.CUDA.LaunchGather(fn, s.Device(), uint32(count), w.Stream)
}

// group is fragments whose windows are list[first:last].
type group struct {
	fragments   []fragment
	first, last int

	next int   // the fragment that the next entry of the table is for
	skip int64 // bytes of it that have an entry
}

// group makes groups of fragments: it keeps the order where all windows fit, and sorts by window where they do not.
func (m *Windows) group(fragments []fragment, list []ref) []group {
	limit := m.groupLimit()
	var groups []group
	g, used := group{}, int64(0)
	for i, ref := range list {
		size := m.windowSize(ref.file.Length, ref.index)
		if i > g.first && used+size > limit {
			groups = append(groups, g)
			g, used = group{first: i}, 0
		}
		g.last = i + 1
		used += size
	}
	groups = append(groups, g)
	if len(groups) == 1 {
		groups[0].fragments = fragments
		return groups
	}
	slices.SortFunc(fragments, func(a, b fragment) int { return cmp.Compare(a.window, b.window) })
	for i := range groups {
		n := 0
		for n < len(fragments) && fragments[n].window < groups[i].last {
			n++
		}
		groups[i].fragments, fragments = fragments[:n], fragments[n:]
	}
	return groups
}

func (g *group) done() bool { return g.next == len(g.fragments) }

// copies gives copies of the fragments from g.next on, as many as one call makes.
func (g *group) copies(windows []driver.Pointer, base driver.Pointer) *driver.Copies {
	list := &driver.Copies{}
	for left := int64(callBytes); g.next < len(g.fragments) && left > 0; {
		p := &g.fragments[g.next]
		n := min(p.n-g.skip, left)
		list.Add(base+driver.Pointer(p.to+g.skip), windows[p.window-g.first]+driver.Pointer(p.skip+g.skip), n)
		left -= n
		if g.skip += n; g.skip == p.n {
			g.next, g.skip = g.next+1, 0
		}
	}
	return list
}

// entry is a piece in the kernel's table.
type entry struct {
	from, to driver.Pointer
	n        int64
}

// write fills a table with entries for the fragments from g.next on, whose windows the GPU sees at windows, and gives how
// many it wrote.
func (g *group) write(memory []byte, windows []driver.Pointer, base driver.Pointer) (count int) {
	table := unsafe.Slice((*entry)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)/pieceEntry) // slots begin with a page
	for ; g.next < len(g.fragments); g.next, g.skip = g.next+1, 0 {
		p := &g.fragments[g.next]
		from := windows[p.window-g.first] + driver.Pointer(p.skip)
		to := base + driver.Pointer(p.to)
		for g.skip < p.n {
			if count == len(table) {
				return count
			}
			n := min(p.n-g.skip, launchBytes)
			table[count] = entry{from + driver.Pointer(g.skip), to + driver.Pointer(g.skip), n}
			g.skip += n
			count++
		}
	}
	return count
}
