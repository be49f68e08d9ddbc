package mapped

import (
	"container/list"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Windows are the ranges of files that are registered with CUDA, for all readers of a process that ask for the same. Registering costs
// time and pins pages, so windows are kept until others need their room: the least recently used goes first.
//
// A file is mapped once and whole, and stays mapped when a window goes. Filling the page tables costs as much as
// registering (measured there: 40 ms/GB together, 24 where the tables were full), and so does emptying them. Only
// where there are too many files, those without a window are unmapped. A mapping does not need the file to stay open.
//
// Threads that find bytes in windows ask no lock. They say when they begin and when the GPU, or a thread, has read their windows ([Mover.begin]). To give a window
// up, its entry is zeroed first; then all that had begun by then must have ended.
type Windows struct {
	key       registryKey
	size      int64 // of a window, in bytes
	limit     int64 // bytes that may be registered
	mostFiles int   // that are mapped at once
	fill      *filler
	contexts  map[int32]driver.Handle // retained, by CUdevice; guarded by registries.mu
	turn      chan struct{}           // held while windows are registered for a request, and while others go for them

	generation atomic.Uint32 // rises with each window that goes, and with each round
	round      atomic.Uint32
	found      atomic.Int64 // rows that were found in this round
	waiting    atomic.Int32 // threads that wait for tables to end
	full       atomic.Bool  // there was no room for a window that was wanted
	refused    atomic.Int64 // bytes in this round for which there was no room

	mu      sync.Mutex // guards the fields below, and file, window and chunk
	movers  map[*Mover]bool
	used    map[*source.Backing]*file // by the Backing of each reader
	ahead   map[*crew.Worker]*file    // in which a worker may look ahead
	files   map[source.Version]*file
	mapped  int        // how many of them are no copies
	order   *list.List // of *window: those that are registered, the most recently used first
	chunks  []*chunk
	bytes   int64         // registered, or about to be
	changed chan struct{} // closed and replaced when something goes, or is no longer used
}

func newWindows(key registryKey) *Windows {
	m := &Windows{key: key, size: key.size, limit: max(key.pinned, 2*key.size), mostFiles: max(device.MostMappings()/4, 1), contexts: map[int32]driver.Handle{},
		turn: make(chan struct{}, 1), movers: map[*Mover]bool{}, used: map[*source.Backing]*file{}, files: map[source.Version]*file{},
		ahead: map[*crew.Worker]*file{}, order: list.New(), changed: make(chan struct{})}
	m.generation.Store(1)
	m.round.Store(1)
	m.fill = newFiller(m)
	return m
}

// notify needs mu.
func (m *Windows) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// windowSize is the size of a file's window in bytes: whole pages.
func (m *Windows) windowSize(length, index int64) int64 {
	return min(m.size, driver.RoundUp(length, driver.PageSize)-index*m.size)
}

// take waits for the turn. The worker's copies end meanwhile: who has the turn may wait for them.
func (m *Windows) take(w *crew.Worker) error {
	select {
	case m.turn <- struct{}{}:
		return nil
	default:
	}
	w.Drain()
	select {
	case m.turn <- struct{}{}:
		return nil
	case <-w.JobContext().Done():
		return w.JobContext().Err()
	}
}

// bring registers windows of the pieces that come next, of one call. It needs the turn. Where there is no room, windows go, and where they are to be
// kept, pieces are left out.
func (m *Windows) bring(w *crew.Worker, c *pieces) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept, i, refused := c.list[:0], 0, int64(0)
	for covered := int64(0); i < len(c.list) && covered < callBytes; {
		p := c.list[i]
		there, err := m.bringPiece(w, &p, c.keep)
		switch {
		case err != nil:
			return err
		case there:
			kept = append(kept, p)
			covered += p.N
		case c.keep && p.N < m.size/4: // to read so little of a window does not pay for registering it in another one's place
			c.left = append(c.left, p)
			refused += p.N
		case len(kept) > 0:
			c.list = slices.Delete(c.list, len(kept), i)
			return nil
		default:
			c.list, kept, i = c.list[i:], c.list[i:i], 0
			if err := m.makeRoom(w, c, &p); err != nil {
				return err
			}
			continue
		}
		i++
	}
	if c.list = slices.Delete(c.list, len(kept), i); len(kept) == 1 && !c.keep {
		if f := m.used[kept[0].File]; f != nil {
			return m.clearWay(w, f)
		}
	}
	if refused == 0 {
		return nil
	}
	m.full.Store(true)
	m.refused.Add(refused)
	return m.age(w)
}

// bringPiece registers the window in which a piece begins, and says whether there was room. It needs mu, which it gives up meanwhile, and the turn.
func (m *Windows) bringPiece(w *crew.Worker, p *source.Piece, keep bool) (bool, error) {
	b, index := p.File, p.Offset/m.size
	for {
		f, err := m.fileOf(b)
		if err != nil || f == nil {
			return false, err
		}
		f.keep = keep
		f.noteUse(m, w, index)
		switch found := f.windows[index]; {
		case found == nil:
			return m.register(w, f, index, b)
		case found.element != nil:
			return true, nil
		default:
			if err := m.wait(w, found.settled); err != nil {
				return false, err
			}
		}
	}
}

