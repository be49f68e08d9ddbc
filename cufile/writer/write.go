package writer

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Written is a file that is on storage.
type Written struct {
	Name string
	Size int64
	Sums []uint32 // CRC-32C (Castagnoli) of each ChunkSize bytes
}

// Result is the outcome of a write.
type Result struct {
	Files    []Written
	Moved    PathBytes
	Choice   Choice
	Took     time.Duration // from the call to the last sync
	Prepared time.Duration // of it, until pages of the files were there and registered: the mapped path only
	Released time.Duration // of it, until they were no longer registered: likewise
}

// Write is files that are being written.
type Write struct {
	w       *Writer
	dir     *directory
	outputs []*output
	first   []int64 // the number of each output's first chunk
	chunks  int64
	total   int64
	after   driver.Handle // an event that copies out of HBM wait for; 0 for none
	began   time.Time

	next    atomic.Int64 // the chunk that a worker begins
	end     int64        // up to which workers may go
	started int64        // up to which they went before
	written atomic.Int64 // bytes

	cancel context.CancelFunc
	done   chan struct{}
	result Result // set before done is closed
	err    error  // likewise

	mu    sync.Mutex // guards the fields below
	moved PathBytes
}

// Write starts making files in a directory. Files that cannot be are refused at once, with ErrPlan or ErrMemory; a directory that
// is not there is an [Error]. Bytes of the GPU are read after the work on the caller's stream; a nil stream is none. Memory must
// stay as it is until Done is closed.
func (w *Writer) Write(path string, files []File, stream *uintptr) (*Write, error) {
	return w.startWrite(path, files, nil, stream)
}

// WriteGiven is Write for files that are given, such as those of a checkpoint volume. All lie on one filesystem. path is the file's name
// in errors. At most a few hundred are open at a time, in their order. Each is cut to its size, synced and closed when it is written.
func (w *Writer) WriteGiven(path string, given []Given, stream *uintptr) (*Write, error) {
	files := make([]File, len(given))
	for i := range given {
		files[i] = given[i].File
	}
	return w.startWrite(path, files, given, stream)
}

// startWrite starts a write of files, of which given has those that are given, if they are.
func (w *Writer) startWrite(path string, files []File, given []Given, stream *uintptr) (*Write, error) {
	if !w.gate.Enter() {
		return nil, fmt.Errorf("write to %s: %w", path, ErrClosed)
	}
	q, err := w.begin(path, files, given, stream)
	if err != nil {
		w.gate.Leave()
	}
	return q, err
}

// begin needs that the gate was entered, which the write leaves.
func (w *Writer) begin(path string, files []File, given []Given, stream *uintptr) (*Write, error) {
	if err := checkPlan(files, given != nil); err != nil {
		return nil, fmt.Errorf("write to %s: %w", path, err)
	}
	if err := w.checkAll(func(yield func(*Memory) bool) {
		for i := range files {
			for j := range files[i].Parts {
				if !yield(&files[i].Parts[j].Memory) {
					return
				}
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("write to %s: %w", path, err)
	}
	dir, err := directoryOf(path, given)
	if err != nil {
		return nil, err
	}
	after, err := w.device.Mark(stream, nil)
	if err != nil {
		return nil, errors.Join(err, dir.close())
	}
	q := &Write{w: w, dir: dir, after: after, began: time.Now(), done: make(chan struct{})}
	for i := range files {
		o := newOutput(dir, &files[i])
		if given != nil {
			o.given, o.sealed = given[i].Open, given[i].Sealed
		}
		q.outputs, q.first = append(q.outputs, o), append(q.first, q.chunks)
		q.chunks += o.left.Load()
		q.total += o.size
	}
	ctx, cancel := context.WithCancel(context.Background())
	q.cancel = cancel
	w.add(q)
	if w.gate.IsShut() { // meanwhile, by a Close that did not see q
		cancel()
	}
	go q.serve(ctx)
	return q, nil
}

// serve is the write's life.
func (q *Write) serve(ctx context.Context) {
	defer q.w.gate.Leave()
	defer q.w.remove(q)
	defer close(q.done)
	defer q.cancel()
	err := q.run(ctx)
	q.abandon()
	_ = q.dir.close() // nothing was written to it
	q.w.device.Unmark(q.after)
	if err != nil && ctx.Err() != nil { // it may be that the writer was closed
		err = ctx.Err()
	}
	if q.err = err; err == nil {
		q.finish()
	}
}

// abandon closes files that were not finished.
func (q *Write) abandon() {
	all := func() error {
		for _, o := range q.outputs {
			o.abandon()
		}
		return nil
	}
	if q.w.device.Within(all) != nil { // cuFile wants the context, which a GPU that failed does not give
		_ = all() // it gives no error
	}
}

func (q *Write) finish() {
	q.result.Moved, q.result.Took = q.moved, time.Since(q.began)
	for _, o := range q.outputs {
		q.result.Files = append(q.result.Files, Written{o.name, o.size, o.sums})
		if direct, why := o.isDirect(); q.result.Choice.Path == Staged && !direct && why != "" {
			q.result.Choice = Choice{Path: Buffered, Why: why}
		}
	}
	q.w.account(q.moved, q.result.Choice)
}

// Done is closed when the write has ended and nothing reads its memory any more.
func (q *Write) Done() <-chan struct{} { return q.done }

// Cancel asks the write to end. It may have been done by then.
func (q *Write) Cancel() { q.cancel() }

// Progress gives the bytes that are written, and all of them.
func (q *Write) Progress() (written, total int64) { return q.written.Load(), q.total }

// Result waits for the write. Without an error all files are on storage.
func (q *Write) Result() (Result, error) {
	<-q.done
	return q.result, q.err
}

// claim gives the next chunk that no worker has begun; false when there is none, or the turn that began then is over.
func (q *Write) claim(began time.Time) (chunk, bool) {
	if time.Since(began) > turn {
		return chunk{}, false
	}
	i := q.next.Add(1) - 1
	if i >= q.end {
		return chunk{}, false
	}
	f := sort.Search(len(q.first), func(f int) bool { return q.first[f] > i }) - 1
	c := chunk{of: q.outputs[f], index: i - q.first[f]}
	c.offset = c.index * ChunkSize
	c.n = min(ChunkSize, c.of.size-c.offset)
	return c, true
}

// count notes bytes that are written.
func (q *Write) count(p Path, n int64) {
	q.mu.Lock()
	q.moved.count(p, n)
	q.mu.Unlock()
	q.written.Add(n)
}
