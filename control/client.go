package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrTooManyFiles says that this process may not have as many files open as it asked for.
var ErrTooManyFiles = errors.New("this process has too many open files: raise its limit (ulimit -n), or ask for fewer objects at a time")

// ErrNoSocket says that a mount has no control socket that can be reached from here.
var ErrNoSocket = errors.New("no control socket")

// Client is a connection to the daemon of one mount. Objects that it redeemed stay leased until their release or its close.
// It is safe for concurrent use; requests take turns. A request that waits for its answer takes a thread.
type Client struct {
	line    *line
	welcome Welcome
	turn    chan struct{} // has one token: its owner may use the connection and the fields below

	nextID uint32
	owed   uint32 // the id of a request for descriptors whose answer has not come; 0 for none
	buf    [MaxFrame]byte
	out    []byte

	lookups chan struct{}       // has one token: its owner may look up and use shared
	shared  map[uint64]*Backing // by object, of Lookup

	tokens atomic.Uint64 // the highest that came, in a KV volume

	closed sync.Once
	gone   atomic.Bool // the daemon has closed the connection
}

// Dial connects to the daemon of the mount that path lies in: a file of it, or the mount point. name is shown in the
// mount's status beside the bytes that the client moved.
func Dial(ctx context.Context, path, name string) (*Client, error) {
	return DialReader(ctx, path, name, 0)
}

// DialReader is [Dial] for a program that moves many bytes, with the host's memory or CPUs. All connections with the same
// number, drawn at random, are one reader of those that [Client.Readers] counts.
func DialReader(ctx context.Context, path, name string, number uint32) (*Client, error) {
	dir, _, err := findSocket(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(dir) }() // the connection does not need it
	// The path of a mount in a container can be longer than the 108 bytes of a socket's address.
	address := fmt.Sprintf("/proc/self/fd/%d/control", dir)
	l, err := connect(ctx, address)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("connect to the daemon of %s: %w: nobody listens on it", path, ErrNoSocket)
	case err != nil:
		return nil, fmt.Errorf("connect to the daemon of %s: %w", path, err)
	}
	c := newClient(l)
	if err := c.hello(ctx, name, number); err != nil {
		_ = l.close() // the error is already known
		return nil, fmt.Errorf("greet the daemon of %s: %w", path, err)
	}
	return c, nil
}

func newClient(l *line) *Client {
	return &Client{line: l, turn: make(chan struct{}, 1), lookups: make(chan struct{}, 1), shared: map[uint64]*Backing{}}
}

// Root returns the root of the mount that path lies in. Paths of [Client.Lookup] begin there.
func Root(path string) (string, error) {
	dir, root, err := findSocket(path)
	if err != nil {
		return "", err
	}
	return root, unix.Close(dir)
}

// findSocket opens the directory .hbmfs of the mount that path lies in, and returns the mount's root.
func findSocket(path string) (dir int, root string, err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return -1, "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return -1, "", err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return -1, "", fmt.Errorf("stat %s: %w", path, err)
	}
	mount := st.Dev
	for at := path; ; at = filepath.Dir(at) {
		if unix.Stat(at, &st) != nil || st.Dev != mount {
			return -1, "", fmt.Errorf("%w for %s: it is not below an hbmfs mount, or the mount's root cannot be seen from here", ErrNoSocket, path)
		}
		dir, err := unix.Open(filepath.Join(at, ".hbmfs"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			if unix.Fstatat(dir, "control", &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Dev == mount && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
				return dir, at, nil
			}
			_ = unix.Close(dir) // nothing is lost
			if st.Dev == mount {
				return -1, "", fmt.Errorf("%w in %s: .hbmfs/status says why", ErrNoSocket, filepath.Join(at, ".hbmfs"))
			}
		}
		if at == "/" {
			return -1, "", fmt.Errorf("%w for %s: it is not below an hbmfs mount", ErrNoSocket, path)
		}
	}
}

