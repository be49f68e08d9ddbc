package control_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// rawDial connects without package control's manners.
func rawDial(t testing.TB, m *mounted) *net.UnixConn {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		c, err := net.Dial("unixpacket", m.Path(".hbmfs", "control"))
		if err == nil {
			return c.(*net.UnixConn)
		}
		if !errors.Is(err, syscall.EAGAIN) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func frame(kind control.FrameType, id uint32, fill func([]byte) []byte) []byte {
	return control.AppendFrame(nil, control.Header{Version: control.Version, Type: kind, ID: id}, fill)
}

func helloFrame() []byte {
	return frame(control.TypeHello, 1, (&control.Hello{Min: 1, Max: 1, Name: "hostile"}).AppendTo)
}

// greeted is a raw connection that has said HELLO.
func greeted(t testing.TB, m *mounted) *net.UnixConn {
	t.Helper()
	c := rawDial(t, m)
	_, err := c.Write(helloFrame())
	must(t, err)
	if kind, _ := reply(t, c); kind != control.TypeWelcome {
		t.Fatalf("HELLO is answered with %d", kind)
	}
	return c
}

// reply reads one answer: its type, and its errno if it is an ERROR. The end of the connection is type 0.
func reply(t testing.TB, c *net.UnixConn) (control.FrameType, syscall.Errno) {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(patience)))
	p := make([]byte, control.MaxFrame)
	n, err := c.Read(p)
	if err != nil {
		return 0, 0
	}
	h, payload, err := control.ParseFrame(p[:n])
	must(t, err)
	if h.Type != control.TypeError {
		return h.Type, 0
	}
	refusal, err := control.ParseRefusal(payload)
	must(t, err)
	return h.Type, refusal.Errno
}

// served checks that the daemon still serves others.
func served(t testing.TB, m *mounted, name string) {
	t.Helper()
	c, err := control.Dial(limited(t), m.Path(), "good")
	must(t, err)
	f, err := os.Open(m.Path(name))
	must(t, err)
	if _, _, err := readByExtents(t, c, f, 0, math.MaxInt64); err != nil {
		t.Errorf("a good reader is not served: %v", err)
	}
	must(t, errors.Join(f.Close(), c.Close()))
}

// victim is a mount of a few files, with what the daemon holds while it is idle.
func victim(t *testing.T) (m *mounted, names []string, fds int) {
	source, names, _ := manyFiles(t, 100, 5000)
	m = mount(t, source)
	served(t, m, names[0])
	m.idle(t, math.MaxInt)
	return m, names, m.fds(t)
}

func TestHostileFrames(t *testing.T) {
	m, names, fds := victim(t)
	before := m.memory(t)
	rng := rand.New(rand.NewPCG(5, 6))
	valid := [][]byte{
		helloFrame(),
		frame(control.TypeRedeem, 2, (&control.Redeem{Objects: []uint64{1, 2}}).AppendTo),
		frame(control.TypeName, 2, (&control.Redeem{Objects: []uint64{1}}).AppendTo),
		frame(control.TypeLookup, 3, (&control.Lookup{Flags: control.LookupFDs, Paths: names[:30]}).AppendTo),
		frame(control.TypeAck, 3, (&control.Ack{ID: 3, Received: 30}).AppendTo),
		frame(control.TypeRelease, 4, func(b []byte) []byte { return control.AppendRelease(b, []uint64{1, 2, 3, 9999}) }),
		frame(control.TypeStats, 4, func(b []byte) []byte {
			return control.AppendStats(b, []control.PathReport{{Path: control.PathHost, Reason: "why", Bytes: 1, Reads: 1, Field: "jpg"}})
		}),
		frame(control.TypeReaders, 5, nil),
		frame(control.TypePrefetch, 4, func(b []byte) []byte {
			return control.AppendObjectRanges(b, []control.ObjectRange{{Object: 1, Range: control.Range{Offset: 0, Length: math.MaxInt64}}})
		}),
	}
	for range 300 {
		c := rawDial(t, m)
		if rng.IntN(4) > 0 {
			_, _ = c.Write(helloFrame()) // it may be closed already
		}
		for range rng.IntN(8) {
			p := bytes.Clone(valid[rng.IntN(len(valid))])
			switch rng.IntN(4) {
			case 0: // as it is, in a wrong place
			case 1: // other bits
				for range 1 + rng.IntN(6) {
					p[rng.IntN(len(p))] ^= 1 << rng.IntN(8)
				}
			case 2: // cut
				p = p[:rng.IntN(len(p)+1)]
			case 3: // an absurd number
				binary.LittleEndian.PutUint32(p[rng.IntN(len(p)-3):], math.MaxUint32)
			}
			_, _ = c.Write(p) // it may be closed already
		}
		must(t, c.Close()) // answers on their way are lost with it
	}
	m.idle(t, fds) // a busy daemon has more of them than it takes at once
	served(t, m, names[1])
	m.idle(t, fds)
	if grown := m.memory(t) - before; grown > 64<<20 && !blackbox.Race {
		t.Errorf("the daemon grew by %d bytes", grown)
	}
}

