package mapped

import (
	"errors"
	"sync"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// registries are the Windows of this process, by the properties that Movers ask for.
type registries struct {
	mu   sync.Mutex // guards the fields below
	open map[registryKey]*Windows
}

// registryKey is equal for Movers that share registrations.
type registryKey struct {
	library      string
	size, pinned int64
}

// Registrations belong to a process, as its mappings and its pinned memory do. Readers that know nothing of each other share it.
//
//nolint:gochecknoglobals // see above
var process = registries{open: map[registryKey]*Windows{}}

// join makes a Mover share registrations. The registry keeps the contexts of its Movers' devices: windows that one of them registered stay when it goes.
func (s *registries) join(m *Mover, o *Options) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := registryKey{o.Library, o.Window, o.Pinned}
	w := s.open[key]
	if w == nil {
		w = newWindows(key)
	}
	if w.contexts[o.Device] == 0 {
		retained, err := o.CUDA.RetainPrimary(o.Device)
		if err != nil {
			if s.open[key] == nil {
				err = errors.Join(err, w.fill.close())
			}
			return err
		}
		w.contexts[o.Device] = retained
	}
	s.open[key], m.windows = w, w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.movers[m] = true
	return nil
}

// leave ends the use by a Mover, and says whether it was the last one.
func (s *registries) leave(m *Mover) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := m.windows
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.movers, m)
	if last = len(w.movers) == 0; last && s.open[w.key] == w {
		delete(s.open, w.key)
	}
	return last
}

// Detach ends the use of registrations, once the thread has ended. The last Mover gives all up. It fails with [crew.ErrUnderWay] where the thread that
// fills page tables reads from a disk or server that does not answer. Then call Detach again.
func (m *Mover) Detach() error {
	if m.gone || !process.leave(m) {
		m.gone = true
		return nil
	}
	if err := m.windows.fill.close(); err != nil {
		return err
	}
	m.gone = true
	return m.windows.end(m.cu)
}

// end gives up registrations of Files that could not be closed. Nobody uses it any more.
func (m *Windows) end(cu *driver.CUDA) error {
	var errs []error
	for dev, context := range m.contexts {
		errs = append(errs, cu.Within(context, func() error { return m.endAll(cu) }), cu.ReleasePrimary(dev))
	}
	return errors.Join(append(errs, m.endAll(cu))...) // where CUDA has failed, for windows that it still holds
}

// endAll needs a context.
func (m *Windows) endAll(cu *driver.CUDA) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, f := range m.files {
		for _, window := range f.registered() {
			m.order.Remove(window.element)
			if window.element, window.settled = nil, make(chan struct{}); window.chunk == nil {
				errs = append(errs, cu.Unregister(window.memory))
			}
			errs = append(errs, m.unregistered(cu, window))
		}
		errs = append(errs, m.remove(f))
	}
	return errors.Join(errs...)
}
