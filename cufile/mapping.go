package cufile

import (
	"container/list"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// mappings is the windows of files that are registered with CUDA, of one Reader or of all that share it. Registering
// costs time and pins pages, so windows are kept until others need their room: the least recently used goes first.
//
// Of each Reader one thread registers, and starts the copies too. Registering is serial in the driver, and copies that
// other threads start wait for it (measured on an H200: 20 GB/s through moving windows with several threads). What can
// be done elsewhere is: see filler.
//
// A file is mapped once and whole, whoever opened it, and stays mapped when a window goes: filling the page tables costs
// as much as registering (measured there: 40 ms/GB together, 24 where the tables were full), and so does emptying
// them. Only where there are too many files, those without a window are unmapped. A mapping does not need the file to
// stay open.
type mappings struct {
	window, limit int64
	readers       int // how many may use it at once
	mostFiles     int
	fill          *filler

	mu      sync.Mutex                      // guards what follows, and mappedFile and mapping
	used    map[*source.Backing]*mappedFile // by those who opened it
	ahead   map[*crew.Worker]*mappedFile    // in which a worker may look ahead
	files   map[fileKey]*mappedFile
	order   *list.List    // of *mapping: those that are registered, the most recently used first
	bytes   int64         // registered, or about to be
	changed chan struct{} // closed and replaced when something goes, or is no longer used
}

// fileKey is a file that cannot be another one while it is mapped.
type fileKey struct {
	fileID
	length int64
}

// mappedFile is a file's address space.
type mappedFile struct {
	key     fileKey
	memory  []byte
	windows []*mapping // nil where there is none
	filled  []bool     // windows whose page tables are full, or will be
	users   map[*source.Backing]bool
	filling int  // threads that fill page tables
	gone    bool // it is about to be unmapped

	last, next int64 // the window that was used last, and the one that a sequential reader needs next; 0 for none
}

// mapping is one window.
type mapping struct {
	home      *mappings
	file      *mappedFile
	index     int64
	memory    []byte
	refs      int                              // copies and kernels that are under way
	element   *list.Element                    // nil until it is registered, and when it is being given up
	settled   chan struct{}                    // closed when that is over
	addresses map[driver.Handle]driver.Pointer // by context
}

// errUnmapped says that a file, or a window of it, could not be registered.
var errUnmapped = errors.New("make a file's pages visible to the GPU")

func newMappings(window, limit int64, readers int) *mappings {
	m := &mappings{window: window, limit: max(limit, int64(readers+1)*window), readers: readers, mostFiles: mostMapped,
		used: map[*source.Backing]*mappedFile{}, files: map[fileKey]*mappedFile{}, ahead: map[*crew.Worker]*mappedFile{}, order: list.New(), changed: make(chan struct{})}
	m.fill = newFiller(m)
	return m
}

// mostMapped bounds the mapped files: a process may have 65,530 mappings, whatever for (vm.max_map_count).
const mostMapped = 1 << 14

// groupLimit is the bytes of windows that one request may hold at once. All Readers together can hold so much while
// each waits for one window more, and there is still room for it.
func (m *mappings) groupLimit() int64 { return max(m.limit/int64(m.readers+1), m.window) }

func (m *mappings) pinned() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// notify needs mu.
func (m *mappings) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// find gives a file's address space, nil where it is not mapped. It needs mu.
func (m *mappings) find(b *source.Backing) *mappedFile {
	if f := m.used[b]; f != nil {
		return f
	}
	return m.files[fileKey{fileID{b.Dev, b.Ino}, b.Length}]
}

// holds says whether all of these windows are registered.
func (m *mappings) holds(list []windowRef) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ref := range list {
		f := m.find(ref.file)
		if f == nil || f.windows[ref.index] == nil || f.windows[ref.index].element == nil {
			return false
		}
	}
	return true
}

// windowSize is the size of a file's window in bytes: whole pages.
func (m *mappings) windowSize(length, index int64) int64 {
	return min(m.window, driver.RoundUp(length, driver.PageSize)-index*m.window)
}

// expect maps the files of windows that a request will use soon, and has their page tables filled by then.
func (m *mappings) expect(list []windowRef) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ref := range list {
		if m.used[ref.file] == nil && len(m.files) >= m.mostFiles {
			continue
		}
		f, err := m.mapFile(ref.file)
		if err != nil {
			return err
		}
		m.fill.ask(f, ref.index)
	}
	return nil
}

