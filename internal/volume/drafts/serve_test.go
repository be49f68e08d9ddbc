package drafts

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestMain(m *testing.M) {
	if client() {
		os.Exit(0)
	}
	leaks.Main(m)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// volume is a checkpoint volume without a mount: a directory with a control socket in it.
type volume struct {
	dir    string
	server *Server
	said   chan string // names that were published
	stop   func()      // ends the daemon, as SIGKILL would: connections break
}

type volumeOptions struct {
	noProcess bool // the kernel tells no process
	as        *asuser.User
}

func newVolume(t *testing.T, opt volumeOptions) *volume {
	t.Helper()
	dir, err := os.MkdirTemp("", "hbmfs-drafts-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, errors.Join(os.Mkdir(filepath.Join(dir, ".hbmfs"), 0o755), os.Chmod(dir, 0o1777)))
	home, err := checkpoint.OpenHome(dir)
	must(t, err)
	v := &volume{dir: dir, said: make(chan string, 100)}
	v.server, err = New(Options{Home: home, Log: slog.New(slog.DiscardHandler), Published: func(name string) { v.said <- name }})
	must(t, err)
	v.serve(t, opt)
	t.Cleanup(func() {
		v.stop()
		must(t, errors.Join(v.server.Close(), home.Close()))
		if booked := v.server.drafts.Booked() + v.server.files.Booked() + v.server.unnamed.Booked() + v.server.chunks.Booked(); booked != 0 {
			t.Errorf("%d are booked in the end", booked)
		}
	})
	return v
}

// serve speaks the control protocol, as far as drafts need it.
func (v *volume) serve(t *testing.T, opt volumeOptions) {
	t.Helper()
	address := filepath.Join(v.dir, ".hbmfs", "control")
	_ = os.Remove(address) // of the daemon before
	l, err := net.Listen("unixpacket", address)
	must(t, err)
	must(t, os.Chmod(address, 0o777))
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns []*control.Conn
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conn, err := control.NewConn(c.(*net.UnixConn))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			all.Go(func() { v.answer(t, c.(*net.UnixConn), conn, opt) })
		}
	})
	v.stop = sync.OnceFunc(func() {
		_ = l.Close() // nothing is lost
		mu.Lock()
		for _, c := range conns {
			c.Cut()
		}
		mu.Unlock()
		all.Wait()
	})
}

func (v *volume) answer(t *testing.T, c *net.UnixConn, conn *control.Conn, opt volumeOptions) {
	defer func() { _ = conn.Close() }()
	user, pidfd := peerOf(t, c)
	if opt.as != nil {
		user = *opt.as
	}
	if opt.noProcess {
		_ = pidfd.Close()
		pidfd = nil
	}
	session := v.server.Session(user, pidfd)
	defer session.End()
	p := make([]byte, control.MaxFrame)
	for {
		n, err := conn.Receive(p)
		if err != nil {
			return
		}
		h, payload, err := control.ParseFrame(p[:n])
		if err != nil {
			return
		}
		a := Answer{Type: control.TypeWelcome, Payload: (&control.Welcome{Version: 1, Flags: control.WelcomeDrafts}).AppendTo}
		if h.Type != control.TypeHello {
			a, err = session.Handle(t.Context(), h.Type, payload)
		}
		var refusal *control.Refusal
		if errors.As(err, &refusal) {
			a.Type, a.Payload = control.TypeError, refusal.AppendTo
		} else if err != nil {
			return
		}
		fds := make([]int, len(a.Files))
		for i, f := range a.Files {
			fds[i] = int(f.Fd())
		}
		err = conn.SendNow(control.AppendFrame(nil, control.Header{Version: 1, Type: a.Type, ID: h.ID}, a.Payload), fds)
		closeAll(a.Files)
		if err != nil {
			return
		}
	}
}

