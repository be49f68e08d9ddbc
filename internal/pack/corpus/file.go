package corpus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// File is one file, as it was listed.
type File struct {
	Name    string // a path, or an address
	Rel     string // below the source
	Size    int64  // as it is stored
	Version string // another one when the content is

	named  bool // a user named it, and not only a directory or a glob that holds it
	beside bool // in a directory with Parquet or Arrow files
	object *layout.Object
	path   string // of a local one
}

// content is an open file.
type content interface {
	io.ReaderAt
	check() error // says whether the file is no longer the one that was listed
	close() error
}

// versionOf is the version of a local file, which changes when somebody writes it.
func versionOf(info os.FileInfo) string {
	return fmt.Sprintf("%d-%s", info.Size(), info.ModTime().UTC().Format(time.RFC3339Nano))
}

func (f *File) open(ctx context.Context) (content, error) {
	if f.object != nil {
		return &remoteContent{ctx: ctx, object: f.object}, nil
	}
	file, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	c := &localContent{file, f.Version}
	if err := c.check(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// localContent is a file of this machine.
type localContent struct {
	*os.File
	version string
}

func (c *localContent) check() error {
	info, err := c.Stat()
	if err != nil {
		return err
	}
	if versionOf(info) != c.version {
		return errors.New("the file has changed since it was listed: pack it when nobody writes it")
	}
	return nil
}

func (c *localContent) close() error { return c.Close() }

// remoteContent is an object of an origin, which compares versions with every answer. It reads ahead of a reader in
// order.
type remoteContent struct {
	ctx    context.Context
	object *layout.Object
	at     int64 // where ahead begins
	ahead  []byte
}

// remoteRead is how much one request asks for, bytes.
const remoteRead = 8 << 20

// ReadAt implements [io.ReaderAt], for one goroutine.
func (c *remoteContent) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := off + int64(done)
		if at >= c.object.Size {
			return done, io.EOF
		}
		if at < c.at || at >= c.at+int64(len(c.ahead)) {
			n := min(remoteRead, c.object.Size-at)
			if cap(c.ahead) < int(n) {
				c.ahead = make([]byte, n)
			}
			c.ahead, c.at = c.ahead[:n], at
			m, err := c.object.ReadAt(c.ctx, c.ahead, at)
			c.ahead = c.ahead[:m]
			if m == 0 {
				return done, err
			}
		}
		done += copy(p[done:], c.ahead[at-c.at:])
	}
	return done, nil
}

func (c *remoteContent) check() error { return nil }
func (c *remoteContent) close() error { return nil }
