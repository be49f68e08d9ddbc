package sitetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Fault is what goes wrong with an answer.
type Fault string

// The faults of answers.
const (
	None       Fault = ""
	ServerFail Fault = "500"
	SlowDown   Fault = "503 slow down"
	Reset      Fault = "reset in the body"
	HangUp     Fault = "connection closed in the body"
	Short      Fault = "half the body, well-formed"
	OtherRange Fault = "other bytes than asked for"
	Stall      Fault = "half the body, then nothing"
	Down       Fault = "connection closed at once"
)

// Proxy stands before a server.
type Proxy struct {
	*httptest.Server

	mu     sync.Mutex
	answer func(w http.ResponseWriter, r *http.Request) bool // takes a request for itself
	fault  func(number int, a Asked) Fault                   // of the number-th request for a range
	ranges []Asked
}

// Asked is a range that was asked for.
type Asked struct {
	Path     string
	From, To int64 // the last byte
}

type ctxKey int

const (
	faultKey ctxKey = iota
	connKey
)

// NewProxy makes a proxy before a server, on a socket or a port.
func NewProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	transport := ToServer(server)
	p := &Proxy{}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "server", r.In.Host // which the signature holds
		},
		Transport: transport, FlushInterval: -1, ModifyResponse: spoil,
		ErrorLog: log.New(io.Discard, "", 0), // of what was broken on purpose
	}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, forward) }))
	p.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey, c) }
	p.Config.ErrorLog = forward.ErrorLog
	p.Start()
	t.Cleanup(func() {
		p.CloseClientConnections()
		p.Close()
		transport.CloseIdleConnections()
	})
	return p
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	f, answer := p.look(r)
	if answer != nil && answer(w, r) {
		return
	}
	switch f {
	case ServerFail:
		w.WriteHeader(http.StatusInternalServerError)
	case SlowDown:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`)
	case Down:
		panic(http.ErrAbortHandler)
	default:
		forward.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), faultKey, f)))
	}
}

// look notes a request and says what is to happen to it.
func (p *Proxy) look(r *http.Request) (f Fault, answer func(http.ResponseWriter, *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if from, to, ok := blackbox.ParseRange(r.Header.Get("Range")); ok && r.Method == http.MethodGet {
		a := Asked{r.URL.Path, from, to}
		p.ranges = append(p.ranges, a)
		if p.fault != nil {
			f = p.fault(len(p.ranges), a)
		}
	}
	return f, p.answer
}

// SetFault says what happens to requests for ranges from now on.
func (p *Proxy) SetFault(f func(number int, a Asked) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// SetAnswer takes any request away from the server.
func (p *Proxy) SetAnswer(f func(w http.ResponseWriter, r *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = f
}

// Asked gives the ranges that were asked for so far, but those of the index that a mount of a web server learns from what
// there is: /PLACE/index.json.
func (p *Proxy) Asked() []Asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Asked
	for _, a := range p.ranges {
		if !strings.HasSuffix(a.Path, "/index.json") || strings.Count(a.Path, "/") > 2 {
			out = append(out, a)
		}
	}
	return out
}

// spoil does to an answer what was decided on for its request.
func spoil(res *http.Response) error {
	ctx := res.Request.Context()
	f, _ := ctx.Value(faultKey).(Fault)
	half := max(0, res.ContentLength/2)
	switch f {
	case Reset:
		res.Body = &cut{res.Body, half, func() error {
			if c, ok := ctx.Value(connKey).(*net.TCPConn); ok {
				_ = c.SetLinger(0) // so that its end is a reset
			}
			return errors.New("reset")
		}}
	case HangUp:
		res.Body = &cut{res.Body, half, func() error { return errors.New("closed") }}
	case Short:
		res.Body = &cut{res.Body, half, func() error { return io.EOF }}
		res.ContentLength = half
		res.Header.Set("Content-Length", strconv.FormatInt(half, 10))
	case OtherRange:
		from, to, ok := blackbox.ParseRange(strings.Replace(strings.Split(res.Header.Get("Content-Range"), "/")[0], "bytes ", "", 1))
		if ok {
			_, size, _ := strings.Cut(res.Header.Get("Content-Range"), "/")
			res.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%s", from+1, to+1, size))
		}
	case Stall:
		res.Body = &cut{res.Body, half, func() error { <-ctx.Done(); return ctx.Err() }}
	}
	return nil
}

// cut is a body that ends early.
type cut struct {
	io.ReadCloser
	left int64
	end  func() error
}

func (c *cut) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, c.end()
	}
	n, err := c.ReadCloser.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}
