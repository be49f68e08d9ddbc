package cufile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// mapFile gives a file's address space. It needs mu.
func (m *mappings) mapFile(b *source.Backing) (*mappedFile, error) {
	if f := m.used[b]; f != nil {
		return f, nil
	}
	f := m.find(b)
	if f == nil {
		// MAP_SHARED: a private mapping of this kind was seen to hang in the driver.
		memory, err := unix.Mmap(b.FD, 0, int(driver.RoundUp(b.Length, driver.PageSize)), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("%w: map %s: %w", errUnmapped, b.Name, err)
		}
		// What must be read from disk then comes in huge pages, which take half the time to register. A kernel or file
		// system that cannot do that is no worse for being asked.
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE)
		n := (int64(len(memory)) + m.window - 1) / m.window
		f = &mappedFile{key: fileKey{fileID{b.Dev, b.Ino}, b.Length}, memory: memory, windows: make([]*mapping, n), filled: make([]bool, n), users: map[*source.Backing]bool{}}
		m.files[f.key] = f
	}
	f.users[b] = true
	m.used[b] = f
	return f, nil
}

// registered gives the windows of a file that nobody is about to register or give up.
func (f *mappedFile) registered() (list []*mapping) {
	for _, window := range f.windows {
		if window != nil && window.element != nil {
			list = append(list, window)
		}
	}
	return list
}

// idle says whether a file has no window at all.
func (f *mappedFile) idle() bool {
	for _, window := range f.windows {
		if window != nil {
			return false
		}
	}
	return true
}

// unmap unmaps an idle file. It needs mu and gives it up meanwhile; a file that got a window then stays.
func (m *mappings) unmap(f *mappedFile) error {
	f.gone = true
	for f.filling > 0 { // a few MiB, then they see that it is gone
		changed := m.changed
		m.mu.Unlock()
		<-changed
		m.mu.Lock()
	}
	if m.files[f.key] != f { // another one did it
		return nil
	}
	if !f.idle() {
		f.gone = false
		return nil
	}
	delete(m.files, f.key)
	for b := range f.users {
		delete(m.used, b)
	}
	return unix.Munmap(f.memory)
}

// thin unmaps files until half of those that may be mapped are, but for what is in use. It needs mu and gives it up
// meanwhile.
func (m *mappings) thin(w *crew.Worker) error {
	m.mu.Unlock()
	w.Drain()
	m.mu.Lock()
	var victims []*mapping
	files := map[*mappedFile]bool{}
	for e := m.order.Back(); e != nil && len(m.files)-len(files) > m.mostFiles/2; e = e.Prev() {
		if oldest := e.Value.(*mapping); oldest.refs == 0 {
			victims = append(victims, oldest)
			files[oldest.file] = true
		}
	}
	errs := []error{m.discard(w, victims)}
	for _, f := range m.idleFiles() {
		errs = append(errs, m.unmap(f))
	}
	return errors.Join(errs...)
}

func (m *mappings) idleFiles() (list []*mappedFile) {
	for _, f := range m.files {
		if f.idle() {
			list = append(list, f)
		}
	}
	return list
}

// forget ends the use of a file that is about to be closed, and with the last user what there is of it.
func (m *mappings) forget(w *crew.Worker, b *source.Backing) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.used[b]
	if f == nil {
		return nil
	}
	delete(f.users, b)
	delete(m.used, b)
	if len(f.users) > 0 {
		return nil
	}
	return m.drop(w, f)
}

// drop discards a file that has no user. It needs mu and gives it up meanwhile. What CUDA does not let go of is unmapped
// too: it fails for good then, and reads nothing any more.
func (m *mappings) drop(w *crew.Worker, f *mappedFile) error {
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
		errs = append(errs, m.unmap(f))
	}
	return errors.Join(errs...)
}

// close ends the filling and discards all that is left. Nobody may use it any more.
func (m *mappings) close(w *crew.Worker) error {
	m.fill.close()
	return m.discardAll(w)
}

func (m *mappings) discardAll(w *crew.Worker) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, f := range slices.Collect(maps.Values(m.files)) {
		for b := range f.users {
			delete(m.used, b)
		}
		clear(f.users)
		errs = append(errs, m.drop(w, f))
	}
	return errors.Join(errs...)
}

// filler fills page tables of windows before they are registered, on a thread of its own: then the thread that
// registers, which is what the rate of moving windows hangs on, finds them full. Where it cannot follow it leaves the
// work to that thread.
type filler struct {
	m    *mappings
	jobs chan fillJob
	quit chan struct{}
	wg   sync.WaitGroup
}

type fillJob struct {
	file  *mappedFile
	index int64
}

// mostFills is how many windows may wait. fillStep is filled at a time: a file can be unmapped between two. A window
// smaller than leastFill costs less than asking.
const (
	mostFills = 64
	fillStep  = 16 << 20
	leastFill = 1 << 20
)

func newFiller(m *mappings) *filler {
	f := &filler{m: m, jobs: make(chan fillJob, mostFills), quit: make(chan struct{})}
	f.wg.Go(func() {
		for {
			select {
			case j := <-f.jobs:
				f.do(j)
			case <-f.quit:
				return
			}
		}
	})
	return f
}

// ask needs the mutex of the mappings.
func (f *filler) ask(file *mappedFile, index int64) {
	if file.filled[index] || f.m.windowSize(file.key.length, index) < leastFill {
		return
	}
	select {
	case f.jobs <- fillJob{file, index}:
		file.filled[index] = true
	default:
	}
}

func (f *filler) do(j fillJob) {
	first := j.index * f.m.window
	memory := j.file.memory[first : first+f.m.windowSize(j.file.key.length, j.index)]
	for len(memory) > 0 && f.begin(j) {
		n := min(len(memory), fillStep)
		// Where the kernel does not know the call, or the file ends early, registering will find out.
		_ = unix.Madvise(memory[:n], unix.MADV_POPULATE_READ)
		f.m.mu.Lock()
		j.file.filling--
		f.m.notify()
		f.m.mu.Unlock()
		memory = memory[n:]
	}
}

// begin says whether there is something to do for a job, and keeps its file mapped.
func (f *filler) begin(j fillJob) bool {
	select {
	case <-f.quit:
		return false
	default:
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	window := j.file.windows[j.index]
	if j.file.gone || window != nil && window.element != nil {
		return false
	}
	j.file.filling++
	return true
}

func (f *filler) close() {
	close(f.quit)
	f.wg.Wait()
}
