// Package copied moves small rows of files into memory of the host. It maps files that were read, and the kernel copies rows from the
// mappings. One system call (process_vm_readv) copies up to 1,024 rows of any files, which need no descriptors any more.
//
// A [Mover] belongs to one reader. [Mover.Map] maps the files of pieces that were read in another way. [Mover.MoveRows] copies rows of
// mapped files, and names those that it could not copy.
//
// Pitfalls. No thread touches a mapping itself: where a file was cut, that would end the process by SIGBUS.
package copied

import (
	"errors"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Mover is a reader's mapped files.
type Mover struct {
	pid     int
	off     bool      // the kernel does not copy: nothing is mapped
	threads int64     // that copy rows of a request at most
	working chan bool // has an element for each thread that copies; nil where only those of a request are bounded
	plans   sync.Pool // of *plan: those that have ended

	using      sync.RWMutex // held for reading by MoveRows: nothing is unmapped meanwhile
	generation uint32       // of the mappings: Places are valid until one ends; guarded by using

	mu    sync.Mutex // guards the fields below
	files map[*source.Backing][]byte
	room  int  // files that may be mapped before the mappings of the process are counted again
	full  bool // none is mapped until others are unmapped
}

// MostThreads is how many threads copy rows of a request where the CPUs have nothing else to do. As a rule two requests are under way.
func MostThreads() int { return min(8, runtime.NumCPU()/2) }

// New makes a Mover. Each of its requests uses so many threads at most.
func New(threads int) *Mover {
	return &Mover{pid: os.Getpid(), off: !copies(), threads: int64(threads), generation: 1, files: map[*source.Backing][]byte{}}
}

// NewBounded makes a Mover all of whose requests together use so many threads at most.
func NewBounded(threads int) *Mover {
	m := New(threads)
	m.working = make(chan bool, threads)
	return m
}

// Copies says whether the kernel copies memory of this process for it.
func (m *Mover) Copies() bool { return !m.off }

// copies says whether the kernel copies memory of this process for it: a sandbox may be against that.
func copies() bool {
	page := make([]byte, driver.PageSize)
	_, err := source.EndOf(page)
	return err == nil
}

// SmallRow is the mean length of rows in bytes from which on reading by pread is as fast.
const SmallRow = 64 << 10

// Map maps the files of pieces that were read, while these are open: rows of them need no descriptor then. A mapping of a cache's file keeps its place on
// the disk, so [Mover.Forget] ends it with the descriptor. It fails where a file has changed.
func (m *Mover) Map(pieces []source.Piece) error {
	last := (*source.Backing)(nil)
	for i := range pieces {
		b := pieces[i].File
		if b == last || b.Inline {
			continue
		}
		last = b
		if err := b.Unchanged(); err != nil {
			return err
		}
		if !m.off && b.Seen.Load() == nil && b.Length > 0 {
			m.mapFile(b)
		}
	}
	return nil
}

// mapFile maps a file where that is possible. Otherwise its rows go on to be read by pread.
func (m *Mover) mapFile(b *source.Backing) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[b] != nil || !m.hasRoom() {
		return
	}
	memory, err := unix.Mmap(b.FD, 0, int(driver.RoundUp(b.Length, driver.PageSize)), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		m.full = errors.Is(err, unix.ENOMEM)
		return
	}
	_ = unix.Madvise(memory, unix.MADV_RANDOM)   // a row that is not in the page cache would bring 128 KiB
	_ = unix.Madvise(memory, unix.MADV_DONTFORK) // thousands of mappings would make each fork slow, and no child reads them
	end, err := source.EndOf(memory)
	if err != nil { // the file was cut meanwhile
		_ = unix.Munmap(memory)
		return
	}
	seen := source.NewRegistered(b.Length, int64(len(memory)))
	seen.At[0].Store(uint64(driver.Address(memory)))
	seen.End.Store(end)
	m.files[b] = memory
	m.room--
	b.Seen.Store(seen)
}

// Forget unmaps files that are about to be closed. It waits for the rows that are being moved.
func (m *Mover) Forget(files []*source.Backing) error {
	m.using.Lock()
	defer m.using.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, b := range files {
		if memory := m.files[b]; memory != nil {
			b.Seen.Store(nil)
			delete(m.files, b)
			m.generation++
			m.room, m.full = m.room+1, false
			errs = append(errs, unix.Munmap(memory))
		}
	}
	return errors.Join(errs...)
}