func (c *Client) hello(ctx context.Context, name string, number uint32) error {
	h := Hello{Version, Version, number, printable(name, NameSize)}
	a, err := c.ask(ctx, TypeHello, TypeWelcome, h.AppendTo)
	if err != nil {
		return err
	}
	if c.welcome, err = ParseWelcome(a.payload); err != nil {
		return fmt.Errorf("WELCOME: %w", err)
	}
	if c.welcome.Version != Version {
		return fmt.Errorf("%w: %d, this program %d", ErrVersion, c.welcome.Version, Version)
	}
	return nil
}

// Epoch returns the daemon's epoch. Extents of another epoch cannot be redeemed here.
func (c *Client) Epoch() Epoch { return c.welcome.Epoch }

// ReadOnly reports whether opening a backing file again for writing is EROFS: see [WelcomeReadOnly].
func (c *Client) ReadOnly() bool { return c.welcome.Flags&WelcomeReadOnly != 0 }

// Gone reports whether a request has found that the daemon has closed the connection. Nothing can be asked on it again.
func (c *Client) Gone() bool { return c.gone.Load() }

// HungUp asks the kernel whether the daemon has closed the connection.
func (c *Client) HungUp() bool {
	hung := false
	err := c.line.use(func(fd int) { hung = ready(fd, 0, 0) }) // without events it looks for POLLHUP and POLLERR alone
	return hung || err != nil
}

// Close ends the connection and with it all leases. Files that were redeemed stay open. A lookup must not be going on.
func (c *Client) Close() error {
	var err error
	c.closed.Do(func() {
		err = c.line.close()
		for _, b := range c.shared {
			b.close()
		}
		clear(c.shared)
	})
	return err
}

// Backing is a backing file. A file that could not be had has Err, which wraps its errno, and no File.
type Backing struct {
	Object  uint64
	File    *os.File // at offset 0, read-only; the caller closes it
	Size    int64    // bytes
	Dev     uint64
	Ino     uint64
	ModTime time.Time
	Err     error
}

// Redeem uses a ticket up and returns the backing files of objects that it names. They are in the order asked for.
func (c *Client) Redeem(ctx context.Context, t Ticket, objects []uint64) ([]Backing, error) {
	q := Redeem{t, objects}
	unlock, err := c.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	a, err := c.askLocked(ctx, TypeRedeem, TypeFDs, q.AppendTo)
	if err != nil {
		return nil, fmt.Errorf("redeem a ticket: %w", err)
	}
	got, err := ParseFDs(a.payload)
	if err == nil && len(got) != len(objects) {
		err = errMalformed
	}
	files, err := c.accept(ctx, a, got, err)
	if err != nil {
		return nil, fmt.Errorf("redeem a ticket: %w", err)
	}
	return files, nil
}

// accept makes files of the descriptors of an answer and tells the daemon that they came. If not all of them came, none
// is kept.
func (c *Client) accept(ctx context.Context, a response, objects []Object, err error) ([]Backing, error) {
	want := 0
	for _, o := range objects {
		if o.FD >= 0 {
			want++
			if int(o.FD) >= len(a.fds) && err == nil && !a.truncated {
				err = errMalformed
			}
		}
	}
	if err == nil && (a.truncated || len(a.fds) < want) {
		err = ErrTooManyFiles
	}
	if err == nil && len(a.fds) != want {
		err = errMalformed
	}
	received := len(a.fds)
	if err != nil {
		CloseAll(a.fds)
		received = 0
	}
	if want > 0 {
		ack := Ack{a.header.ID, uint32(received)}
		ackErr := c.sendLocked(ctx, Header{Version, TypeAck, a.header.ID}, ack.AppendTo)
		if hasClosed(ackErr) { // the answer is good without its daemon
			c.gone.Store(true)
			ackErr = nil
		}
		err = errors.Join(err, ackErr)
	}
	if err != nil {
		if received > 0 {
			CloseAll(a.fds)
		}
		return nil, err
	}
	files := make([]Backing, len(objects))
	for i, o := range objects {
		files[i] = Backing{Object: o.ID, Size: o.Size, Dev: o.Dev, Ino: o.Ino, ModTime: time.Unix(0, o.ModTime)}
		if o.FD >= 0 {
			files[i].File = os.NewFile(uintptr(a.fds[o.FD]), fmt.Sprintf("object %d", o.ID))
		} else if o.Errno != 0 {
			advice := ""
			if o.Errno == syscall.ESTALE {
				advice = " (it changed at the source, and the log of the mount names it: mount the source again)"
			}
			files[i].Err = fmt.Errorf("backing file %d%s: %w", o.ID, advice, o.Errno)
		}
	}
	return files, nil
}

