package mapped

import (
	"container/list"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// fileKey is a file that cannot be another one while it is mapped.
type fileKey struct {
	dev, ino uint64
	length   int64
}

// file is a file's address space.
type file struct {
	key     fileKey
	memory  []byte
	windows []*window // nil where there is none
	filled  []bool    // windows whose page tables are full, or will be
	users   map[*source.Backing]bool
	filling int  // threads that fill page tables
	gone    bool // it is about to be unmapped

	last, next int64 // the window that was used last, and the one that a sequential reader needs next; 0 for none

	seen *source.Registered // what rows are found by; nil where several readers share the windows
}

// window is a range of a file that is registered, or about to be.
type window struct {
	home      *Windows
	file      *file
	index     int64
	memory    []byte
	refs      int                              // copies and kernels that are under way
	element   *list.Element                    // nil until it is registered, and when it is being given up
	settled   chan struct{}                    // closed when that is over
	addresses map[driver.Handle]driver.Pointer // by context
	end       *source.End                      // nil where it is not known
}

// mapFile gives a file's address space. It needs mu.
func (m *Windows) mapFile(b *source.Backing) (*file, error) {
	if f := m.used[b]; f != nil {
		return f, nil
	}
	f := m.find(b)
	if f == nil {
		// MAP_SHARED: a private mapping of this kind was seen to hang in the driver.
		memory, err := unix.Mmap(b.FD, 0, int(driver.RoundUp(b.Length, driver.PageSize)), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, unmapped(b.Name, err)
		}
		// Pages from disk then are huge ones, which take half the time to register. A kernel or file system that cannot do
		// that is no worse for being asked.
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE)
		n := (int64(len(memory)) + m.size - 1) / m.size
		f = &file{key: fileKey{b.Dev, b.Ino, b.Length}, memory: memory, windows: make([]*window, n), filled: make([]bool, n), users: map[*source.Backing]bool{}}
		if m.readers == 1 {
			f.seen = &source.Registered{Window: m.size, At: make([]driver.Pointer, n), Used: make([]bool, n)}
		}
		m.files[f.key] = f
	}
	f.users[b] = true
	m.used[b] = f
	b.Seen.Store(f.seen)
	return f, nil
}

// registered gives the windows of a file that are neither about to be registered nor given up.
func (f *file) registered() (list []*window) {
	for _, window := range f.windows {
		if window != nil && window.element != nil {
			list = append(list, window)
		}
	}
	return list
}

// findEnd finds the end of what is registered. It needs mu.
func (f *file) findEnd() {
	for i := len(f.windows) - 1; i >= 0; i-- {
		if window := f.windows[i]; window != nil && window.element != nil {
			f.seen.End.Store(window.end)
			return
		}
	}
	f.seen.End.Store(nil)
}

// idle says whether a file has no window at all.
func (f *file) idle() bool {
	for _, window := range f.windows {
		if window != nil {
			return false
		}
	}
	return true
}

// unmap unmaps an idle file. It needs mu and gives it up meanwhile; a file that got a window then stays. So does one whose
// page tables are being filled for longer than the worker's job lasts.
func (m *Windows) unmap(w *crew.Worker, f *file) error {
	f.gone = true
	for f.filling > 0 { // a few MiB, then they see that it is gone
		if err := m.wait(w, m.changed); err != nil {
			f.gone = false
			return fmt.Errorf("unmap a file whose page tables are being filled: %w", err)
		}
	}
	if m.files[f.key] != f { // another one did it
		return nil
	}
	if !f.idle() {
		f.gone = false
		return nil
	}
	delete(m.files, f.key)
	f.gone = true // another that waited for the same may have given up
	for b := range f.users {
		b.Seen.Store(nil)
		delete(m.used, b)
	}
	return unix.Munmap(f.memory)
}

// thin unmaps files that are not in use, until half of mostFiles are mapped. It needs mu and gives it up meanwhile.
func (m *Windows) thin(w *crew.Worker) error {
	m.mu.Unlock()
	w.Drain()
	m.mu.Lock()
	var victims []*window
	files := map[*file]bool{}
	for e := m.order.Back(); e != nil && len(m.files)-len(files) > m.mostFiles/2; {
		oldest := e.Value.(*window)
		e = e.Prev()
		switch {
		case oldest.readLately():
			m.order.MoveToFront(oldest.element)
		case oldest.refs == 0:
			victims = append(victims, oldest)
			files[oldest.file] = true
		}
	}
	errs := []error{m.discard(w, victims)}
	for _, f := range m.idleFiles() {
		errs = append(errs, m.unmap(w, f))
	}
	return errors.Join(errs...)
}

func (m *Windows) idleFiles() (list []*file) {
	for _, f := range m.files {
		if f.idle() {
			list = append(list, f)
		}
	}
	return list
}

// forget ends the use of a file that is about to be closed. With the last user it unmaps the file.
func (m *Windows) forget(w *crew.Worker, b *source.Backing) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.used[b]
	if f == nil {
		return nil
	}
	b.Seen.Store(nil)
	delete(f.users, b)
	delete(m.used, b)
	if len(f.users) > 0 {
		return nil
	}
	return m.drop(w, f)
}

// drop discards a file that has no user. It needs mu and gives it up meanwhile. It also unmaps a
// window that CUDA fails to unregister: CUDA then fails for good, and reads nothing any more.
func (m *Windows) drop(w *crew.Worker, f *file) error {
	m.mu.Unlock()
	w.Drain()
	m.mu.Lock()
	var errs []error
	for len(f.users) == 0 && !f.idle() {
		if list := f.registered(); len(list) > 0 {
			errs = append(errs, m.discard(w, list))
			continue
		}
		for _, window := range f.windows {
			if window == nil {
				continue
			}
			if err := m.wait(w, window.settled); err != nil {
				return errors.Join(append(errs, err)...)
			}
			break
		}
	}
	if len(f.users) == 0 {
		errs = append(errs, m.unmap(w, f))
	}
	return errors.Join(errs...)
}

// discardAll discards all files. No reader may use them any more, and the filling has ended.
func (m *Windows) discardAll(w *crew.Worker) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, f := range slices.Collect(maps.Values(m.files)) {
		for b := range f.users {
			b.Seen.Store(nil)
			delete(m.used, b)
		}
		clear(f.users)
		errs = append(errs, m.drop(w, f))
	}
	return errors.Join(errs...)
}
