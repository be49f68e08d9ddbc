package fs

import (
	"errors"
	"math"
	"os"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hanwen/go-fuse/v2/splice"
	"golang.org/x/sys/unix"
)

// maxRead bounds one read of the kernel. A reply goes through a pipe as a whole, with its header, and a pipe has room for 1
// MiB (fs.pipe-max-size). Reads of 1 MiB would be copied, which takes longer than a second request.
const maxRead = 512 << 10

// Spliced reads at once, each with two pipes of 1 MiB. An ordinary user's take a quarter of the pages that the kernel gives
// one user (fs.pipe-user-pages-soft): beyond them, all new pipes of the user have two pages.
const (
	splicesOfRoot = 32
	splicesOfUser = 8
)

// pipes are two for each spliced read: one for the bytes, and one in which go-fuse makes the reply. go-fuse takes its own
// from package splice's pool. If the pool were empty and could make none, go-fuse would copy the reply and log it. So the
// first read fills the pool, and no more reads are spliced than it suffices for.
type pipes struct {
	once sync.Once
	free chan struct{} // one token for each read that may be spliced
	made int
	most int64 // bytes that fit beside a header, wherever in a page they begin
}

func (p *pipes) make() {
	room, reads := min(maxRead+3*os.Getpagesize(), splice.MaxPipeSize()), splicesOfRoot
	if os.Geteuid() != 0 {
		reads = splicesOfUser
	}
	var made []*splice.Pair
	for range 2 * reads {
		pair, err := splice.Get()
		if err != nil {
			break
		}
		if pair.Grow(room) != nil {
			splice.Drop(pair)
			break
		}
		p.most = int64(pair.Cap() - 3*os.Getpagesize())
		made = append(made, pair)
	}
	p.made = len(made)
	p.free = make(chan struct{}, p.made/2)
	for range p.made / 2 {
		p.free <- struct{}{}
	}
	syscall.ForkLock.RLock() // no process is started meanwhile
	defer syscall.ForkLock.RUnlock()
	for _, pair := range made {
		splice.Done(pair)
	}
	inheritNothing()
}

// inheritNothing has processes that are started get no descriptor that they are not given. Package splice opens /dev/null without
// O_CLOEXEC. Keepers and daemons start each other, so each upgrade would add one.
func inheritNothing() {
	const afterStandard = 3
	_ = unix.CloseRange(afterStandard, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) // before Linux 5.11, which has no hand-overs either
}

// makeRoom makes the kernel grow the table of descriptors for all pipes. The table grows in steps, and each waits for all
// CPUs once there are threads. That is 20 ms on 2 CPUs, by which the first read would be late.
func (p *pipes) makeRoom() {
	const descriptors = 256 // a power of two, with room for four of each splice and for other open files
	null, err := os.Open(os.DevNull)
	if err != nil {
		return // the first read takes longer
	}
	if fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, descriptors-1); err == nil {
		_ = unix.Close(fd) // nothing was written
	}
	_ = null.Close() // nothing was written
}

// get returns an empty pipe for size bytes, nil where the bytes have to be copied.
func (p *pipes) get(size int64) *splice.Pair {
	p.once.Do(p.make)
	if size > p.most {
		return nil
	}
	select {
	case <-p.free:
	default:
		return nil
	}
	pair, err := splice.Get()
	if err != nil {
		p.free <- struct{}{}
		return nil
	}
	return pair
}

// put gives back the pipe that get returned.
func (p *pipes) put(pair *splice.Pair) {
	splice.Done(pair)
	p.free <- struct{}{}
}

// close closes all pipes, once no read is under way.
func (p *pipes) close() {
	p.once.Do(func() {}) // none are made any more
	for range p.made / 2 {
		<-p.free
	}
	for range p.made {
		if pair, err := splice.Get(); err == nil {
			splice.Drop(pair)
		}
	}
	p.made = 0
}

// piped is a read whose bytes are in a pipe. It is a fuse.ReadResultPipe whose pipe goes back to pipes.
type piped struct {
	pipes *pipes
	pair  *splice.Pair
	size  int
}

var _ fuse.ReadResult = (*piped)(nil)

func (r *piped) Size() int { return r.size }

// Stateful gives go-fuse the bytes.
func (r *piped) Stateful() (fd uintptr, size int) { return r.pair.ReadFd(), r.size }

// Done is called after the reply.
func (r *piped) Done() { r.pipes.put(r.pair) }

// Bytes serves go-fuse where it could not splice the reply. It returns all bytes or an error: bytes that are in go-fuse's
// own pipe by then are lost.
func (r *piped) Bytes(buf []byte) ([]byte, fuse.Status) {
	for n := 0; n < r.size; {
		m, err := r.pair.Read(buf[n:r.size])
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || m <= 0:
			return nil, fuse.EIO
		}
		n += max(m, 0)
	}
	return buf[:r.size], fuse.OK
}
