package decode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/layout"
)

// The seek table of seekable zstd (facebook/zstd, contrib/seekable_format): a skippable frame at the end that has the
// two sizes of each frame before it.
const (
	seekSkippable  = 0x184D2A5E
	seekMagic      = 0x8F92EAB1
	seekFooter     = 9 // number of frames (u32), flags (u8), magic (u32)
	seekChecksums  = 1 << 7
	seekReserved   = 0x7c
	maxFrame       = 16 << 20 // bytes of a frame's two sides, above which frames are decoded one after the other
	maxSeekTable   = 16 << 20 // bytes
	frameDecoders  = 4
	skippableFixed = 8 // magic and size of a skippable frame
)

// frame is a part of a zstd stream that can be decoded alone.
type frame struct {
	coded, plain int    // bytes
	sum          uint32 // of the decoded bytes: the lower half of XXH64, where summed
	summed       bool
}

// seekTable reads where the frames of an object lie, nil where it does not say so, or is not worth it. A table that
// does not fit the object is none: decoding in order finds the mistake.
func seekTable(ctx context.Context, zip *layout.Object, size int64) []frame {
	if zip.Size < spanSize || runtime.GOMAXPROCS(0) == 1 {
		return nil
	}
	frames, err := readSeekTable(ctx, zip)
	plain := int64(0)
	for _, f := range frames {
		plain += int64(f.plain)
	}
	if err != nil || plain != size || tooLarge(frames) {
		return nil
	}
	return frames
}

// readSeekTable reads where the frames of an object lie, nil where there is no table, or none that fits the object. The
// error is of reading.
func readSeekTable(ctx context.Context, zip *layout.Object) ([]frame, error) {
	if zip.Size < skippableFixed+seekFooter {
		return nil, nil
	}
	le := binary.LittleEndian
	footer, err := part(ctx, zip, zip.Size-seekFooter, seekFooter)
	if err != nil || le.Uint32(footer[5:]) != seekMagic || footer[4]&seekReserved != 0 {
		return nil, err
	}
	width := int64(8)
	if footer[4]&seekChecksums != 0 {
		width = 12
	}
	count := int64(le.Uint32(footer[:]))
	length := skippableFixed + count*width + seekFooter
	if length > maxSeekTable || length > zip.Size {
		return nil, nil
	}
	table, err := part(ctx, zip, zip.Size-length, length)
	if err != nil || le.Uint32(table) != seekSkippable || int64(le.Uint32(table[4:])) != length-skippableFixed {
		return nil, err
	}
	frames := make([]frame, count)
	coded := length
	for i := range frames {
		entry := table[skippableFixed+int64(i)*width:]
		f := frame{coded: int(le.Uint32(entry)), plain: int(le.Uint32(entry[4:]))}
		if width == 12 {
			f.sum, f.summed = le.Uint32(entry[8:]), true
		}
		frames[i], coded = f, coded+int64(f.coded)
	}
	if coded != zip.Size {
		return nil, nil
	}
	return frames, nil
}

// tooLarge reports whether one of the frames takes too much memory to be decoded as a whole.
func tooLarge(frames []frame) bool {
	return slices.ContainsFunc(frames, func(f frame) bool { return f.coded > maxFrame || f.plain > maxFrame })
}

// part reads n bytes of an object.
func part(ctx context.Context, o *layout.Object, off, n int64) ([]byte, error) {
	p := make([]byte, n)
	return p, fillFrom(ctx, o, p, off)
}

// fillFrom reads all of p from an object.
func fillFrom(ctx context.Context, o *layout.Object, p []byte, off int64) error {
	n, err := o.ReadAt(ctx, p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

// decoding is a frame that is being decoded.
type decoding struct {
	frame
	in, out []byte
	done    chan struct{}
	err     error // valid once done is closed, as out
}

// frameDecoder decodes frames as a whole, into the room that it is given and no further. A window takes no memory then.
func frameDecoder(atOnce int) (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(atOnce), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow))
}

// unzstdFrames decodes frames at the same time. It reads in in order, and writes w in order.
func unzstdFrames(ctx context.Context, frames []frame, in *input, w *output) error {
	atOnce := min(frameDecoders, runtime.GOMAXPROCS(0))
	d, err := frameDecoder(atOnce)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	queue, free := make(chan *decoding, atOnce), make(chan *decoding, atOnce+2)
	g.Go(func() error {
		defer close(queue)
		for _, f := range frames {
			x := &decoding{}
			select {
			case x = <-free:
			default:
			}
			*x = decoding{frame: f, in: grow(x.in, f.coded), out: x.out, done: make(chan struct{})}
			if _, err := io.ReadFull(in, x.in); err != nil {
				return err
			}
			select {
			case queue <- x:
			case <-ctx.Done():
				return ctx.Err()
			}
			g.Go(func() error {
				defer close(x.done)
				x.out, x.err = d.DecodeAll(x.in, grow(x.out, x.plain)[:0])
				return nil
			})
		}
		return nil
	})
	err = drain(queue, free, w)
	cancel()
	return errors.Join(err, g.Wait())
}

// drain writes the decoded frames, in their order.
func drain(queue <-chan *decoding, free chan<- *decoding, w *output) error {
	for x := range queue {
		<-x.done
		if x.err == nil && len(x.out) != x.plain {
			x.err = fmt.Errorf("a frame decodes to %d bytes, the seek table says %d", len(x.out), x.plain)
		}
		if x.err == nil {
			_, x.err = w.Write(x.out)
		}
		if x.err != nil {
			return x.err
		}
		select {
		case free <- x:
		default:
		}
	}
	return nil
}

func grow(p []byte, n int) []byte {
	if cap(p) < n {
		return make([]byte, n)
	}
	return p[:n]
}
