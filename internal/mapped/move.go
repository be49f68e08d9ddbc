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

// smallFragment is the average size under which one launch of the kernel beats a copy call for each fragment. A call costs
// microseconds, in which PCIe moves some 100 KB.
const smallFragment = 256 << 10

// Move lets the GPU read pieces, and gives their bytes where it succeeds. finished is what [crew.Crew.Run]
// gives, nil where nothing was begun.
func (m *Mover) Move(ctx context.Context, to *crew.Destination, pieces []source.Piece) (moved int64, finished <-chan struct{}, err error) {
	fragments, needed := cut(pieces, m.windows.size)
	if len(fragments) == 0 {
		return 0, nil, nil
	}
	total := int64(0)
	for i := range fragments {
		total += fragments[i].n
	}
	if err := needed.unshortened(); err != nil {
		return 0, nil, err
	}
	if err := m.windows.expect(needed.list); err != nil {
		return 0, nil, err
	}
	if total/int64(len(fragments)) < smallFragment && m.cu.Launches() {
		finished, err = m.gatherFragments(ctx, to, fragments, needed.list)
	} else {
		finished, err = m.Thread.Run(ctx, 1, int64(len(fragments)), func(w *crew.Worker, i int64) error {
			if err := to.Ready(w); err != nil {
				return err
			}
			return m.copyFragment(w, &fragments[i], needed.list[fragments[i].window], to.HBM)
		})
	}
	if err == nil {
		err = needed.unshortened() // nothing else would tell: bytes that were cut off have become zeros
	}
	if err != nil {
		return 0, finished, err
	}
	return total, finished, nil
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
	files map[*source.Backing][]int // by the window's index in the file: one more than its index in list, 0 for none
	last  *source.Backing
	known []int // files[last]
}

// indexOf gives a window's index in the list, where it is put when it is new.
func (s *needed) indexOf(b *source.Backing, index int64) int {
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

// cut makes fragments of pieces, which end where windows end. Bytes that exist only in the mount have no window: cut leaves
// them out.
func cut(pieces []source.Piece, size int64) ([]fragment, *needed) {
	s := &needed{size: size, files: map[*source.Backing][]int{}}
	fragments := make([]fragment, 0, len(pieces)+len(pieces)/8)
	for _, p := range pieces {
		if p.File.Inline {
			continue
		}
		for p.N > 0 {
			index := p.Offset / size
			n := min(p.N, (index+1)*size-p.Offset)
			fragments = append(fragments, fragment{s.indexOf(p.File, index), p.Offset - index*size, p.To, n})
			p.Offset, p.To, p.N = p.Offset+n, p.To+n, p.N-n
		}
	}
	return fragments, s
}

const (
	pieceEntry  = 24       // bytes of a piece in the kernel's table, see gather.cu
	launchBytes = 32 << 10 // more of one fragment is cut, so that no warp works long after the others
)

// gatherFragments runs the kernel over fragments. Where their windows exceed groupLimit, it goes by groups: one is moved
// while the next is registered.
func (m *Mover) gatherFragments(ctx context.Context, to *crew.Destination, fragments []fragment, list []ref) (<-chan struct{}, error) {
	groups := m.windows.group(fragments, list)
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

// launch writes a table of pieces into a slot, which the GPU reads as well, and launches. A group whose table is
// longer than a slot takes more than one call.
func (g *group) launch(w *crew.Worker, m *Windows, fn driver.Handle, list []ref, base driver.Pointer) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	used, from := make([]*window, 0, len(list)), make([]driver.Pointer, len(list))
	for i, ref := range list {
		found, err := m.acquire(w, ref)
		if err != nil {
			release(used)
			return err
		}
		used = append(used, found)
		if from[i], err = m.address(w, found); err != nil {
			release(used)
			return err
		}
	}
	count := g.write(s.Memory, from, base)
	return w.SentReleasing(s, func() { release(used) }, w.CUDA.LaunchGather(fn, s.Device(), uint32(count), w.Stream))
}

func (g *group) done() bool { return g.next == len(g.fragments) }

// write fills a table with entries for the fragments from g.next on, whose windows the GPU sees at windows, and gives how
// many it wrote.
func (g *group) write(table []byte, windows []driver.Pointer, base driver.Pointer) (count int) {
	for ; g.next < len(g.fragments); g.next, g.skip = g.next+1, 0 {
		p := &g.fragments[g.next]
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
