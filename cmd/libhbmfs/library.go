package main

import (
	"fmt"
	"sync"
	"time"
)

// library is the table of handles. A handle is a number that is given out once, so that what is closed and what never
// was can be told apart, and no pointer of Go's crosses the border.
type library struct {
	patience time.Duration // how long closing waits for what hangs

	mu     sync.Mutex
	last   uint64
	things map[uint64]any
}

func newLibrary() *library {
	return &library{patience: 5 * time.Second, things: map[uint64]any{}}
}

func (l *library) add(thing any) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.things[l.last] = thing
	return l.last
}

// remove says whether the handle was there.
func (l *library) remove(handle uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.things[handle]
	delete(l.things, handle)
	return ok
}

// find gives what a handle stands for.
func find[T any](l *library, handle uint64) (T, error) {
	var zero T
	l.mu.Lock()
	thing, ok := l.things[handle]
	known := handle > 0 && handle <= l.last
	l.mu.Unlock()
	switch {
	case ok:
		if found, ok := thing.(T); ok {
			return found, nil
		}
		return zero, failf(codeInvalid, "handle %d is of another kind than this function takes", handle)
	case known:
		return zero, failf(codeClosed, "handle %d is closed", handle)
	}
	return zero, failf(codeInvalid, "%d is no handle of this library", handle)
}

// wait waits for a channel: at most timeout, forever if that is negative.
func wait(done <-chan struct{}, timeout time.Duration) bool {
	select {
	case <-done:
		return true
	default:
	}
	if timeout == 0 {
		return false
	}
	if timeout < 0 {
		<-done
		return true
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// members is what was opened through something, and who is inside of it.
type members struct {
	mu      sync.Mutex
	closing bool           // guarded by mu; nobody enters any more
	handles map[uint64]any // guarded by mu
	inside  int            // calls that use it now; guarded by mu
	empty   chan struct{}  // closed once nobody is inside any more, made when it is closing; guarded by mu
}

// enter keeps what is used from being closed until leave.
func (m *members) enter(what string) (leave func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return nil, failf(codeClosed, "the %s is being closed", what)
	}
	m.inside++
	return m.leave, nil
}

func (m *members) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inside--; m.closing && m.inside == 0 {
		close(m.empty)
	}
}

// close lets nobody enter any more, waits for those inside and gives the members that are left. Who is inside may hang in
// the system or the driver, so that it waits no longer than patience.
func (m *members) close(patience time.Duration) (map[uint64]any, error) {
	m.mu.Lock()
	if !m.closing {
		m.closing, m.empty = true, make(chan struct{})
		if m.inside == 0 {
			close(m.empty)
		}
	}
	empty := m.empty
	m.mu.Unlock()
	if !wait(empty, patience) {
		return nil, failf(codeTimeout, "a call is still under way, slow or hung: close again later")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	left := make(map[uint64]any, len(m.handles))
	for handle, thing := range m.handles {
		left[handle] = thing
	}
	return left, nil
}

// join registers a new thing under a handle, which it gives. The caller has entered.
func (m *members) join(l *library, thing any) uint64 {
	handle := l.add(thing)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handles == nil {
		m.handles = map[uint64]any{}
	}
	m.handles[handle] = thing
	return handle
}

// part takes a thing out again, and says whether it was there.
func (m *members) part(l *library, handle uint64) bool {
	m.mu.Lock()
	_, ok := m.handles[handle]
	delete(m.handles, handle)
	m.mu.Unlock()
	l.remove(handle)
	return ok
}

// count counts the members of a kind.
func count[T any](m *members) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, thing := range m.handles {
		if _, ok := thing.(T); ok {
			n++
		}
	}
	return n
}

// failf makes an error of a code.
func failf(c code, format string, args ...any) error {
	return &failure{c, fmt.Sprintf(format, args...)}
}