// wait needs mu and gives it up meanwhile. It first waits for the worker's own copies: another reader may need their
// windows.
func (m *Windows) wait(w *crew.Worker, settled <-chan struct{}) error {
	m.mu.Unlock()
	defer m.mu.Lock()
	w.Drain()
	select {
	case <-settled:
		return nil
	case <-w.JobContext().Done():
		return w.JobContext().Err()
	}
}

// makeRoom gives windows up for a piece, of which nothing is registered. It needs mu and gives it up meanwhile.
func (m *Windows) makeRoom(w *crew.Worker, c *pieces, p *source.Piece) error {
	c.sort()
	if f, err := m.fileOf(p.File); err != nil || f == nil {
		return errors.Join(err, m.thin(w))
	}
	if m.order.Len() == 0 { // other readers give all windows up
		return m.wait(w, m.changed)
	}
	return m.halve(w, m.windowSize(p.File.Length, p.Offset/m.size))
}

// clearWay makes room for the window that a sequential reader needs next, right after one was registered. Meanwhile the
// copies from the one before have ended as a rule. The driver waits for all copies of the device before it unregisters
// anything. So later it would cost a copy's time, and the CPU spins (measured on an H200: 22 GB/s where each copy was
// followed by that). It needs mu and the turn.
func (m *Windows) clearWay(w *crew.Worker, f *file) error {
	if f.next == 0 || f.windows[f.next] != nil || f.keep {
		return nil
	}
	size := m.windowSize(f.key.Length, f.next)
	if m.bytes+size <= m.limit {
		return nil
	}
	return m.halve(w, size)
}

// halve discards the least recently used windows, until the registered bytes and size more are half of the limit.
// It needs mu, which it gives up meanwhile, and the turn.
func (m *Windows) halve(w *crew.Worker, size int64) error {
	left := m.bytes + size
	return m.discardOldest(w, func(n *window) bool {
		left -= int64(len(n.memory))
		return left > m.limit/2
	})
}

// discardOldest discards the least recently used windows, as long as after says that more must go after one. It needs mu, which it gives up meanwhile,
// and the turn.
func (m *Windows) discardOldest(w *crew.Worker, after func(n *window) bool) error {
	var victims []*window
	for e, more := m.order.Back(), true; e != nil && more; {
		oldest := e.Value.(*window)
		e = e.Prev()
		if m.readLately(oldest) {
			m.order.MoveToFront(oldest.element)
		} else {
			victims = append(victims, oldest)
			more = after(oldest)
		}
	}
	return m.discard(w, victims)
}

// readLately says whether bytes of a window were found since it was last asked. It needs mu.
func (m *Windows) readLately(n *window) bool {
	round := m.round.Load()
	return n.file.seen.Used[n.index].CompareAndSwap(round, round-1)
}

// Windows that are kept go when they are not used in a whole round. It lasts until so many rows were found for each window, so that the windows of rows
// in random order are among them. It also ends when so many times the limit were refused, beside which registering all anew costs little.
const (
	roundRows    = 16
	roundLeast   = 1 << 14 // rows
	roundRefused = 16
)

// over says whether a round is over. It needs mu.
func (m *Windows) over() bool {
	return m.refused.Load() >= roundRefused*m.limit || m.found.Load() >= max(roundRows*int64(m.order.Len()), roundLeast)
}

// age discards the windows that were not used in a round, if it is over. It needs mu, which it gives up meanwhile, and the turn.
func (m *Windows) age(w *crew.Worker) error {
	if !m.over() {
		return nil
	}
	var stale []*window
	round := m.round.Load()
	for e := m.order.Back(); e != nil; e = e.Prev() {
		if n := e.Value.(*window); n.file.seen.Used[n.index].Load() != round {
			stale = append(stale, n)
		}
	}
	m.refused.Store(0)
	m.found.Store(0)
	m.round.Add(1)
	m.generation.Add(1)
	return m.discard(w, stale)
}

// register registers a window, and says whether there was room. It needs mu, which it gives up meanwhile, and the turn.
func (m *Windows) register(w *crew.Worker, f *file, index int64, b *source.Backing) (_ bool, err error) {
	found := &window{file: f, index: index, settled: make(chan struct{})}
	first, size := int64(0), m.windowSize(f.key.Length, index)
	if f.seen.Copied {
		size = 0 // its chunk counts
		if found.chunk, first, err = m.place(w.CUDA, f.key.Length); found.chunk == nil {
			return false, err
		}
	} else if m.bytes+size > m.limit {
		return false, nil
	}
	f.windows[index], f.filled[index] = found, true
	m.bytes += size
	m.mu.Unlock()
	var at driver.Pointer
	if f.seen.Copied {
		at, err = found.copyIn(b, first)
	} else {
		found.memory = f.memory[index*m.size:][:size]
		at, err = found.pin(w.CUDA)
	}
	m.mu.Lock()
	if err != nil {
		f.windows[index] = nil
		m.bytes -= size
		if f.seen.Copied {
			err = errors.Join(err, m.uncopy(w.CUDA, found))
		}
		m.notify()
	} else {
		found.at, found.element = at, m.order.PushFront(found)
		f.seen.Used[index].Store(m.round.Load())
		found.show(at)
	}
	close(found.settled)
	return err == nil, err
}

