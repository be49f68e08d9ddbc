package mapped

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
)

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
