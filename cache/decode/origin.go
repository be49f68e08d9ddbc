package decode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/layout"
)

const (
	decoders = 8         // objects that are decoded at once; one that is decoded in memory counts as all of them
	maxLast  = 256 << 20 // bytes of the object that ReadAt has in memory
)

// Decoded is where decoded objects come from. It is safe for concurrent use.
type Decoded struct {
	objects []*layout.Object
	of      map[*layout.Object]stored
	named   map[*layout.Object]bool       // by an index, and shown as they are stored
	decoder func() (*zstd.Decoder, error) // of frames
	turns   *semaphore.Weighted
	spans   sync.Pool // of *[spanSize]byte, for inputs
	last    lastObject
	sizes   *sizes
}

// stored is the source of a decoded object.
type stored struct {
	text []byte // of an index; other objects have the fields below

	zip      *layout.Object
	frames   *frames // that are decoded where they are read; nil where it comes as a whole
	codec    codec
	guess    bool // its size may be wrong
	zipHash  digest
	dataHash digest
}

// lastObject is the object that was decoded in memory last.
type lastObject struct {
	lock   chan struct{} // has room for its user
	object *layout.Object
	data   []byte
}

func newOrigin() *Decoded {
	return &Decoded{
		of:      map[*layout.Object]stored{},
		named:   map[*layout.Object]bool{},
		decoder: sync.OnceValues(func() (*zstd.Decoder, error) { return frameDecoder(decoders) }),
		turns:   semaphore.NewWeighted(decoders),
		sizes:   openSizes(""),
		last:    lastObject{lock: make(chan struct{}, 1)},
	}
}

// Objects returns the objects that only x gives, in the order of the listing: decoded ones, and indexes.
func (x *Decoded) Objects() []*layout.Object { return x.objects }

// Fetch hands [off, off+n) of o to sink, in order and each byte once. A decoded object is decoded from its start to its
// end, whichever bytes are asked for. The bytes count once Fetch has returned without an error. An object with frames has
// only the touched ones decoded.
func (x *Decoded) Fetch(ctx context.Context, o *layout.Object, off, n int64, sink func(p []byte) error) error {
	from, ok := x.of[o]
	if !ok || off < 0 || n < 0 || off > o.Size-n {
		return fmt.Errorf("fetch %q: bytes %d to %d are not to be had here", o.Name, off, off+n)
	}
	if from.frames != nil {
		return x.fetchFrames(ctx, &from, off, n, sink)
	}
	if !o.Whole {
		return sink(from.text[off : off+n])
	}
	if from.guess {
		if err := x.mistaken(&from, o.Size); err != nil {
			return err
		}
	}
	err := x.fetchWhole(ctx, &from, o, off, n, sink)
	if from.guess && errors.Is(err, cache.ErrDamaged) {
		err = x.explain(ctx, &from, o.Size, err)
	}
	return err
}

// fetchWhole decodes an object from its start to its end.
func (x *Decoded) fetchWhole(ctx context.Context, from *stored, o *layout.Object, off, n int64, sink func(p []byte) error) error {
	weight := int64(1)
	if from.codec.block {
		weight = decoders
	}
	if err := x.turns.Acquire(ctx, weight); err != nil {
		return err
	}
	defer x.turns.Release(weight)
	w := &output{size: o.Size, from: off, to: off + n, sink: sink, sum: newSumming(from.dataHash)}
	defer w.sum.close()
	ctx, span := trace.Child(ctx, "decode")
	err := from.decode(ctx, w, &x.spans)
	span.Text("object", from.zip.Name).Int("bytes", from.zip.Size).Int("bytes_decoded", w.at).End(class(err))
	if err != nil {
		return fmt.Errorf("decode %q: %w", from.zip.Name, err)
	}
	return nil
}

// class is the word that a span has for an error.
func class(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, cache.ErrDamaged):
		return "damaged"
	}
	return "failed"
}

// decode writes all of an object to w and compares sizes and hashes.
func (from *stored) decode(ctx context.Context, w *output, spans *sync.Pool) error {
	in := newInput(ctx, from.zip, newSumming(from.zipHash), spans)
	defer in.close()
	err := from.codec.decode(ctx, from.zip, in, w)
	if err == nil {
		_, err = io.Copy(io.Discard, in) // the bytes after a seek table's frames, for the hash
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case in.err != nil:
		return in.err
	case w.err != nil:
		return w.err
	case err == nil && w.at != w.size:
		err = fmt.Errorf("it decodes to %d bytes, the index says %d", w.at, w.size)
	}
	if err == nil {
		if err = from.zipHash.check(in.sum); err != nil {
			err = fmt.Errorf("as stored: %w", err)
		}
	}
	if err == nil {
		err = from.dataHash.check(w.sum)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", cache.ErrDamaged, err)
	}
	return nil
}

// output takes the bytes that a codec decodes: at most size, of which [from, to) go to sink.
type output struct {
	size     int64
	from, to int64
	sink     func(p []byte) error
	sum      *summing // nil for none

	at  int64 // where the next byte goes
	err error // of the sink, or that there is too much
}

// Write implements [io.Writer].
func (w *output) Write(p []byte) (int, error) {
	if w.err == nil && int64(len(p)) > w.size-w.at {
		w.err = fmt.Errorf("%w: it decodes to more than the %d bytes that the index says", cache.ErrDamaged, w.size)
	}
	if w.err != nil {
		return 0, w.err
	}
	w.sum.add(p)
	first, last := max(w.from, w.at), min(w.to, w.at+int64(len(p)))
	if first < last {
		if w.err = w.sink(p[first-w.at : last-w.at]); w.err != nil {
			return 0, w.err
		}
	}
	w.at += int64(len(p))
	return len(p), nil
}

// ReadAt implements [layout.Origin]. It has the object that was read last in memory, up to 256 MiB. Larger ones fail with
// ENOSPC: only a cache can read them.
func (x *Decoded) ReadAt(ctx context.Context, o *layout.Object, p []byte, off int64) (int, error) {
	if off < 0 || off >= o.Size {
		return 0, io.EOF
	}
	if from := x.of[o]; from.frames != nil {
		n := 0
		err := x.fetchFrames(ctx, &from, off, min(int64(len(p)), o.Size-off), func(b []byte) error { n += copy(p[n:], b); return nil })
		if err == nil && n < len(p) {
			err = io.EOF
		}
		return n, err
	}
	h := &x.last
	select {
	case h.lock <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-h.lock }()
	if h.object != o {
		data, err := x.decodeHere(ctx, o)
		if err != nil {
			return 0, err
		}
		h.object, h.data = o, data
	}
	n := copy(p, h.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (x *Decoded) decodeHere(ctx context.Context, o *layout.Object) ([]byte, error) {
	if o.Size > maxLast {
		return nil, fmt.Errorf("decode %q: it has %d bytes, and the cache has no room for it: %w", o.Name, o.Size, syscall.ENOSPC)
	}
	x.last.object, x.last.data = nil, nil // before there are two
	data := make([]byte, 0, o.Size)
	fetch := func() error {
		data = data[:0]
		return x.Fetch(ctx, o, 0, o.Size, func(p []byte) error { data = append(data, p...); return nil })
	}
	err := fetch()
	if errors.Is(err, cache.ErrDamaged) {
		err = fetch()
	}
	return data, err
}
