package handover

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Suspects are the requests that daemons handle, in memory that all lives share. A request that ends each daemon which handles it would end
// the mount, since the kernel sends it again to the next. So a request that was being handled at two deaths by a panic or a fatal error of the
// Go runtime is refused. So is other work that the next daemon begins again ([Suspects.BeginTask]). A request that was being handled at one such death is a suspect. Suspects are handled one at a time, so that the one that
// ends daemons is found, and others are not refused with it.
//
// The runtime tells of these deaths itself: it writes its last words behind the table. SIGKILL leaves none, so upgrades, the out-of-memory killer
// and operators make nobody a suspect.
type Suspects struct {
	file *os.File // the table, and behind it the runtime's last words
	slot []suspect
	turn chan struct{} // has a token while a suspect is handled

	left  atomic.Int64 // of known
	mu    sync.Mutex   // guards the field below
	known map[uint64]*suspect
}

// suspect is a request that is being handled, or was at a death.
type suspect struct {
	request atomic.Uint64 // its number, 0 for none
	state   atomic.Uint64 // twice the number of deaths; 1 more while it is handled
}

const (
	suspectSlots = 4096 // requests at once; those beyond go unmarked
	suspectSize  = suspectSlots * int(unsafe.Sizeof(suspect{}))
	suspectTries = 16 // slots that a request looks at

	deathsMost  = 2           // of daemons that handled a request, before it is refused
	suspectTurn = time.Minute // a suspect that takes longer keeps the others waiting no more
)

// NewSuspects makes an empty table, for the first life of a mount.
func NewSuspects() (*Suspects, error) {
	f, err := NewMemory("requests")
	if err != nil {
		return nil, err
	}
	if err = f.Truncate(int64(suspectSize)); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, unix.O_APPEND|unix.O_RDWR) // the last words go behind the table
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return mapSuspects(f)
}

func mapSuspects(f *os.File) (*Suspects, error) {
	p, err := unix.Mmap(int(f.Fd()), 0, suspectSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the table of requests: %w", err), f.Close())
	}
	s := &Suspects{file: f, slot: unsafe.Slice((*suspect)(unsafe.Pointer(&p[0])), suspectSlots), turn: make(chan struct{}, 1), known: map[uint64]*suspect{}}
	return s, nil
}

// AdoptSuspects goes on with the table of the daemon before, once that is gone. said are its last words, "" where it had none.
func AdoptSuspects(f *os.File) (s *Suspects, said string, err error) {
	info, err := f.Stat()
	if err == nil && info.Size() < int64(suspectSize) {
		err = fmt.Errorf("%w: the table of requests has another size", ErrRefused)
	}
	if err != nil {
		return nil, "", errors.Join(err, f.Close())
	}
	if s, err = mapSuspects(f); err != nil {
		return nil, "", err
	}
	said = s.lastWords(info.Size())
	for i := range s.slot {
		p := &s.slot[i]
		p.survived(said != "")
		number := p.request.Load()
		switch other := s.known[number]; {
		case number == 0:
		case other == nil:
			s.known[number] = p
		default: // work may be done twice at once
			other.state.Store(max(other.state.Load(), p.state.Load()))
			p.free()
		}
	}
	s.left.Store(int64(len(s.known)))
	return s, said, f.Truncate(int64(suspectSize)) // only now: another death counts nothing twice
}

// lastWords gives the first line that the runtime wrote as the daemon died. A signal of a curious user or of a watchdog is no fault of a request.
func (s *Suspects) lastWords(size int64) string {
	words := make([]byte, min(size-int64(suspectSize), 1<<10))
	n, _ := s.file.ReadAt(words, int64(suspectSize)) // it is memory
	line, _, _ := bytes.Cut(words[:n], []byte("\n"))
	if bytes.HasPrefix(line, []byte("SIGQUIT")) || bytes.HasPrefix(line, []byte("SIGABRT")) {
		return ""
	}
	return string(line)
}