func TestBrokenProtocolEndsTheConnection(t *testing.T) {
	m, names, _ := victim(t)
	huge := frame(control.TypeLookup, 2, func(b []byte) []byte { return append(b, make([]byte, control.MaxPayload+1)...) })
	for what, p := range map[string][]byte{
		"a second HELLO": helloFrame(), "an answer": frame(control.TypeDone, 2, nil), "type 99": frame(99, 2, nil), "more than a frame": huge,
		"rubbish": []byte(strings.Repeat("x", 100)), "version 2": control.AppendFrame(nil, control.Header{Version: 2, Type: control.TypeLookup}, nil),
	} {
		c := greeted(t, m)
		_, err := c.Write(p)
		must(t, err)
		kind, errno := reply(t, c)
		if what != "more than a frame" && (kind != control.TypeError || errno != syscall.EPROTO) {
			t.Errorf("%s is answered with %d, %v", what, kind, errno)
		}
		if kind, _ := reply(t, c); kind != 0 {
			t.Errorf("%s leaves the connection open", what)
		}
		must(t, c.Close())
	}
	c := rawDial(t, m)
	_, err := c.Write(frame(control.TypeHello, 1, (&control.Hello{Min: 7, Max: 9}).AppendTo))
	must(t, err)
	if kind, errno := reply(t, c); kind != control.TypeError || errno != syscall.EPROTONOSUPPORT {
		t.Errorf("versions 7 to 9: %d, %v", kind, errno)
	}
	must(t, c.Close())
	served(t, m, names[0])
}

func TestTicketsOfOthers(t *testing.T) {
	m, names, _ := victim(t)
	f, c := open(t, m.Path(names[0])), dial(t, m)
	for b, err := range control.Batches(f, 0, math.MaxInt64, true) {
		must(t, err)
		if got := child(t, true, "redeem", m.Path(), fmt.Sprintf("%x", b.Ticket), fmt.Sprint(b.Objects()[0])); got != "EACCES" {
			t.Errorf("nobody redeems root's ticket: %s, want EACCES", got)
		}
		got, err := c.Redeem(limited(t), b.Ticket, b.Objects())
		if err != nil {
			t.Fatalf("then root: %v", err)
		}
		must(t, got[0].File.Close())
	}
	if _, err := c.Redeem(limited(t), control.Ticket{1, 2, 3}, []uint64{1}); !errors.Is(err, control.ErrStale) {
		t.Errorf("a forged ticket: %v", err)
	}
}

// servedBesideSilence has peers ask and ask, and read nothing, until they are dropped. It says whether a reader was served while the daemon
// could answer none of them. On a busy machine the daemon may be faster to drop them.
func servedBesideSilence(t *testing.T, m *mounted, name string, ask []byte) (before bool) {
	t.Helper()
	const number = 8
	var stuck, dropped atomic.Int64
	var peers sync.WaitGroup
	for range number {
		peers.Go(func() {
			c := greeted(t, m)
			wait := 100 * time.Millisecond // which the daemon takes more than if it cannot answer
			for {
				must(t, c.SetWriteDeadline(time.Now().Add(wait)))
				_, err := c.Write(ask)
				if err == nil {
					continue
				}
				if errors.Is(err, os.ErrDeadlineExceeded) && wait < patience {
					wait = patience
					stuck.Add(1)
					continue
				}
				dropped.Add(1)
				if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("it was not dropped: %v", err)
				}
				break
			}
			must(t, c.Close())
		})
	}
	if !blackbox.Within(patience, func() bool { return stuck.Load() == number || dropped.Load() > 0 }) {
		t.Error("peers that do not read are answered")
	}
	for range 20 {
		served(t, m, name)
		before = before || dropped.Load() == 0
	}
	peers.Wait()
	return before
}

// A peer asks and asks, and reads nothing. It may hold up itself alone, and only for a while.
func TestAPeerThatDoesNotRead(t *testing.T) {
	m, names, fds := victim(t)
	patient, err := control.Dial(limited(t), m.Path(), "patient")
	must(t, err)
	ask := frame(control.TypeLookup, 3, (&control.Lookup{Paths: names}).AppendTo)
	// The daemon drops such a peer after a while. Where readers had to wait for that, none would ever be served before it.
	if !slices.ContainsFunc(make([]int, 5), func(int) bool { return servedBesideSilence(t, m, names[0], ask) }) {
		t.Error("others wait for it")
	}
	// Seconds after it was greeted, a connection is as good as new.
	if _, _, err := readByExtents(t, patient, open(t, m.Path(names[0])), 0, math.MaxInt64); err != nil {
		t.Errorf("a reader that waited: %v", err)
	}
	must(t, patient.Close())
	m.idle(t, fds)
}

