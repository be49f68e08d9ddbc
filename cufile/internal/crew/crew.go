// Package crew runs work on threads that belong to one device. Each keeps its OS thread for good. It has the CUDA
// context, a stream, and pinned memory in slots, through which it copies.
//
// [New] starts a crew. [Crew.Run] shares steps among its workers and waits for them. A step takes a slot ([Worker.Slot]), starts a
// copy from it on the worker's stream, and says so ([Worker.Sent]). The job ends when its copies have ended, too.
//
// Pitfalls. A job that was cancelled may have a thread in a foreign call yet. The memory that it writes to must live until
// Run's channel is closed. A worker is touched by its own steps only.
package crew

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Crew is the Reader's threads. Each is a goroutine that keeps its OS thread for good, since CUDA contexts belong to
// OS threads. The device's primary context is current there, and each has a stream and pinned memory of its own.
type Crew struct {
	cu   *driver.CUDA         // nil for the host
	ring *ring                // memory of all slots; nil where there are none
	idle func(w *Worker) bool // does something while there is no job, and says whether it did; may be nil
	jobs chan *job            // each entry asks one worker to join a job; senders wait in their order
	quit chan struct{}
	gone chan struct{} // closed when all workers have ended
	last sync.Once     // closes quit
	wg   sync.WaitGroup
	done atomic.Int64 // steps that have ended

	mu      sync.Mutex    // guards the fields below
	most    int           // workers that take jobs
	changed chan struct{} // closed and replaced when most changes
}

// ErrClosed says that the Reader whose threads these are is closed.
var ErrClosed = errors.New("reader is closed")

// Grace is how long a cancelled call waits for its threads, so that as a rule nothing is under way when it returns.
const Grace = 250 * time.Millisecond

// Options configure a Crew; without CUDA the workers have no stream, and slots that are not pinned, if SlotSize is not 0.
type Options struct {
	CUDA     *driver.CUDA
	Context  driver.Handle
	Kernels  *driver.Kernels // that its workers launch
	Threads  int
	SlotSize int64
	Near     *unix.CPUSet
	Idle     func(w *Worker) bool
}

