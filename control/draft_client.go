package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoVolume says that a path does not lie in a checkpoint volume.
var ErrNoVolume = errors.New("no checkpoint volume")

// DraftClient is a checkpoint that this process writes past FUSE, alone or with others of its user. It is safe for concurrent use.
//
//	d, err := control.BeginDraft(ctx, "/mnt/ckpt/step-7", 0, 1, "my-writer")
//	defer d.Drop(ctx)                                              // after Publish it does nothing
//	first, pens, err := d.Add(ctx, control.NewFile{Name: "weights", Size: n})
//	...                                                            // write pens[0], cut it to its size, sync it, close it
//	err = d.Seal(ctx, first, sums)                                 // CRC-32C of every SumChunk bytes
//	err = d.Publish(ctx, 1, n)
//
// It lasts as long as the process that began it, and survives the daemon: requests are said again to the next one. Sums are the
// writer's claim, which nobody compares before somebody verifies the checkpoint.
type DraftClient struct {
	ID   DraftID
	Path string // of the checkpoint

	root, client string

	mu     sync.Mutex // guards the fields below
	conn   *Client    // nil between two daemons, and once closed
	epoch  Epoch      // of the mount
	closed bool
}

// InVolume tells whether a checkpoint at path would lie in a checkpoint volume: below its mount, whether it is there or not. It fails where
// path lies in a mount of hbmfs whose daemon cannot be asked, or in a volume where no checkpoint can be.
func InVolume(ctx context.Context, path, name string) (bool, error) {
	d, err := openDraft(ctx, path, name)
	switch {
	case errors.Is(err, ErrNoVolume):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, d.Close()
}

// BeginDraft begins the checkpoint at path, part of parts, counted from 0. [ErrNoVolume]: that is in no checkpoint volume. EEXIST:
// something has the name; EBUSY: a living process writes it; EACCES: the user may not make directories in the volume. client is
// shown in the mount's status.
func BeginDraft(ctx context.Context, path string, part, parts int, client string) (*DraftClient, error) {
	d, err := openDraft(ctx, path, client)
	if err != nil {
		return nil, err
	}
	_, _ = rand.Read(d.ID[:]) // never fails: crypto/rand ends the program first
	m := Begin{ID: d.ID, Part: uint32(part), Parts: uint32(parts), Umask: umask(), Name: filepath.Base(d.Path)}
	a, err := d.ask(ctx, TypeBegin, TypeDraft, m.AppendTo)
	if err != nil {
		_ = d.Close() // nothing has begun
		return nil, fmt.Errorf("begin checkpoint %s: %w", d.Path, err)
	}
	CloseAll(a.fds)
	return d, nil
}

// AttachDraft opens the draft of the checkpoint at path that another process of this user has begun, to write files of it. ENOENT: none
// has.
func AttachDraft(ctx context.Context, path, client string) (*DraftClient, error) {
	d, err := openDraft(ctx, path, client)
	if err != nil {
		return nil, err
	}
	m := Begin{Parts: 1, Flags: BeginAttach, Name: filepath.Base(d.Path)}
	a, err := d.ask(ctx, TypeBegin, TypeDraft, m.AppendTo)
	var given DraftFiles
	if err == nil {
		CloseAll(a.fds)
		given, err = ParseDraftFiles(a.payload)
	}
	if err != nil {
		_ = d.Close() // nothing has begun
		return nil, fmt.Errorf("write into checkpoint %s: %w", d.Path, err)
	}
	d.ID = given.ID
	return d, nil
}

// openDraft connects to the daemon of the volume that a checkpoint is to be in.
func openDraft(ctx context.Context, path, client string) (*DraftClient, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	in := filepath.Dir(path)
	for errors.Is(exists(in), fs.ErrNotExist) && in != "/" {
		in = filepath.Dir(in)
	}
	dir, root, err := findSocket(in)
	if err != nil {
		if errors.Is(err, ErrNoSocket) && !isMount(in) {
			return nil, fmt.Errorf("%s: %w: %w", path, ErrNoVolume, err)
		}
		return nil, err
	}
	_ = unix.Close(dir) // it was only looked for
	d := &DraftClient{Path: path, root: root, client: client}
	for end := time.Now().Add(NextDaemonTime); ; { // a daemon may go as it is greeted
		if d.conn, err = DialTrusted(ctx, root, client); err == nil {
			break
		}
		if !errors.Is(err, ErrStale) && !hasClosed(err) || time.Now().After(end) {
			return nil, err
		}
		if err := sleep(ctx, RedialPause); err != nil {
			return nil, err
		}
	}
	d.epoch = d.conn.Epoch()
	real, err := filepath.EvalSymlinks(in)
	if err == nil && d.conn.welcome.Flags&WelcomeDrafts == 0 {
		err = fmt.Errorf("%s: %w: it lies in a mount of hbmfs that shows a dataset, which nobody can write", path, ErrReadOnly)
	}
	if err == nil && (real != root || filepath.Dir(path) != in) {
		err = fmt.Errorf("%s: checkpoints of a volume are the directories at its top: choose a name in %s: %w", path, root, syscall.EINVAL)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// ErrReadOnly says that a path lies in a mount of hbmfs that is no checkpoint volume.
var ErrReadOnly = errors.New("read-only")

func exists(path string) error {
	_, err := os.Stat(path)
	return err
}

// isMount tells whether a path lies in a mount of hbmfs, by the table of mounts.
func isMount(path string) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return false
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for line := range strings.Lines(string(table)) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if len(fields) > 2 && fields[2] == device && strings.HasPrefix(after, "fuse.hbmfs ") {
			return true
		}
	}
	return false
}

// DialTrusted is [Dial] for a daemon of root, or of this user: writes go to files that it gives.
func DialTrusted(ctx context.Context, root, client string) (*Client, error) {
	c, err := Dial(ctx, root, client)
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	credErr := c.line.raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(credErr, err); err == nil && cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		err = fmt.Errorf("the daemon of %s is user %d's: files for writing are taken from a daemon of root or of your own only: %w", root, cred.Uid, syscall.EPERM)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// umask reads the umask of this process, without changing it for a moment as umask(2) would.
func umask() uint32 {
	var mask uint32 = 0o022 // the usual one
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return mask
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Umask:"); ok {
			_, _ = fmt.Sscanf(rest, "%o", &mask)
		}
	}
	return mask & maxUmask
}

