package mapped

import (
	"context"
	"maps"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
)

// MoveTogether is Move for plans of several readers of one GPU, by one launch on the first one's thread. It fails with ErrApart
// where a window is not registered, or the fragments are large.
func MoveTogether(ctx context.Context, to *crew.Destination, plans []*Plan) (moved int64, finished <-chan struct{}, err error) {
	all := plans[0]
	for _, p := range plans[1:] {
		all.join(p)
		p.End()
	}
	return all.of.moveRegistered(ctx, to, all)
}

// join adds what another plan moves.
func (p *Plan) join(other *Plan) {
	first := len(p.list)
	for _, f := range other.fragments {
		f.window += first
		p.fragments = append(p.fragments, f)
	}
	p.list = append(p.list, other.list...)
	maps.Copy(p.files, other.files) // whose indexes serve nobody any more
	p.total += other.total
}

// moveRegistered moves a plan whose windows are all registered: it needs neither groups nor room.
func (m *Mover) moveRegistered(ctx context.Context, to *crew.Destination, p *Plan) (moved int64, finished <-chan struct{}, err error) {
	kernel := p.mean() < m.cu.SmallPieces()
	if p.mean() >= largeFragment || kernel && p.entries() > m.table/pieceEntry || !p.Registered() {
		return 0, nil, ErrApart
	}
	finished, err = m.Thread.Run(ctx, 1, 1, func(w *crew.Worker, _ int64) error {
		g := &group{fragments: p.fragments, last: len(p.list)}
		return m.moveGroup(w, to, g, kernel, func() ([]*window, []driver.Pointer, error) { return m.borrow(w, p.list) }, giveBack)
	})
	if err == nil {
		err = p.unchanged() // nothing else would tell: bytes that were cut off have become zeros
	}
	if err != nil {
		return 0, finished, err
	}
	return p.End(), finished, nil
}

// Registered says whether all windows of a plan are registered.
func (p *Plan) Registered() bool {
	for rest := p.list; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].of == rest[0].of {
			n++
		}
		if !rest[0].of.registered(rest[:n]) {
			return false
		}
		rest = rest[n:]
	}
	return true
}

// borrow gives windows of any reader, and where the GPU of w sees each, if all are registered.
func (m *Mover) borrow(w *crew.Worker, list []ref) (used []*window, from []driver.Pointer, err error) {
	used, from = make([]*window, 0, len(list)), make([]driver.Pointer, 0, len(list))
	for len(used) < len(list) && err == nil {
		of := list[len(used)].of
		of.mu.Lock()
		for _, r := range list[len(used):] {
			if r.of != of {
				break
			}
			var at driver.Pointer
			if at, err = of.lend(w, r, of == m.windows, &used); err != nil {
				break
			}
			from = append(from, at)
		}
		of.mu.Unlock()
	}
	if err != nil {
		giveBack(used)
	}
	return used, from, err
}

// lend appends a registered window to used. It needs mu.
func (m *Windows) lend(w *crew.Worker, r ref, own bool, used *[]*window) (at driver.Pointer, err error) {
	f := m.find(r.file)
	if f == nil || f.windows[r.index] == nil || f.windows[r.index].element == nil {
		return 0, ErrApart
	}
	found := f.windows[r.index]
	if at, err = found.address(w); err != nil {
		return 0, err
	}
	if own {
		f.noteUse(m, w, r.index)
	}
	found.refs++
	m.lent++
	m.order.MoveToFront(found.element)
	*used = append(*used, found)
	return at, nil
}
