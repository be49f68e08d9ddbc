package mapped

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
)

// filler fills page tables of windows before they are registered, on a thread of its own. The rate of moving windows hangs
// on the thread that registers, which then finds them full. Where the filler is too slow, that thread fills them.
type filler struct {
	m     *Windows
	fills chan fill
	quit  chan struct{}
	gone  chan struct{} // closed when the thread has ended
	last  sync.Once     // closes quit
}

type fill struct {
	file  *file
	index int64
}

// mostFills is how many windows may wait. fillStep is filled at a time: a file can be unmapped between two. A window
// smaller than leastFill costs less than asking.
const (
	mostFills = 64
	fillStep  = 16 << 20
	leastFill = 1 << 20
)

func newFiller(m *Windows) *filler {
	f := &filler{m: m, fills: make(chan fill, mostFills), quit: make(chan struct{}), gone: make(chan struct{})}
	go func() { // ended by close
		defer close(f.gone)
		for {
			select {
			case j := <-f.fills:
				f.do(j)
			case <-f.quit:
				return
			}
		}
	}()
	return f
}

// ask needs the mutex of the mappings.
func (f *filler) ask(file *file, index int64) {
	if file.filled[index] || f.m.windowSize(file.key.Length, index) < leastFill {
		return
	}
	select {
	case f.fills <- fill{file, index}:
		file.filled[index] = true
	default:
	}
}

func (f *filler) do(j fill) {
	first := j.index * f.m.size
	memory := j.file.memory[first : first+f.m.windowSize(j.file.key.Length, j.index)]
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

// begin says whether there is something to do for a fill, and keeps its file mapped.
func (f *filler) begin(j fill) bool {
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

// close ends the thread. It fails with ErrUnderWay where a disk or server does not answer; then close waits again.
func (f *filler) close() error {
	f.last.Do(func() { close(f.quit) })
	return crew.Await(f.gone)
}
