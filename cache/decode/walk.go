package decode

import (
	"context"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

const (
	headSize  = zstd.HeaderMaxSize // of a zstd frame and its first block, at most
	blockHead = 3                  // bytes before a block: whether it is the last, its kind, its size (RFC 8878, 3.1.1.2)
	blockSize = 128 << 10          // bytes of a block's two sides, at most
	sumSize   = 4                  // of the checksum after a frame's last block

	// In a directory a page is read for each block. Elsewhere a request costs as much as the bytes of some blocks do.
	stepHere, nearHere = 4 << 10, 1 << 20
	stepAway, nearAway = 256 << 10, 256 << 10
	stepFar            = 2 << 20 // of a walk elsewhere that goes on
)

var (
	// errFar says that a walk has read as much as it may.
	errFar = errors.New("what is left of the file is more than may be read")
	// errUnsaid says that a frame does not give its decoded size.
	errUnsaid = errors.New("a frame does not say how long its content is")
)

// unfit says why a file is not decoded.
type unfit string

func (u unfit) Error() string { return string(u) }

const (
	noDictionary = unfit("it needs a dictionary, which hbmfs has none of: compress it without one")
	noMemory     = unfit("decoding it takes more than 128 MiB of memory: compress it without --long, or with --long=27 at most")
	cutShort     = unfit("it is cut short, in the middle of a zstd frame: copy it again")
	noBlock      = unfit("it has a block that zstd does not know: it is damaged, copy it again")
)

// walk goes from frame to frame of a zstd file, and from block to block in them, to learn the decoded size of all. It
// reads the heads of blocks alone, and decodes nothing.
type walk struct {
	zip  *layout.Object
	step int64 // bytes that are read at a time, at least headSize
	may  int64 // bytes that it may read

	buf   []byte // of the file, from bufAt
	bufAt int64
	reads int
	read  int64 // bytes

	at      int64 // where the next frame or block begins
	size    int64 // bytes that the frames decode to, with the one that it is in
	frames  int   // so far, with the one that it is in; without skippable ones
	content *content
}

// content is a frame that a walk is in.
type content struct {
	begin, size int64
	blocks      int64 // so far
	summed      bool
}

// newWalk begins at the beginning of a file. It may not go far.
func newWalk(zip *layout.Object) *walk {
	if _, here := zip.Origin.(*cache.Dir); here {
		return &walk{zip: zip, step: stepHere, may: nearHere}
	}
	return &walk{zip: zip, step: stepAway, may: nearAway}
}

// goOn has the walk read up to scan bytes in all.
func (w *walk) goOn(scan int64) {
	if w.may = max(w.may, scan); w.step == stepAway {
		w.step = stepFar
	}
}

// run walks on, to the end of the file. The error is errFar, errUnsaid, unfit, or of reading.
func (w *walk) run(ctx context.Context) error {
	for {
		var err error
		switch {
		case w.content != nil:
			err = w.block(ctx)
		case w.at < w.zip.Size:
			err = w.frame(ctx)
		default:
			return nil
		}
		if err != nil {
			return err
		}
		if w.at > w.zip.Size {
			return cutShort
		}
	}
}

// frame reads the header of a frame, and passes over one that can be skipped.
func (w *walk) frame(ctx context.Context) error {
	head, err := w.peek(ctx, headSize)
	if err != nil {
		return err
	}
	var h zstd.Header
	switch err := h.Decode(head); {
	case errors.Is(err, zstd.ErrMagicMismatch) && w.at == 0:
		return unfit("it does not begin as zstd does")
	case errors.Is(err, zstd.ErrMagicMismatch):
		return unfit(fmt.Sprintf("what follows its last frame, at byte %d, is no zstd: cut it off there", w.at))
	case err != nil && len(head) < headSize:
		return cutShort
	case err != nil:
		return unfit(fmt.Sprintf("it has a frame, at byte %d, that this version of zstd does not know: %v", w.at, err))
	case h.Skippable:
		w.at += int64(h.HeaderSize) + int64(h.SkippableSize)
		return nil
	case h.DictionaryID != 0:
		return noDictionary
	case h.FrameContentSize > maxPlain-uint64(w.size), int64(h.FrameContentSize)/maxRatio > w.zip.Size-w.at:
		return unfit(fmt.Sprintf("it says that its content has %d bytes, which cannot be", h.FrameContentSize))
	case h.WindowSize > maxWindow, h.SingleSegment && h.FrameContentSize > maxWindow:
		return noMemory
	case !h.HasFCS:
		return errUnsaid
	}
	w.frames++
	w.size += int64(h.FrameContentSize)
	w.content = &content{begin: w.at, size: int64(h.FrameContentSize), summed: h.HasCheckSum}
	w.at += int64(h.HeaderSize)
	return nil
}

// block passes over a block, and leaves the frame with its last one.
func (w *walk) block(ctx context.Context) error {
	p, err := w.peek(ctx, blockHead)
	if err != nil {
		return err
	}
	if len(p) < blockHead {
		return cutShort
	}
	const raw, rle, compressed = 0, 1, 2
	head := int64(p[0]) | int64(p[1])<<8 | int64(p[2])<<16
	last, kind, length := head&1 != 0, head>>1&3, head>>3
	if length > blockSize || kind > compressed {
		return noBlock
	}
	if kind == rle {
		length = 1
	}
	w.at += blockHead + length
	c := w.content
	c.blocks++
	if !last {
		return nil
	}
	if c.summed {
		w.at += sumSize
	}
	if w.content = nil; c.size > c.blocks*blockSize {
		return unfit(fmt.Sprintf("it says that its content has %d bytes, which cannot be", c.size))
	}
	return nil
}

// peek gives n bytes from where the walk is, fewer at the end of the file. n is at most headSize.
func (w *walk) peek(ctx context.Context, n int64) ([]byte, error) {
	n = min(n, w.zip.Size-w.at)
	if from := w.at - w.bufAt; from >= 0 && from+n <= int64(len(w.buf)) {
		return w.buf[from:][:n], nil
	}
	size := min(w.step, w.zip.Size-w.at)
	if size > w.may-w.read {
		return nil, errFar
	}
	p, err := part(ctx, w.zip, w.at, size)
	if err != nil {
		return nil, err
	}
	w.buf, w.bufAt = p, w.at
	w.reads, w.read = w.reads+1, w.read+size
	return p[:n], nil
}

// more reports whether the file must have more than its first frame, or is likely to. It expects the frame to compress as
// it has done so far.
func (w *walk) more() bool {
	c := w.content
	if w.frames != 1 || c == nil {
		return true
	}
	expected := float64(w.at-c.begin) * float64(c.size) / float64(max(c.blocks, 1)*blockSize)
	return float64(w.zip.Size-c.begin) > 1.4*expected+blockSize
}
