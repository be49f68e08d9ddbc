package control

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// silent is a client whose daemon says nothing unless the test does: daemon is its end.
func silent(t *testing.T) (c *Client, daemon int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLine(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	c = newClient(l)
	t.Cleanup(func() {
		_ = c.Close() // some tests have closed it
		CloseAll(pair[1:])
	})
	return c, pair[1]
}

// asked waits for a question and returns its header.
func asked(t *testing.T, daemon int) Header {
	t.Helper()
	p := make([]byte, MaxFrame)
	n, err := unix.Read(daemon, p)
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := ParseFrame(p[:n])
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	c, daemon := silent(t)
	ctx, cancel := context.WithCancel(t.Context())
	said := make(chan error)
	go func() { _, err := c.Readers(ctx); said <- err }()
	first := asked(t, daemon)
	other, cancelOther := context.WithCancel(t.Context())
	cancelOther()
	if _, err := c.Readers(other); !errors.Is(err, context.Canceled) {
		t.Errorf("whose turn has not come: %v", err)
	}
	cancel()
	select {
	case err := <-said:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits on")
	}
	// The answer that comes all the same is not taken for the next one's.
	go func() {
		second := asked(t, daemon)
		for _, m := range []struct {
			id uint32
			ReaderCount
		}{{first.ID, ReaderCount{1}}, {second.ID, ReaderCount{2}}} {
			_ = transmit(daemon, AppendFrame(nil, Header{Version, TypeCount, m.id}, m.AppendTo), nil) // the client says if it did not come
		}
	}()
	if n, err := c.Readers(t.Context()); err != nil || n != 2 {
		t.Errorf("the next answer: %d, %v, want 2", n, err)
	}
}

func TestAWaitEndsWhenTheClientIsClosed(t *testing.T) {
	c, daemon := silent(t)
	said := make(chan error)
	go func() { _, err := c.Readers(t.Context()); said <- err }()
	asked(t, daemon)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-said:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits on")
	}
	if _, err := c.Readers(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed client: %v", err)
	}
}

func TestSendingEndsWithItsContext(t *testing.T) {
	c, _ := silent(t)
	ctx, cancel := context.WithCancel(t.Context())
	said := make(chan error)
	go func() {
		var err error
		for err == nil { // until the socket is full, and the daemon reads nothing
			err = c.Release(ctx, make([]uint64, 1000)...)
		}
		said <- err
	}()
	full := func() bool {
		poll := []unix.PollFd{{Events: unix.POLLOUT}}
		_ = c.line.raw.Control(func(fd uintptr) { poll[0].Fd = int32(fd); _, _ = unix.Poll(poll, 0) }) // it is open
		return poll[0].Revents&unix.POLLOUT == 0
	}
	for end := time.Now().Add(time.Minute); !full(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the socket takes all")
		}
	}
	cancel()
	select {
	case err := <-said:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits on")
	}
}

// Of requests for descriptors that are given up at most one is on its way: the daemon refuses a third.
func TestWhatWasGivenUpIsSettledFirst(t *testing.T) {
	c, daemon := silent(t)
	lookup := func(ctx context.Context) (err error) {
		for _, err = range c.Lookup(ctx, []string{"a"}) {
			if err != nil {
				break
			}
		}
		return err
	}
	given := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { given <- lookup(ctx) }()
	first := asked(t, daemon)
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Fatalf("it ends with %v", err)
	}
	over, cancelOver := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelOver()
	if err := lookup(over); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("while the first is not answered: %v", err)
	}
	refusal := Refusal{Errno: syscall.ENOMEM, Text: "no"}
	if err := transmit(daemon, AppendFrame(nil, Header{Version, TypeError, first.ID}, refusal.AppendTo), nil); err != nil {
		t.Fatal(err)
	}
	go func() { given <- lookup(t.Context()) }()
	second := asked(t, daemon) // nothing was asked in between
	if err := transmit(daemon, AppendFrame(nil, Header{Version, TypeError, second.ID}, refusal.AppendTo), nil); err != nil {
		t.Fatal(err)
	}
	if err := <-given; second.Type != TypeLookup || second.ID != first.ID+2 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%+v after %+v, %v", second, first, err)
	}
}

// A daemon that turns a connection away says why and closes it, whatever of the greeting has come by then.
func TestWhoIsTurnedAwayHearsWhy(t *testing.T) {
	refusal := Refusal{Errno: syscall.EAGAIN, Text: "too many connections"}
	for name, early := range map[string]bool{"before the greeting": true, "with the greeting unread": false} {
		t.Run(name, func(t *testing.T) {
			c, daemon := silent(t)
			if !early { // what is not read makes the kernel say that the connection was reset
				if err := c.Release(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
			}
			if err := transmit(daemon, AppendFrame(nil, Header{Version: Version, Type: TypeError}, refusal.AppendTo), nil); err != nil {
				t.Fatal(err)
			}
			null, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(unix.Dup3(int(null.Fd()), daemon, unix.O_CLOEXEC), null.Close()); err != nil { // closes the daemon's end
				t.Fatal(err)
			}
			if err := c.hello(t.Context(), "reader", 0); !errors.Is(err, syscall.EAGAIN) {
				t.Errorf("%v, want why", err)
			}
			if err := c.hello(t.Context(), "reader", 0); !errors.Is(err, ErrStale) {
				t.Errorf("%v, want that the connection is closed", err)
			}
		})
	}
}