func peerOf(t *testing.T, c *net.UnixConn) (user asuser.User, pidfd *os.File) {
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
			if err != nil {
				t.Error(err)
				return
			}
			user = asuser.User{UID: cred.Uid, GID: cred.Gid, Capable: cred.Uid == 0}
			n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
			if err != nil {
				t.Error(err)
				return
			}
			pidfd = os.NewFile(uintptr(n), "peer")
		})
	}
	if err != nil {
		t.Error(err)
	}
	return user, pidfd
}

func (v *volume) begin(t *testing.T, name string) *control.DraftClient {
	t.Helper()
	d, err := control.BeginDraft(t.Context(), filepath.Join(v.dir, name), 0, 1, "test")
	must(t, err)
	t.Cleanup(func() { _ = d.Drop(t.Context()); _ = d.Close() })
	return d
}

// fill writes a file through its pen and closes that.
func fill(pen *os.File, data []byte) error {
	_, err := pen.WriteAt(data, 0)
	return errors.Join(err, pen.Truncate(int64(len(data))), pen.Sync(), pen.Close())
}

func sumsFor(data []byte) (sums []uint32) {
	for chunk := range slices.Chunk(data, control.SumChunk) {
		sums = append(sums, crc32.Checksum(chunk, crc32.MakeTable(crc32.Castagnoli)))
	}
	return sums
}

// write adds a file, fills and seals it.
func write(t *testing.T, d *control.DraftClient, name string, data []byte) {
	t.Helper()
	first, pens, err := d.Add(t.Context(), control.NewFile{Name: name, Size: int64(len(data))})
	must(t, err)
	must(t, fill(pens[0], data))
	must(t, d.Seal(t.Context(), first, sumsFor(data)))
}

func (v *volume) complete(t *testing.T, name string) bool {
	t.Helper()
	report, err := checkpoint.Verify(t.Context(), filepath.Join(v.dir, name), checkpoint.VerifyOptions{})
	return err == nil && report.Damaged == 0
}

// left lists what is in the volume, beside the socket.
func (v *volume) left(t *testing.T) (names []string) {
	t.Helper()
	list, err := os.ReadDir(v.dir)
	must(t, err)
	for _, e := range list {
		if e.Name() != ".hbmfs" {
			names = append(names, e.Name())
		}
	}
	return names
}

// client is what a child of the tests does, which is killed: it writes a checkpoint, and stops at a step until it is killed.
func client() bool {
	step, dir := os.Getenv("HBMFS_TEST_STEP"), os.Getenv("HBMFS_TEST_DIR")
	if dir == "" {
		return false
	}
	if err := clientSteps(step, filepath.Join(dir, "step_1")); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return true
}

var clientStepNames = []string{"begun", "added", "half", "written", "closed", "sealed", "published"}

func clientSteps(last, path string) error {
	at := func(step string) {
		if step == last {
			fmt.Println("there")
			select {}
		}
	}
	ctx := context.Background()
	d, err := control.BeginDraft(ctx, path, 0, 1, "child")
	if err != nil {
		return err
	}
	at("begun")
	data := make([]byte, 5<<20)
	first, pens, err := d.Add(ctx, control.NewFile{Name: "a", Size: int64(len(data))}, control.NewFile{Name: "sub/b", Size: 0})
	if err != nil {
		return err
	}
	at("added")
	if _, err := pens[0].WriteAt(data[:1<<20], 0); err != nil {
		return err
	}
	at("half")
	if _, err := pens[0].WriteAt(data, 0); err != nil {
		return err
	}
	at("written")
	if err := errors.Join(pens[0].Truncate(int64(len(data))), pens[0].Close(), pens[1].Close()); err != nil {
		return err
	}
	at("closed")
	if err := errors.Join(d.Seal(ctx, first, sumsFor(data)), d.Seal(ctx, first+1, nil)); err != nil {
		return err
	}
	at("sealed")
	if err := d.Publish(ctx, 2, int64(len(data))); err != nil {
		return err
	}
	at("published")
	return nil
}
