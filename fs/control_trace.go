package fs

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// traced handles a request of a reader as a trace of its own: the connection lasts too long to be one.
func (s *session) traced(ctx context.Context, name string, a *answer, handle func(context.Context) error) error {
	ctx, span := s.mount.opt.Trace.Root(ctx, name)
	err := handle(ctx)
	class := ""
	var refusal *control.Refusal
	switch {
	case errors.As(err, &refusal):
		class = unix.ErrnoName(refusal.Errno)
	case err != nil:
		class = "failed"
	}
	span.Int("descriptors", int64(len(a.fds))).End(class)
	return err
}
