package decode

import (
	"context"
	"io"
	"sync"

	"github.com/hbmfs/hbmfs/layout"
)

const (
	spanSize = 2 << 20 // bytes of one request
	spans    = 8       // spans under way, or fetched and not decoded yet
)

// input reads a compressed object in order, with several requests under way.
type input struct {
	object *layout.Object
	cancel context.CancelFunc
	queue  chan *span // in the order of the object
	free   *sync.Pool // of buffers, which inputs share: a new one costs as much as reading into it
	wg     sync.WaitGroup

	// The fields below belong to the reader.
	now  *span  // that is being read
	rest []byte // of it
	read int64
	sum  *summing // of the bytes that were read, nil for none
	err  error    // of the origin: it is no fault of the bytes
}

// span is a part of the object that is on its way.
type span struct {
	done chan struct{}
	data []byte // valid once done is closed, as err
	err  error
}

func newInput(ctx context.Context, o *layout.Object, sum *summing, free *sync.Pool) *input {
	ctx, cancel := context.WithCancel(ctx)
	in := &input{object: o, cancel: cancel, queue: make(chan *span, spans-2), free: free, sum: sum}
	in.wg.Go(func() { in.feed(ctx) })
	return in
}

// close ends all requests, and the summing.
func (in *input) close() {
	in.cancel()
	in.wg.Wait()
	in.sum.close()
}

// feed asks for one part after the other, as fast as they are read.
func (in *input) feed(ctx context.Context) {
	defer close(in.queue)
	for off := int64(0); off < in.object.Size; off += spanSize {
		s := &span{done: make(chan struct{})}
		select {
		case in.queue <- s:
		case <-ctx.Done():
			s.err = ctx.Err()
			return
		}
		in.wg.Go(func() {
			defer close(s.done)
			s.data, s.err = in.get(ctx, off)
		})
	}
}

func (in *input) get(ctx context.Context, off int64) ([]byte, error) {
	all, ok := in.free.Get().(*[spanSize]byte)
	if !ok {
		all = new([spanSize]byte)
	}
	buf := all[:min(spanSize, in.object.Size-off)]
	return buf, fillFrom(ctx, in.object, buf, off)
}

// Read implements [io.Reader]. Its end is the object's.
func (in *input) Read(p []byte) (int, error) {
	for len(in.rest) == 0 {
		if in.err != nil {
			return 0, in.err
		}
		if in.now != nil {
			in.free.Put((*[spanSize]byte)(in.now.data[:spanSize]))
			in.now = nil
		}
		if in.read == in.object.Size {
			return 0, io.EOF
		}
		s, ok := <-in.queue
		if !ok { // only the end of the context keeps it from having all of the object
			in.err = context.Canceled
			continue
		}
		<-s.done
		if in.err = s.err; in.err == nil {
			in.now, in.rest = s, s.data
		}
	}
	n := copy(p, in.rest)
	in.sum.add(p[:n])
	in.rest, in.read = in.rest[n:], in.read+int64(n)
	return n, nil
}
