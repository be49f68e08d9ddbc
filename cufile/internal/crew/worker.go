package crew

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Worker is one thread. Only its own goroutine touches it.
type Worker struct {
	CUDA    *driver.CUDA  // nil for the host
	Context driver.Handle // current on the thread
	Stream  driver.Handle // of its copies
	Kernels *driver.Kernels

	beside  driver.Handle // a second stream, once it is needed
	started driver.Handle // an event: the copies that were started there
	index   int
	done    *atomic.Int64 // of its crew
	job     *job          // that it works on
	over    bool          // the memory of jobs was given back: those that come are too late
	slots   []Slot
	next    int
	came    time.Time     // when the last copy was seen to have ended
	took    time.Duration // since it was started, and the one before had ended
}

// Slot is memory, pinned where there is a GPU, and the copy that last used it.
type Slot struct {
	Memory []byte

	ring    *ring         // that Memory is part of
	at      int64         // where in it
	copied  driver.Handle // an event
	busy    bool          // copied has been recorded and not been waited for
	sent    time.Time     // when it was recorded
	owner   *job          // whose copy it is
	release func()        // runs once the copy has ended; may be nil
}

// SlotsPerWorker is how many slots a worker has: one is filled while another is copied and a third waits for the bus.
const SlotsPerWorker = 3

func (w *Worker) start(memory *ring) (err error) {
	if w.CUDA != nil {
		if err := w.CUDA.SetCurrent(w.Context); err != nil {
			return err
		}
		if w.Stream, err = w.CUDA.NewStream(); err != nil {
			return err
		}
	}
	if memory == nil {
		return nil
	}
	for i := range SlotsPerWorker {
		s := memory.slot(w.index*SlotsPerWorker + i)
		if w.CUDA != nil {
			if s.copied, err = w.CUDA.NewEvent(); err != nil {
				return err
			}
		}
		w.slots = append(w.slots, s)
	}
	return nil
}

// stop undoes start. It drops errors, since the thread ends.
func (w *Worker) stop() {
	if w.CUDA == nil {
		return
	}
	w.Drain()
	for _, stream := range []driver.Handle{w.Stream, w.beside} {
		if stream != 0 {
			_ = w.CUDA.Synchronize(stream)
			_ = w.CUDA.DestroyStream(stream)
		}
	}
	if w.started != 0 {
		_ = w.CUDA.DestroyEvent(w.started)
	}
	for _, s := range w.slots {
		_ = w.CUDA.DestroyEvent(s.copied)
	}
}

// Slot gives a slot that no copy reads any more.
func (w *Worker) Slot() (*Slot, error) {
	s := &w.slots[w.next]
	w.next = (w.next + 1) % len(w.slots)
	return s, w.Settle(s)
}

// WarmSlot gives the slot that was sent last, of those whose copies have ended: the caches of the CPU still have its bytes, and those that are read into
// it need not go through memory. Where no copy has ended, it waits for the slot that was sent first. Staging from tmpfs on H100s moved 1 to 2 % more
// than with one slot after the other, and 12 % more beside four processes that copied memory.
func (w *Worker) WarmSlot() (*Slot, error) {
	var warm *Slot
	took := w.took
	for i := range w.slots {
		s := &w.slots[i]
		if s.busy {
			came, err := w.CUDA.Came(s.copied)
			if !came && err == nil {
				continue
			}
			if err := w.settled(s, err); err != nil {
				return nil, err
			}
			if w.took < took/8 { // two copies have ended since the last look, and the first hides how long the second took
				w.took = took
			}
		}
		if warm == nil || s.sent.After(warm.sent) {
			warm = s
		}
	}
	if warm == nil {
		warm = w.oldest() // the next one of the ring may have been sent last
	}
	return warm, w.Settle(warm)
}

// Settle waits for the copy that reads a slot. It waits by an event, since cuStreamSynchronize burns the CPU.
func (w *Worker) Settle(s *Slot) (err error) {
	for s.busy && err == nil {
		err = w.lookAt(s)
	}
	return err
}

// lookAt settles a slot if its copy has ended, and else sleeps.
func (w *Worker) lookAt(s *Slot) error {
	if came, err := w.CUDA.Came(s.copied); came || err != nil {
		return w.settled(s, err)
	}
	driver.Pause(w.begun(s), w.pause(s))
	return nil
}

// begun is when the GPU could begin a copy.
func (w *Worker) begun(s *Slot) time.Time {
	if w.came.After(s.sent) {
		return w.came
	}
	return s.sent
}

// pause is how long to sleep before the next look at a copy. Each costs CPU. Looks follow closely once the copy should have ended, if it takes as long as
// the last one: the next request may wait for it. Where all slots are busy the GPU has work meanwhile; else a job may come that begins at once.
func (w *Worker) pause(s *Slot) time.Duration {
	const least, usual, most = 5 * time.Microsecond, 20 * time.Microsecond, 150 * time.Microsecond
	left := w.took - time.Since(w.begun(s))
	if slices.ContainsFunc(w.slots, func(s Slot) bool { return !s.busy }) {
		return min(max(left-w.took/8, least), usual)
	}
	return min(max(left+w.took/2, least), most)
}

// settled tells a slot's job how its copy has ended.
func (w *Worker) settled(s *Slot, err error) error {
	now := time.Now()
	s.busy, w.took, w.came = false, now.Sub(w.begun(s)), now
	if s.release != nil {
		s.release()
		s.release = nil
	}
	s.owner.fail(err)
	s.owner.end()
	return err
}

