package cufile

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/internal/driver"
	"golang.org/x/sys/unix"
)

// crew is the Reader's threads. Each is a goroutine that keeps its OS thread for good, since CUDA contexts belong to
// OS threads, with the device's primary context current and a stream and pinned memory of its own.
type crew struct {
	cu   *driver.CUDA         // nil for the host
	ring *ring                // memory of all slots; nil for the host
	idle func(w *worker) bool // does something while there is no job, and says whether it did; may be nil
	jobs chan *job            // each entry asks one worker to take part; what runs over is served in its order
	quit chan struct{}
	gone chan struct{} // closed when all workers have ended
	last sync.Once     // closes quit
	wg   sync.WaitGroup
	done atomic.Int64 // steps that have ended

	mu      sync.Mutex    // guards what follows
	most    int           // workers that take jobs
	changed chan struct{} // closed and replaced when most changes
}

// worker is one thread. Only its own goroutine touches it.
type worker struct {
	cu      *driver.CUDA
	context driver.Handle
	index   int
	done    *atomic.Int64 // of its crew
	job     *job          // that it works on
	over    bool          // what jobs use was given back: those that come are too late
	ahead   *mappedFile   // what it may look ahead in, see mappings
	stream  driver.Handle
	slots   []slot
	next    int
}

// slot is pinned memory and the copy that last read it.
type slot struct {
	memory []byte
	ring   *ring         // that memory is part of
	at     int64         // where in it
	copied driver.Handle // an event
	busy   bool          // copied has been recorded and not been waited for
	owner  *job          // whose copy it is
	held   []*mapping    // windows that must stay until then
}

// job is n steps that any worker may take, in any order.
type job struct {
	ctx      context.Context
	n        int64
	step     func(w *worker, i int64) error
	taken    atomic.Int64 // steps handed out
	owed     atomic.Int64 // workers and copies that still owe an end, and one for the caller that recruits
	finished chan struct{}
	mu       sync.Mutex
	err      error // the first; guarded by mu
}

// grace is how long a cancelled call waits for its threads, so that as a rule nothing is under way when it returns.
const grace = 250 * time.Millisecond

// closePatience is how long closing waits for one step, which may be a read of a slow disk or hang in a foreign call.
const closePatience = 5 * time.Second

// crewOptions is what newCrew needs; without cu the workers have no stream and no slots.
type crewOptions struct {
	cu       *driver.CUDA
	context  driver.Handle
	threads  int
	slotSize int64
	near     *unix.CPUSet
	idle     func(w *worker) bool
}

func newCrew(o crewOptions) (*crew, error) {
	c := &crew{cu: o.cu, idle: o.idle, jobs: make(chan *job, 4*o.threads), quit: make(chan struct{}), gone: make(chan struct{}),
		most: o.threads, changed: make(chan struct{})}
	if o.cu != nil {
		var err error
		if c.ring, err = newRing(o); err != nil {
			return nil, err
		}
	}
	ready, begin := make(chan error, o.threads), make(chan struct{})
	var up, filled sync.WaitGroup
	up.Add(o.threads)
	filled.Add(o.threads)
	for index := range o.threads {
		c.wg.Add(1)
		go c.serve(o, index, &up, &filled, ready, begin)
	}
	var errs []error
	for range o.threads {
		errs = append(errs, <-ready)
	}
	err := firstError(errs)
	if err == nil && c.ring != nil {
		err = c.ring.pin()
	}
	if err != nil {
		close(c.quit)
		c.end()
		return nil, err
	}
	close(begin)
	return c, nil
}

// end waits for the workers to end. Then nothing uses their memory any more.
func (c *crew) end() {
	c.wg.Wait()
	if c.ring != nil {
		c.ring.free()
	}
	close(c.gone)
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// serve is a worker's life. The thread is never unlocked: it ends with the goroutine, affinity and context with it.
func (c *crew) serve(o crewOptions, index int, up, filled *sync.WaitGroup, ready chan<- error, begin <-chan struct{}) {
	defer c.wg.Done()
	runtime.LockOSThread()
	if o.near != nil {
		_ = unix.SchedSetaffinity(0, o.near) // being far from the GPU costs speed, nothing else
	}
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(time.Microsecond), 0, 0, 0) // for the short sleeps of cuda.wait; 50 otherwise
	w := &worker{cu: o.cu, context: o.context, index: index, done: &c.done}
	meet(up) // a new thread maps its stack, for which the kernel has it wait for every page fault of the others
	if c.ring != nil {
		c.ring.fill(index)
	}
	meet(filled) // the driver and page faults get in each other's way
	err := w.start(c.ring)
	defer w.stop()
	ready <- err
	select {
	case <-begin:
	case <-c.quit:
		return
	}
	for c.mayWork(w) {
		// Copies are waited for when nothing else is to do: between two jobs the bus must not run empty.
		select {
		case j := <-c.jobs:
			j.work(w)
			continue
		default:
		}
		if c.idle != nil && c.idle(w) {
			continue
		}
		w.drain()
		select {
		case j := <-c.jobs:
			j.work(w)
		case <-c.quit:
			return
		}
	}
}

// meet waits until all have come.
func meet(all *sync.WaitGroup) {
	all.Done()
	all.Wait()
}

