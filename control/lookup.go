package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sort"
	"syscall"
)

// ErrInMount says that bytes exist only in the mount: read them from the file there.
var ErrInMount = errors.New("these bytes exist only in the mount: read them from the file itself")

// Found is the answer of [Client.Lookup] for one path: where the bytes of a file lie, with the backing files open.
type Found struct {
	Path string
	FileInfo
	Extents []Extent
	Err     error // why the file cannot be had, as open would say; the rest is zero then
	client  *Client
}

// keepShared is how many backing files a lookup keeps open for the next ones. An archive of many members is one.
const keepShared = 256

// Lookup asks for many files in few messages, by paths relative to the root of the mount, and yields them in their
// order. The daemon checks the permissions of the user who connected, as open would. A file of more extents than one
// message tells has [InfoMore] set: open it, and use [Batches].
//
// A Found can be read until the loop goes on or ends. Lookups of one client take turns: one within the loop of another
// would wait for itself. An error ends the loop. Backing files that the client holds by [Client.Redeem] do not come
// again, and cannot be read here (ErrStale). Release them first, or redeem with another client.
func (c *Client) Lookup(ctx context.Context, paths []string) iter.Seq2[*Found, error] {
	return func(yield func(*Found, error) bool) {
		select {
		case c.lookups <- struct{}{}:
			defer func() { <-c.lookups }()
		case <-ctx.Done():
			yield(nil, ctx.Err())
			return
		}
		for len(paths) > 0 {
			answered, err := c.lookup(ctx, paths[:min(len(paths), askAtOnce)])
			if err == nil && len(answered) == 0 {
				err = errMalformed
			}
			if err != nil {
				yield(nil, fmt.Errorf("look up %d files: %w", len(paths), err))
				return
			}
			for i := range answered {
				if !yield(&answered[i], nil) {
					return
				}
			}
			paths = paths[len(answered):]
			if err := c.trim(ctx, answered); err != nil {
				yield(nil, fmt.Errorf("look up files: %w", err))
				return
			}
		}
	}
}

// askAtOnce is how many paths go into one message: an answer tells of about as many that share their backing files.
const askAtOnce = 512

func (c *Client) lookup(ctx context.Context, paths []string) ([]Found, error) {
	unlock, err := c.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	q := Lookup{LookupFDs, fitting(paths)}
	a, err := c.askLocked(ctx, TypeLookup, TypeFiles, q.AppendTo)
	if err != nil {
		return nil, err
	}
	m, err := ParseFiles(a.payload)
	if err == nil && len(m.Files) > len(q.Paths) {
		err = errMalformed
	}
	backings, err := c.accept(ctx, a, m.Objects, err)
	if err != nil {
		return nil, err
	}
	for i := range backings {
		if old := c.shared[backings[i].Object]; old != nil {
			old.close()
		}
		c.shared[backings[i].Object] = &backings[i]
	}
	found := make([]Found, len(m.Files))
	for i, f := range m.Files {
		found[i] = Found{Path: q.Paths[i], client: c, Extents: m.Extents[f.First : f.First+f.Extents : f.First+f.Extents], FileInfo: FileInfo{
			Flags: f.Flags, Size: f.Size, DType: f.DType, ElementSize: f.ElementSize, Tokens: f.Tokens, Alignment: f.Alignment,
			Runs: f.Runs, Generation: f.Generation, Epoch: c.welcome.Epoch,
		}}
		if f.Errno != 0 {
			found[i].Err = fmt.Errorf("look up %s: %w", q.Paths[i], f.Errno)
		}
	}
	return found, nil
}

// fitting returns as many of the paths as go into one frame, and at least one.
func fitting(paths []string) []string {
	size := 8
	for i, p := range paths {
		if size += 4 + len(p); size > MaxPayload && i > 0 {
			return paths[:i]
		}
	}
	return paths
}

// Take hands over the backing file of an object that the file has bytes of. It is nil where it was handed over before and
// not released. The caller closes it, and then says so with [Client.Release].
func (f *Found) Take(object uint64) *Backing {
	b := f.client.shared[object]
	delete(f.client.shared, object)
	return b
}

// trim closes backing files when there are many, but not those that the last files lie in, if these alone are few.
func (c *Client) trim(ctx context.Context, last []Found) error {
	if len(c.shared) <= keepShared {
		return nil
	}
	keep := map[uint64]bool{}
	for i := range last {
		for _, e := range last[i].Extents {
			keep[e.Object] = true
		}
	}
	var done []uint64
	for id, b := range c.shared {
		if keep[id] && len(keep) <= keepShared {
			continue
		}
		if b.File != nil {
			done = append(done, id)
		}
		b.close()
		delete(c.shared, id)
	}
	return c.Release(ctx, done...)
}

func (b *Backing) close() {
	if b.File != nil {
		_ = b.File.Close() // opened for reading: nothing is lost
	}
}

// ReadAt reads from the backing files, under the rules of [io.ReaderAt]. Bytes of no backing file are [ErrInMount].
func (f *Found) ReadAt(p []byte, off int64) (int, error) {
	switch {
	case f.Err != nil:
		return 0, f.Err
	case off < 0:
		return 0, syscall.EINVAL
	}
	n := 0
	i := sort.Search(len(f.Extents), func(i int) bool { return f.Extents[i].End() > off })
	for ; i < len(f.Extents) && n < len(p); i++ {
		e := &f.Extents[i]
		b := f.client.shared[e.Object]
		switch {
		case e.Flags != 0:
			return n, ErrInMount
		case b == nil:
			return n, fmt.Errorf("read %s: %w", f.Path, ErrStale)
		case b.Err != nil:
			return n, b.Err
		}
		for at := off + int64(n); at < e.End() && n < len(p); at = off + int64(n) {
			k, skip := (at-e.Logical)/e.Length, (at-e.Logical)%e.Length
			want := min(int64(len(p)-n), e.Length-skip)
			m, err := b.File.ReadAt(p[n:n+int(want)], e.Offset+k*e.Stride+skip)
			n += m
			if int64(m) < want {
				return n, fmt.Errorf("read %s: the backing file ends early: %w", f.Path, err)
			}
		}
	}
	if n < len(p) {
		if f.Flags&InfoMore != 0 && off+int64(n) < f.Size {
			return n, fmt.Errorf("read %s: more extents than a lookup tells: open it", f.Path)
		}
		return n, io.EOF
	}
	return n, nil
}