// Sent marks a slot as in use by the copies on the stream so far. The job does not end before they have.
func (w *Worker) Sent(s *Slot) error {
	if err := w.CUDA.Record(s.copied, w.Stream); err != nil {
		return errors.Join(err, w.CUDA.Synchronize(w.Stream)) // nothing else tells when the copy has ended
	}
	s.busy, s.sent, s.owner = true, time.Now(), w.job
	s.owner.owed.Add(1)
	return nil
}

// SentReleasing is Sent for a copy that reads memory which release gives back. It releases at once after an error of the
// copy's start, from which CUDA does not recover.
func (w *Worker) SentReleasing(s *Slot, release func(), err error) error {
	if err == nil {
		err = w.Sent(s)
	}
	if err != nil {
		release()
		return err
	}
	s.release = release
	return nil
}

// Beside starts work for a destination on a second stream, beside the copies that are under way, and those that copies starts. The slot
// that is sent next is in use by both. A kernel that writes to HBM alone leaves the bus to the copies. On an H200, batches of 512 x 4,097
// tokens came in 110 us for 128.
func (w *Worker) Beside(to *Destination, work, copies func() error) error {
	if err := w.openBeside(); err != nil {
		return err
	}
	first := w.Stream
	w.Stream = w.beside
	err := to.Ready(w)
	if err == nil {
		err = work()
	}
	if err == nil {
		err = w.CUDA.Record(w.started, w.beside)
	}
	w.Stream = first
	if err == nil {
		err = copies()
	}
	if err == nil {
		err = w.CUDA.StreamWait(w.Stream, w.started)
	}
	if err != nil {
		return errors.Join(err, w.CUDA.Synchronize(w.beside)) // no slot tells when it has ended
	}
	return nil
}

// openBeside makes the second stream the first time.
func (w *Worker) openBeside() (err error) {
	if w.started == 0 {
		if w.started, err = w.CUDA.NewEvent(); err != nil {
			return err
		}
	}
	if w.beside == 0 {
		w.beside, err = w.CUDA.NewStream()
	}
	return err
}

// Launch starts the kernel of a destination's form over a table of pieces, which the GPU reads.
func (w *Worker) Launch(to *Destination, table driver.Pointer, count int) error {
	if to.Form == nil {
		fn, err := w.Kernels.Load(w.CUDA, driver.GatherKernel)
		if err != nil {
			return err
		}
		return w.CUDA.LaunchGather(fn, table, uint32(count), to.Host != nil, w.Stream)
	}
	fn, err := w.Kernels.Load(w.CUDA, driver.WidenKernel)
	if err != nil {
		return err
	}
	return w.CUDA.LaunchWiden(fn, table, uint32(count), to.Widening(), w.Stream)
}

// Owe has the worker's job last until done is called, on any goroutine, with how a part of the job went.
func (w *Worker) Owe() (done func(err error)) {
	j := w.job
	j.owed.Add(1)
	return func(err error) {
		j.fail(err)
		j.end()
	}
}

// JobContext is the context of the job that the worker is at.
func (w *Worker) JobContext() context.Context { return w.job.ctx }

// GoesOn counts a part of a long step as a step that has ended, for who waits at last.
func (w *Worker) GoesOn() { w.done.Add(1) }

// Retire makes the worker refuse jobs from now on: their memory is given back.
func (w *Worker) Retire() { w.over = true }

// Drain waits for the copies of all slots. Their jobs learn how it went.
func (w *Worker) Drain() {
	for s := w.oldest(); s != nil; s = w.oldest() {
		_ = w.Settle(s)
	}
}

// oldest is the slot whose copy was started first; nil where none is under way.
func (w *Worker) oldest() *Slot {
	var oldest *Slot
	for i := range w.slots {
		if s := &w.slots[i]; s.busy && (oldest == nil || s.sent.Before(oldest.sent)) {
			oldest = s
		}
	}
	return oldest
}

// look looks at the oldest copy. It is false where none is under way.
func (w *Worker) look() bool {
	s := w.oldest()
	if s == nil {
		return false
	}
	_ = w.lookAt(s) // its job learns how it went
	return true
}

// ErrMemory says that memory of the caller cannot be written to as was asked.
var ErrMemory = errors.New("not usable as the destination")

// OnFault gives a function to defer: an address without memory must not end the process.
func OnFault(err *error) func() {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		if fault := recover(); fault != nil {
			*err = fmt.Errorf("%w: %v", ErrMemory, fault)
		}
	}
}

// Destination is memory of the device that bytes go to.
type Destination struct {
	HBM   driver.Pointer // of the first byte, as a GPU sees it; 0: it does not
	Host  []byte         // on the host, also where a GPU sees it
	After driver.Handle  // an event that streams wait for before they write; 0 for none
	Form  *Form          // how elements are written; nil: bytes, as they are

	// Also, if not nil, starts a request's other writes, by a table that fits into the rest of a slot. It does so once.
	Also func(w *Worker, s *Slot, used int) error
}

// Ready has the worker's next copies wait for After.
func (d *Destination) Ready(w *Worker) error {
	if d.After == 0 {
		return nil
	}
	return w.CUDA.StreamWait(w.Stream, d.After)
}

// Await waits for After, before the worker itself writes.
func (d *Destination) Await(w *Worker) error {
	if d.After == 0 {
		return nil
	}
	return w.CUDA.Wait(d.After)
}
