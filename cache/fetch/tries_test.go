package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// drip is a body that brings a byte at a time.
type drip struct {
	pause time.Duration
	end   func() error // after most bytes
	most  int
}

func (d *drip) Read(p []byte) (int, error) {
	if d.most--; d.most < 0 {
		return 0, d.end()
	}
	time.Sleep(d.pause)
	p[0] = 0
	return 1, nil
}

// TestDripsEnd has origins whose every byte comes in time, and whose MiB never would: in one answer, in many, and a byte
// in each. A read ends within patience, more or less.
func TestDripsEnd(t *testing.T) {
	hangUp := func() error { return io.ErrUnexpectedEOF }
	for name, do := range map[string]func(int64, []byte) (io.Reader, error){
		"in one answer":  func(int64, []byte) (io.Reader, error) { return &drip{5 * time.Millisecond, hangUp, 1 << 30}, nil },
		"in many":        func(int64, []byte) (io.Reader, error) { return &drip{time.Millisecond, hangUp, 20}, nil },
		"a byte in each": func(int64, []byte) (io.Reader, error) { return &drip{0, hangUp, 1}, nil },
	} {
		inFakeTime(t, name, func(t *testing.T) {
			s := &script{data: make([]byte, 4<<20), do: do}
			c := New(s, Options{Patience: time.Second, NoHedging: true})
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := c.Fetch(ctx, object(s), 0, 4<<20, func([]byte) error { return nil })
			if !errors.Is(err, ErrUnreachable) || time.Since(began) > 20*time.Second {
				t.Errorf("%v after %v, want ErrUnreachable after a second or two", err, time.Since(began))
			}
			if name == "in one answer" && (!errors.Is(err, ErrSlow) || c.Stats().Stalls == 0) {
				t.Errorf("%v, %+v; want ErrSlow, among the stalls", err, c.Stats())
			}
		})
	}
}

// TestSlowIsNotTooSlow has an origin just above the pace, whose sink takes longer than a stall.
func TestSlowIsNotTooSlow(t *testing.T) { synctest.Test(t, slowIsNotTooSlow) }

func slowIsNotTooSlow(t *testing.T) {
	s := &script{data: make([]byte, 1<<20), do: func(_ int64, body []byte) (io.Reader, error) {
		return &paced{body: body, pause: 50 * time.Millisecond, piece: 64 << 10}, nil
	}}
	c := New(s, Options{Patience: 2 * time.Second, Stall: 200 * time.Millisecond})
	err := c.Fetch(t.Context(), object(s), 0, 1<<20, func([]byte) error { time.Sleep(300 * time.Millisecond); return nil })
	if err != nil || c.Stats().Requests != 1 {
		t.Errorf("%v after %d requests", err, c.Stats().Requests)
	}
}

type paced struct {
	body  []byte
	pause time.Duration
	piece int
}

func (b *paced) Read(p []byte) (int, error) {
	time.Sleep(b.pause)
	n := copy(p[:min(len(p), b.piece)], b.body)
	if b.body = b.body[n:]; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// TestWhoCannotAnswer asks an origin that cannot answer, before it ever has, and after. Once nobody waits for it, at once
// it is; later it may come back.
func TestWhoCannotAnswer(t *testing.T) {
	for name, cause := range map[string]error{
		"refused":     &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
		"no name":     &net.DNSError{Err: "no such host", IsNotFound: true},
		"no port":     &net.AddrError{Err: "invalid port"},
		"certificate": &tls.CertificateVerificationError{Err: errors.New("expired")},
		"no TLS":      tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"},
		"plain HTTP":  http.ErrSchemeMismatch,
	} {
		inFakeTime(t, name, func(t *testing.T) {
			s := &script{data: randomBytes(10)}
			away := true
			s.do = func(_ int64, body []byte) (io.Reader, error) {
				if away {
					return nil, fmt.Errorf("get: %w", cause)
				}
				return whole(0, body)
			}
			began := time.Now()
			c := New(s, Options{Patience: time.Hour})
			for _, ask := range []func() error{
				func() error { _, err := read(t, c, object(s), 0, 10); return err },
				func() error {
					return c.Retry(t.Context(), func(context.Context, func()) error { _, err := s.do(0, nil); return err })
				},
			} {
				if err := ask(); !errors.Is(err, ErrUnreachable) || !errors.Is(err, cause) || time.Since(began) > 30*time.Second {
					t.Errorf("it never answered: %v after %v", err, time.Since(began))
				}
			}
			began = time.Now()
			waiting := New(s, Options{Patience: time.Hour, Wait: 300 * time.Millisecond})
			if _, err := read(t, waiting, object(s), 0, 10); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "a longer --wait") || time.Since(began) < 300*time.Millisecond {
				t.Errorf("it was to be waited for: %v after %v", err, time.Since(began))
			}
			away = false
			if _, err := read(t, c, object(s), 0, 10); err != nil {
				t.Fatal(err)
			}
			away = true
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if err := c.Fetch(ctx, object(s), 0, 10, func([]byte) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it has answered before: %v, want that it is waited for", err)
			}
		})
	}
}

// TestRetryingIsSaid within a second, and not each time.
func TestRetryingIsSaid(t *testing.T) {
	down := errors.New("503 slow down")
	for name, ask := range map[string]func(ctx context.Context, c *Client, s *script) error{
		"read": func(ctx context.Context, c *Client, s *script) error {
			return c.Fetch(ctx, object(s), 0, 10, func([]byte) error { return nil })
		},
		"list": func(ctx context.Context, c *Client, _ *script) error {
			return c.Retry(ctx, func(context.Context, func()) error { return down })
		},
		"silence": func(ctx context.Context, c *Client, _ *script) error {
			return c.Retry(ctx, func(ctx context.Context, _ func()) error { <-ctx.Done(); return ctx.Err() })
		},
	} {
		inFakeTime(t, name, func(t *testing.T) {
			want := down
			if name == "silence" {
				want = ErrSilent
			}
			var mu sync.Mutex
			var said []error
			first := make(chan time.Time, 1)
			s := &script{data: randomBytes(10), do: func(int64, []byte) (io.Reader, error) { return nil, down }}
			c := New(s, Options{Retrying: func(err error) {
				mu.Lock()
				defer mu.Unlock()
				if said = append(said, err); len(said) == 1 {
					first <- time.Now()
				}
			}})
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if err := ask(ctx, c, s); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(said) != 1 || !errors.Is(said[0], want) {
				t.Fatalf("it said %v, want %v once", said, want)
			}
			if after := (<-first).Sub(began); after > 2*time.Second { // a second, on a machine that has time
				t.Errorf("it was said after %v", after)
			}
		})
	}
}

// TestHiccupsAreNotSaid has a request fail once.
func TestHiccupsAreNotSaid(t *testing.T) {
	s := &script{data: randomBytes(10), do: func(number int64, body []byte) (io.Reader, error) {
		if number == 1 {
			return nil, errors.New("reset")
		}
		return whole(number, body)
	}}
	c := New(s, Options{Retrying: func(err error) { t.Errorf("it said %v", err) }})
	if _, err := read(t, c, object(s), 0, 10); err != nil {
		t.Error(err)
	}
}

func TestLastingStatuses(t *testing.T) {
	for _, status := range []int{301, 304, 400, 404, 405, 416, 431, 451, 501, 505} {
		if !Lasting(status) {
			t.Errorf("%d is tried again", status)
		}
	}
	for _, status := range []int{408, 409, 421, 423, 425, 429, 500, 502, 503, 504, 200} {
		if Lasting(status) {
			t.Errorf("%d is not tried again", status)
		}
	}
}
