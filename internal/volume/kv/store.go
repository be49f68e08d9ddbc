package kv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

// Options configure a Store.
type Options struct {
	Directory string // the disk tier's
	Size      int64  // bytes that it may take, with its indexes
	Memory    int64  // bytes of the memory tier; 0: there is none
	Buffered  string // why the disk tier is read and written through the page cache; empty: past it, where its filesystem allows that
	Log       *slog.Logger
	Life      *handover.Life // of the daemon; nil where nobody holds the mount

	// LeaseTime is how long the daemon and the processes of an earlier mount have to go; 0: 5 s.
	LeaseTime time.Duration
}

// Limits of a volume.
const (
	mostSpaces = 512
	mostHolds  = 1 << 18 // slots that all users hold; a user gets half, and less where others have some
	ownRoom    = 64 << 10
)

// Store has the namespaces of one volume. It is safe for concurrent use.
type Store struct {
	opt    Options
	dir    *os.File // Directory
	lock   *os.File
	memory *budget // nil: there is no memory tier
	disk   *budget
	held   *shares.Shares // bytes of slots that users hold
	count  *shares.Shares // slots that users hold
	again  *shares.Shares // holds of slots that their users hold already
	owning *shares.Shares // owners
	table  *holdTable
	serial atomic.Uint64 // of records
	token  atomic.Uint64
	kick   chan struct{}   // the mover has work
	wanted chan wish       // blocks that are found again and again on the disk
	grow   chan *tier      // tiers that would have another region
	ended  sync.WaitGroup  // of watchers
	stop   context.Context // ends with Close
	cancel context.CancelFunc
	noted  sync.Map // messages that were logged once

	patience time.Time // until then processes of an earlier mount may go
	sparse   bool      // tests of large indexes allocate nothing
	frozen   string    // why this mount never writes the disk: it took no writes when the volume was mounted; empty: it may be written

	making sync.Mutex // held while a namespace is made

	mu     sync.Mutex // guards the fields below
	spaces map[string]*Space
	number []*Space // by number, from 1
	owners map[uint64]*owner
	await  time.Time       // until then processes come back that the daemon before served
	away   map[uint64]bool // those that have not
	notes  []string
	ready  bool
	closed bool
}

// New makes a Store. Nothing is looked at before [Store.Load].
func New(opt Options) (*Store, error) {
	if opt.LeaseTime == 0 {
		opt.LeaseTime = 5 * time.Second
	}
	total := opt.Size + opt.Memory
	s := &Store{
		opt: opt, disk: &budget{limit: opt.Size}, held: shares.New(total/4*3, total/2, 0), count: shares.New(mostHolds, mostHolds/2, 64), again: shares.New(mostHolds/4, mostHolds/8, 64), owning: ownersOf(opt.Life),
		kick: make(chan struct{}, 1), wanted: make(chan wish, 1024), grow: make(chan *tier, 64), spaces: map[string]*Space{}, owners: map[uint64]*owner{},
		away: map[uint64]bool{},
	}
	s.stop, s.cancel = context.WithCancel(context.Background())
	if opt.Memory > 0 {
		s.memory = &budget{limit: opt.Memory}
	}
	s.token.Store(uint64(time.Now().UnixNano())) // beyond all of earlier lives: one is given each ns at most
	s.serial.Store(1)
	path, err := filepath.Abs(opt.Directory)
	if err != nil {
		return nil, err
	}
	s.opt.Directory = path
	if s.dir, err = os.Open(path); err != nil {
		return nil, fmt.Errorf("open the directory of the KV volume (mkdir -p makes it): %w", err)
	}
	if info, err := s.dir.Stat(); err != nil || !info.IsDir() {
		_ = s.dir.Close() // opened for reading
		return nil, errors.Join(fmt.Errorf("%s is no directory", path), err)
	}
	if opt.Life.Adopts() {
		was := s.state()
		if err := opt.Life.Load(was); err != nil {
			return nil, errors.Join(err, s.dir.Close())
		}
		s.frozen = was.Frozen
	}
	return s, nil
}

// ErrUsed says that another mount has the directory.
var ErrUsed = errors.New("another mount uses it: unmount that first, or name another directory")

// Load opens the namespaces that the directory has, and allocates the rest of the disk tier. It goes on with the memory tier and the holds of a
// daemon before.
func (s *Store) Load() (err error) {
	s.patience = time.Now().Add(s.opt.LeaseTime)
	if err = s.openOwn(); err != nil {
		return err
	}
	if s.table, err = s.openHolds(); err != nil {
		return err
	}
	names, err := s.names()
	if err != nil {
		return err
	}
	var left leftOut
	s.adoptAlone(&left)
	for _, name := range names {
		if s.spaces[name] != nil { // in memory alone, since the disk's was left out
			continue
		}
		sp, err := s.openSpace(name)
		switch {
		case err != nil:
			left.add(name, err)
		case sp != nil:
			s.add(sp)
			s.disk.used += ownRoom
		}
	}
	if err := s.fitLimit(); err != nil {
		return err
	}
	for _, sp := range s.all() {
		if err := sp.load(); err != nil {
			left.add(sp.name, err)
			s.remove(sp)
		}
	}
	left.report(s)
	switch err := s.allocateRest(); {
	case err == nil || s.readOnly(err):
	case !s.opt.Life.Adopts():
		return err
	default: // engines use the space that is there
		s.note("the disk tier may become full before --size is reached: %v", err)
	}
	s.adoptHolds()
	s.mu.Lock()
	s.ready = true
	s.mu.Unlock()
	return nil
}

