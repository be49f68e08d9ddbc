package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/volume/kv"
)

// draft answers a frame about a draft, in a checkpoint volume.
func (s *session) draft(ctx context.Context, t control.FrameType, payload []byte, a *answer) (err error) {
	if s.server.opt.Drafts == nil {
		return &control.Refusal{Errno: syscall.EROFS, Text: "this mount shows a dataset, and has no drafts: write checkpoints to a volume (hbmfs checkpoint mount)"}
	}
	if s.drafts == nil {
		s.drafts = s.server.opt.Drafts.Session(s.peer.user(), s.peer.pidfd())
	}
	if t == control.TypeBegin || t == control.TypeAdd { // their answers have descriptors
		if a.done, err = s.server.answering.wait(ctx, s.peer.uid); err != nil {
			return err
		}
	}
	said, err := s.drafts.Handle(ctx, t, payload)
	if err != nil {
		return err
	}
	a.header.Type, a.payload = said.Type, said.Payload
	a.fds, err = detach(said.Files)
	return err
}

// block answers a frame about blocks, in a KV volume.
func (s *session) block(ctx context.Context, t control.FrameType, payload []byte, a *answer) (err error) {
	if s.server.opt.KV == nil {
		return &control.Refusal{Errno: syscall.EROFS, Text: "this mount keeps no blocks of a KV cache: mount a volume for them (hbmfs kv mount)"}
	}
	if s.kv == nil {
		s.kv = s.server.opt.KV.Session(s.peer.user(), s.peer.pidfd())
	}
	if t == control.TypeKVOpen { // its answer has descriptors
		if err := s.mayChange(payload); err != nil {
			return err
		}
		if a.done, err = s.server.answering.wait(ctx, s.peer.uid); err != nil {
			return err
		}
	}
	said, err := s.kv.Handle(ctx, t, payload)
	if err != nil {
		return err
	}
	a.header.Type, a.payload = said.Type, said.Payload
	a.fds, err = detach(said.Files)
	return err
}

// mayChange refuses to open a namespace for writing, or to make one, where the peer's process may not change the volume.
func (s *session) mayChange(payload []byte) error {
	opt := &s.server.opt
	m, err := control.ParseKVOpen(payload)
	if err != nil || opt.MayWrite == nil {
		return nil //nolint:nilerr // the session reports the error
	}
	isNew := !slices.ContainsFunc(opt.KV.Entries(), func(e kv.Entry) bool { return e.Name == m.Name })
	if m.Flags&control.KVWrite == 0 && (m.Flags&control.KVCreate == 0 || !isNew) {
		return nil
	}
	if err := opt.MayWrite(s.peer.pid); err != nil {
		errno := syscall.EACCES
		_ = errors.As(err, &errno)
		return &control.Refusal{Errno: errno, Text: err.Error()}
	}
	if !s.peer.lives() { // another process may have got its number meanwhile
		return &control.Refusal{Errno: syscall.ESRCH, Text: fmt.Sprintf("process %d, which connected, has ended", s.peer.pid)}
	}
	return nil
}

// detach gives descriptors of files, and closes the files.
func detach(files []*os.File) (fds []int, err error) {
	for _, f := range files {
		fd, dupErr := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err = errors.Join(err, dupErr, f.Close()); dupErr == nil {
			fds = append(fds, fd)
		}
	}
	if err != nil {
		control.CloseAll(fds)
		return nil, err
	}
	return fds, nil
}
