package cufile

import (
	"container/list"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// mappings is the windows of files that are registered with CUDA. Registering costs time and pins pages, so windows
// are kept until others need their room: the least recently used goes first.
//
// One thread registers, and starts the copies too. Registering is serial in the driver, and copies that other threads
// start wait for it (measured on an H200: 20 GB/s through moving windows with several threads).
//
// A file is mapped once and whole, and stays mapped when a window goes: filling the page tables costs as much as
// registering (measured there: 40 ms/GB together, 24 where the tables were full), and so does emptying them. Only where
// there are too many files, those without a window are unmapped. A mapping does not need the file to stay open.
type mappings struct {
	cu            *cuda
	window, limit int64
	mostFiles     int

	mu    sync.Mutex // the thread that registers changes what follows, others look
	kept  map[mapKey]*mapping
	order *list.List        // of *mapping, the most recently used first
	files map[uint64][]byte // by backing.id: the whole file's address space
	bytes int64             // registered
}

type mapKey struct {
	file  uint64 // backing.id
	index int64  // of the window
}

// mapping is one window.
type mapping struct {
	key     mapKey
	refs    int // copies and kernels that are under way; of the registering thread only
	element *list.Element
	memory  []byte
	device  devicePointer
}

func newMappings(cu *cuda, window, limit int64) *mappings {
	return &mappings{cu: cu, window: window, limit: limit, mostFiles: mostMapped, kept: map[mapKey]*mapping{}, order: list.New(), files: map[uint64][]byte{}}
}

func (m *mappings) pinned() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// holds says whether all of these windows are registered.
func (m *mappings) holds(list []windowRef) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ref := range list {
		if m.kept[mapKey{ref.file.id, ref.index}] == nil {
			return false
		}
	}
	return true
}

// windowSize is the size of a file's window in bytes: whole pages.
func (m *mappings) windowSize(b *backing, index int64) int64 {
	return min(m.window, roundUp(b.length, pageSize)-index*m.window)
}

// acquire gives a registered window, which stays until its refs are gone. Where there is no room it makes some.
func (m *mappings) acquire(w *worker, ref windowRef) (*mapping, error) {
	key := mapKey{ref.file.id, ref.index}
	if found := m.kept[key]; found != nil {
		found.refs++
		m.order.MoveToFront(found.element)
		return found, nil
	}
	size := m.windowSize(ref.file, ref.index)
	if crowded := m.files[key.file] == nil && len(m.files) >= m.mostFiles; crowded || m.bytes+size > m.limit {
		if err := m.makeRoom(w, size, crowded); err != nil {
			return nil, err
		}
	}
	found, err := m.register(ref, size)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of %s for the GPU: %w", size, ref.file.name, err)
	}
	return found, nil
}

// makeRoom discards the least recently used windows, down to half of what may be pinned. Many at once: the driver waits
// for all copies of the device before it unregisters anything, so one after each copy would keep the bus idle half of
// the time (measured on an H200: 22 GB/s one by one, 34 by sixteen). Where it is crowded with files, half of them go.
func (m *mappings) makeRoom(w *worker, size int64, crowded bool) error {
	w.drain() // only this worker's copies use windows, and waiting for them here does not burn the CPU as the driver does
	if crowded {
		for _, file := range slices.Collect(maps.Keys(m.files)) {
			if err := m.unmapIdle(file); err != nil {
				return err
			}
		}
	}
	for e := m.order.Back(); e != nil && (m.bytes+size > m.limit/2 || crowded && len(m.files) > m.mostFiles/2); {
		oldest := e.Value.(*mapping)
		e = e.Prev()
		if oldest.refs > 0 { // by the request that needs room
			continue
		}
		if err := m.discard(oldest); err != nil {
			return err
		}
		if crowded {
			if err := m.unmapIdle(oldest.key.file); err != nil {
				return err
			}
		}
	}
	if m.bytes+size > m.limit {
		return fmt.Errorf("cufile: internal error: one request uses %d bytes of windows, %d more do not fit", m.bytes, size)
	}
	return nil
}

func (m *mappings) register(ref windowRef, size int64) (*mapping, error) {
	whole, err := m.mapFile(ref.file)
	if err != nil {
		return nil, err
	}
	first := ref.index * m.window
	w := &mapping{key: mapKey{ref.file.id, ref.index}, refs: 1, memory: whole[first : first+size]}
	if err := m.cu.register(w.memory, hostPortable|hostDeviceMap|hostReadOnly); err != nil {
		return nil, err
	}
	if w.device, err = m.cu.deviceAddress(w.memory); err != nil {
		return nil, errors.Join(err, m.cu.unregister(w.memory))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	w.element = m.order.PushFront(w)
	m.kept[w.key] = w
	m.bytes += size
	return w, nil
}

// mapFile gives a file's address space.
func (m *mappings) mapFile(b *backing) ([]byte, error) {
	if memory := m.files[b.id]; memory != nil {
		return memory, nil
	}
	// MAP_SHARED: a private mapping of this kind was seen to hang in the driver.
	memory, err := unix.Mmap(b.fd, 0, int(roundUp(b.length, pageSize)), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[b.id] = memory
	return memory, nil
}

// mostMapped bounds the mapped files: a process may have 65,530 mappings, whatever for (vm.max_map_count).
const mostMapped = 1 << 14

// windowsOf gives the registered windows of a file.
func (m *mappings) windowsOf(file uint64) (list []*mapping) {
	for index := range roundUp(int64(len(m.files[file])), m.window) / m.window {
		if w := m.kept[mapKey{file, index}]; w != nil {
			list = append(list, w)
		}
	}
	return list
}

// unmapIdle unmaps a file that has no window.
func (m *mappings) unmapIdle(file uint64) error {
	if len(m.windowsOf(file)) > 0 {
		return nil
	}
	return m.unmap(file)
}

func (m *mappings) unmap(file uint64) error {
	memory := m.files[file]
	m.mu.Lock()
	delete(m.files, file)
	m.mu.Unlock()
	return unix.Munmap(memory)
}

// mostTables bounds the page tables of mapped files: a file of more than so many times what may be pinned has them
// emptied with each window that goes. They are a 512th of what they map.
const mostTables = 64

// discard unregisters a window that nothing uses.
func (m *mappings) discard(w *mapping) error {
	m.mu.Lock()
	delete(m.kept, w.key)
	m.order.Remove(w.element)
	m.bytes -= int64(len(w.memory))
	tooLarge := int64(len(m.files[w.key.file])) > mostTables*m.limit
	m.mu.Unlock()
	err := m.cu.unregister(w.memory)
	if tooLarge {
		err = errors.Join(err, unix.Madvise(w.memory, unix.MADV_DONTNEED))
	}
	return err
}

// forget discards what there is of a file that is about to be closed.
func (m *mappings) forget(w *worker, file uint64) error {
	if m.files[file] == nil {
		return nil
	}
	w.drain()
	var errs []error
	for _, window := range m.windowsOf(file) {
		errs = append(errs, m.discard(window))
	}
	return errors.Join(append(errs, m.unmap(file))...)
}

// close discards all windows and files.
func (m *mappings) close(w *worker) error {
	var errs []error
	for _, file := range slices.Collect(maps.Keys(m.files)) {
		errs = append(errs, m.forget(w, file))
	}
	return errors.Join(errs...)
}