// survived takes a slot over from the daemon before.
func (p *suspect) survived(crashed bool) {
	state := p.state.Load()
	deaths := state >> 1
	if state&1 != 0 && crashed {
		deaths++
	}
	p.state.Store(deaths << 1)
	if deaths == 0 {
		p.request.Store(0)
	}
}

// File is the memory that the holder keeps.
func (s *Suspects) File() *os.File { return s.file }

// Listen has the runtime write its last words for the next daemon. It is called by the daemon that serves.
func (s *Suspects) Listen() error { return debug.SetCrashOutput(s.file, debug.CrashOptions{}) }

// Mark is a request that is being handled.
type Mark struct {
	slot *suspect // nil for one that is not marked
	turn *time.Timer
}

// Begin marks a request that is about to be handled. ok is false where the request is to be refused. Otherwise the caller calls End.
func (s *Suspects) Begin(unique uint64) (m Mark, ok bool) {
	again, number := Resent(unique)
	return s.begin(number, again)
}

// BeginTask is Begin for work that comes again without the kernel. It may be a message of the control channel, which its client repeats
// at the next daemon, or a publishing that nobody waits for. Work is of a user and a kind. A request that has ended two daemons is
// refused until [Suspects.Pardon]. Work within a request, or other work, is not marked: it would wait for its own turn.
func (s *Suspects) BeginTask(uid uint32, kind string, what []byte) (m Mark, ok bool) {
	sum := crc32.Update(castagnoli([]byte(kind)), crc32.MakeTable(crc32.Castagnoli), what)
	return s.begin(taskNumber|uint64(uid)<<32&(taskNumber-1)|uint64(sum), true) // no user can have the number of another's work
}

// taskNumber is set in the numbers of work that the kernel does not count.
const taskNumber = 1 << 62

func (s *Suspects) begin(number uint64, again bool) (m Mark, ok bool) {
	for again && s.left.Load() > 0 {
		p := s.suspected(number)
		if p == nil {
			break
		}
		if p.state.Load()>>1 >= deathsMost {
			if number&taskNumber == 0 { // the kernel does not send it again
				s.forget(p)
			}
			return m, false
		}
		s.turn <- struct{}{}
		switch {
		case s.suspected(number) != p: // the same work has had its turn meanwhile
			<-s.turn
			continue
		case p.state.Load()&1 != 0: // the same work has, and takes long
			<-s.turn
			return m, true
		}
		m = Mark{p, time.AfterFunc(suspectTurn, func() { <-s.turn })}
		p.state.Add(1)
		return m, true
	}
	const golden = 0x9e3779b97f4a7c15 // spreads numbers that follow one another
	for at, i := number*golden>>32, uint64(0); i < suspectTries; i++ {
		if p := &s.slot[(at+i)%suspectSlots]; p.request.Load() == 0 && p.request.CompareAndSwap(0, number) {
			p.state.Store(1)
			return Mark{slot: p}, true
		}
	}
	return m, true
}

// End says that a request has been handled.
func (s *Suspects) End(m Mark) {
	switch {
	case m.slot == nil:
	case m.turn != nil:
		s.forget(m.slot)
		if m.turn.Stop() {
			<-s.turn
		}
	default:
		m.slot.free()
	}
}

// Pardon forgets all deaths: the next program may handle the request that ended the one before.
func (s *Suspects) Pardon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number, p := range s.known {
		delete(s.known, number)
		p.free()
	}
	s.left.Store(0)
}

// suspected finds a request among those that were being handled at a death.
func (s *Suspects) suspected(number uint64) *suspect {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[number]
}

// forget frees the slot of a suspect.
func (s *Suspects) forget(p *suspect) {
	s.mu.Lock()
	delete(s.known, p.request.Load())
	s.left.Store(int64(len(s.known)))
	s.mu.Unlock()
	p.free()
}

func (p *suspect) free() {
	p.state.Store(0)
	p.request.Store(0)
}
