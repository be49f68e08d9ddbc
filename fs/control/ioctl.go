package control

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/layout"
)

// Ioctl answers INFO, EXTENTS and PREFETCH on an open file. It works in memory only: the kernel lets nobody interrupt a
// process that waits for an ioctl.
func (s *Server) Ioctl(ctx context.Context, f File, number int, in *fuse.IoctlIn, inbuf []byte, out *fuse.IoctlOut, outbuf []byte) fuse.Status {
	op, room, ok := control.ParseCommand(in.Cmd)
	if !ok {
		return fuse.Status(syscall.ENOTTY)
	}
	clear(outbuf) // it may have been another reply's
	body, err := f.Body(ctx)
	if err != nil { // an open file has its body: a view is built when it is looked up
		return fuse.Status(s.opt.Mount.Fail(f, "", "give the extents of", err))
	}
	switch op {
	case control.OpInfo:
		if err = control.ParseInfoRequest(inbuf); err == nil {
			info := s.info(f, number, body)
			info.AppendTo(outbuf[:0])
		}
	case control.OpExtents:
		var q control.ExtentsRequest
		if q, err = control.ParseExtentsRequest(inbuf); err == nil {
			err = s.extents(body, q, room, in.Uid, outbuf)
		}
	case control.OpPrefetch:
		var ranges []control.Range
		if ranges, err = control.ParsePrefetch(inbuf); err == nil && !s.prefetch.add(planner{in.Uid, number}, announcement{{body, ranges}}) {
			return fuse.EAGAIN
		}
	}
	if err != nil {
		// With the refusal comes the version that this daemon speaks, so that a reader can tell why.
		if len(outbuf) >= 4 {
			outbuf[0] = control.Version
		}
		out.Result = -int32(syscall.EINVAL)
	}
	return fuse.OK
}

// extents answers EXTENTS with as many extents as there is room for. An answer with a ticket ends before the object
// that would be one too many for it.
func (s *Server) extents(body *layout.Body, q control.ExtentsRequest, room int, uid uint32, outbuf []byte) error {
	begin := max(q.Offset, q.Cursor)
	length := q.Length - (begin - q.Offset)
	b := control.Batch{Offset: q.Offset, Length: q.Length, Cursor: begin, Epoch: s.Epoch, Total: body.CountWithin(begin, length)}
	switch {
	case q.Flags&control.ExtentsCount != 0:
		room = 0
	case room == 0:
		return syscall.EINVAL
	}
	objects := map[uint64]*layout.Object{}
	all := true
	for r := range storage.LocalRuns(body.RunsWithin(begin, length)) {
		if len(b.Extents) == room {
			all = false
			break
		}
		e := s.extentOf(r)
		if e.Object != 0 && objects[e.Object] == nil {
			if q.Flags&control.ExtentsTicket != 0 && len(objects) == control.MaxObjects {
				all = false
				break
			}
			objects[e.Object] = r.Object
		}
		b.Extents = append(b.Extents, e)
		b.Cursor = e.End()
	}
	if all {
		b.Flags |= control.ExtentsLast
		b.Total = int64(len(b.Extents))
	} else { // segments cut a body into more extents than it has runs: only a walk over all would count them
		b.Total = max(b.Total, int64(len(b.Extents))+1)
	}
	if q.Flags&control.ExtentsTicket != 0 && len(objects) > 0 {
		b.Flags |= control.ExtentsTicket
		b.Ticket = s.tickets.issue(uid, objects)
	}
	b.AppendTo(outbuf[:0])
	return nil
}
