// Package source says where the bytes of a file lie, and keeps the descriptors of the files that hold them.
//
// An [Opener] opens files for one reader: of a mount, by the control channel, or any other. [Pieces] finds the places of
// ranges of a [File]; [Split] makes groups of them, whose backing files [Descriptors.Pin] opens. Where a
// cache has removed a file meanwhile, that is [ErrMoved]: a [Movable] forgets, and all is done again.
//
// Pitfalls. A [Backing] is open between Pin and Unpin only. One descriptor may be asked for by many files, and must be closed
// after the device has let go of it: Descriptors owns both.
package source

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// File says where a file's bytes lie. A plain file is one run of itself; a file of a mount asks the mount.
type File interface {
	// Runs gives runs in order that cover the spans, which are inside the file and have bytes.
	Runs(ctx context.Context, spans []Span) ([]Run, error)
	// Backing gives the file that holds the bytes of a run. It can be read while it is pinned.
	Backing(r *Run) *Backing
	// Backings gives the backing files that it has used so far; other Files may use them, too.
	Backings() []*Backing
	// Unshare gives the backing files that no other File uses. It is called once, before Close.
	Unshare() []*Backing
	Size() int64
	Close() error
}

// Run is Count pieces of Length bytes: piece i holds the file's bytes from Logical + i*Length on, and lies in Object at
// Offset + i*Stride.
type Run struct {
	Logical, Length int64
	Object          uint64
	Offset          int64
	Stride, Count   int64
}

// End is where the file's bytes end that a run holds.
func (r *Run) End() int64 { return r.Logical + r.Length*r.Count }

// Backing is a file that holds bytes. All requests that read from it share it. One that a [Lender] lends is open, and its FD,
// Length, Dev and Ino are valid, while it is pinned; others always are.
type Backing struct {
	ID     uint64 // unique in the Reader
	Name   string
	FD     int // -1 while closed
	Length int64
	Dev    uint64
	Ino    uint64
	Inline bool // the file in the mount itself: it can be read, and nothing else
	Cached bool // it is a cache's, which may remove it while it is not lent

	Lender Lender // nil for a file that stays open
	Object uint64 // as the lender knows it
	at     int64  // where the lender's file has bytes of it

	pins    int           // requests that use it; guarded by Descriptors.mu
	used    time.Time     // when the last one ended; guarded by Descriptors.mu
	dropped bool          // no File uses it any more; guarded by Descriptors.mu
	element *list.Element // in Descriptors.order while it is open; guarded by Descriptors.mu

	written      unix.Timespec                // when it was written to last, as of its opening
	changed      atomic.Pointer[ChangedError] // once a look has found that
	told         atomic.Bool                  // a request has failed by it
	open, marked bool                         // for a Watch; guarded by its mu
	due          bool                         // it was read since it was last looked at; likewise
	look         sync.Mutex                   // held while it is looked at
	notices      *notices                     // of the daemon that looks at it; nil where none does
	Seen         atomic.Pointer[Registered]   // where a device sees it; nil where it is not mapped

	shared *description // FD's open file; nil where no other reader may use it

	mu       sync.Mutex
	directFD int // O_DIRECT, opened on demand: 0 not tried, -1 refused
}

// NewBacking owns fd from the call on, also when it fails.
func NewBacking(fd int, name string, id uint64) (*Backing, error) {
	b := &Backing{ID: id, Name: name}
	if err := b.Adopt(fd); err != nil {
		return nil, err
	}
	return b, nil
}

// Lent makes a file that is not open yet: l knows it as object, and has bytes of it from at on.
func Lent(l Lender, id uint64, name string, object uint64, at int64, cached bool) *Backing {
	return &Backing{ID: id, Name: name, FD: -1, Cached: cached, Lender: l, Object: object, at: at}
}

// Adopt owns fd from the call on, also when it fails.
func (b *Backing) Adopt(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errors.Join(fmt.Errorf("stat %s: %w", b.Name, err), unix.Close(fd))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.Join(fmt.Errorf("read %s: it is no regular file", b.Name), unix.Close(fd))
	}
	b.FD, b.Length, b.Dev, b.Ino, b.written = fd, st.Size, st.Dev, st.Ino, st.Mtim
	return nil
}