// pin registers a window's memory with CUDA.
func (n *window) pin(cu *driver.CUDA) (at driver.Pointer, err error) {
	if err := cu.Register(n.memory, driver.HostPortable|driver.HostDeviceMap|driver.HostReadOnly); err != nil {
		return 0, unmapped(fmt.Sprintf("%d bytes", len(n.memory)), err)
	}
	if at, err = cu.DeviceAddress(n.memory); err != nil {
		return 0, errors.Join(err, cu.Unregister(n.memory))
	}
	n.end, _ = source.EndOf(n.memory) // where it fails, the file's descriptor is needed
	return at, nil
}

// mostTables bounds the page tables of mapped files. A file of more than so many times the limit has them emptied with each
// window that goes. Page tables are a 512th of the memory that they map.
const mostTables = 64

// discard unregisters windows, once nobody reads them any more. It needs mu and gives it up meanwhile. Where others read on for longer than the
// worker's job lasts, the windows stay.
func (m *Windows) discard(w *crew.Worker, windows []*window) error {
	if len(windows) == 0 {
		return nil
	}
	for _, window := range windows {
		m.order.Remove(window.element)
		window.element, window.settled = nil, make(chan struct{})
		window.show(0)
	}
	m.generation.Add(1)
	errs := []error{m.tablesEnd(w)}
	if errs[0] != nil {
		for _, window := range windows {
			window.element = m.order.PushBack(window)
			window.show(window.at)
			close(window.settled)
		}
		m.notify()
		return errs[0]
	}
	m.mu.Unlock()
	for _, window := range windows {
		if window.chunk != nil {
			continue
		}
		errs = append(errs, w.CUDA.Unregister(window.memory))
		if window.file.key.Length > mostTables*m.limit {
			errs = append(errs, unix.Madvise(window.memory, unix.MADV_DONTNEED))
		}
	}
	m.mu.Lock()
	for _, window := range windows {
		errs = append(errs, m.unregistered(w.CUDA, window))
	}
	m.notify()
	return errors.Join(errs...)
}

// unregistered counts a window that was unregistered. It needs mu.
func (m *Windows) unregistered(cu *driver.CUDA, n *window) (err error) {
	f := n.file
	m.full.Store(false)
	f.windows[n.index] = nil
	f.filled[n.index] = f.key.Length <= mostTables*m.limit
	if n.chunk != nil {
		err = m.uncopy(cu, n)
	} else {
		m.bytes -= int64(len(n.memory))
	}
	close(n.settled)
	return err
}

// tablesEnd waits until all windows have been read that any Mover has found by now. The worker's own copies end first. It needs mu and gives it
// up meanwhile.
func (m *Windows) tablesEnd(w *crew.Worker) error {
	m.mu.Unlock()
	w.Drain() // waiting for our copies here does not burn the CPU as the driver does
	m.mu.Lock()
	m.waiting.Add(1)
	defer m.waiting.Add(-1)
	for mover := range m.movers {
		for begun := mover.begun.Load(); mover.passed.Load() < begun; {
			if err := m.wait(w, m.changed); err != nil {
				return err
			}
		}
	}
	return nil
}

// note is noteUse for the window of the piece that was written last.
func (m *Windows) note(w *crew.Worker, b *source.Backing, index int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.used[b]; f != nil {
		f.noteUse(m, w, index)
	}
}

// noteUse notes which window a reader of the file uses, and which one it will need next if it reads on. It needs mu.
func (f *file) noteUse(m *Windows, w *crew.Worker, index int64) {
	switch step := index - f.last; {
	case step == 0:
		return
	case step == 1 || step == 2 && f.windows[index-1] != nil: // rows that are found in a registered window are not noted
		if index+1 == int64(len(f.windows)) {
			f.next = 0
			break
		}
		f.next, m.ahead[w] = index+1, f
		for further := f.next; further < min(f.next+2, int64(len(f.windows))); further++ {
			m.fill.ask(f, further)
		}
	default:
		f.next = 0
	}
	f.last = index
}

// lookAhead registers the window that a sequential reader needs next, while the worker has nothing else to do. It says
// whether it did something.
func (m *Windows) lookAhead(w *crew.Worker) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.ahead[w]
	if f == nil {
		return false
	}
	delete(m.ahead, w)
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	default: // another reader registers
		return false
	}
	wanted := func() bool { return !f.gone && len(f.users) > 0 && f.next != 0 && f.windows[f.next] == nil }
	// The request that needs the window meets the same errors, and returns them.
	if wanted() && m.clearWay(w, f) == nil && wanted() {
		_, _ = m.register(w, f, f.next, nil)
		m.notify()
	}
	return true
}

// noLookAhead forgets the file in which a worker would look ahead.
func (m *Windows) noLookAhead(w *crew.Worker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ahead, w)
}
