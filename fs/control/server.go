package control

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/internal/volume/drafts"
	"github.com/hbmfs/hbmfs/internal/volume/kv"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
	"github.com/hbmfs/hbmfs/layout"
)

// Mount has the calls of the server to the mount.
type Mount interface {
	// Find finds a file that a user may read, by the kernel's rules for a path from the root of the mount. Every directory must let the user
	// pass. Symbolic links are not followed (ELOOP).
	Find(ctx context.Context, path string, by User) (f File, number int, err error)
	// ReadOnly returns nil if descriptors come through a read-only mount, or why they do not.
	ReadOnly() error
	// Errno makes an errno of an error.
	Errno(err error) syscall.Errno
	// Fail is Errno for a file, or for a path that was not found where f is nil. It logs each file and errno once.
	Fail(f File, path, verb string, err error) syscall.Errno
	// Task marks work of a user. Work in which two daemons have crashed is an error.
	Task(uid uint32, kind string, what []byte) (end func(), err error)
}

// File is a file of the mount. Its number is its name for as long as the mount lives.
type File interface {
	// Object is the file of the source, nil for a view.
	Object() *layout.Object
	// View is a view whose body is known, nil for a file of the source.
	View() *layout.File
	// Body says where the bytes of the file lie.
	Body(ctx context.Context) (*layout.Body, error)
	// Generation differs where the content may differ.
	Generation(mount control.Epoch) uint64
}

// User has the rights of a process.
type User interface {
	// May reports whether the user has the rights of one class, 4 to read and 1 to enter, to a file of this owner, group and permissions.
	May(uid, gid uint32, perm, rights uint16) bool
}

// Cache fetches announced ranges of a remote source.
type Cache interface {
	// Plan adds runs to the plan of a reader, any comparable value. It reports whether there was room.
	Plan(reader any, runs []layout.Run) bool
	// EndPlan forgets a reader's plan.
	EndPlan(reader any)
	// Planned gives each reader's plan: the runs that are still to be read. It may be called while others plan, and each calls nothing.
	Planned(each func(reader any, runs []layout.Run))
}

// Options describe a server.
type Options struct {
	Mount   Mount
	Point   string
	Listing *cache.Listing // of the source
	Cache   Cache          // of a remote source; nil for none
	Drafts  *drafts.Server // of a checkpoint volume; nil for a dataset
	KV      *kv.Store      // of a KV volume; nil for a dataset
	Helper  []string       // a command that calls Bind with the argument added to it
	Life    *handover.Life // nil where nobody holds the mount
	Log     *slog.Logger
	Trace   *trace.Tracer

	// MayWrite refuses a process that may not change a KV volume, even if the modes of namespaces allow it. If it is nil, the modes
	// alone decide.
	MayWrite func(pid int) error
}

// Server is the daemon's end of the control channel. The ioctls and the socket share it.
type Server struct {
	Epoch control.Epoch // of the mount: a daemon that goes on with it keeps it, and the numbers of files

	opt      Options
	objects  objectIDs
	tickets  *tickets
	prefetch *prefetcher
	plans    *plansBook // nil where nobody holds the mount, or nothing is planned
	facts    sync.Map   // node number to facts, for bodies that are long to walk
	changes  changes

	binding   atomic.Bool // the daemon is about to make the socket
	bound     atomic.Bool // it is there
	listener  *net.UnixListener
	settled   chan struct{} // closed once the socket is there, or cannot be
	buffers   sync.Pool     // of *[control.MaxFrame]byte
	answering *turns
	lingering chan struct{}
	sessions  *shares.Shares // connections
	leases    *shares.Shares
	names     *shares.Shares // of clients, as the status tells them apart
	records   *shares.Shares // that connections have begun
	refused   atomic.Int64

	mu         sync.Mutex // guards the fields below
	off        string     // why there is no socket
	turnedAway int64
	usages     map[client]*usage
	readers    map[readerID]int // connections of each
}

// New makes the server of a mount. Nobody is served before Serve.
func New(opt Options) *Server {
	sessions, each, answers := descriptorLimits()
	s := &Server{
		opt: opt, tickets: newTickets(), prefetch: newPrefetcher(opt.Cache), answering: newTurns(answers), lingering: make(chan struct{}, lingerAtOnce),
		settled: make(chan struct{}), sessions: shares.New(sessions, each, 0), leases: shares.New(leasesInAll, leasesInAll/2, leasesAtLeast),
		names: shares.New(usageNames, usageNames/2, 0), records: shares.New(recordsAtOnce, recordsAtOnce/2, 0),
		usages: map[client]*usage{}, readers: map[readerID]int{},
	}
	_, _ = rand.Read(s.Epoch[:]) // never fails: crypto/rand ends the program first
	s.objects.init()
	s.objects.numbered = s.changes.number
	return s
}

// Ready is closed once Serve has made the control socket, or has logged why it cannot. Readers need not wait for it.
func (s *Server) Ready() <-chan struct{} { return s.settled }

// Bound reports whether the control socket is there.
func (s *Server) Bound() bool { return s.bound.Load() }

// Serve runs the socket and the prefetcher until ctx ends. Without a socket the mount works all the same, and the status says why there is none.
// Serve calls settled before it closes Ready.
func (s *Server) Serve(ctx context.Context, settled func()) {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { s.prefetch.run(ctx) })
	parts.Go(func() { s.savePlans(ctx) })
	device, err := s.listen(ctx)
	settled()
	close(s.settled)
	if err != nil {
		s.disable(err.Error())
		s.opt.Life.LetGo(keptControl) // of a mount that was taken away meanwhile: it would keep the filesystem
		if ctx.Err() == nil {
			s.opt.Log.Warn("there is no control socket: readers cannot pass by FUSE", "reason", err)
		}
		return
	}
	inTree, stop := context.WithCancel(ctx) // a name of its own: the prefetcher still reads ctx
	defer stop()
	parts.Go(func() { // ends with inTree
		defer stop()
		if err := untilUnmounted(inTree, device); err != nil {
			s.opt.Log.Error("the mount table cannot be watched, so the control socket is closed", "error", err)
		}
	})
	s.accept(inTree, s.listener)
	s.disable("the mount was taken out of the tree")
	s.opt.Life.LetGo(keptControl) // it would keep the filesystem
}

// EndFile ends the plans of a file that nobody has open any more.
func (s *Server) EndFile(number int) { s.prefetch.endFile(number) }

func (s *Server) buffer() *[control.MaxFrame]byte {
	if b, ok := s.buffers.Get().(*[control.MaxFrame]byte); ok {
		return b
	}
	return new([control.MaxFrame]byte)
}
