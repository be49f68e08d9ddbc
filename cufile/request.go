package cufile

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// Result says how a request's bytes came: before any widening, by path.
type Result struct {
	Moved  Moved
	Choice Choice // of the first part, where the request was moved in parts
}

// Request is a read into memory of the caller that is under way.
type Request struct {
	cancel context.CancelFunc
	done   chan struct{}
	result Result // set before done is closed
	err    error  // likewise
}

// BeginGather starts bringing the spans of length bytes that begin at offsets to memory of the caller, one after the
// other. Spans or memory that cannot be are refused at once, with ErrOutOfRange or ErrMemory. The memory and offsets must
// stay until Done is closed. A request that is cancelled, or whose ctx has ended, lasts until nothing writes there any
// more: some calls into the system or the GPU's library cannot be interrupted.
func (f *File) BeginGather(ctx context.Context, to Target, offsets []int64, length int64) (*Request, error) {
	check := func() error { return f.check(&to, offsets, length) }
	return begin(ctx, []*File{f}, &to, check, func(ctx context.Context, after driver.Handle) (Result, error) {
		return f.run(ctx, &to, after, offsets, length)
	})
}

// begin starts what run does with files, once check, which has the device's context, finds that it can be. after is what mark gave.
func begin(ctx context.Context, files []*File, to *Target, check func() error, run func(ctx context.Context, after driver.Handle) (Result, error)) (*Request, error) {
	for i, f := range files {
		if err := f.enter(); err != nil {
			leave(files[:i])
			return nil, err
		}
	}
	r := files[0].r
	var after driver.Handle
	err := r.within(func() (err error) {
		if err = check(); err == nil {
			after, err = r.mark(to)
		}
		return err
	})
	if err != nil {
		leave(files)
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	q := &Request{cancel: cancel, done: make(chan struct{})}
	for _, f := range files {
		f.mu.Lock()
		f.requests[q] = true
		f.mu.Unlock()
		if f.gate.IsShut() { // meanwhile, by a Close that did not see q
			cancel()
		}
	}
	go func() {
		q.result, q.err = run(ctx, after)
		r.unmark(after)
		if q.err != nil && ctx.Err() != nil { // it may be that its file was shut
			q.err = ctx.Err()
		}
		cancel()
		close(q.done)
		for _, f := range files {
			f.mu.Lock()
			delete(f.requests, q)
			f.mu.Unlock()
		}
		leave(files)
	}()
	return q, nil
}

func leave(files []*File) {
	for _, f := range files {
		f.gate.Leave()
	}
}

// Done is closed when the request has ended and nothing writes to its memory any more.
func (q *Request) Done() <-chan struct{} { return q.done }

// Cancel asks the request to end. It may have been done by then.
func (q *Request) Cancel() { q.cancel() }

// Result waits for the request. Without an error the bytes are in the memory, for the CPU and for any stream.
func (q *Request) Result() (Result, error) {
	<-q.done
	return q.result, q.err
}

// GatherInto is BeginGather and Result in one.
func (f *File) GatherInto(ctx context.Context, to Target, offsets []int64, length int64) (Result, error) {
	q, err := f.BeginGather(ctx, to, offsets, length)
	if err != nil {
		return Result{}, err
	}
	return q.Result()
}

// ReadInto brings the file's [offset, offset+n) to memory of the caller.
func (f *File) ReadInto(ctx context.Context, to Target, offset, n int64) (Result, error) {
	return f.GatherInto(ctx, to, []int64{offset}, n)
}

// moveTo brings spans straight to memory of the caller. When it returns, also with an error, nothing is under way.
func (f *File) moveTo(ctx context.Context, to crew.Destination, spans []source.Span) (Result, error) {
	t := &transfer{f: f, spans: spans, to: to, callers: true}
	finished, err := t.run(ctx)
	if err != nil {
		f.r.quiet(finished)
		return Result{}, err
	}
	return Result{t.moved, t.choice}, nil
}

// moveByArena brings spans into the arena and from there to memory of the caller, widened on the way.
func (f *File) moveByArena(ctx context.Context, to *crew.Destination, widen Widen, offsets []int64, length int64) (Result, error) {
	v, err := f.Gather(ctx, offsets, length)
	if err != nil {
		return Result{}, err
	}
	defer v.Release()
	if err := f.r.deliver(ctx, v, to, widen); err != nil {
		return Result{}, err
	}
	return Result{v.Moved(), v.Choice()}, nil
}

// deliver copies a view to memory of the caller. When it returns, also with an error, nothing is under way.
func (r *Reader) deliver(ctx context.Context, v *View, to *crew.Destination, widen Widen) error {
	if r.cu == nil {
		return r.deliverHost(ctx, v, to, widen)
	}
	finished, err := r.crew.Run(ctx, 1, 1, func(w *crew.Worker, _ int64) error {
		s, err := w.Slot()
		if err != nil {
			return err
		}
		if err := to.Ready(w); err != nil {
			return err
		}
		if widen == WidenNone {
			err = w.CUDA.CopyWithin(to.HBM, driver.Pointer(v.Pointer()), v.Len(), w.Stream)
		} else {
			err = launchWiden(w, &r.widen, widen, driver.Pointer(v.Pointer()), to.HBM, v.Len())
		}
		if err != nil {
			return err
		}
		return w.Sent(s)
	})
	r.quiet(finished)
	return err
}

// deliverHost shares the copy among the threads.
func (r *Reader) deliverHost(ctx context.Context, v *View, to *crew.Destination, widen Widen) error {
	const block = 1 << 20
	_, times, err := widen.sizes()
	if err != nil {
		return err
	}
	from := v.Bytes()
	finished, err := r.crew.Run(ctx, r.opt.Threads, (v.Len()+block-1)/block, func(_ *crew.Worker, i int64) (err error) {
		// An address without memory must not end the process.
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if fault := recover(); fault != nil {
				err = fmt.Errorf("%w: write to %#x: %v", ErrMemory, to.HBM, fault)
			}
		}()
		part := from[i*block : min((i+1)*block, v.Len())]
		widen.copy(to.Host[i*block*times:], part)
		return nil
	})
	r.quiet(finished)
	return err
}