// note keeps a sentence for the status.
func (s *Store) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.opt.Log.Warn(text)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notes = append(s.notes, text); len(s.notes) > 20 {
		s.notes = slices.Delete(s.notes, 0, 1)
	}
}

// add numbers a namespace.
func (s *Store) add(sp *Space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spaces[sp.name] = sp
	s.number = append(s.number, sp)
	sp.number = uint32(len(s.number))
}

// remove takes a namespace out that could not be loaded, and gives back its part of the limits. There are no sessions yet.
func (s *Store) remove(sp *Space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.spaces, sp.name)
	s.number = slices.DeleteFunc(s.number, func(one *Space) bool { return one == sp })
	for i, one := range s.number {
		one.number = uint32(i + 1)
	}
	if !sp.alone() {
		s.disk.used -= ownRoom
	}
	sp.release()
}

// leftOut are namespaces that a volume goes on without.
type leftOut []string

func (l *leftOut) add(name string, why error) { *l = append(*l, fmt.Sprintf("%q (%v)", name, why)) }

// report says which they are.
func (l leftOut) report(s *Store) {
	if len(l) > 0 {
		s.note("%d namespaces of %s are left out: %s", len(l), s.opt.Directory, strings.Join(l[:min(len(l), 5)], "; "))
	}
}

// fitLimit cuts slabs that an earlier mount had more room for.
func (s *Store) fitLimit() error {
	for s.frozen == "" {
		sum := s.disk.used
		var largest *Space
		for _, sp := range s.number {
			if sum += sp.has * sp.disk().cost(); sp.has > 0 && (largest == nil || sp.has*sp.disk().cost() > largest.has*largest.disk().cost()) {
				largest = sp
			}
		}
		if sum <= s.opt.Size {
			return nil
		}
		if largest == nil {
			return fmt.Errorf("--size %s has no room for the %d namespaces of %s: name more", size.Decimal(s.opt.Size), len(s.spaces), s.opt.Directory)
		}
		largest.has--
		if largest.has == 0 || sum-largest.disk().cost() <= s.opt.Size {
			s.note("namespace %q loses blocks: its slab is larger than --size leaves to it", largest.name)
		}
		t := largest.disk()
		if err := errors.Join(t.index.Truncate(largest.has*t.indexBytes()), t.slab.Truncate(largest.has*t.regionBytes())); err != nil {
			return err
		}
	}
	return nil
}

// allocateRest allocates the space that no slab has.
func (s *Store) allocateRest() error {
	if s.sparse || s.frozen != "" {
		return nil
	}
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	want := max(s.disk.limit-s.disk.used, 0)
	was, err := s.disk.rest.Stat()
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.dir.Fd()), &st); err != nil {
		return err
	}
	if left := int64(st.Bavail) * st.Bsize; want-was.Size() > left { // to try it would fill the disk for a moment
		return s.noRoom(want-was.Size(), left, unix.ENOSPC)
	}
	if err = s.disk.rest.Truncate(want); err == nil {
		err = s.disk.fill()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG):
		_ = s.disk.rest.Truncate(0) // the allocated space would be in the way of others
		return s.noRoom(want, int64(st.Bavail)*st.Bsize, err)
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("allocate the disk tier in %s: its filesystem cannot allocate files ahead (fallocate): use ext4 or XFS: %w", s.opt.Directory, err)
	}
	return fmt.Errorf("allocate the disk tier in %s: %w", s.opt.Directory, err)
}

// noRoom says that the disk has no room for --size.
func (s *Store) noRoom(want, left int64, err error) error {
	return fmt.Errorf("allocate the disk tier in %s: its filesystem has %s free, of which --size wants %s: name a smaller --size, or make room: %w",
		s.opt.Directory, size.Decimal(left), size.Decimal(want), err)
}

// space gives a namespace by its number, nil where there is none.
func (s *Store) space(number uint32) *Space {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number == 0 || int(number) > len(s.number) {
		return nil
	}
	return s.number[number-1]
}

// awaits tells whether a process that the daemon before served, and that has not come back yet, may have memory registered with CUDA.
func (s *Store) awaits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.away) > 0 && time.Now().Before(s.await)
}

// all gives all namespaces.
func (s *Store) all() []*Space {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.number)
}

// Close syncs the disk tier, and ends all holds. A daemon that another one replaces does not come here: it is killed.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	owners := make([]*owner, 0, len(s.owners))
	for _, o := range s.owners {
		owners = append(owners, o)
	}
	s.mu.Unlock()
	s.cancel()
	for _, o := range owners {
		s.end(o)
	}
	s.ended.Wait()
	var errs []error
	for _, sp := range s.all() {
		errs = append(errs, sp.close())
	}
	s.table.close()
	for _, f := range []*os.File{s.disk.rest, s.lock, s.dir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Kept tells whether somebody keeps the memory tier over the daemon's end.
func (s *Store) Kept() bool {
	if s.opt.Life == nil {
		return false
	}
	_, _, why := s.opt.Life.Holder()
	return why == ""
}

// newToken gives a token that was never given.
func (s *Store) newToken() uint64 { return s.token.Add(1) }

// newID draws a number that is not 0.
func newID() uint64 {
	for {
		if id := rand.Uint64(); id != 0 {
			return id
		}
	}
}