// Add makes files of the draft, at most [MaxNewFiles]. pens are open for writing, allocated, and the caller's: the file first, and those
// that follow it, in order. Each is to be cut to its size, synced and closed before it is sealed.
func (d *DraftClient) Add(ctx context.Context, files ...NewFile) (first uint32, pens []*os.File, err error) {
	if len(files) > MaxNewFiles {
		return 0, nil, fmt.Errorf("add files to checkpoint %s: %d are more than %d at a time: %w", d.Path, len(files), MaxNewFiles, syscall.EINVAL)
	}
	m := AddFiles{d.ID, files}
	a, err := d.ask(ctx, TypeAdd, TypeDraft, m.AppendTo)
	var given DraftFiles
	if err == nil {
		given, err = ParseDraftFiles(a.payload)
	}
	switch {
	case err != nil:
	case a.truncated:
		err = ErrTooManyFiles
	case int(given.Count) != len(files) || len(a.fds) != len(files):
		err = errMalformed
	}
	if err != nil {
		CloseAll(a.fds)
		return 0, nil, fmt.Errorf("add files to checkpoint %s: %w", d.Path, err)
	}
	for i, fd := range a.fds {
		pens = append(pens, os.NewFile(uintptr(fd), filepath.Join(d.Path, files[i].Name)))
	}
	return given.First, pens, nil
}

