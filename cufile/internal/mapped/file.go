package mapped

import (
	"container/list"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// file is a file's address space, or room for a copy of a small file.
type file struct {
	key     source.Version
	memory  []byte // nil for a copy
	windows []*window
	filled  []bool // windows whose page tables are full, or will be
	users   map[*source.Backing]bool
	filling int  // threads that fill page tables
	gone    bool // it is about to be unmapped

	last, next int64 // the window that was used last, and the one that a sequential reader needs next; 0 for none
	keep       bool  // that reader gives no window up for it

	seen *source.Registered // the key by which its bytes are found
}

// window is a range of a file that is registered, or about to be.
type window struct {
	file    *file
	index   int64
	memory  []byte
	element *list.Element // nil until it is registered, and when it is being given up
	settled chan struct{} // closed when that is over
	at      driver.Pointer
	end     *source.End // nil where it is not known
	chunk   *chunk      // that memory is part of; nil where it is the file's
}

// attach gives the address space of a file that is mapped, also by another reader; nil where it is not. It needs mu.
func (m *Windows) attach(b *source.Backing) *file {
	f := m.used[b]
	if f == nil && b.FD >= 0 {
		if f = m.files[b.Version()]; f != nil {
			m.use(f, b)
		}
	}
	return f
}

func (m *Windows) use(f *file, b *source.Backing) {
	f.users[b], m.used[b] = true, f
	b.Seen.Store(f.seen)
}

// fileOf gives a file's address space. It is nil where too many files are mapped, and this one is not small. It needs mu.
func (m *Windows) fileOf(b *source.Backing) (*file, error) {
	if f := m.attach(b); f != nil {
		return f, nil
	}
	n := (b.Length + m.size - 1) / m.size
	f := &file{key: b.Version(), windows: make([]*window, n), filled: make([]bool, n), users: map[*source.Backing]bool{}, seen: source.NewRegistered(b.Length, m.size)}
	switch {
	case m.mapped < m.mostFiles:
		// MAP_SHARED: a private mapping of this kind was seen to hang in the driver.
		memory, err := unix.Mmap(b.FD, 0, int(driver.RoundUp(b.Length, driver.PageSize)), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, unmapped(b.Name, err)
		}
		// Pages from disk then are huge ones, which take half the time to register. A kernel or file system that cannot do
		// that is no worse for being asked.
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE)
		f.memory = memory
		m.mapped++
	case n > 1 || b.Length > smallFile:
		return nil, nil
	default:
		f.seen.Copied = true
	}
	m.files[f.key] = f
	m.use(f, b)
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

// show lets rows be found in a window, or no more. It needs mu.
func (n *window) show(at driver.Pointer) {
	n.file.seen.At[n.index].Store(uint64(at))
	var end *source.End
	for _, window := range n.file.registered() {
		end = window.end
	}
	n.file.seen.End.Store(end)
}

// window gives one of a file's windows; nil where it is idle.
func (f *file) window() *window {
	if i := slices.IndexFunc(f.windows, func(n *window) bool { return n != nil }); i >= 0 {
		return f.windows[i]
	}
	return nil
}

func (f *file) idle() bool { return f.window() == nil }

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
	if f.gone = f.idle(); !f.gone { // another that waited for the same may have given up
		return nil
	}
	return m.remove(f)
}

// remove unmaps a file without windows. It needs mu.
func (m *Windows) remove(f *file) error {
	delete(m.files, f.key)
	for b := range f.users {
		b.Seen.Store(nil)
		delete(m.used, b)
	}
	if f.memory == nil {
		return nil
	}
	m.mapped--
	return unix.Munmap(f.memory)
}

// thin unmaps files, until half of mostFiles are mapped. It needs mu and gives it up meanwhile.
func (m *Windows) thin(w *crew.Worker) error {
	files, leaving := map[*file]bool{}, m.order.Len() == 0
	errs := []error{m.discardOldest(w, func(n *window) bool {
		files[n.file] = true
		return m.mapped-len(files) > m.mostFiles/2
	})}
	for _, f := range slices.Collect(maps.Values(m.files)) {
		if f.idle() {
			leaving = false
			errs = append(errs, m.unmap(w, f))
		}
	}
	if leaving { // other readers give all windows up, and so files
		errs = append(errs, m.wait(w, m.changed))
	}
	return errors.Join(errs...)
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
	var errs []error
	for n := f.window(); len(f.users) == 0 && n != nil; n = f.window() {
		if list := f.registered(); len(list) > 0 {
			err := m.discard(w, list)
			if errs = append(errs, err); err != nil && f.registered() != nil { // tables of another reader do not end
				return errors.Join(errs...)
			}
		} else if err := m.wait(w, n.settled); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	if len(f.users) == 0 {
		errs = append(errs, m.unmap(w, f))
	}
	return errors.Join(errs...)
}