// Names uses a ticket up and returns the names that its objects have at the source.
func (c *Client) Names(ctx context.Context, t Ticket, objects []uint64) ([]Named, error) {
	q := Redeem{t, objects}
	a, err := c.ask(ctx, TypeName, TypeNames, q.AppendTo)
	if err != nil {
		return nil, fmt.Errorf("ask for names: %w", err)
	}
	names, err := ParseNames(a.payload)
	if err != nil {
		return nil, fmt.Errorf("ask for names: %w", err)
	}
	return names, nil
}

// Release says that objects are no longer in use. The caller has closed their files.
func (c *Client) Release(ctx context.Context, objects ...uint64) error {
	return c.tell(ctx, TypeRelease, func(b []byte) []byte { return AppendRelease(b, objects) })
}

// ReportStats adds bytes and reads since the last report, by path and reason, to this client's sums in the mount's status.
// The daemon tells a few dozen reasons and fields apart: let reasons name kinds of cases, without figures that vary. A daemon that
// is older than this program hears of no fields.
func (c *Client) ReportStats(ctx context.Context, moved ...PathReport) error {
	for part := range slices.Chunk(moved, MaxMoved) {
		part = slices.Clone(part)
		for i := range part {
			part[i].Reason, part[i].Field = printable(part[i].Reason, ReasonSize), printable(part[i].Field, FieldSize)
			if c.welcome.Flags&WelcomeFields == 0 {
				part[i].Field = ""
			}
		}
		if err := c.tell(ctx, TypeStats, func(b []byte) []byte { return AppendStats(b, part) }); err != nil {
			return err
		}
	}
	return nil
}

// Readers returns how many readers are connected to the daemon at this moment, of all processes and users, this one
// included. They share the machine's memory and CPUs. Connections by [Dial] are none.
func (c *Client) Readers(ctx context.Context) (int, error) {
	a, err := c.ask(ctx, TypeReaders, TypeCount, nil)
	if err != nil {
		return 0, fmt.Errorf("ask how many readers there are: %w", err)
	}
	m, err := ParseCount(a.payload)
	if err != nil {
		return 0, fmt.Errorf("ask how many readers there are: %w", err)
	}
	return int(m.Readers), nil
}

// Prefetch says which ranges of leased objects will be read soon, at most [MaxRanges].
func (c *Client) Prefetch(ctx context.Context, ranges ...ObjectRange) error {
	_, err := c.ask(ctx, TypePrefetch, TypeDone, func(b []byte) []byte { return AppendObjectRanges(b, ranges) })
	return err
}

// response is an answer of the daemon. The payload is valid until the client sends again.
type response struct {
	header    Header
	payload   []byte
	fds       []int
	truncated bool
}

func (c *Client) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case c.turn <- struct{}{}:
		return func() { <-c.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Client) tell(ctx context.Context, t FrameType, fill func([]byte) []byte) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	c.nextID++
	return c.sendLocked(ctx, Header{Version, t, c.nextID}, fill)
}

// ask sends a request. Descriptors that its answer brings need no acknowledgement. The payload is the caller's own.
func (c *Client) ask(ctx context.Context, t, want FrameType, fill func([]byte) []byte) (response, error) {
	unlock, err := c.lock(ctx)
	if err != nil {
		return response{}, err
	}
	defer unlock()
	a, err := c.askLocked(ctx, t, want, fill)
	a.payload = append([]byte(nil), a.payload...)
	return a, err
}

