package cufile

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/internal/driver"
	"golang.org/x/sys/unix"
)

// source says where a file's bytes lie. A plain file is one run of itself; a file of a mount asks the mount.
type source interface {
	// runs gives runs that cover [offset, offset+n) in order, without gaps.
	runs(ctx context.Context, offset, n int64) ([]run, error)
	// backing gives what holds the bytes of a run. It can be read while handles.take says so.
	backing(r *run) *backing
	// leave gives those of what backing has given that nobody else uses. It is called once, before close.
	leave() []*backing
	size() int64
	close() error
}

// run is count pieces of length bytes: piece i holds the file's bytes from logical + i*length on, and lies in the
// object at offset + i*stride.
type run struct {
	logical, length int64
	object          uint64
	offset          int64
	stride, count   int64
}

func (r *run) end() int64 { return r.logical + r.length*r.count }

// backing is a file that holds bytes. It is shared by all who read from it. One that is lent is open, and its fd,
// length and dev are valid, between handles.take and handles.give; others always are.
type backing struct {
	id     uint64 // unique in the Reader
	name   string
	fd     int // -1 while closed
	length int64
	dev    uint64
	ino    uint64
	inline bool // the file in the mount itself: it can be read, and nothing else
	cached bool // it is a cache's, which may take it away while it is not lent

	lender lender // nil for what is open for good
	object uint64 // as the lender knows it
	at     int64  // where the lender's file has bytes of it

	mapped  *mappedFile   // guarded by mappings.mu
	pins    int           // requests that use it; guarded by handles.mu
	used    time.Time     // when the last one ended; guarded by handles.mu
	left    bool          // nobody will use it any more; guarded by handles.mu
	element *list.Element // in handles.order while it is open; guarded by handles.mu

	mu       sync.Mutex
	directFD int // O_DIRECT, opened on demand: 0 not tried, -1 refused
	cufile   driver.Handle
}

// newBacking takes over fd, also when it fails.
func newBacking(fd int, name string, id uint64) (*backing, error) {
	b := &backing{id: id, name: name}
	if err := b.adopt(fd); err != nil {
		return nil, err
	}
	return b, nil
}

// adopt takes over fd, also when it fails.
func (b *backing) adopt(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errors.Join(fmt.Errorf("stat %s: %w", b.name, err), unix.Close(fd))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.Join(fmt.Errorf("read %s: it is no regular file", b.name), unix.Close(fd))
	}
	b.fd, b.length, b.dev, b.ino = fd, st.Size, st.Dev, st.Ino
	return nil
}

// direct gives a descriptor with O_DIRECT, or false where the file system refuses one. It is a second description:
// the flag on the first would bind all who share it. A file in the mount has its daemon's cache behind it.
func (b *backing) direct() (int, bool) {
	if b.inline {
		return -1, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.directFD == 0 {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", b.fd), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if err != nil {
			fd = -1
		}
		b.directFD = fd
	}
	return b.directFD, b.directFD > 0
}

// close needs that no cuFile handle is left.
func (b *backing) close() error {
	err := unix.Close(b.fd)
	b.fd = -1
	if b.directFD > 0 {
		err = errors.Join(err, unix.Close(b.directFD))
		b.directFD = 0
	}
	return err
}

// readFull fills p from offset, and fails when the file ends before.
func (b *backing) readFull(p []byte, offset int64) error {
	_, err := readAtLeast(b.fd, b.name, p, offset, len(p))
	return err
}

// readAtLeast reads at least least bytes, at most all of p.
func readAtLeast(fd int, name string, p []byte, offset int64, least int) (int, error) {
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

// plainFile is a file of which nobody but the kernel knows more.
type plainFile struct{ file *backing }

// openPlain opens a file anywhere. Not os.Open: its descriptor may get O_NONBLOCK, which cuFile refuses.
func openPlain(name string, id uint64) (*plainFile, error) {
	fd, err := openFile(name)
	if err != nil {
		return nil, err
	}
	b, err := newBacking(fd, name, id)
	if err != nil {
		return nil, err
	}
	return &plainFile{b}, nil
}

func openFile(name string) (int, error) {
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

func (p *plainFile) size() int64 { return p.file.length }

func (p *plainFile) runs(context.Context, int64, int64) ([]run, error) {
	return []run{{length: p.file.length, count: 1, object: p.file.id}}, nil
}

func (p *plainFile) backing(*run) *backing { return p.file }

func (p *plainFile) leave() []*backing { return []*backing{p.file} }

func (p *plainFile) close() error { return p.file.close() }

// piece is consecutive bytes of one backing file, and where in the destination they go.
type piece struct {
	file   *backing
	offset int64 // in file
	to     int64 // in the destination
	n      int64
}

// request is spans of equal length that land one after the other.
type request struct {
	offsets []int64 // of the spans in the file
	length  int64   // of each span
	runs    []run   // ordered; they cover every span
	files   map[uint64]*backing
}

func (q *request) total() int64 { return int64(len(q.offsets)) * q.length }

// pieces calls fn for each piece of the destination's [from, from+n), in order.
func (q *request) pieces(from, n int64, fn func(piece) error) error {
	for at := from; at < from+n; {
		span := at / q.length
		skip := at - span*q.length
		take := min(q.length-skip, from+n-at)
		if err := q.filePieces(q.offsets[span]+skip, take, at, fn); err != nil {
			return err
		}
		at += take
	}
	return nil
}

// find gives the index of the run that holds the file's byte at offset.
func (q *request) find(offset int64) int {
	return sort.Search(len(q.runs), func(i int) bool { return q.runs[i].end() > offset })
}

// filePieces does the same for the file's [offset, offset+n), which lands at to.
func (q *request) filePieces(offset, n, to int64, fn func(piece) error) error {
	i := q.find(offset)
	for n > 0 {
		if i >= len(q.runs) || q.runs[i].logical > offset {
			return fmt.Errorf("cufile: internal error: no extent covers offset %d", offset)
		}
		r := &q.runs[i]
		k := (offset - r.logical) / r.length
		skip := offset - r.logical - k*r.length
		take := min(r.length-skip, n)
		if r.count == 1 || r.stride == r.length {
			take = min(r.end()-offset, n)
		}
		if err := fn(piece{q.files[r.object], r.offset + k*r.stride + skip, to, take}); err != nil {
			return err
		}
		offset, to, n = offset+take, to+take, n-take
		if offset >= r.end() {
			i++
		}
	}
	return nil
}

// allPieces gives the pieces of the whole request, at most limit of them.
func (q *request) allPieces(limit int) ([]piece, error) {
	list := make([]piece, 0, min(len(q.offsets)+len(q.runs), limit))
	err := q.pieces(0, q.total(), func(p piece) error {
		if len(list) == limit {
			return fmt.Errorf("%w: more than %d pieces in one request: gather less at a time", ErrTooLarge, limit)
		}
		list = append(list, p)
		return nil
	})
	return list, err
}
