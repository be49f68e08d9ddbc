package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/sys/trust"
	"github.com/hbmfs/hbmfs/layout"
)

// Upstream is the origin whose objects a store keeps.
type Upstream interface {
	layout.Origin
	// Fetch hands [off, off+n) of o to sink, in order and each byte once.
	Fetch(ctx context.Context, o *layout.Object, off, n int64, sink func(p []byte) error) error
}

// Options bound a store. Each field documents its zero value.
type Options struct {
	Size    int64 // bytes that segments may take, 0 means 80% of the filesystem
	Segment int64 // bytes of a segment, a multiple of 1 MiB up to [MaxSegment]; 0 means 1 GiB, or 256 MiB below a Size of 64 GiB
	MinFree int64 // bytes that stay free on the filesystem, 0 means 5% of it. So many of its inodes stay free, too
	Ahead   int64 // bytes that are fetched ahead of a sequential reader at most, 0 means 128 MiB; and no more than a sixteenth of Size. Objects that come as a whole count up to where it ends in them
	MaxOpen int   // segments that stay open between reads, half of them such that are being filled; 0 means 256
	Log     *slog.Logger
	Trace   *trace.Tracer // has a span for each fill, publication and eviction, nil for none
}

const (
	// MaxSegment is the largest segment, bytes. One that is an object as a whole is read by the kernel itself.
	MaxSegment = 16 << 30

	mostSums = 256      // of a segment: they fit into an extended attribute of ext4
	block    = 32 << 10 // bytes that are fetched at least: a few samples of tokens
	spanSize = 8 << 20  // bytes of one request at most
)

// Store is a cache directory. It is safe for concurrent use.
type Store struct {
	path    string
	opt     Options
	dir     *cache.Dir // the published segments
	fd      int        // the same directory
	ledger  ledger
	health  health
	stats   counters
	records records

	comparisons comparisons

	ctx    context.Context // of fetches, which outlive the reads that began them
	cancel context.CancelFunc
	wg     sync.WaitGroup // fetches
	turns  chan struct{}  // of passes: has room for as many as shall be under way
}

// Open opens a cache directory, which it makes if need be. Only this user and root may be able to change the files
// there: see package trust. The filesystem must know files without a name: ext4, XFS, btrfs and tmpfs do.
func Open(path string, opt Options) (*Store, error) {
	s := &Store{opt: opt, fd: -1}
	dir, err := trust.Dir(path)
	if err == nil {
		s.path, err = trust.Below(dir, "segments") // which hold bytes that a mount may keep from some users
	}
	if err == nil {
		err = s.defaults()
	}
	if err != nil {
		return nil, fmt.Errorf("open the cache %s: %w", path, err)
	}
	if s.dir, err = cache.OpenDir(s.path, s.halfOpen()); err != nil {
		return nil, fmt.Errorf("open the cache: %w", err)
	}
	s.ledger.init(s.opt.Size)
	s.records.init()
	s.health.log = s.opt.Log
	if s.fd, err = unix.Open(s.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		err = s.scan()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the cache %s: %w", path, err), s.closeFiles())
	}
	s.turns = make(chan struct{}, passesAtOnce())
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.rescan)
	return s, nil
}

// rescan learns, until Close, which segments other processes have published and evicted, and gives way where the disk is
// fuller than it may be. It does so once a minute, and for no more than a hundredth of the time.
func (s *Store) rescan() {
	for wait := time.Minute; pause.For(s.ctx, wait) == nil; {
		began := time.Now()
		if err := errors.Join(s.scan(), s.trim()); err != nil {
			s.health.fail(err)
		}
		wait = max(time.Minute, 100*time.Since(began))
	}
}

// defaults fills in options from the directory's filesystem.
func (s *Store) defaults() error {
	o := &s.opt
	if o.Segment < 0 || o.Segment > MaxSegment || o.Segment%(1<<20) != 0 {
		return fmt.Errorf("segments of %d bytes: want a multiple of 1 MiB, at most 16 GiB", o.Segment)
	}
	if o.Size < 0 || o.MinFree < 0 || o.Ahead < 0 {
		return errors.New("a size is negative")
	}
	if err := canHold(s.path); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.path, &st); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	bytes := int64(st.Blocks) * st.Bsize
	o.Size = cmp.Or(o.Size, bytes/5*4)
	if o.Segment == 0 {
		o.Segment = 1 << 30
		if o.Size < 64<<30 {
			o.Segment = 256 << 20
		}
	}
	o.MinFree, o.Ahead, o.MaxOpen = cmp.Or(o.MinFree, bytes/20), cmp.Or(o.Ahead, 128<<20), cmp.Or(o.MaxOpen, 256)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return nil
}

// halfOpen is how many published segments may stay open, and how many that are being filled.
func (s *Store) halfOpen() int { return max(1, s.opt.MaxOpen/2) }

// canHold checks that a filesystem has unnamed files and extended attributes, which segments are made of.
func canHold(path string) error {
	fd, err := unix.Open(path, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("it cannot be written to (%w): be the user whose it is, or name another directory", err)
	}
	if err != nil {
		return fmt.Errorf("the filesystem cannot hold files without a name (%w): take one of ext4, XFS or btrfs", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	if err := unix.Fsetxattr(fd, xattrName, []byte("?"), 0); err != nil {
		return fmt.Errorf("the filesystem does not keep extended attributes (%w): take one of ext4, XFS or btrfs", err)
	}
	return nil
}

// Close ends all fetches. Segments that are not published are gone. Objects must not be read any more.
func (s *Store) Close() error {
	s.cancel()
	s.wg.Wait()
	for _, e := range s.ledger.all() {
		if e.fill != nil {
			e.fill.close()
		}
	}
	return s.closeFiles()
}

func (s *Store) closeFiles() error {
	if s.fd >= 0 {
		_ = unix.Close(s.fd) // a directory
	}
	return s.dir.Close()
}

// Limit is how many bytes segments may take.
func (s *Store) Limit() int64 { return s.opt.Size }

// Path returns the directory of the published segments.
func (s *Store) Path() string { return s.path }

// Add has all objects of a listing read through the store. source names the origin: origins with the same one have the
// same bytes under the same name and version.
func (s *Store) Add(source string, up Upstream, l *cache.Listing) *Cached {
	o := &Cached{store: s, up: up, source: source, next: successors(l.Objects), files: map[*layout.Object]*file{}}
	for _, obj := range l.Objects {
		obj.Origin = o
	}
	return o
}
