package fs

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/layout"
)

// Read serves files that the kernel cannot read itself. The reply has every byte that was asked for up to the end of
// the file, or it is an error.
func (m *Mount) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	ctx := newRequest(cancel, &in.InHeader)
	defer ctx.end()
	n, status := m.node(ctx, in.NodeId)
	switch {
	case n == nil:
		return nil, status
	case n.kind == kindText:
		return m.texts.readFor(m.handles, n, in)
	case n.kind == kindDenied: // a frozen mount hears of it here
		return nil, m.fail(n, "read", syscall.EACCES)
	case n.kind != kindObject && n.kind != kindView:
		return nil, fuse.EBADF
	}
	body, err := n.Body(ctx)
	if err != nil {
		return nil, m.fail(n, "read", err)
	}
	off := int64(in.Offset)
	size := max(0, min(int64(len(buf)), int64(in.Size), body.Size()-off))
	m.counters.reads.Add(1)
	if res, err := m.pipes.load(ctx, body, off, size); res != nil || err != nil {
		if err != nil {
			return nil, m.fail(n, "read", err)
		}
		m.counters.splicedBytes.Add(size)
		return res, fuse.OK
	}
	if m.opt.Remote.Cache != nil {
		storage.Touched(body, off, size)
	}
	if _, err := readBody(ctx, body, buf[:size], off); err != nil {
		return nil, m.fail(n, "read", err)
	}
	m.counters.copiedBytes.Add(size)
	return copied(buf[:size]), fuse.OK
}

// copied is a reply of bytes in memory. go-fuse writes such a vector at once. fuse.ReadResultData costs four more system
// calls, and a line in the log where the bytes are too many for a pipe.
func copied(p []byte) fuse.ReadResult { return fuse.ReadResultVector([][]byte{p}) }

func readBody(ctx context.Context, body *layout.Body, p []byte, off int64) (int, error) {
	n, err := body.ReadAt(ctx, p, off)
	if n == len(p) && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}
