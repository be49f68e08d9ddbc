package fetch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestGuardJudges(t *testing.T) {
	g, err := NewGuard([]string{"127.0.0.9", "127.1.0.0/16", "fe80::1%eth0", "::ffff:127.2.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	for address, refused := range map[string]bool{
		"127.0.0.1": true, "127.255.255.254": true, "::1": true, "::ffff:127.0.0.1": true, "0.0.0.0": true, "0.1.2.3": true, "::": true, "::ffff:0.0.0.0": true,
		"169.254.169.254": true, "::ffff:169.254.169.254": true, "169.254.170.2": true, "169.254.170.23": true, "fe80::2": true, "fe80::2%eth0": true, "fe80::a9fe:a9fe": true,
		"fd00:ec2::254": true, "fd00:ec2::23": true, "fd20:ce::254": true, "168.63.129.16": true, "100.100.100.200": true, "192.0.0.192": true,
		"64:ff9b::169.254.169.254": true, "64:ff9b:1::169.254.169.254": true, "2002:a9fe:a9fe::1": true, "::ffff:0:169.254.169.254": true, "::169.254.169.254": true,
		"224.0.0.1": true, "255.255.255.255": true, "ff02::1": true,
		"10.0.0.1": false, "192.168.1.1": false, "172.17.0.1": false, "93.184.216.34": false, "fd00::1": false, "2606:2800::1": false, "64:ff9b::10.0.0.1": false, "2002:a00:1::1": false,
		"127.0.0.9": false, "::ffff:127.0.0.9": false, "127.1.2.3": false, "fe80::1": false, "fe80::1%eth1": false, "127.2.0.1": false,
	} {
		if err := g.judge(netip.MustParseAddr(address)); errors.Is(err, fs.ErrPermission) != refused {
			t.Errorf("%s: %v, want it refused: %v", address, err, refused)
		}
	}
	for host, refused := range map[string]bool{
		"localhost": true, "localhost.": true, "LocalHost": true, "a.localhost": true, "2852039166": true, "127.1": true, "0xa9fea9fe": true, "0xa9.254.43518": true, "169.254.169.254": true,
		"example.com": false, "s3.eu-central-1.amazonaws.com": false, "minio": false, "93.184.216.34": false,
	} {
		if err := g.judgeHost(host); errors.Is(err, fs.ErrPermission) != refused {
			t.Errorf("the host %s: %v, want it refused: %v", host, err, refused)
		}
	}
	for _, text := range []string{"", "localhost", "127.0.0.1:80", "127.0.0.0/33", "::ffff:127.0.0.0/104"} {
		if _, err := NewGuard([]string{text}); err == nil {
			t.Errorf("%q is allowed", text)
		}
	}
}

// serveOn is a web server at an address of this machine.
func serveOn(t *testing.T, address string, serve http.HandlerFunc) *httptest.Server {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(serve)
	_ = s.Listener.Close() // nobody knows it
	s.Listener = listener
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func get(t *testing.T, transport http.RoundTripper, address string) (string, error) {
	t.Helper()
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }() // read below
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// TestGuardedDials has the guard judge each dialled address: after a redirect, after a name was resolved, and each time anew when
// the name's address changes (DNS rebinding). 127.0.0.1 is allowed here, and 127.0.0.2 is not.
func TestGuardedDials(t *testing.T) {
	var asked atomic.Int64
	secret := serveOn(t, "127.0.0.2:0", func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); fmt.Fprint(w, "the role") })
	_, port, _ := strings.Cut(strings.TrimPrefix(secret.URL, "http://"), ":")
	public := serveOn(t, "127.0.0.1:"+port, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // so that each request dials
		if r.URL.Path == "/away" {
			http.Redirect(w, r, secret.URL, http.StatusTemporaryRedirect)
			return
		}
		fmt.Fprint(w, "public")
	})
	names := &nameServer{addresses: []string{"127.0.0.1", "127.0.0.2"}}
	g, err := NewGuard([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	g.resolver = &net.Resolver{PreferGo: true, Dial: names.dial}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil
	transport := g.Transport(base)
	if text, err := get(t, transport, public.URL); err != nil || text != "public" {
		t.Errorf("an address that is allowed: %q, %v", text, err)
	}
	for _, address := range []string{secret.URL, public.URL + "/away", "http://[::ffff:127.0.0.2]:" + port} {
		if text, err := get(t, transport, address); !errors.Is(err, fs.ErrPermission) || !final(err) {
			t.Errorf("%s: %q, %v", address, text, err)
		}
	}
	if text, err := get(t, transport, "http://rebinds.test:"+port); err != nil || text != "public" {
		t.Errorf("a name of an address that is allowed: %q, %v", text, err)
	}
	if text, err := get(t, transport, "http://rebinds.test:"+port); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the name, of another address now: %q, %v", text, err)
	}
	if asked.Load() != 0 {
		t.Errorf("the address that is not allowed was asked %d times", asked.Load())
	}
	if text, err := get(t, (*Guard)(nil).Transport(base), secret.URL); err != nil || text != "the role" {
		t.Errorf("without a guard: %q, %v", text, err)
	}
}

