package cufile

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// mappings is the windows of files that are mapped and registered with CUDA. Registering costs time and pins pages,
// so windows are kept until others need their room: the least recently used goes first.
type mappings struct {
	cu            *cuda
	window, limit int64
	many          chan struct{} // held by who acquires several windows, so that two never wait for each other

	mu      sync.Mutex
	kept    map[mapKey]*mapping
	order   *list.List // of *mapping, the most recently used first
	bytes   int64      // registered or about to be
	changed chan struct{}
}

type mapKey struct {
	file  uint64 // backing.id
	index int64  // of the window
}

// mapping is one window. refs is guarded by the mutex of mappings; the rest does not change after ready is closed.
type mapping struct {
	key     mapKey
	refs    int
	element *list.Element
	size    int64
	ready   chan struct{}
	memory  []byte
	device  devicePointer
	err     error
}

func newMappings(cu *cuda, window, limit int64) *mappings {
	return &mappings{cu: cu, window: window, limit: limit, many: make(chan struct{}, 1), kept: map[mapKey]*mapping{}, order: list.New(), changed: make(chan struct{})}
}

func (m *mappings) pinned() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// holds says how many bytes of the file's windows are registered already.
func (m *mappings) holds(key mapKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept[key] != nil
}

// windowSize is the size of a file's window in bytes: whole pages.
func (m *mappings) windowSize(b *backing, index int64) int64 {
	return min(m.window, roundUp(b.length, pageSize)-index*m.window)
}

// acquire gives a registered window, which stays until release. It must run on a thread with the context.
func (m *mappings) acquire(ctx context.Context, b *backing, index int64) (*mapping, error) {
	key := mapKey{b.id, index}
	for {
		m.mu.Lock()
		if w := m.kept[key]; w != nil {
			w.refs++
			m.order.MoveToFront(w.element)
			m.mu.Unlock()
			return m.await(ctx, w)
		}
		size := m.windowSize(b, index)
		victims := m.evict(m.bytes + size - m.limit)
		if len(victims) == 0 && m.bytes+size <= m.limit {
			w := &mapping{key: key, refs: 1, size: size, ready: make(chan struct{})}
			w.element = m.order.PushFront(w)
			m.kept[key] = w
			m.bytes += size
			m.mu.Unlock()
			return m.register(b, w)
		}
		changed := m.changed
		m.mu.Unlock()
		if len(victims) > 0 {
			if err := m.discard(victims); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (m *mappings) await(ctx context.Context, w *mapping) (*mapping, error) {
	select {
	case <-w.ready:
	case <-ctx.Done():
		m.release(w)
		return nil, ctx.Err()
	}
	if w.err != nil {
		err := w.err
		m.release(w)
		return nil, err
	}
	return w, nil
}

// register maps and registers a window that acquire has entered.
func (m *mappings) register(b *backing, w *mapping) (*mapping, error) {
	// MAP_SHARED: a private mapping of this kind was seen to hang in the driver.
	w.memory, w.err = unix.Mmap(b.fd, w.key.index*m.window, int(w.size), unix.PROT_READ, unix.MAP_SHARED)
	if w.err == nil {
		if w.err = m.cu.register(w.memory, hostPortable|hostDeviceMap|hostReadOnly); w.err == nil {
			w.device, w.err = m.cu.deviceAddress(w.memory)
			if w.err != nil {
				w.err = errors.Join(w.err, m.cu.unregister(w.memory))
			}
		}
		if w.err != nil {
			w.err = errors.Join(w.err, unix.Munmap(w.memory))
			w.memory = nil
		}
	}
	close(w.ready)
	if w.err == nil {
		return w, nil
	}
	m.mu.Lock()
	delete(m.kept, w.key)
	m.order.Remove(w.element)
	m.bytes -= w.size
	m.broadcast()
	m.mu.Unlock()
	return nil, fmt.Errorf("map %d bytes of %s for the GPU: %w", w.size, b.name, w.err)
}

func (m *mappings) release(w *mapping) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.refs--; w.refs == 0 {
		m.broadcast()
	}
}

// broadcast wakes all who wait for room. The caller holds mu.
func (m *mappings) broadcast() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// evict takes unused windows of at least n bytes out of the table, the least recently used first; none when n is not
// positive. Their bytes count until discard. The caller holds mu.
func (m *mappings) evict(n int64) []*mapping {
	var victims []*mapping
	for e := m.order.Back(); e != nil && n > 0; {
		w := e.Value.(*mapping)
		e = e.Prev()
		if w.refs == 0 {
			n -= w.size
			m.remove(w)
			victims = append(victims, w)
		}
	}
	return victims
}

func (m *mappings) remove(w *mapping) {
	delete(m.kept, w.key)
	m.order.Remove(w.element)
}

// discard unregisters windows that evict took out.
func (m *mappings) discard(victims []*mapping) error {
	var errs []error
	for _, w := range victims {
		errs = append(errs, m.cu.unregister(w.memory), unix.Munmap(w.memory))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range victims {
		m.bytes -= w.size
	}
	m.broadcast()
	return errors.Join(errs...)
}

// forget discards a file's windows that nobody uses.
func (m *mappings) forget(file uint64) error {
	m.mu.Lock()
	var victims []*mapping
	for _, w := range m.kept {
		if w.key.file == file && w.refs == 0 {
			m.remove(w)
			victims = append(victims, w)
		}
	}
	m.mu.Unlock()
	return m.discard(victims)
}

// close discards all windows.
func (m *mappings) close() error {
	m.mu.Lock()
	victims := m.evict(m.bytes)
	m.mu.Unlock()
	return m.discard(victims)
}
