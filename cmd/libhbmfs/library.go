package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/cufile"
)

// library is the table of handles. A handle is a number that is given out once. So a closed handle and a number that never
// was one can be told apart, and no pointer of Go's crosses the border.
type library struct {
	mu     sync.Mutex // guards the fields below, and the entries
	last   uint64
	things map[uint64]*entry
}

// entry is the thing of a handle.
type entry struct {
	thing   any
	of      *entry              // that it was opened through; nil for none
	members map[uint64]struct{} // handles that were opened through it
}

func newLibrary() *library {
	// The runtime keeps two descriptors from its first timer on. They come with the library, and not amid a read, where they would look like a leak.
	time.AfterFunc(0, func() {})
	return &library{things: map[uint64]*entry{}}
}

// add gives a handle to a thing that was opened through another, whose handle is of; 0 for none. It fails where that was
// closed meanwhile, and the thing with it.
func (l *library) add(of uint64, thing any) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &entry{thing: thing, of: l.things[of]}
	if of != 0 && e.of == nil {
		return 0, failf(codeClosed, "handle %d is closed", of)
	}
	l.last++
	l.things[l.last] = e
	if e.of != nil {
		if e.of.members == nil {
			e.of.members = map[uint64]struct{}{}
		}
		e.of.members[l.last] = struct{}{}
	}
	return l.last, nil
}

// remove takes out a handle, with those that were opened through it, and says whether it was there.
func (l *library) remove(handle uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.removeAll(handle)
}

// removeAll needs mu.
func (l *library) removeAll(handle uint64) bool {
	e, ok := l.things[handle]
	if !ok {
		return false
	}
	delete(l.things, handle)
	if e.of != nil {
		delete(e.of.members, handle)
	}
	for member := range e.members {
		l.removeAll(member)
	}
	return true
}

// count counts the files of a reader, and their requests.
func (l *library) count(reader uint64) (files, requests int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.things[reader]
	if e == nil {
		return 0, 0
	}
	for f := range e.members {
		requests += len(l.things[f].members)
	}
	return len(e.members), requests
}

// find gives the thing of a handle.
func find[T any](l *library, handle uint64) (T, error) {
	var zero T
	l.mu.Lock()
	e, ok := l.things[handle]
	known := handle > 0 && handle <= l.last
	l.mu.Unlock()
	switch {
	case ok:
		if found, ok := e.thing.(T); ok {
			return found, nil
		}
		return zero, failf(codeInvalid, "handle %d is of another kind than this function takes", handle)
	case known:
		return zero, failf(codeClosed, "handle %d is closed", handle)
	}
	return zero, failf(codeInvalid, "%d is no handle of this library", handle)
}

// closeThing closes a thing and gives its handle up. Where a call hangs, the handle stays.
func closeThing[T any](l *library, handle uint64, what string, close func(T) error) error {
	thing, err := find[T](l, handle)
	if err != nil {
		return err
	}
	if err = close(thing); errors.Is(err, cufile.ErrUnderWay) {
		return err
	}
	if !l.remove(handle) { // another call did
		return failf(codeClosed, "handle %d is closed", handle)
	}
	if err != nil {
		return fmt.Errorf("close the %s: %w", what, err)
	}
	return nil
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

// failf makes an error of a code.
func failf(c code, format string, args ...any) error {
	return &failure{c, fmt.Sprintf(format, args...)}
}