// Seal says that a file is written, with the CRC-32C of each [SumChunk] bytes.
func (d *DraftClient) Seal(ctx context.Context, file uint32, sums []uint32) error {
	for first := 0; first == 0 || first < len(sums); first += MaxSums {
		m := Seal{d.ID, file, uint64(first), sums[first:min(first+MaxSums, len(sums))]}
		if _, err := d.ask(ctx, TypeSeal, TypeDone, m.AppendTo); err != nil {
			return fmt.Errorf("seal a file of checkpoint %s: %w", d.Path, err)
		}
	}
	return nil
}

// Publish makes the draft the checkpoint, if it has so many files, of so many bytes in all, and each is sealed. EBUSY: a file is still
// open for writing, or mapped; the error names it.
func (d *DraftClient) Publish(ctx context.Context, files int, size int64) error {
	m := PublishDraft{d.ID, uint32(files), size}
	if _, err := d.ask(ctx, TypePublish, TypeDone, m.AppendTo); err != nil {
		return fmt.Errorf("publish checkpoint %s: %w", d.Path, err)
	}
	return d.Close()
}

// Drop removes the draft, and ends the connection. A published one stays.
func (d *DraftClient) Drop(ctx context.Context) error {
	d.mu.Lock()
	over := d.closed
	d.mu.Unlock()
	if over {
		return nil
	}
	m := DropDraft{d.ID}
	_, err := d.ask(ctx, TypeDrop, TypeDone, m.AppendTo)
	if err != nil {
		err = fmt.Errorf("drop checkpoint %s: %w", d.Path, err)
	}
	return errors.Join(err, d.Close())
}

// Close ends the connection. The draft stays, for other processes, until the one that began it ends.
func (d *DraftClient) Close() error {
	d.mu.Lock()
	conn := d.conn
	d.conn, d.closed = nil, true
	d.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// Waiting for the next daemon of a mount.
const (
	NextDaemonTime = 40 * time.Second      // at most: a holder gives up after 30 s
	RedialPause    = 50 * time.Millisecond // between two attempts to connect
)

// ask sends a request, again where its daemon has gone: each may come twice.
func (d *DraftClient) ask(ctx context.Context, t, want FrameType, fill func([]byte) []byte) (response, error) {
	end := time.Now().Add(NextDaemonTime)
	for {
		c, err := d.connection(ctx)
		var a response
		if err == nil {
			a, err = c.ask(ctx, t, want, fill)
		}
		if err == nil || !d.lost(c, err) || time.Now().After(end) {
			return a, err
		}
		if err := sleep(ctx, RedialPause); err != nil {
			return response{}, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

var errOtherMount = errors.New("the volume was mounted again since, and the draft has ended with the mount before: begin it again")

// connection gives the connection, or makes another to the daemon that goes on with the mount.
func (d *DraftClient) connection(ctx context.Context) (*Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		return d.conn, nil
	}
	if d.closed {
		return nil, fmt.Errorf("it was published, dropped or closed before: %w", os.ErrClosed)
	}
	c, err := DialTrusted(ctx, d.root, d.client)
	if err != nil {
		return nil, err
	}
	if c.Epoch() != d.epoch {
		return nil, errors.Join(errOtherMount, c.Close())
	}
	d.conn = c
	return c, nil
}

// lost forgets a connection whose daemon has gone, as far as an error says, and tells whether that is so. A mount that has ended has
// another epoch, or no socket.
func (d *DraftClient) lost(c *Client, err error) bool {
	var refusal *Refusal
	if errors.As(err, &refusal) || errors.Is(err, errOtherMount) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c != nil && d.conn != c { // another request has found it
		return !d.closed
	}
	gone := errors.Is(err, ErrStale) || hasClosed(err)
	if gone && c != nil {
		d.conn = nil
		_ = c.Close() // nobody is at the other end
	}
	return gone
}
