package cufile

import "context"

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
// other. What cannot be is refused at once, with ErrOutOfRange or ErrMemory. The memory and offsets must stay, and the Reader be
// open, until Done is closed: a request that is cancelled, or whose ctx has ended, lasts until nothing writes there any
// more, which is as long as a call into the system or the GPU's library takes that cannot be interrupted.
func (f *File) BeginGather(ctx context.Context, to Target, offsets []int64, length int64) (*Request, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	q, err := f.begin(ctx, &to, offsets, length)
	if err != nil {
		f.gate.Leave()
	}
	return q, err
}

// begin needs that the file was entered, which the request leaves.
func (f *File) begin(ctx context.Context, to *Target, offsets []int64, length int64) (*Request, error) {
	if err := f.check(to, offsets, length); err != nil {
		return nil, err
	}
	after, err := f.r.mark(to)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	q := &Request{cancel: cancel, done: make(chan struct{})}
	f.mu.Lock()
	f.requests[q] = true
	f.mu.Unlock()
	if f.gate.IsShut() { // meanwhile, by a Close that did not see q
		cancel()
	}
	go func() {
		q.result, q.err = f.run(ctx, to, after, offsets, length)
		if err := f.r.unmark(after); q.err == nil {
			q.err = err
		}
		if q.err != nil && ctx.Err() != nil { // it may be that its file was shut
			q.err = ctx.Err()
		}
		cancel()
		close(q.done)
		f.mu.Lock()
		delete(f.requests, q)
		f.mu.Unlock()
		f.gate.Leave()
	}()
	return q, nil
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
