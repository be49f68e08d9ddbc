package cufile

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
)

//go:embed gather.ptx
var gatherPTX string

// part is bytes of one window and where in the view they go.
type part struct {
	file  *backing
	index int64 // of the window
	skip  int64 // in the window
	to    int64 // in the view
	n     int64
}

// smallPiece is the average size under which one launch of the kernel beats a copy call per piece (a call costs
// microseconds, in which PCIe moves some 100 KB).
const smallPiece = 256 << 10

// mappedThreads: one registers the next window while the other's copies run. Registering does not scale beyond.
const mappedThreads = 2

// moveMapped lets the GPU read pieces from registered page cache.
func (f *File) moveMapped(ctx context.Context, v *View, pieces []piece) (<-chan struct{}, error) {
	var parts []part
	total, window := int64(0), f.r.opt.Window
	for _, p := range pieces {
		total += p.n
		for p.n > 0 {
			index := p.offset / window
			n := min(p.n, (index+1)*window-p.offset)
			parts = append(parts, part{p.file, index, p.offset - index*window, p.to, n})
			p.offset, p.to, p.n = p.offset+n, p.to+n, p.n-n
		}
	}
	if len(parts) == 0 {
		return closedChannel(), nil
	}
	base := f.r.hbm + devicePointer(v.at+v.skew)
	var finished <-chan struct{}
	var err error
	if total/int64(len(parts)) < smallPiece && f.r.cu.lib.has(cuLaunchKernel) {
		finished, err = f.r.gatherParts(ctx, base, parts)
	} else {
		finished, err = f.r.crew.run(ctx, mappedThreads, int64(len(parts)), func(w *worker, i int64) error {
			return w.copyPart(ctx, f.r.maps, &parts[i], base)
		})
	}
	if err == nil {
		v.moved.count(Mapped, total)
	}
	return finished, err
}

// copyPart copies one part and waits for it: the window must stay until the copy has read it.
func (w *worker) copyPart(ctx context.Context, maps *mappings, p *part, base devicePointer) error {
	m, err := maps.acquire(ctx, p.file, p.index)
	if err != nil {
		return err
	}
	defer maps.release(m)
	s, err := w.slot()
	if err != nil {
		return err
	}
	if err := w.cu.copyIn(base+devicePointer(p.to), m.memory[p.skip:p.skip+p.n], w.stream); err != nil {
		return err
	}
	return errors.Join(w.sent(s), w.settle(s))
}

// gatherKernel is the loaded kernel.
type gatherKernel struct {
	mu     sync.Mutex
	module handle
	fn     handle
}

// load compiles the kernel the first time.
func (g *gatherKernel) load(cu *cuda) (handle, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fn != 0 {
		return g.fn, nil
	}
	var err error
	if g.module, g.fn, err = cu.loadFunction(gatherPTX, "hbmfs_gather"); err != nil {
		return 0, fmt.Errorf("load the gather kernel (its PTX needs driver 525 or later): %w", err)
	}
	return g.fn, nil
}

func (g *gatherKernel) unload(cu *cuda) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.module == 0 {
		return nil
	}
	module := g.module
	g.module, g.fn = 0, 0
	return cu.unloadModule(module)
}

const (
	pieceEntry  = 24       // bytes of a piece in the kernel's table, see gather.cu
	launchBytes = 32 << 10 // more of one part is cut, so that no warp works long after the others
)

// gatherParts runs the kernel over parts. Where their windows exceed half of what may be pinned, it goes by groups.
func (r *Reader) gatherParts(ctx context.Context, base devicePointer, parts []part) (<-chan struct{}, error) {
	groups := r.groupByWindows(parts)
	return r.crew.run(ctx, mappedThreads, int64(len(groups)), func(w *worker, i int64) error {
		fn, err := r.gather.load(r.cu)
		if err != nil {
			return err
		}
		held, err := r.hold(ctx, groups[i])
		defer func() {
			for _, m := range held {
				r.maps.release(m)
			}
		}()
		if err != nil {
			return err
		}
		return w.gather(fn, groups[i], held, base)
	})
}

// groupByWindows keeps the order where all windows fit, and sorts by window where they do not.
func (r *Reader) groupByWindows(parts []part) [][]part {
	limit := max(r.opt.Pinned/2, r.opt.Window)
	seen := map[mapKey]bool{}
	need := int64(0)
	for i := range parts {
		if key := (mapKey{parts[i].file.id, parts[i].index}); !seen[key] {
			seen[key] = true
			need += r.maps.windowSize(parts[i].file, parts[i].index)
		}
	}
	if need <= limit {
		return [][]part{parts}
	}
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.file.id, b.file.id), cmp.Compare(a.index, b.index))
	})
	var groups [][]part
	first, held := 0, int64(0)
	for i := range parts {
		if i > 0 && parts[i].file == parts[i-1].file && parts[i].index == parts[i-1].index {
			continue
		}
		size := r.maps.windowSize(parts[i].file, parts[i].index)
		if i > first && held+size > limit {
			groups = append(groups, parts[first:i])
			first, held = i, 0
		}
		held += size
	}
	return append(groups, parts[first:])
}

// hold acquires the windows of parts. What it gives must be released, also when it fails.
func (r *Reader) hold(ctx context.Context, parts []part) (map[mapKey]*mapping, error) {
	held := map[mapKey]*mapping{}
	select {
	case r.maps.many <- struct{}{}:
	case <-ctx.Done():
		return held, ctx.Err()
	}
	defer func() { <-r.maps.many }()
	for i := range parts {
		key := mapKey{parts[i].file.id, parts[i].index}
		if held[key] != nil {
			continue
		}
		m, err := r.maps.acquire(ctx, parts[i].file, parts[i].index)
		if err != nil {
			return held, err
		}
		held[key] = m
	}
	return held, nil
}

// gather writes the table of pieces into a slot, which the GPU reads as well, and launches.
func (w *worker) gather(fn handle, parts []part, held map[mapKey]*mapping, base devicePointer) error {
	s, err := w.slot()
	if err != nil {
		return err
	}
	room := len(s.memory) / pieceEntry
	count := 0
	launch := func() error {
		if count == 0 {
			return nil
		}
		err := w.cu.launchGather(fn, s.device, uint32(count), w.stream)
		count = 0
		return errors.Join(err, w.sent(s), w.settle(s))
	}
	for i := range parts {
		p := &parts[i]
		from := held[mapKey{p.file.id, p.index}].device + devicePointer(p.skip)
		to := base + devicePointer(p.to)
		for left := p.n; left > 0; {
			if count == room {
				if err := launch(); err != nil {
					return err
				}
			}
			n := min(left, launchBytes)
			entry := s.memory[count*pieceEntry:][:pieceEntry]
			binary.NativeEndian.PutUint64(entry, uint64(from))
			binary.NativeEndian.PutUint64(entry[8:], uint64(to))
			binary.NativeEndian.PutUint64(entry[16:], uint64(n))
			count, from, to, left = count+1, from+devicePointer(n), to+devicePointer(n), left-n
		}
	}
	return launch()
}