// allow says how many workers may take jobs from now on.
func (c *crew) allow(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n != c.most {
		c.most = n
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// mayWork waits until a worker is among those that may take jobs, and is false when the crew ends.
func (c *crew) mayWork(w *worker) bool {
	for {
		c.mu.Lock()
		ok, changed := w.index < c.most, c.changed
		c.mu.Unlock()
		if ok {
			return true
		}
		w.drain()
		select {
		case <-changed:
		case <-c.quit:
			return false
		}
	}
}

// slotsPerWorker: one is filled while another is copied and a third waits for the bus.
const slotsPerWorker = 3

func (w *worker) start(memory *ring) (err error) {
	if w.cu == nil {
		return nil
	}
	if err := w.cu.SetCurrent(w.context); err != nil {
		return err
	}
	if w.stream, err = w.cu.NewStream(); err != nil {
		return err
	}
	for i := range slotsPerWorker {
		s := memory.slot(w.index*slotsPerWorker + i)
		if s.copied, err = w.cu.NewEvent(); err != nil {
			return err
		}
		w.slots = append(w.slots, s)
	}
	return nil
}

// stop gives back what start took. Its errors have nobody who could act on them: the thread ends.
func (w *worker) stop() {
	if w.cu == nil {
		return
	}
	w.drain()
	if w.stream != 0 {
		_ = w.cu.Synchronize(w.stream)
		_ = w.cu.DestroyStream(w.stream)
	}
	for _, s := range w.slots {
		_ = w.cu.DestroyEvent(s.copied)
	}
}

// slot gives a slot that no copy reads any more.
func (w *worker) slot() (*slot, error) {
	s := &w.slots[w.next]
	w.next = (w.next + 1) % len(w.slots)
	return s, w.settle(s)
}

// settle waits for the copy that reads a slot. It waits by an event, since cuStreamSynchronize burns the CPU.
func (w *worker) settle(s *slot) error {
	if !s.busy {
		return nil
	}
	s.busy = false
	err := w.cu.Wait(s.copied)
	release(s.held)
	s.held = nil
	s.owner.fail(err)
	s.owner.end()
	return err
}

// sent marks a slot as in use by what is on the stream so far. The job does not end before that is done.
func (w *worker) sent(s *slot) error {
	if err := w.cu.Record(s.copied, w.stream); err != nil {
		return errors.Join(err, w.cu.Synchronize(w.stream)) // nothing else tells when the copy has ended
	}
	s.busy, s.owner = true, w.job
	s.owner.owed.Add(1)
	return nil
}

// drain waits for the copies of all slots. Their jobs learn how it went.
func (w *worker) drain() {
	for i := range w.slots {
		_ = w.settle(&w.slots[i])
	}
}

func (j *job) work(w *worker) {
	w.job = j
	if w.over {
		j.fail(ErrClosed)
	}
	for j.ctx.Err() == nil && j.failed() == nil {
		i := j.taken.Add(1) - 1
		if i >= j.n {
			break
		}
		j.fail(j.step(w, i))
		w.done.Add(1)
	}
	j.end()
}

func (j *job) fail(err error) {
	if err == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = err
	}
}

func (j *job) failed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

func (j *job) end() {
	if j.owed.Add(-1) == 0 {
		close(j.finished)
	}
}

// run takes n steps on at most so many workers and waits for them. When ctx ends first, run returns its error; steps
// that are stuck in a foreign call go on, and finished is closed when the last one has come back. What they write to
// must live until then.
func (c *crew) run(ctx context.Context, workers int, n int64, step func(w *worker, i int64) error) (finished <-chan struct{}, err error) {
	j := &job{ctx: ctx, n: n, step: step, finished: make(chan struct{})}
	j.owed.Store(1)
	for range min(int64(workers), n) {
		if j.taken.Load() >= n {
			break
		}
		j.owed.Add(1)
		select {
		case c.jobs <- j:
			continue
		case <-ctx.Done():
		case <-c.quit:
			j.fail(ErrClosed)
		}
		j.end()
		break
	}
	j.end()
	select {
	case <-j.finished:
	case <-ctx.Done():
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-j.finished:
		case <-timer.C:
		}
		return j.finished, ctx.Err()
	case <-c.gone:
		return j.finished, ErrClosed
	}
	if err := j.failed(); err != nil {
		return j.finished, err
	}
	return j.finished, ctx.Err()
}

// do runs f once on a worker.
func (c *crew) do(ctx context.Context, f func(w *worker) error) error {
	_, err := c.run(ctx, 1, 1, func(w *worker, _ int64) error { return f(w) })
	return err
}

// doAtLast runs f once on a worker, after all that is under way, however long that takes. It fails where no step ends for
// so long, with ErrUnderWay: a foreign call may hang, or a disk be slow. Then f may run yet, if it has begun.
func (c *crew) doAtLast(patience time.Duration, f func(w *worker) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with ctx
		ticker := time.NewTicker(patience)
		defer ticker.Stop()
		for before := c.done.Load(); ; {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			now := c.done.Load()
			if now == before {
				cancel()
				return
			}
			before = now
		}
	}()
	err := c.do(ctx, f)
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w after %v: what it uses stays until it ends", ErrUnderWay, patience)
	}
	return err
}

// close ends the workers. It fails with ErrUnderWay when one does not come back from what it is at; then close waits again.
func (c *crew) close() error {
	c.last.Do(func() {
		close(c.quit)
		go c.end()
	})
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case <-c.gone:
		return nil
	case <-timer.C:
		return fmt.Errorf("%w after %v: what it uses stays until it ends", ErrUnderWay, closePatience)
	}
}
