package decode

import (
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"github.com/hbmfs/hbmfs/layout"
)

const (
	// maxWindow bounds the distance that a zstd stream may refer back to: 128 MiB is the most that a level from 1
	// to 22 takes.
	maxWindow = 128 << 20
	// maxBlock bounds the two sides of a codec that decodes in memory, as a whole.
	maxBlock = 256 << 20
)

// codec decodes a compressed object, of which in gives the bytes, to w. w bounds the bytes by itself.
type codec struct {
	decode func(ctx context.Context, zip *layout.Object, in *input, w *output) error
	block  bool // it holds both sides in memory
}

// codecOf finds a codec by its name in MosaicML Streaming, with or without a level: "zstd:7".
func codecOf(name string) (codec, error) {
	kind, _, _ := strings.Cut(name, ":")
	switch kind {
	case "zstd":
		return codec{decode: unzstd}, nil
	case "gz":
		return codec{decode: ungzip}, nil
	case "bz2":
		return codec{decode: unbzip2}, nil
	case "snappy":
		return codec{decode: unsnappy, block: true}, nil
	case "br":
		return codec{}, errors.New("brotli is not decoded: write the shards with zstd")
	}
	return codec{}, fmt.Errorf("the compression %.40q is not known: zstd, gz, bz2 and snappy are", name)
}

func unzstd(ctx context.Context, zip *layout.Object, in *input, w *output) error {
	if frames := seekTable(ctx, zip, w.size); frames != nil {
		return unzstdFrames(ctx, frames, in, w)
	}
	return decodeStream(in, w, streamDecoders())
}

// decodeStream decodes all frames of a stream in order, by so many goroutines.
func decodeStream(in *input, w *output, goroutines int) error {
	d, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow), zstd.WithDecoderConcurrency(goroutines))
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = d.WriteTo(w)
	return err
}

// streamDecoders is how many goroutines share a stream. Handing blocks to each other costs a fifth more CPU than one
// alone takes. That pays only where the other shards leave processors idle.
func streamDecoders() int {
	if n := runtime.GOMAXPROCS(0); n >= 4 {
		return 4
	}
	return 1
}

func ungzip(_ context.Context, _ *layout.Object, in *input, w *output) error {
	d, err := gzip.NewReader(in)
	if err == nil {
		_, err = d.WriteTo(w)
	}
	return err
}

func unbzip2(_ context.Context, _ *layout.Object, in *input, w *output) error {
	_, err := io.CopyBuffer(w, bzip2.NewReader(in), make([]byte, 256<<10))
	return err
}

// unsnappy decodes the block format, which MosaicML Streaming writes. It has no checksums, and no frames.
func unsnappy(_ context.Context, zip *layout.Object, in *input, w *output) error {
	coded := make([]byte, zip.Size)
	if _, err := io.ReadFull(in, coded); err != nil {
		return err
	}
	n, err := snappy.DecodedLen(coded)
	if err != nil {
		return err
	}
	if int64(n) != w.size {
		return fmt.Errorf("it decodes to %d bytes, the index says %d", n, w.size)
	}
	data, err := snappy.Decode(make([]byte, n), coded)
	if err == nil {
		_, err = w.Write(data)
	}
	return err
}