func TestUnacknowledgedDescriptorsAreBounded(t *testing.T) {
	m, names, fds := victim(t)
	c := greeted(t, m)
	for id := uint32(10); id < 14; id++ {
		_, err := c.Write(frame(control.TypeLookup, id, (&control.Lookup{Flags: control.LookupFDs, Paths: names[:50]}).AppendTo))
		must(t, err)
		kind, errno := reply(t, c)
		if want := id < 12; (kind == control.TypeFiles) != want || (!want && errno != syscall.EAGAIN) {
			t.Errorf("message %d is answered with %d, %v", id-9, kind, errno)
		}
	}
	if s := m.status(t); s.Leases > 100 {
		t.Errorf("%d leases", s.Leases)
	}
	must(t, c.Close())
	m.idle(t, fds)
}

func TestTenThousandConnections(t *testing.T) {
	m, names, fds := victim(t)
	var open []*net.UnixConn
	welcome := 0
	for range 10000 {
		c := rawDial(t, m)
		_, _ = c.Write(helloFrame()) // it may be turned away already
		kind, errno := reply(t, c)
		switch {
		case kind == control.TypeWelcome:
			welcome++
			open = append(open, c)
			continue
		case kind == control.TypeError && errno != syscall.EAGAIN:
			t.Fatalf("turned away with %v", errno)
		}
		must(t, c.Close())
	}
	if welcome < 200 || welcome > 256 {
		t.Errorf("%d connections of one user are welcome", welcome)
	}
	if n := m.fds(t); n > fds+300 {
		t.Errorf("the daemon has %d files open for them", n-fds)
	}
	if got := child(t, true, "lookup", m.Path(), names[0]); strings.HasPrefix(got, "E") || got == "" {
		t.Errorf("another user is not served: %s", got)
	}
	for _, c := range open {
		must(t, c.Close())
	}
	m.idle(t, fds)
	served(t, m, names[0])
}

func TestAReaderWithFewDescriptors(t *testing.T) {
	m, names, fds := victim(t)
	if got := child(t, true, "few", append([]string{m.Path()}, names...)...); got != "too many, then well" {
		t.Errorf("%s", got)
	}
	m.idle(t, fds)
}

func TestClientsKilledAtEveryStep(t *testing.T) {
	m, names, fds := victim(t)
	for step := range 6 {
		for range 3 {
			cmd := childCommand(t, true, "steps", m.Path(), names[0], fmt.Sprint(step))
			out, err := cmd.StdoutPipe()
			must(t, err)
			must(t, cmd.Start())
			if n, err := out.Read(make([]byte, 1)); n != 1 {
				t.Errorf("step %d: the child has not come so far: %v", step, err)
			}
			must(t, cmd.Process.Kill())
			_ = cmd.Wait() // killed
		}
	}
	m.idle(t, fds)
	served(t, m, names[0])
}

func TestTheDaemonIsKilled(t *testing.T) {
	source, names, _ := manyFiles(t, 2, 5000)
	m := mount(t, source, "--no-keeper")
	f, c := open(t, m.Path(names[0])), dial(t, m)
	for b, err := range control.Batches(f, 0, math.MaxInt64, true) {
		must(t, err)
		got, err := c.Redeem(limited(t), b.Ticket, b.Objects())
		must(t, err)
		must(t, syscall.Kill(m.pid, syscall.SIGKILL))
		if !within(func() bool { return blackbox.Ended(m.pid) }) {
			t.Fatal("it lives")
		}
		if n, err := got[0].File.ReadAt(make([]byte, 5000), 0); n != 5000 {
			t.Errorf("what was redeemed does not outlive the daemon: %d bytes, %v", n, err)
		}
		must(t, got[0].File.Close())
		if _, err := c.Redeem(limited(t), b.Ticket, b.Objects()); !errors.Is(err, control.ErrStale) {
			t.Errorf("the connection: %v, want ErrStale", err)
		}
	}
	_ = f.Close() // so that the dead mount comes off
	if _, err := control.Dial(limited(t), m.Path(), ""); err == nil {
		t.Error("a dead daemon greets")
	}
	_ = unix.Unmount(m.Path(), unix.MNT_DETACH) // the test's cleanup looks again
	if _, err := os.Stat(m.Path(names[0])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead mount is still there: %v", err)
	}
}
