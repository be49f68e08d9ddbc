package decode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

const (
	defaultScan = 64 << 20
	scanRatio   = 64 // bytes that may be decoded to learn a size, for each that may be read
)

// known is everything that can be known of a compressed file before it is read.
type known struct {
	size   int64
	frames *frames // nil where it comes as a whole
	why    string  // why it is not decoded
	guess  bool    // its first frame says the size; whether it has more was not looked for to the end
	effort int64   // bytes that were read of it, where the beginning did not tell
}

// learn finds the decoded name and size of a file. It reads the beginning and the end. Where they do not tell, it reads
// up to scan bytes, and decodes them if it must. The error is of reading.
func (x *Decoded) learn(ctx context.Context, o *layout.Object, scan int64) (known, error) {
	if strings.HasSuffix(o.Name, gzipName) {
		return known{why: "gzip does not say how long its content is: compress it with zstd"}, nil
	}
	if o.Size == 0 {
		return known{why: "it is empty, which no file in zstd is"}, nil
	}
	w := newWalk(o)
	_, err := w.peek(ctx, headSize)
	if errors.Is(err, fs.ErrPermission) {
		return known{why: "it may not be read"}, nil
	}
	var k known
	if err == nil {
		k, err = bySeekTable(ctx, w)
	}
	if err != nil || k.size > 0 {
		return k, err
	}
	err = w.run(ctx)
	if errors.Is(err, errFar) && w.more() {
		w.goOn(scan)
		err = w.run(ctx)
	}
	if errors.Is(err, errFar) && !w.more() {
		return known{size: w.size, guess: true}, nil
	}
	k = known{size: w.size, effort: w.read}
	if errors.Is(err, errUnsaid) {
		k.size, err = x.count(ctx, o, scan)
		k.effort += o.Size
	} else if w.reads == 1 {
		k.effort = 0
	}
	var u unfit
	switch {
	case errors.Is(err, errFar):
		return known{why: fmt.Sprintf("it has several zstd frames, or seems to, and more than %s would be read to learn what all of them decode to: mount with a larger --decode-scan, or give it a seek table", mebibytes(scan))}, nil
	case errors.As(err, &u):
		return known{why: string(u)}, nil
	}
	return k, err
}

// bySeekTable takes a file's size from its seek table, if there is one.
func bySeekTable(ctx context.Context, w *walk) (known, error) {
	from := w.zip
	if int64(len(w.buf)) == from.Size {
		from = layout.Bytes(from.Name, w.buf) // it is all here
	}
	list, err := readSeekTable(ctx, from)
	if err != nil || len(list) == 0 {
		return known{}, err
	}
	var h zstd.Header
	if h.Decode(w.buf) != nil || h.DictionaryID != 0 || h.WindowSize > maxWindow {
		return known{}, nil // the walk says why
	}
	k := known{frames: newFrames(list)}
	switch k.size = k.frames.size(); {
	case k.size > maxPlain || k.size/maxRatio > w.zip.Size:
		return known{}, nil // it cannot be: the walk says what is
	case tooLarge(list):
		k.frames = nil
	}
	return k, nil
}

// count decodes a file, to nowhere, to learn how many bytes it decodes to. The error is unfit, or of reading.
func (x *Decoded) count(ctx context.Context, o *layout.Object, scan int64) (int64, error) {
	const advice = "compress it as a file that zstd is given by its name, which says so, or give it a seek table"
	if o.Size > scan {
		return 0, unfit(fmt.Sprintf("it does not say how long its content is (pzstd does not write it, nor zstd in a pipe), and it has more than the %s that are decoded to find out: mount with a larger --decode-scan, or %s", mebibytes(scan), advice))
	}
	if err := x.turns.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	defer x.turns.Release(1)
	in := newInput(ctx, o, nil, &x.spans)
	defer in.close()
	w := &output{size: min(maxPlain/scanRatio, scan) * scanRatio, sink: func([]byte) error { return nil }}
	err := decodeStream(in, w, 1)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case in.err != nil:
		return 0, in.err
	case w.err != nil:
		return 0, unfit(fmt.Sprintf("it does not say how long its content is, and that is more than %s: %s", mebibytes(w.size), advice))
	case errors.Is(err, zstd.ErrUnknownDictionary):
		return 0, noDictionary
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return 0, noMemory
	case errors.Is(err, io.ErrUnexpectedEOF):
		return 0, cutShort
	case errors.Is(err, zstd.ErrMagicMismatch):
		return 0, unfit("what follows its last frame is no zstd: cut it off there")
	case err != nil:
		return 0, unfit(fmt.Sprintf("it cannot be decoded (%v): copy it again", err))
	}
	return w.at, nil
}

// explain finds out why a file whose size was guessed does not decode to that, remembers its true size, and says so. It
// gives err back where the guess was right.
func (x *Decoded) explain(ctx context.Context, from *stored, shown int64, err error) error {
	w := newWalk(from.zip)
	w.goOn(math.MaxInt64)
	walked := w.run(ctx)
	size := w.size
	if errors.Is(walked, errUnsaid) {
		size, walked = x.count(ctx, from.zip, max(from.zip.Size, defaultScan))
	}
	var u unfit
	switch {
	case errors.As(walked, &u):
		return fmt.Errorf("decode %q: %w: %w", from.zip.Name, cache.ErrDamaged, u)
	case walked != nil || size == shown:
		return err
	}
	x.sizes.put(from.zip, size)
	if err := x.sizes.save(); err != nil {
		return fmt.Errorf("decode %q: %w: %w", from.zip.Name, cache.ErrDamaged, err)
	}
	return x.mistaken(from, shown)
}

// mistaken says of a file that it is shown with another size than it is known to decode to by now.
func (x *Decoded) mistaken(from *stored, shown int64) error {
	size, ok := x.sizes.get(from.zip)
	if !ok || size == shown {
		return nil
	}
	return fmt.Errorf("decode %q: it decodes to %d bytes and is shown with %d, which its first frame says: mount it again to read it: %w", from.zip.Name, size, shown, cache.ErrDamaged)
}

func mebibytes(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