// acquire gives a registered window, which stays until it is released. Where there is no room it makes some.
func (m *mappings) acquire(w *crew.Worker, ref windowRef) (*mapping, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		if m.used[ref.file] == nil && len(m.files) >= m.mostFiles {
			if err := m.thin(w); err != nil {
				return nil, err
			}
		}
		f, err := m.mapFile(ref.file)
		if err != nil {
			return nil, err
		}
		f.follow(m, w, ref.index)
		switch found := f.windows[ref.index]; {
		case found == nil:
			if m.bytes+m.windowSize(f.key.length, ref.index) <= m.limit {
				return m.take(w, f, ref.index)
			}
			err = m.makeRoom(w, m.windowSize(f.key.length, ref.index))
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

// take registers a window, and makes room for the next one.
func (m *mappings) take(w *crew.Worker, f *mappedFile, index int64) (*mapping, error) {
	window, err := m.register(w, f, index)
	if err != nil {
		return nil, err
	}
	if err := m.clearWay(w, f); err != nil {
		window.refs--
		return nil, err
	}
	return window, nil
}

// release ends the use of windows.
func release(held []*mapping) {
	if len(held) == 0 {
		return
	}
	m := held[0].home
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, window := range held {
		window.refs--
	}
	m.notify()
}

// address is where the GPU whose context the worker has sees a window.
func (m *mappings) address(w *crew.Worker, window *mapping) (driver.Pointer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := window.addresses[w.Context]
	if ok {
		return p, nil
	}
	p, err := w.CUDA.DeviceAddress(window.memory)
	if err == nil {
		window.addresses[w.Context] = p
	}
	return p, err
}

// wait needs mu and gives it up meanwhile. What the worker itself has under way is waited for first: another may need
// that.
func (m *mappings) wait(w *crew.Worker, settled <-chan struct{}) error {
	m.mu.Unlock()
	defer m.mu.Lock()
	w.Drain()
	select {
	case <-settled:
		return nil
	case <-w.Request().Done():
		return w.Request().Err()
	}
}

// makeRoom needs mu and gives it up meanwhile.
func (m *mappings) makeRoom(w *crew.Worker, size int64) error {
	changed := m.changed
	if err := m.discardOldest(w, size); err != nil || m.bytes+size <= m.limit {
		return err
	}
	if m.readers == 1 {
		return fmt.Errorf("cufile: internal error: one request uses %d bytes of windows, %d more do not fit", m.bytes, size)
	}
	return m.wait(w, changed)
}

// clearWay makes room for what a sequential reader needs next, right after a window was registered: meanwhile the copies
// from the one before have ended as a rule. The driver waits for all copies of the device before it unregisters
// anything, so later it would cost a copy's time, and the CPU spins (measured on an H200: 22 GB/s where each copy was
// followed by that). It needs mu.
func (m *mappings) clearWay(w *crew.Worker, f *mappedFile) error {
	if f.next == 0 || f.windows[f.next] != nil {
		return nil
	}
	size := m.windowSize(f.key.length, f.next)
	if m.bytes+size <= m.limit {
		return nil
	}
	return m.discardOldest(w, size)
}

// discardOldest discards the least recently used windows, until what is registered and so many bytes more are half of
// what may be. It needs mu and gives it up meanwhile.
func (m *mappings) discardOldest(w *crew.Worker, size int64) error {
	m.mu.Unlock()
	w.Drain() // waiting for our copies here does not burn the CPU as the driver does
	m.mu.Lock()
	var victims []*mapping
	left := m.bytes + size
	for e := m.order.Back(); e != nil && left > m.limit/2; e = e.Prev() {
		if oldest := e.Value.(*mapping); oldest.refs == 0 {
			victims = append(victims, oldest)
			left -= int64(len(oldest.memory))
		}
	}
	return m.discard(w, victims)
}

// register needs mu and gives it up meanwhile. The window is used by the caller.
func (m *mappings) register(w *crew.Worker, f *mappedFile, index int64) (*mapping, error) {
	first, size := index*m.window, m.windowSize(f.key.length, index)
	found := &mapping{home: m, file: f, index: index, memory: f.memory[first : first+size], refs: 1,
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
		err = fmt.Errorf("%w: map %d bytes: %w", errUnmapped, size, err)
	} else {
		found.element = m.order.PushFront(found)
	}
	close(found.settled)
	return found, err
}

// mostTables bounds the page tables of mapped files: a file of more than so many times what may be pinned has them
// emptied with each window that goes. They are a 512th of what they map.
const mostTables = 64

// discard unregisters windows. It needs mu and gives it up meanwhile.
func (m *mappings) discard(w *crew.Worker, windows []*mapping) error {
	if len(windows) == 0 {
		return nil
	}
	for _, window := range windows {
		m.order.Remove(window.element)
		window.element, window.settled = nil, make(chan struct{})
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

// follow notes which window a reader of the file uses, and which one it will need next if it reads on. It needs mu.
func (f *mappedFile) follow(m *mappings, w *crew.Worker, index int64) {
	switch {
	case index == f.last:
		return
	case index == f.last+1 && index+1 < int64(len(f.windows)):
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
func (m *mappings) lookAhead(w *crew.Worker) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.ahead[w]
	delete(m.ahead, w)
	if f == nil || f.gone || f.next == 0 || f.windows[f.next] != nil {
		return false
	}
	// Who needs the window comes upon the same errors, and has somebody to tell.
	if m.clearWay(w, f) != nil || f.gone || f.next == 0 || f.windows[f.next] != nil || m.bytes+m.window > m.limit {
		return true
	}
	if window, err := m.register(w, f, f.next); err == nil {
		window.refs--
		m.notify()
	}
	return true
}
