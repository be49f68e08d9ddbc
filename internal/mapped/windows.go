package mapped

import (
	"container/list"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// Windows are the ranges of files that are registered with CUDA, of one reader or of all that share them. Registering costs
// time and pins pages, so windows are kept until others need their room: the least recently used goes first.
//
// A file is mapped once and whole, and stays mapped when a window goes: filling the page tables costs
// as much as registering (measured there: 40 ms/GB together, 24 where the tables were full), and so does emptying
// them. Only where there are too many files, those without a window are unmapped. A mapping does not need the file to
// stay open.
type Windows struct {
	size      int64 // of a window, in bytes
	limit     int64 // bytes that may be registered
	readers   int   // how many may use it at once
	mostFiles int   // that are mapped at once
	fill      *filler

	// Where one reader has the windows, its thread alone registers and gives up, and only it uses this: it rises with each window that goes.
	generation uint32

	mu      sync.Mutex                // guards what follows, and file and window
	used    map[*source.Backing]*file // by the Backing of each reader
	ahead   map[*crew.Worker]*file    // in which a worker may look ahead
	files   map[fileKey]*file
	order   *list.List    // of *window: those that are registered, the most recently used first
	bytes   int64         // registered, or about to be
	lent    int           // windows that launches of other readers use
	changed chan struct{} // closed and replaced when something goes, or is no longer used
}

func newWindows(size, limit int64, readers int) *Windows {
	m := &Windows{size: size, limit: max(limit, int64(readers+1)*size), readers: readers, mostFiles: mostMapped(),
		used: map[*source.Backing]*file{}, files: map[fileKey]*file{}, ahead: map[*crew.Worker]*file{}, order: list.New(), changed: make(chan struct{}), generation: 1}
	m.fill = newFiller(m)
	return m
}

// mostMapped bounds the mapped files: a quarter of the mappings that a process may have, 65,530 in all as a rule.
func mostMapped() int {
	const usual, file = 65530, "/proc/sys/vm/max_map_count"
	most := usual
	if text, err := os.ReadFile(file); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			most = n
		}
	}
	return max(most/4, 1)
}

// groupLimit is the bytes of windows that one request may use at once. While all Readers use so much, and each waits for one
// window more, there is still room for it.
func (m *Windows) groupLimit() int64 { return max(m.limit/int64(m.readers+1), m.size) }

func (m *Windows) pinned() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// notify needs mu.
func (m *Windows) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// find gives a file's address space, nil where it is not mapped. It needs mu.
func (m *Windows) find(b *source.Backing) *file {
	if f := m.used[b]; f != nil {
		return f
	}
	return m.files[fileKey{b.Dev, b.Ino, b.Length}]
}

// registered says whether all of these windows are registered.
func (m *Windows) registered(list []ref) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range list {
		f := m.find(r.file)
		if f == nil || f.windows[r.index] == nil || f.windows[r.index].element == nil {
			return false
		}
	}
	return true
}

// windowSize is the size of a file's window in bytes: whole pages.
func (m *Windows) windowSize(length, index int64) int64 {
	return min(m.size, driver.RoundUp(length, driver.PageSize)-index*m.size)
}

// expect maps the files of windows that a request will use soon, and has their page tables filled by then.
func (m *Windows) expect(list []ref) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range list {
		if m.used[r.file] == nil && len(m.files) >= m.mostFiles {
			continue
		}
		f, err := m.mapFile(r.file)
		if err != nil {
			return err
		}
		m.fill.ask(f, r.index)
	}
	return nil
}

// acquire gives a registered window, which stays until it is released. Where there is no room it makes some.
func (m *Windows) acquire(w *crew.Worker, r ref) (*window, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		if m.used[r.file] == nil && len(m.files) >= m.mostFiles {
			if err := m.thin(w); err != nil {
				return nil, err
			}
		}
		f, err := m.mapFile(r.file)
		if err != nil {
			return nil, err
		}
		f.noteUse(m, w, r.index)
		switch found := f.windows[r.index]; {
		case found == nil:
			if m.bytes+m.windowSize(f.key.length, r.index) <= m.limit {
				return m.add(w, f, r.index)
			}
			err = m.makeRoom(w, m.windowSize(f.key.length, r.index))
		case found.element != nil:
			found.refs++
			m.order.MoveToFront(found.element)
			return found, nil
		default:
			err = m.wait(w, found.settled)
		}
		if err != nil {
			return nil, err
		}
	}
}

// add registers a window, and makes room for the next one.
func (m *Windows) add(w *crew.Worker, f *file, index int64) (*window, error) {
	added, err := m.register(w, f, index)
	if err != nil {
		return nil, err
	}
	if err := m.clearWay(w, f); err != nil {
		added.refs--
		return nil, err
	}
	return added, nil
}

// acquireAll acquires windows, and gives where the GPU of w sees each.
func (m *Windows) acquireAll(w *crew.Worker, list []ref) (used []*window, from []driver.Pointer, err error) {
	used, from = make([]*window, 0, len(list)), make([]driver.Pointer, len(list))
	for i, ref := range list {
		found, err := m.acquire(w, ref)
		if err == nil {
			used = append(used, found)
			from[i], err = m.address(w, found)
		}
		if err != nil {
			release(used)
			return nil, nil, err
		}
	}
	return used, from, nil
}

// release ends the use of windows.
func release(used []*window) { end(used, 0) }

// giveBack ends the use of windows that were lent.
func giveBack(used []*window) { end(used, 1) }