// New starts the threads. Where memory cannot be pinned, or CUDA fails, none is left.
func New(o Options) (*Crew, error) {
	c := &Crew{cu: o.CUDA, idle: o.Idle, jobs: make(chan *job, 4*o.Threads+waiting), quit: make(chan struct{}), gone: make(chan struct{}),
		most: o.Threads, changed: make(chan struct{})}
	if o.CUDA != nil || o.SlotSize > 0 {
		var err error
		if c.ring, err = newRing(o); err != nil {
			return nil, err
		}
	}
	ready, begin := make(chan error, o.Threads), make(chan struct{})
	var up, filled sync.WaitGroup
	up.Add(o.Threads)
	filled.Add(o.Threads)
	for index := range o.Threads {
		c.wg.Add(1)
		go c.serve(o, index, &up, &filled, ready, begin)
	}
	var errs []error
	for range o.Threads {
		errs = append(errs, <-ready)
	}
	err := cmp.Or(errs...)
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
func (c *Crew) end() {
	c.wg.Wait()
	if c.ring != nil {
		c.ring.free()
	}
	close(c.gone)
}

// serve is a worker's life. The thread is never unlocked: it ends with the goroutine, affinity and context with it.
func (c *Crew) serve(o Options, index int, up, filled *sync.WaitGroup, ready chan<- error, begin <-chan struct{}) {
	defer c.wg.Done()
	runtime.LockOSThread()
	if o.Near != nil {
		_ = unix.SchedSetaffinity(0, o.Near) // being far from the GPU costs speed, nothing else
	}
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(time.Microsecond), 0, 0, 0) // for the short sleeps of cuda.wait; 50 otherwise
	w := &Worker{CUDA: o.CUDA, Context: o.Context, Kernels: o.Kernels, index: index, done: &c.done}
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
		// Copies are waited for when nothing else is to do, and a job that comes meanwhile begins: the bus must not run empty.
		select {
		case j := <-c.jobs:
			j.work(w)
			continue
		default:
		}
		if c.idle != nil && c.idle(w) {
			continue
		}
		if w.look() {
			continue
		}
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

// Allow says how many workers may take jobs from now on.
func (c *Crew) Allow(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n != c.most {
		c.most = n
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// mayWork waits until a worker is among those that may take jobs, and is false when the crew ends.
func (c *Crew) mayWork(w *Worker) bool {
	for {
		c.mu.Lock()
		ok, changed := w.index < c.most, c.changed
		c.mu.Unlock()
		if ok {
			return true
		}
		w.Drain()
		select {
		case <-changed:
		case <-c.quit:
			return false
		}
	}
}

// Run runs n steps on at most so many workers and waits for them. When ctx ends first, Run returns its error. Steps that are
// stuck in a foreign call go on, and finished is closed when the last one has come back. Memory that they write to must live
// until then.
func (c *Crew) Run(ctx context.Context, workers int, n int64, step func(w *Worker, i int64) error) (finished <-chan struct{}, err error) {
	j := &job{ctx: ctx, n: n, step: step, finished: make(chan struct{})}
	j.owed.Store(1)
	for range min(int64(workers), n) {
		if j.claimed.Load() >= n {
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
		timer := time.NewTimer(Grace)
		defer timer.Stop()
		select {
		case <-j.finished:
		case <-timer.C:
		}
		return j.finished, ctx.Err()
	case <-c.gone:
		return j.finished, ErrClosed
	}
	return j.finished, cmp.Or(j.failed(), ctx.Err())
}

// waiting is how many jobs of Start may wait, beside those that Run's callers wait for.
const waiting = 64

// Start has a worker run a step, and does not wait for it. then is called with how it went once nothing of it is under way, on the worker or
// where [Worker.Owe] ends: it must be quick. Start is false where the crew ends, or too many jobs wait: then nothing was begun. No job of Start may be left when the crew is closed.
func (c *Crew) Start(ctx context.Context, step func(w *Worker) error, then func(err error)) bool {
	j := &job{ctx: ctx, n: 1, step: func(w *Worker, _ int64) error { return step(w) }, then: then}
	j.owed.Store(1)
	select {
	case <-c.quit:
		return false
	default:
	}
	select {
	case c.jobs <- j:
		return true
	default:
		return false
	}
}

// Do runs f once on a worker.
func (c *Crew) Do(ctx context.Context, f func(w *Worker) error) error {
	_, err := c.Run(ctx, 1, 1, func(w *Worker, _ int64) error { return f(w) })
	return err
}

// job is n steps that any worker may run, in any order.
type job struct {
	ctx      context.Context
	n        int64
	step     func(w *Worker, i int64) error
	claimed  atomic.Int64          // steps that a worker has begun
	owed     atomic.Int64          // workers and copies that still owe an end, and one for the caller that recruits
	finished chan struct{}         // of Run
	then     func(err error)       // of Start
	err      atomic.Pointer[error] // the first
}

func (j *job) work(w *Worker) {
	w.job = j
	if w.over {
		j.fail(ErrClosed)
	}
	for j.ctx.Err() == nil && j.failed() == nil {
		i := j.claimed.Add(1) - 1
		if i >= j.n {
			break
		}
		j.fail(j.step(w, i))
		w.done.Add(1)
	}
	j.end()
}

func (j *job) fail(err error) {
	if err != nil {
		first := err // the address of err itself would have each call allocate it
		j.err.CompareAndSwap(nil, &first)
	}
}

func (j *job) failed() error {
	if first := j.err.Load(); first != nil {
		return *first
	}
	return nil
}

func (j *job) end() {
	if j.owed.Add(-1) != 0 {
		return
	}
	if j.then == nil {
		close(j.finished)
		return
	}
	j.then(cmp.Or(j.failed(), j.ctx.Err()))
}