// TestGuardedProxy has a proxy, which may be at any address, asked for names only.
func TestGuardedProxy(t *testing.T) {
	var seen sync.Map
	proxy := serveOn(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.URL.String(), true)
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest/", http.StatusFound)
			return
		}
		fmt.Fprint(w, "by proxy")
	})
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGuard(nil)
	if err != nil {
		t.Fatal(err)
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = func(r *http.Request) (*url.URL, error) {
		if r.URL.Hostname() == "127.0.0.1" { // which http.ProxyFromEnvironment has dialled
			return nil, nil
		}
		return at, nil
	}
	transport := g.Transport(base)
	if text, err := get(t, transport, "http://store.test/shard"); err != nil || text != "by proxy" {
		t.Errorf("%q, %v", text, err)
	}
	for _, address := range []string{"http://169.254.169.254/latest/", "http://store.test/away", "http://2852039166/", "http://[fd00:ec2::254]/", proxy.URL} {
		if text, err := get(t, transport, address); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %q, %v", address, text, err)
		}
	}
	if _, leaked := seen.Load("http://169.254.169.254/latest/"); leaked {
		t.Error("the proxy was asked for a link-local address")
	}
}

// nameServer answers every question for an IPv4 address with the next of its addresses, in memory.
type nameServer struct {
	mu        sync.Mutex
	addresses []string
}

func (s *nameServer) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go func() { // ends with the resolver's connection
		defer func() { _ = server.Close() }() // the answer is written
		var size [2]byte                      // net.Pipe is a stream, so messages have lengths
		for {
			if _, err := io.ReadFull(server, size[:]); err != nil {
				return
			}
			question := make([]byte, binary.BigEndian.Uint16(size[:]))
			if _, err := io.ReadFull(server, question); err != nil {
				return
			}
			answer := s.answer(question)
			if _, err := server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
				return
			}
		}
	}()
	return client, nil
}

// answer is a DNS message (RFC 1035) for one with a single question.
func (s *nameServer) answer(question []byte) []byte {
	end := 12
	for question[end] != 0 {
		end += 1 + int(question[end])
	}
	end += 5
	answer := append([]byte{}, question[:end]...)
	answer[2], answer[3] = 0x81, 0x80 // a response, without an error
	clear(answer[6:12])
	if question[end-3] != 1 { // not of type A
		return answer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := netip.MustParseAddr(s.addresses[0]).As4()
	if len(s.addresses) > 1 {
		s.addresses = s.addresses[1:]
	}
	answer[7] = 1
	answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4) // the question's name, type A, IN, for no time, four bytes
	return append(answer, a[:]...)
}
