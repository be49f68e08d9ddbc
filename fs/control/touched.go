package control

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/layout"
)

// recorder is a cache that records reads, and brings segments that others have read.
type recorder interface {
	Touched() *store.Record
	Record() (r *store.Record, end func())
	Bring(reader any, runs []layout.Run) bool
	Limit() int64 // bytes
}

// recordsAtOnce bounds the records that connections have begun, of all users together.
const recordsAtOnce = 16

func (s *session) recorder() (recorder, error) {
	if r, ok := s.server.opt.Cache.(recorder); ok {
		return r, nil
	}
	return nil, &control.Refusal{Errno: syscall.EOPNOTSUPP, Text: "this mount has no cache, so it keeps no record and brings nothing: mount a remote source with --cache-dir"}
}

// touches answers RECORD: as many touches as fit, of files that the peer may read.
func (s *session) touches(ctx context.Context, payload []byte, a *answer) error {
	q, err := control.ParseAskRecord(payload)
	if err != nil {
		return err
	}
	cache, err := s.recorder()
	if err != nil {
		return err
	}
	record := cache.Touched()
	if q.Flags&control.RecordBegin != 0 {
		if err := s.beginRecord(cache); err != nil {
			return err
		}
	}
	if q.Flags != 0 {
		if record = s.record; record == nil {
			return &control.Refusal{Errno: syscall.EINVAL, Text: "this connection has begun no record"}
		}
	}
	all, full := record.Touches(0)
	part := control.RecordPart{Since: record.Since, Next: min(q.From, uint32(len(all))), Total: uint32(len(all)), Full: full}
	s.peer.process.forget()
	known := map[*layout.Object]int{} // place in the message, -1 for one that the peer may not read
	for _, t := range all[part.Next:] {
		if !s.addTouch(ctx, &part, known, t) {
			break
		}
		part.Next++
	}
	a.header.Type, a.payload = control.TypeTouches, part.AppendTo
	return nil
}

// addTouch adds a touch to a message, if the peer may read the file, and tells whether there was room.
func (s *session) addTouch(ctx context.Context, part *control.RecordPart, known map[*layout.Object]int, t store.Touch) bool {
	o := control.Touched{Name: t.Object.Name, Version: t.Object.Version, Size: t.Object.Size}
	i, seen := known[t.Object]
	if !seen {
		i = len(part.Objects)
		if found, _ := s.objectAt(ctx, o.Name); found != t.Object {
			i = -1
		}
	}
	if i >= 0 && !part.Room(&o, !seen) {
		if len(part.Touches.Touches) > 0 {
			return false
		}
		i = -1 // no frame has room for such a name
	}
	known[t.Object] = i
	if i < 0 {
		return true
	}
	if !seen {
		part.Objects = append(part.Objects, o)
	}
	part.Touches.Touches = append(part.Touches.Touches, control.Touch{Object: uint32(i), Range: control.Range{Offset: t.Offset, Length: t.Length}})
	return true
}

// beginRecord begins a record of the connection, in place of the one that it has.
func (s *session) beginRecord(cache recorder) error {
	s.endRecord()
	if !s.server.records.Reserve(s.peer.uid, 1) {
		return &control.Refusal{Errno: syscall.EAGAIN, Text: fmt.Sprintf("too many connections have records of their own, of %d in all: end one", recordsAtOnce)}
	}
	var end func()
	s.record, end = cache.Record()
	s.recordEnd = func() {
		end()
		s.server.records.Book(s.peer.uid, -1)
	}
	return nil
}

func (s *session) endRecord() {
	if s.recordEnd != nil {
		s.recordEnd()
		s.record, s.recordEnd = nil, nil
	}
}

// objectAt finds the object of a file that the peer may read.
func (s *session) objectAt(ctx context.Context, name string) (*layout.Object, syscall.Errno) {
	f, _, err := s.server.opt.Mount.Find(ctx, name, s.peer)
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return nil, errno
	case err != nil:
		return nil, syscall.EIO
	case f.Object() == nil:
		return nil, syscall.EOPNOTSUPP
	}
	return f.Object(), 0
}

// bring answers BRING.
func (s *session) bring(ctx context.Context, payload []byte, a *answer) error {
	q, err := control.ParseBring(payload)
	if err != nil {
		return err
	}
	cache, err := s.recorder()
	if err != nil {
		return err
	}
	s.peer.process.forget()
	said := control.Brought{Limit: cache.Limit(), Errnos: make([]syscall.Errno, len(q.Objects))}
	objects := make([]*layout.Object, len(q.Objects))
	for i, want := range q.Objects {
		o, errno := s.objectAt(ctx, want.Name)
		if errno == 0 {
			switch {
			case storage.Of(o).Segmented == nil:
				errno = syscall.EOPNOTSUPP
			case o.Version != want.Version || o.Size != want.Size:
				errno = syscall.ESTALE
			}
		}
		objects[i], said.Errnos[i] = o, errno
	}
	var runs []layout.Run
	for _, t := range q.Touches.Touches {
		if said.Errnos[t.Object] != 0 {
			continue
		}
		o := objects[t.Object]
		here, settling := storage.Of(o).Segmented.Here(o, t.Offset, t.Length) // as was looked
		said.Bytes, said.Here, said.Settling = said.Bytes+t.Length, said.Here+here, said.Settling+settling
		if here < t.Length {
			runs = append(runs, layout.Run{Object: o, Offset: t.Offset, Length: t.Length, Stride: t.Length, Count: 1})
		}
	}
	if !q.Ask && len(runs) > 0 && !cache.Bring(planner{s.peer.uid, s}, runs) {
		return &control.Refusal{Errno: syscall.EAGAIN, Text: "too much is planned already: wait until it has come, or connect again"}
	}
	a.header.Type, a.payload = control.TypeBrought, said.AppendTo
	return nil
}
