package control

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/layout"
)

// open opens an object for the peer, and puts the descriptor into the answer.
func (s *session) open(id uint64, o *layout.Object, a *answer) control.Object {
	out := control.Object{ID: id, FD: -1, Errno: syscall.EOPNOTSUPP}
	if o == nil { // its number is forgotten by now
		out.Errno = syscall.ESTALE
		return out
	}
	origin := storage.Of(o).Local
	if origin == nil {
		return out
	}
	fd, err := origin.OpenForOthers(o)
	if err == nil {
		fd, err = storage.StillGrants(s.peer.uid, o, fd)
	}
	var st unix.Stat_t
	if err == nil {
		if err = unix.Fstat(fd, &st); err != nil {
			_ = unix.Close(fd) // opened for reading: nothing is lost
		}
	}
	if errors.Is(err, cache.ErrChanged) {
		s.server.changes.suspect(o)
	}
	switch {
	case errors.Is(err, cache.ErrOtherMount):
		out.Errno = syscall.EXDEV
	case err != nil:
		out.Errno = s.server.opt.Mount.Errno(err)
	default:
		out = control.Object{ID: id, Size: st.Size, Dev: st.Dev, Ino: st.Ino, ModTime: st.Mtim.Nano(), FD: int32(len(a.fds))}
		a.fds = append(a.fds, fd)
	}
	return out
}

// extentsPerFile bounds the extents that LOOKUP gives of one file. Readers ask for the others by ioctl.
const extentsPerFile = 16

// lookup answers for as many of the paths as fit into one message.
func (s *session) lookup(ctx context.Context, id uint32, payload []byte, a *answer) error {
	q, err := control.ParseLookup(payload)
	if err != nil {
		return err
	}
	if err := s.roomFor(id, 0); err != nil {
		return err
	}
	s.peer.process.forget()
	var files control.Files
	var wanted []uint64 // objects that come with a descriptor in this message
	for _, path := range q.Paths {
		file, extents := s.file(ctx, path)
		var fresh []uint64
		for _, e := range extents {
			if q.Flags&control.LookupFDs != 0 && e.Object != 0 && s.leased(e.Object) == nil && !slices.Contains(wanted, e.Object) && !slices.Contains(fresh, e.Object) {
				fresh = append(fresh, e.Object)
			}
		}
		full := !files.Room(len(extents), len(wanted)+len(fresh)) || len(wanted)+len(fresh) > control.MaxObjects
		if limit := s.roomFor(id, len(wanted)+len(fresh)); limit != nil && len(fresh) > 0 {
			if len(files.Files) == 0 {
				return limit
			}
			full = true
		}
		if full {
			break
		}
		file.First, file.Extents = uint32(len(files.Extents)), uint32(len(extents))
		files.Files, files.Extents = append(files.Files, file), append(files.Extents, extents...)
		wanted = append(wanted, fresh...)
	}
	if len(wanted) > 0 {
		if a.done, err = s.server.answering.wait(ctx, s.peer.uid); err != nil {
			return err
		}
	}
	of := make([]*layout.Object, len(wanted))
	for i, o := range wanted {
		of[i] = s.server.objects.object(o)
		files.Objects = append(files.Objects, s.open(o, of[i], a))
	}
	s.expectAck(id, files.Objects, of)
	a.header.Type, a.payload = control.TypeFiles, files.AppendTo
	return nil
}

// file describes the file at a path, if the peer may read it.
func (s *session) file(ctx context.Context, path string) (control.File, []control.Extent) {
	f, number, err := s.server.opt.Mount.Find(ctx, path, s.peer)
	var body *layout.Body
	if err == nil {
		body, err = f.Body(ctx)
	}
	if err != nil {
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			errno = s.server.opt.Mount.Fail(f, path, "look up for a reader", err)
		}
		return control.File{Errno: errno}, nil
	}
	i := s.server.info(f, number, body)
	file := control.File{
		Size: i.Size, Generation: i.Generation, Tokens: i.Tokens, Alignment: i.Alignment, Runs: i.Runs, Flags: i.Flags,
		DType: i.DType, ElementSize: i.ElementSize,
	}
	var extents []control.Extent
	for r := range storage.LocalRuns(body.RunsWithin(0, body.Size())) {
		if len(extents) == extentsPerFile {
			file.Flags |= control.InfoMore
			break
		}
		extents = append(extents, s.server.extentOf(r))
	}
	return file, extents
}
