package hforigin

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/layout"
)

// blobs are the files of a repository in the local cache of the Hub's own tools, each named by its hash. One is read in place of the Hub's once all its
// bytes have that hash. Until then the Hub is asked.
type blobs struct {
	dir  string
	ctx  context.Context // of those who verify
	stop context.CancelFunc
	work sync.WaitGroup
	turn sync.Mutex // of one who verifies

	mu sync.Mutex // guards of, and the begin of work
	of map[string]*blob
}

// blob is a file, with its state when it had the hash; nil where it has not, or nobody knows yet.
type blob struct {
	name     string
	verified atomic.Pointer[os.FileInfo]
}

func newBlobs(dir string) *blobs {
	b := &blobs{dir: filepath.Join(dir, "blobs"), of: map[string]*blob{}}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

func (b *blobs) close() {
	b.mu.Lock()
	b.stop() // nobody begins to verify then
	b.mu.Unlock()
	b.work.Wait()
}

// get answers with a part of a blob, nil where there is none that is known to be good.
func (b *blobs) get(obj *layout.Object, off, n int64) *fetch.Answer {
	known := b.find(obj)
	if known == nil {
		return nil
	}
	then := known.verified.Load()
	if then == nil {
		return nil
	}
	f, now, err := known.open()
	if err != nil {
		return nil
	}
	if !same(now, *then) || off+n > obj.Size {
		_ = f.Close() // opened for reading
		return nil
	}
	header := http.Header{"Content-Range": {fmt.Sprintf("bytes %d-%d/%d", off, off+n-1, obj.Size)}}
	body := struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, off, n), f}
	return &fetch.Answer{Version: obj.Version, Response: &http.Response{StatusCode: http.StatusPartialContent, Header: header, ContentLength: n, Body: body}}
}

// find looks for the blob of an object, and begins to verify one that it finds.
func (b *blobs) find(obj *layout.Object) *blob {
	b.mu.Lock()
	defer b.mu.Unlock()
	found, known := b.of[obj.Version]
	if known || b.ctx.Err() != nil {
		return found
	}
	_, hash, _ := strings.Cut(obj.Version, ":")
	one := &blob{name: filepath.Join(b.dir, hash)}
	if info, err := os.Stat(one.name); layout.VersionHash(obj.Version, obj.Size) != nil && err == nil && info.Mode().IsRegular() && info.Size() == obj.Size {
		found = one
		b.work.Go(func() { // ends with close
			b.turn.Lock()
			defer b.turn.Unlock()
			one.verify(b.ctx, obj)
		})
	}
	b.of[obj.Version] = found
	return found
}

func (b *blob) open() (*os.File, os.FileInfo, error) {
	f, err := os.OpenFile(b.name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO in its place would wait for a writer
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrInvalid
	}
	if err != nil {
		_ = f.Close() // opened for reading
	}
	return f, info, err
}

// same tells whether nobody has written to a file between two looks.
func same(a, b os.FileInfo) bool {
	x, y := a.Sys().(*syscall.Stat_t), b.Sys().(*syscall.Stat_t)
	return x.Dev == y.Dev && x.Ino == y.Ino && x.Size == y.Size && x.Mtim == y.Mtim && x.Ctim == y.Ctim
}

func (b *blob) verify(ctx context.Context, obj *layout.Object) {
	f, before, err := b.open()
	if err != nil {
		return // the Hub has it
	}
	defer func() { _ = f.Close() }() // opened for reading
	h, p := layout.VersionHash(obj.Version, obj.Size), make([]byte, 1<<20)
	for ctx.Err() == nil && err == nil {
		var n int
		n, err = f.Read(p)
		h.Write(p[:n]) // never fails
	}
	if after, statErr := f.Stat(); err == io.EOF && statErr == nil && same(before, after) && layout.CheckHash(obj.Version, h) == nil {
		b.verified.Store(&before)
	}
}