// bytesMoved is the most that one part of a request moves: it bounds the memory of its pieces, and is so long that the bus
// does not notice the border.
const bytesMoved = 512 << 20

// eachPart cuts spans into parts of at most limit bytes and gives each with its place in the destination.
func eachPart(offsets []int64, length, limit int64, fn func(offsets []int64, length, at int64) error) error {
	if length <= limit {
		rows := int(limit / length)
		for i := 0; i < len(offsets); i += rows {
			if err := fn(offsets[i:min(i+rows, len(offsets))], length, int64(i)*length); err != nil {
				return err
			}
		}
		return nil
	}
	for i, offset := range offsets {
		for at := int64(0); at < length; at += limit {
			if err := fn([]int64{offset + at}, min(limit, length-at), int64(i)*length+at); err != nil {
				return err
			}
		}
	}
	return nil
}

// run moves the parts of a request one after the other. It returns when nothing writes to the target any more.
func (f *File) run(ctx context.Context, to *Target, after driver.Handle, offsets []int64, length int64) (Result, error) {
	total := Result{Choice: Choice{f.r.opt.Path, "there is nothing to move"}}
	if length == 0 || len(offsets) == 0 {
		return total, nil
	}
	_, times, err := to.Widen.sizes()
	if err != nil {
		return Result{}, err
	}
	straight := times == 1 && f.r.opt.Path != Direct && f.r.opt.Path != Compat
	first := true
	move := func(offsets []int64, length, at int64) error {
		n := int64(len(offsets)) * length
		where := to.Pointer + uintptr(at*times)
		var part Result
		err := errArena
		if straight {
			part, err = f.moveTo(ctx, f.r.destination(where, n*times, after), source.Rows(offsets, length))
		}
		if errors.Is(err, errArena) {
			err = eachPart(offsets, length, f.r.opt.Arena/4, func(offsets []int64, length, skip int64) error {
				inner := f.r.destination(where+uintptr(skip*times), int64(len(offsets))*length*times, after)
				some, err := f.moveByArena(ctx, &inner, to.Widen, offsets, length)
				part.Moved.Add(some.Moved)
				part.Choice = some.Choice
				return err
			})
		}
		if err != nil {
			return err
		}
		if first {
			total.Choice, first = part.Choice, false
		}
		total.Moved.Add(part.Moved)
		return nil
	}
	if err := eachPart(offsets, length, bytesMoved, move); err != nil {
		return Result{}, err
	}
	return total, nil
}
