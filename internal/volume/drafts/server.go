package drafts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

// Limits, of all users. A user gets half of each, and less where others have drafts.
const (
	mostDrafts    = 256
	mostUnnamed   = 1024    // files: beyond that, and where nobody keeps descriptors, files have their names at once
	mostFiles     = 1 << 17 // in drafts
	mostChunks    = 1 << 26 // of these files: their sums are kept until they are published
	mostPublished = 1 << 10 // that are remembered, for a PUBLISH that comes again
	perDraft      = 12      // descriptors of a draft
)

// Options configure a Server.
type Options struct {
	Home      *checkpoint.Home
	Log       *slog.Logger
	Life      *handover.Life      // of the daemon; nil where nobody holds the mount
	Published func(name string)   // is called once a checkpoint is there; nil: nobody wants to know
	MayWrite  func(pid int) error // of a client that wants to make files; nil: all may
}

// Server has the drafts of one volume.
type Server struct {
	opt     Options
	dir     *os.File // the volume's directory
	drafts  *shares.Shares
	unnamed *shares.Shares
	files   *shares.Shares
	chunks  *shares.Shares
	ended   sync.WaitGroup // of watchers

	mu        sync.Mutex // guards the fields below
	all       map[key]*clientDraft
	published []key // the latest last
	closed    bool
}

// key names a draft. Numbers are the clients' choice, so one user's are none of another's.
type key struct {
	uid uint32
	id  control.DraftID
}

// New makes a Server. Where another daemon served before, [Server.Adopt] goes on with its drafts.
func New(opt Options) (*Server, error) {
	dir, err := opt.Home.Directory()
	if err != nil {
		return nil, fmt.Errorf("open the checkpoint directory: %w", err)
	}
	drafts, unnamed := limits(opt.Life)
	s := &Server{
		opt: opt, dir: dir, all: map[key]*clientDraft{},
		drafts: shares.New(drafts, drafts/2, 1), unnamed: shares.New(unnamed, unnamed/2, 0), files: shares.New(mostFiles, mostFiles/2, 64),
		chunks: shares.New(mostChunks, mostChunks/2, 0),
	}
	return s, nil
}

// limits bound drafts, and files without names, by the descriptors of this process, and of systemd's store where that keeps them.
func limits(life *handover.Life) (drafts, unnamed int64) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024 // the default of Linux
	}
	files := int64(min(limit.Cur, 1<<20))
	drafts, unnamed = min(mostDrafts, files/8/perDraft), min(mostUnnamed, files/8)
	if room, bounded := life.Room(); bounded {
		drafts, unnamed = min(drafts, room/8), min(unnamed, room/4)
	}
	return max(drafts, 2), unnamed
}

// Info is a draft as the status shows it.
type Info struct {
	Name   string
	UID    uint32
	PID    int // of its writer, 0 where it is not known
	Began  time.Time
	Files  int
	Sealed int
	Bytes  int64
}

// Drafts lists all drafts, the oldest first.
func (s *Server) Drafts() []Info {
	var list []Info
	for _, d := range s.list() {
		list = append(list, d.info())
	}
	slices.SortFunc(list, func(a, b Info) int { return a.Began.Compare(b.Began) })
	return list
}

func (s *Server) list() []*clientDraft {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*clientDraft
	for _, d := range s.all {
		list = append(list, d)
	}
	return list
}

// Has tells whether a draft of this name is written past FUSE.
func (s *Server) Has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.all {
		if d.name == name {
			return true
		}
	}
	return false
}

// Close drops all drafts. A daemon that another one replaces does not come here: it is killed.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, d := range s.list() {
		s.end(d, "the mount has ended")
	}
	s.ended.Wait()
	return s.dir.Close()
}

// find gives a user's draft.
func (s *Server) find(k key) *clientDraft {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[k]
}

// named gives a user's draft of a name.
func (s *Server) named(uid uint32, name string) *clientDraft {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.all {
		if d.user.UID == uid && d.name == name {
			return d
		}
	}
	return nil
}

// wasPublished tells whether a draft became a checkpoint lately.
func (s *Server) wasPublished(k key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.published, k)
}

// remember notes that a draft was published. mu is held.
func (s *Server) remember(k key) {
	if s.published = append(s.published, k); len(s.published) > mostPublished {
		s.published = slices.Delete(s.published, 0, 1)
	}
}

// add puts a draft into the table, unless one of its number is there: then it gives that.
func (s *Server) add(d *clientDraft) (*clientDraft, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch other := s.all[d.key]; {
	case s.closed:
		return nil, refuse(unix.ESHUTDOWN, "the mount ends: begin the checkpoint again when it is back")
	case other != nil:
		return other, nil
	case slices.Contains(s.published, d.key):
		return nil, refuse(unix.EEXIST, "this draft of %q was published before: begin another", d.name)
	case !s.drafts.Reserve(d.user.UID, 1):
		return nil, refuse(unix.EAGAIN, "user %d has too many drafts (%d) at once, or others need the rest of %d: publish or drop some", d.user.UID, s.drafts.Of(d.user.UID), s.drafts.Limit())
	}
	s.all[d.key] = d
	return d, nil
}

// remove takes a draft out of the table.
func (s *Server) remove(d *clientDraft, published bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[d.key] != d {
		return
	}
	delete(s.all, d.key)
	s.drafts.Book(d.user.UID, -1)
	if published {
		s.remember(d.key)
	}
}

// end drops a draft whose writer is gone.
func (s *Server) end(d *clientDraft, why string) {
	dropped, err := d.drop()
	switch {
	case err != nil:
		s.opt.Log.Error("a draft could not be removed: `hbmfs checkpoint clean` does it", "checkpoint", d.name, "error", err)
	case dropped:
		s.opt.Log.Info("a draft is dropped", "checkpoint", d.name, "user", d.user.UID, "reason", why)
	}
}

// mayCreate asks the kernel whether a user may make something in the volume.
func (s *Server) mayCreate(user asuser.User) error {
	return asuser.Do(user, func() error {
		err := unix.Faccessat2(int(s.dir.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
		if err != nil {
			return fmt.Errorf("user %d may not make a checkpoint in %s: %w", user.UID, s.opt.Home.Path(), err)
		}
		return nil
	})
}

func refuse(errno unix.Errno, format string, args ...any) *control.Refusal {
	return &control.Refusal{Errno: errno, Text: fmt.Sprintf(format, args...)}
}

// refusalOf makes an error the client's answer.
func refusalOf(err error) *control.Refusal {
	if known, ok := errors.AsType[*control.Refusal](err); ok {
		return known
	}
	errno := unix.EIO
	for _, k := range []struct {
		is    error
		errno unix.Errno
	}{
		{checkpoint.ErrInvalid, unix.EINVAL}, {checkpoint.ErrExists, unix.EEXIST}, {checkpoint.ErrBusy, unix.EBUSY}, {checkpoint.ErrForeign, unix.EPERM},
		{checkpoint.ErrOpen, unix.EBUSY}, {os.ErrClosed, unix.ENOENT}, {context.Canceled, unix.ECANCELED},
	} {
		if errors.Is(err, k.is) {
			return &control.Refusal{Errno: k.errno, Text: err.Error()}
		}
	}
	_ = errors.As(err, &errno)
	return &control.Refusal{Errno: errno, Text: err.Error()}
}