// askLocked sends a request and waits for its answer. Answers to requests that were given up are thrown away.
func (c *Client) askLocked(ctx context.Context, t, want FrameType, fill func([]byte) []byte) (response, error) {
	c.nextID++
	id := c.nextID
	if want == TypeFDs || want == TypeFiles {
		if err := c.settle(ctx); err != nil {
			return response{}, c.explain(ctx, err)
		}
		c.owed = id
	}
	// A message that the daemon sent before it closed the connection says more than this error.
	if err := c.sendLocked(ctx, Header{Version, t, id}, fill); err != nil && !hasClosed(err) {
		if c.owed == id { // nothing was sent
			c.owed = 0
		}
		return response{}, c.explain(ctx, err)
	}
	for {
		a, err := c.next(ctx)
		switch {
		case err != nil:
		case a.header.Type == TypeError && (a.header.ID == id || a.header.ID == 0):
			var refusal Refusal
			if refusal, err = ParseRefusal(a.payload); err == nil {
				err = &refusal
			}
		case a.header.ID != id:
			if err = c.discard(ctx, a); err == nil {
				continue
			}
			a.fds = nil
		case a.header.Type != want:
			err = fmt.Errorf("frame %d is answered with %d: %w", t, a.header.Type, errMalformed)
		default:
			return a, nil
		}
		CloseAll(a.fds)
		return response{}, c.explain(ctx, err)
	}
}

// next waits for a frame.
func (c *Client) next(ctx context.Context) (response, error) {
	got, err := c.line.receive(ctx, c.buf[:])
	if errors.Is(err, syscall.ECONNRESET) { // the kernel tells it once, before messages that are there to read
		got, err = c.line.receive(ctx, c.buf[:])
	}
	if err != nil {
		return response{}, err
	}
	a := response{fds: got.FDs, truncated: got.Truncated}
	a.header, a.payload, err = ParseFrame(c.buf[:got.N])
	if a.header.ID == c.owed {
		c.owed = 0
	}
	return a, err
}

// settle receives the answer to a request for descriptors that was given up: the daemon sends few before they are
// acknowledged.
func (c *Client) settle(ctx context.Context) error {
	for c.owed != 0 {
		a, err := c.next(ctx)
		if err != nil {
			CloseAll(a.fds)
			return err
		}
		if err := c.discard(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// discard drops an answer that nobody waits for any more, and acknowledges it, since its descriptors count until then.
func (c *Client) discard(ctx context.Context, a response) error {
	CloseAll(a.fds)
	if a.header.Type != TypeFDs && a.header.Type != TypeFiles {
		return nil
	}
	ack := Ack{ID: a.header.ID}
	return c.sendLocked(ctx, Header{Version, TypeAck, a.header.ID}, ack.AppendTo)
}

func (c *Client) sendLocked(ctx context.Context, h Header, fill func([]byte) []byte) error {
	c.out = AppendFrame(c.out[:0], h, fill)
	if len(c.out) > MaxFrame {
		return fmt.Errorf("a frame of %d bytes is more than %d: ask for less at a time", len(c.out), MaxFrame)
	}
	return c.line.send(ctx, c.out)
}

// hasClosed reports whether a call failed because the daemon has closed the connection.
func hasClosed(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// explain wraps errors of a connection in the errors of this package.
func (c *Client) explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, syscall.ESTALE):
		return fmt.Errorf("%w: %w", ErrStale, err)
	case errors.Is(err, syscall.EPROTONOSUPPORT):
		return fmt.Errorf("%w: %w", ErrVersion, err)
	case errors.Is(err, io.EOF), hasClosed(err):
		c.gone.Store(true)
		return fmt.Errorf("the daemon has closed the connection: it was unmounted or restarted: %w", ErrStale)
	}
	return err
}