func end(used []*window, lent int) {
	for len(used) > 0 {
		m, n := used[0].home, 0
		m.mu.Lock()
		for ; n < len(used) && used[n].home == m; n++ {
			used[n].refs--
		}
		m.lent -= lent * n
		m.notify()
		m.mu.Unlock()
		used = used[n:]
	}
}

// address is where the GPU whose context the worker has sees a window.
func (m *Windows) address(w *crew.Worker, window *window) (driver.Pointer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return window.address(w)
}

// address needs mu.
func (n *window) address(w *crew.Worker) (driver.Pointer, error) {
	p, ok := n.addresses[w.Context]
	if ok {
		return p, nil
	}
	p, err := w.CUDA.DeviceAddress(n.memory)
	if err == nil {
		n.addresses[w.Context] = p
	}
	return p, err
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

// makeRoom needs mu and gives it up meanwhile.
func (m *Windows) makeRoom(w *crew.Worker, size int64) error {
	changed := m.changed
	if err := m.discardOldest(w, size); err != nil || m.bytes+size <= m.limit {
		return err
	}
	if m.readers == 1 && m.lent == 0 {
		return fmt.Errorf("mapped: internal error: one request uses %d bytes of windows, %d more do not fit", m.bytes, size)
	}
	return m.wait(w, changed)
}

// clearWay makes room for the window that a sequential reader needs next, right after one was registered: meanwhile the
// copies from the one before have ended as a rule. The driver waits for all copies of the device before it unregisters
// anything, so later it would cost a copy's time, and the CPU spins (measured on an H200: 22 GB/s where each copy was
// followed by that). It needs mu.
func (m *Windows) clearWay(w *crew.Worker, f *file) error {
	if f.next == 0 || f.windows[f.next] != nil {
		return nil
	}
	size := m.windowSize(f.key.length, f.next)
	if m.bytes+size <= m.limit {
		return nil
	}
	return m.discardOldest(w, size)
}

// discardOldest discards the least recently used windows, until the registered bytes and size more are half of the limit.
// It needs mu and gives it up meanwhile.
func (m *Windows) discardOldest(w *crew.Worker, size int64) error {
	m.mu.Unlock()
	w.Drain() // waiting for our copies here does not burn the CPU as the driver does
	m.mu.Lock()
	var victims []*window
	left := m.bytes + size
	for e := m.order.Back(); e != nil && left > m.limit/2; {
		oldest := e.Value.(*window)
		e = e.Prev()
		switch {
		case oldest.readLately():
			m.order.MoveToFront(oldest.element)
		case oldest.refs == 0:
			victims = append(victims, oldest)
			left -= int64(len(oldest.memory))
		}
	}
	return m.discard(w, victims)
}

// register needs mu and gives it up meanwhile. The window is used by the caller.
func (m *Windows) register(w *crew.Worker, f *file, index int64) (*window, error) {
	first, size := index*m.size, m.windowSize(f.key.length, index)
	found := &window{home: m, file: f, index: index, memory: f.memory[first : first+size], refs: 1,
		settled: make(chan struct{}), addresses: map[driver.Handle]driver.Pointer{}}
	f.windows[index], f.filled[index] = found, true
	m.bytes += size
	m.mu.Unlock()
	err := w.CUDA.Register(found.memory, driver.HostPortable|driver.HostDeviceMap|driver.HostReadOnly)
	m.mu.Lock()
	if err != nil {
		f.windows[index] = nil
		m.bytes -= size
		m.notify()
		err = unmapped(fmt.Sprintf("%d bytes", size), err)
	} else {
		found.element = m.order.PushFront(found)
		if f.seen != nil {
			f.seen.At[index], _ = found.address(w)    // where it fails, requests that need the window meet the same
			found.end, _ = source.EndOf(found.memory) // where it fails, the file's descriptor is needed
			f.findEnd()
		}
	}
	close(found.settled)
	return found, err
}

// mostTables bounds the page tables of mapped files: a file of more than so many times the limit has them emptied with each
// window that goes. Page tables are a 512th of the memory that they map.
const mostTables = 64

// discard unregisters windows. It needs mu and gives it up meanwhile.
func (m *Windows) discard(w *crew.Worker, windows []*window) error {
	if len(windows) == 0 {
		return nil
	}
	for _, window := range windows {
		m.order.Remove(window.element)
		window.element, window.settled = nil, make(chan struct{})
		if seen := window.file.seen; seen != nil {
			seen.At[window.index], seen.Used[window.index] = 0, false
			window.file.findEnd()
			m.generation++
		}
	}
	m.mu.Unlock()
	var errs []error
	for _, window := range windows {
		errs = append(errs, w.CUDA.Unregister(window.memory))
		if window.file.key.length > mostTables*m.limit {
			errs = append(errs, unix.Madvise(window.memory, unix.MADV_DONTNEED))
		}
	}
	m.mu.Lock()
	for _, window := range windows {
		f := window.file
		f.windows[window.index] = nil
		f.filled[window.index] = f.key.length <= mostTables*m.limit
		m.bytes -= int64(len(window.memory))
		close(window.settled)
	}
	m.notify()
	return errors.Join(errs...)
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
	delete(m.ahead, w)
	if f == nil || f.gone || f.next == 0 || f.windows[f.next] != nil {
		return false
	}
	// The request that needs the window meets the same errors, and returns them.
	if m.clearWay(w, f) != nil || f.gone || f.next == 0 || f.windows[f.next] != nil || m.bytes+m.size > m.limit {
		return true
	}
	if added, err := m.register(w, f, f.next); err == nil {
		added.refs--
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
