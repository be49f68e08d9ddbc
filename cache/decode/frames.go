package decode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"

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
type frame struct{ coded, plain int }

// seekTable reads where the frames of an object lie, nil where it does not say so, or is not worth it. A table that
// does not fit the object is none: decoding in order finds out what is wrong.
func seekTable(ctx context.Context, zip *layout.Object, size int64) []frame {
	if zip.Size < spanSize || runtime.GOMAXPROCS(0) == 1 {
		return nil
	}
	le := binary.LittleEndian
	var footer [seekFooter]byte
	if n, _ := zip.ReadAt(ctx, footer[:], zip.Size-seekFooter); n < len(footer) || le.Uint32(footer[5:]) != seekMagic || footer[4]&seekReserved != 0 {
		return nil
	}
	width := int64(8)
	if footer[4]&seekChecksums != 0 {
		width = 12
	}
	count := int64(le.Uint32(footer[:]))
	length := skippableFixed + count*width + seekFooter
	if length > maxSeekTable || length > zip.Size {
		return nil
	}
	table := make([]byte, length)
	if n, _ := zip.ReadAt(ctx, table, zip.Size-length); n < len(table) || le.Uint32(table) != seekSkippable || int64(le.Uint32(table[4:])) != length-skippableFixed {
		return nil
	}
	frames := make([]frame, count)
	coded, plain := length, int64(0)
	for i := range frames {
		entry := table[skippableFixed+int64(i)*width:]
		f := frame{int(le.Uint32(entry)), int(le.Uint32(entry[4:]))}
		if f.coded > maxFrame || f.plain > maxFrame {
			return nil
		}
		frames[i], coded, plain = f, coded+int64(f.coded), plain+int64(f.plain)
	}
	if coded != zip.Size || plain != size {
		return nil
	}
	return frames
}

// job is a frame that is being decoded.
type job struct {
	frame
	in, out []byte
	done    chan struct{}
	err     error // valid once done is closed, as out
}

// unzstdFrames decodes frames at the same time. in is read in order, and w written.
func unzstdFrames(ctx context.Context, frames []frame, in *input, w *output) error {
	workers := min(frameDecoders, runtime.GOMAXPROCS(0))
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(workers), zstd.WithDecoderMaxMemory(maxFrame))
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	queue, free := make(chan *job, workers), make(chan *job, workers+2)
	g.Go(func() error {
		defer close(queue)
		for _, f := range frames {
			j := &job{}
			select {
			case j = <-free:
			default:
			}
			*j = job{frame: f, in: grow(j.in, f.coded), out: j.out, done: make(chan struct{})}
			if _, err := io.ReadFull(in, j.in); err != nil {
				return err
			}
			select {
			case queue <- j:
			case <-ctx.Done():
				return ctx.Err()
			}
			g.Go(func() error {
				defer close(j.done)
				j.out, j.err = d.DecodeAll(j.in, grow(j.out, j.plain)[:0])
				return nil
			})
		}
		return nil
	})
	err = drain(queue, free, w)
	cancel()
	return errors.Join(err, g.Wait())
}

// drain writes what jobs decode, in their order.
func drain(queue <-chan *job, free chan<- *job, w *output) error {
	for j := range queue {
		<-j.done
		if j.err == nil && len(j.out) != j.plain {
			j.err = fmt.Errorf("a frame decodes to %d bytes, the seek table says %d", len(j.out), j.plain)
		}
		if j.err == nil {
			_, j.err = w.Write(j.out)
		}
		if j.err != nil {
			return j.err
		}
		select {
		case free <- j:
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