// Version is a file as it was when it was opened.
type Version struct {
	Dev, Ino uint64
	Length   int64
	Written  unix.Timespec
}

// Version needs that the file is open.
func (b *Backing) Version() Version { return Version{b.Dev, b.Ino, b.Length, b.written} }

// Direct gives a descriptor with O_DIRECT, or false where the file system refuses one. It is a second description:
// the flag on the first would bind all who share it. A file in the mount has its daemon's cache behind it.
func (b *Backing) Direct() (int, bool) {
	if b.Inline {
		return -1, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.directFD == 0 {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", b.FD), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if err != nil {
			fd = -1
		}
		b.directFD = fd
	}
	return b.directFD, b.directFD > 0
}

// Close needs that no cuFile handle is left.
func (b *Backing) Close() (err error) {
	if b.shared != nil {
		err = shared.leave(b)
	} else {
		err = unix.Close(b.FD)
	}
	b.FD = -1
	if b.directFD > 0 {
		err = errors.Join(err, unix.Close(b.directFD))
		b.directFD = 0
	}
	return err
}

// Unchanged fails when the file has become shorter than it was when it was opened. A mount's file must not have been written to either.
func (b *Backing) Unchanged() error {
	if err := b.Changed(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(b.FD, &st); err != nil {
		return fmt.Errorf("stat %s: %w", b.Name, err)
	}
	switch {
	case st.Size < b.Length:
		return fmt.Errorf("read %s at %d: %w: %w", b.Name, st.Size, ErrShort, io.ErrUnexpectedEOF)
	case b.Lender != nil && !b.Cached && st.Mtim != b.written:
		return fmt.Errorf("read %s: it was written to after it was opened: %w", b.Name, control.ErrStale)
	}
	return nil
}

// ReadFull fills p from offset, and fails when the file ends before.
func (b *Backing) ReadFull(p []byte, offset int64) error {
	_, err := ReadAtLeast(b.FD, b.Name, p, offset, len(p))
	if errors.Is(err, ErrShort) {
		b.told.Store(true)
	}
	return err
}

// ReadAtLeast reads at least least bytes, at most all of p.
func ReadAtLeast(fd int, name string, p []byte, offset int64, least int) (int, error) {
	done := 0
	for done < least {
		n, err := unix.Pread(fd, p[done:], offset+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return done, fmt.Errorf("read %s at %d: %w", name, offset+int64(done), err)
		case n == 0:
			return done, fmt.Errorf("read %s at %d: %w: %w", name, offset+int64(done), ErrShort, io.ErrUnexpectedEOF)
		}
		done += n
	}
	return done, nil
}

// plainFile is a file that is in no mount.
type plainFile struct {
	backing *Backing
	place   *Map // nil for an empty file
}

// Plain gives an open file as a source.
func Plain(b *Backing) File {
	p := &plainFile{backing: b}
	b.open = true // no other thread knows it yet
	if b.Length > 0 {
		p.place = newMap([]Run{p.run()}, p.Backing)
	}
	return p
}

// Map implements [Placed].
func (p *plainFile) Map() *Map {
	if p.backing.Inline {
		return nil
	}
	return p.place
}

func (p *plainFile) run() Run {
	return Run{Length: p.backing.Length, Count: 1, Object: p.backing.ID}
}

// OpenPlain opens a file anywhere. Not os.Open: its descriptor may get O_NONBLOCK, which cuFile refuses.
func OpenPlain(name string, id uint64) (File, error) {
	fd, err := OpenFile(name)
	if err != nil {
		return nil, err
	}
	b, err := NewBacking(fd, name, id)
	if err != nil {
		return nil, err
	}
	return Plain(b), nil
}

// OpenFile opens a file for reading, after signals, too.
func OpenFile(name string) (int, error) {
	for {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("open %s: %w", name, err)
		}
		return fd, nil
	}
}

func (p *plainFile) Size() int64 { return p.backing.Length }

func (p *plainFile) Runs(context.Context, []Span) ([]Run, error) {
	return []Run{p.run()}, nil
}

func (p *plainFile) Backing(*Run) *Backing { return p.backing }

func (p *plainFile) Backings() []*Backing { return []*Backing{p.backing} }

func (p *plainFile) Unshare() []*Backing { return p.Backings() }

func (p *plainFile) Close() error { return p.backing.Close() }
