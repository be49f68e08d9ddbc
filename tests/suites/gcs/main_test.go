// Package gcs_test tests gs:// sources: the origin's contract against fake-gcs-server (gcsserver, a module of its own, which
// HBMFS_GCSSERVER names built), and mounts of the built hbmfs. Between them stands a proxy of the test, which wants tokens and is
// busy as a test wants. What gives out tokens is a fake: Google's OAuth server and the metadata server are not asked.
package gcs_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Shared by all tests; TestMain makes them.
var (
	suite *blackbox.Suite
	gcs   *gcsServer // nil where HBMFS_GCSSERVER is not set
)

func TestMain(m *testing.M) {
	another := httptest.NewServer(http.NotFoundHandler()) // a machine's metadata, which is not Google's
	defer another.Close()                                 // or the process ends
	for name, value := range map[string]string{
		"GOOGLE_APPLICATION_CREDENTIALS": "", "CLOUDSDK_CONFIG": "/nowhere", "STORAGE_EMULATOR_HOST": "", "NO_PROXY": "*",
		"GCE_METADATA_HOST": strings.TrimPrefix(another.URL, "http://"),
	} {
		_ = os.Setenv(name, value) // there is no reason for an error
	}
	os.Exit(blackbox.Main("gcs", &suite, func() int {
		code := 1
		err := startGCS(os.Getenv("HBMFS_GCSSERVER"))
		if err == nil {
			code = m.Run()
		}
		if gcs != nil {
			err = errors.Join(err, gcs.stdin.Close(), gcs.cmd.Wait())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}))
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	blackbox.Must(t, err)
}

// gcsServer is a running gcsserver.
type gcsServer struct {
	cmd     *exec.Cmd
	stdin   io.Closer // it ends with it
	client  *http.Client
	buckets atomic.Int64
}

func startGCS(path string) error {
	if path == "" {
		return nil
	}
	socket := filepath.Join(suite.Dir, "gcs.socket")
	s := &gcsServer{cmd: exec.Command(path, "-socket", socket)}
	s.cmd.Stderr = os.Stderr
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return err
	}
	s.stdin = stdin
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start gcsserver: %w", err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		return fmt.Errorf("gcsserver says %q instead of ready: %w", line, errors.Join(err, stdin.Close(), s.cmd.Wait()))
	}
	s.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableCompression: true, MaxIdleConnsPerHost: 64,
	}}
	gcs = s
	return nil
}

func needGCS(t testing.TB) {
	t.Helper()
	if gcs == nil {
		t.Skip("needs HBMFS_GCSSERVER, a built tests/suites/origins/gcsserver (make test builds it)")
	}
}

// ask makes a request of the server that must succeed.
func (s *gcsServer) ask(t testing.TB, method, path string, body []byte) {
	t.Helper()
	q, err := http.NewRequest(method, "http://gcs"+path, bytes.NewReader(body))
	must(t, err)
	res, err := s.client.Do(q)
	must(t, err)
	text, err := io.ReadAll(res.Body)
	must(t, errors.Join(err, res.Body.Close()))
	if res.StatusCode/100 != 2 {
		t.Errorf("%s %s: %s: %s", method, path, res.Status, text)
	}
}

// bucket makes an empty bucket.
func (s *gcsServer) bucket(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("bucket-%d", s.buckets.Add(1))
	s.ask(t, http.MethodPost, "/storage/v1/b?project=p", []byte(`{"name":"`+name+`"}`))
	return name
}

// put uploads an object. query has further parameters.
func (s *gcsServer) put(t testing.TB, bucket, name string, data []byte, query string) {
	t.Helper()
	s.ask(t, http.MethodPost, "/upload/storage/v1/b/"+bucket+"/o?uploadType=media&name="+url.QueryEscape(name)+query, data)
}

func (s *gcsServer) remove(t testing.TB, bucket, name string) {
	t.Helper()
	s.ask(t, http.MethodDelete, "/storage/v1/b/"+bucket+"/o/"+url.PathEscape(name), nil)
}

// proxy stands before the server, on a port.
type proxy struct {
	*httptest.Server
	before atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool] // may answer in its place
}

func newProxy(t testing.TB) *proxy {
	p := &proxy{}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "gcs", "storage.googleapis.com"
		},
		Transport: gcs.client.Transport,
	}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := p.before.Load(); f == nil || !(*f)(w, r) {
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() { p.CloseClientConnections(); p.Close() })
	return p
}

func (p *proxy) do(f func(w http.ResponseWriter, r *http.Request) bool) { p.before.Store(&f) }

func (p *proxy) source(path, options string) string {
	return "gs://" + path + "?endpoint=" + url.QueryEscape(p.URL) + options
}

// mount mounts a source. When the test ends it must come off, and the daemon must end.
func mount(t *testing.T, source string, flags ...string) *blackbox.Mounted {
	t.Helper()
	return suite.MountOn(t, source, suite.NewDir(t), append(flags, "--no-keeper")...)
}

// said runs a command of hbmfs, and gives all that it says.
func said(t testing.TB, args ...string) (string, error) {
	t.Helper()
	out, err := suite.Command(t.Context(), args...).CombinedOutput()
	return string(out), err
}
