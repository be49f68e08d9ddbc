package drain

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/uncached"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// body is the body of one request: a stretch of a file that begins at a chunk. Each chunk is read as a whole and compared with its sum
// before a byte of it goes out, so a request holds one chunk in memory, however long it is.
type body struct {
	ctx     context.Context
	reader  *reader
	file    *os.File
	of      *checkpoint.File
	at, end int64
	buf     []byte // of a chunk
	rest    []byte // of buf, that has to go out
	pace    *pace
	hash    hash.Hash // of all bytes; nil: nobody asks
	alive   func()
	err     error // of the local side: no other attempt mends it

	mu    sync.Mutex // is held while it is read, and guards all above
	ended bool
}

// stop ends the body. net/http may still read it after a request that was cancelled has returned; from now on it gets nothing, and
// the buffer and the file are the caller's again.
func (b *body) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
}

// paceAt is how many bytes go out at most between two looks at the rate, so that a slow one leaves no connection idle for long.
const paceAt = 256 << 10

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, os.ErrClosed
	}
	b.alive()
	if len(b.rest) == 0 {
		if b.at == b.end {
			return 0, io.EOF
		}
		if err := context.Cause(b.ctx); err != nil { // the request may go on a little longer, once all is sent
			return 0, err
		}
		if err := b.next(); err != nil {
			return 0, err
		}
	}
	n := min(len(p), len(b.rest), paceAt)
	if err := b.pace.take(b.ctx, int64(n), b.alive); err != nil {
		return 0, err
	}
	copy(p[:n], b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// next reads a chunk.
func (b *body) next() error {
	chunk := b.buf[:min(checkpoint.Chunk, b.end-b.at)]
	hole, err := checkpoint.InHole(b.file, b.at, int64(len(chunk)))
	switch {
	case hole:
		clear(chunk)
	case err == nil:
		err = b.reader.readAt(b.file, chunk, b.at)
	}
	if err != nil {
		b.err = fmt.Errorf("read %q at %d: %w", b.of.Name, b.at, err)
		return b.err
	}
	want := b.of.Sums[b.at/checkpoint.Chunk]
	if sum := crc32.Checksum(chunk, crc32.MakeTable(crc32.Castagnoli)); sum != want {
		b.err = fmt.Errorf("file %q, %d bytes from %d on: crc32c is %08x, %08x was published: %w", b.of.Name, len(chunk), b.at, sum, want, checkpoint.ErrDamaged)
		return b.err
	}
	if b.hash != nil {
		_, _ = b.hash.Write(chunk) // a hash takes all
	}
	b.at, b.rest = b.at+int64(len(chunk)), chunk
	return nil
}

// reader reads files whose pages nobody needs again soon.
type reader struct{ uncached.Once }

// readAt fills p.
func (r *reader) readAt(f *os.File, p []byte, at int64) error {
	for len(p) > 0 {
		n, err := r.Pread(int(f.Fd()), p, at)
		switch {
		case n > 0:
			p, at = p[n:], at+int64(n)
		case errors.Is(err, unix.EINTR):
		case err == nil:
			return fmt.Errorf("the file ends at %d: %w", at, checkpoint.ErrDamaged)
		default:
			return err
		}
	}
	return nil
}
