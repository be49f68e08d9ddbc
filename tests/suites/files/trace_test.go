package files_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/observe/trace/tracetest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// noTraces takes the variables away that this process may have been given.
func noTraces(t *testing.T) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
}

// tracedSite serves a directory over HTTP, and notes the spans that requests carry.
type tracedSite struct {
	*httptest.Server

	mu      sync.Mutex // guards the fields below
	parents []string   // traceparent of ranged requests
}

func newTracedSite(t *testing.T, dir string) *tracedSite {
	t.Helper()
	s := &tracedSite{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Range") != "" {
			s.mu.Lock()
			s.parents = append(s.parents, q.Header.Get("Traceparent"))
			s.mu.Unlock()
		}
		f, err := os.Open(filepath.Join(dir, filepath.FromSlash(q.URL.Path)))
		if err != nil {
			http.NotFound(w, q)
			return
		}
		defer func() { _ = f.Close() }() // opened for reading: nothing is lost
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, q, "", time.Time{}, f)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *tracedSite) carried() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.parents)
}

func readTree(t *testing.T, m *mounted) {
	t.Helper()
	names, err := os.ReadDir(m.Point)
	must(t, err)
	for _, n := range names {
		_, err := os.ReadFile(m.Path(n.Name()))
		must(t, err)
	}
}

// TestTraces mounts compressed shards of a web server. A collector hears how they were fetched, decoded and published,
// the server of which spans its requests are, and neither of anything that is secret.
func TestTraces(t *testing.T) {
	blackbox.NeedFUSE(t)
	noTraces(t)
	c := tracetest.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	source := mounttest.Golden(t, "mds-zstd")
	site, shards := newTracedSite(t, source), readMDSIndex(t, source).Shards
	cached := suite.NewDir(t)
	m := mount(t, site.URL+"/?token=hidden", "--cache-dir", cached, "--cache-min-free=1MiB")
	readTree(t, m)
	if os.Geteuid() == 0 { // others' mounts may have no control channel
		if !blackbox.Within(patience, func() bool { return cacheStatus(t, m).Segments == len(shards)+2 }) {
			t.Errorf("the cache says %+v", cacheStatus(t, m)) // with the index as it is stored, and as it is shown
		}
		file := m.Path(shards[0].RawData.Basename)
		if r := run(t, "read", "--to", "host", file); r.Code != 0 {
			t.Errorf("read ended with %d: %s", r.Code, r.Stderr)
		}
		redeem(t, file)
	}
	m.End(t) // what was not sent yet is sent now

	only := func(name string) tracetest.Span {
		t.Helper()
		if list := c.Spans(name); len(list) == 1 {
			return list[0]
		}
		t.Fatalf("%d spans are called %q", len(c.Spans(name)), name)
		return tracetest.Span{}
	}
	below := func(s tracetest.Span, name string) tracetest.Span {
		t.Helper()
		p, ok := c.Parent(s)
		if !ok || p.Name != name {
			t.Errorf("%s of %v lies below %q, want %q", s.Name, s.About, p.Name, name)
		}
		return p
	}
	if mounted := only("mount"); mounted.ParentSpanID != "" || mounted.About["files"] != fmt.Sprint(len(shards)+1) {
		t.Errorf("%+v", mounted)
	}
	below(only("index"), "mount")
	if len(c.Spans("list")) == 0 {
		t.Error("no listing was traced")
	}
	decoded := map[any]bool{}
	for _, s := range c.Spans("decode") {
		decoded[below(s, "fill").About["object"]] = true
	}
	published := map[any]bool{}
	for _, s := range c.Spans("publish") {
		published[below(s, "fill").About["object"]] = true
	}
	for _, s := range shards {
		if !decoded[s.RawData.Basename] || !published[s.RawData.Basename] {
			t.Errorf("%s was not decoded and published: %v, %v", s.RawData.Basename, decoded, published)
		}
	}
	var carried []string
	for _, s := range c.Spans("request") {
		if p, _ := c.Parent(s); s.About["object"] != "index.json" || (p.Name != "mount" && p.Name != "fill") { // it lists, and says what is compressed
			below(s, "decode")
		}
		if s.About["http.response.status_code"] != "206" || s.About["attempt"] == nil || s.About["bytes_received"] != s.About["bytes"] {
			t.Errorf("%+v", s)
		}
		carried = append(carried, "00-"+s.TraceID+"-"+s.SpanID+"-01")
	}
	for _, parent := range site.carried() {
		if !slices.Contains(carried, parent) {
			t.Errorf("the server heard of the span %q, the collector did not", parent)
		}
	}
	if os.Geteuid() == 0 && (len(c.Spans("REDEEM")) == 0 || len(c.Spans("LOOKUP")) == 0) {
		t.Errorf("%d REDEEM and %d LOOKUP were traced", len(c.Spans("REDEEM")), len(c.Spans("LOOKUP")))
	}
	if text, _ := c.Text(); regexp.MustCompile("hidden|" + regexp.QuoteMeta(m.Point) + "|" + regexp.QuoteMeta(cached)).MatchString(text) {
		t.Errorf("a secret, or a path, was sent:\n%s", text)
	}
}

// redeem asks for a file's extents and the descriptors of where it lies.
func redeem(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	client, err := control.Dial(t.Context(), name, "test")
	must(t, err)
	defer func() { must(t, client.Close()) }()
	for batch, err := range control.Batches(f, 0, 1, true) {
		must(t, err)
		files, err := client.Redeem(t.Context(), batch.Ticket, batch.Objects())
		must(t, err)
		for _, b := range files {
			must(t, errors.Join(b.Err, b.File.Close()))
		}
	}
}

// TestTracesAreOff mounts where no traces are asked for, and where they are switched off: the daemon talks to its
// source and to nobody else.
func TestTracesAreOff(t *testing.T) {
	blackbox.NeedFUSE(t)
	for name, env := range map[string]map[string]string{
		"nothing is set": {},
		"switched off":   {"OTEL_TRACES_EXPORTER": "none"},
		"disabled":       {"OTEL_SDK_DISABLED": "true"},
		"over gRPC":      {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
	} {
		t.Run(name, func(t *testing.T) {
			noTraces(t)
			c := tracetest.New(t)
			for key, value := range env {
				t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
				t.Setenv(key, value)
			}
			site := newTracedSite(t, mounttest.Golden(t, "mds-zstd"))
			m := mount(t, site.URL+"/", "--cache-dir", suite.NewDir(t), "--cache-min-free=1MiB")
			readTree(t, m)
			u, err := url.Parse(site.URL)
			must(t, err)
			for _, port := range peers(t, m.PID) {
				if port != u.Port() {
					t.Errorf("the daemon talks to port %s, the source is at %s", port, u.Port())
				}
			}
			if said := strings.Contains(m.LogText(t), "no traces are sent"); said != (name == "over gRPC") {
				t.Errorf("the log says:\n%s", m.LogText(t))
			}
			m.End(t)
			if n := c.Requests(); n != 0 {
				t.Errorf("%d requests were sent to the collector", n)
			}
			if len(site.carried()) == 0 || slices.ContainsFunc(site.carried(), func(s string) bool { return s != "" }) {
				t.Errorf("the server was sent %q", site.carried())
			}
		})
	}
}

// peers gives the ports that a process has TCP connections to (/proc/PID/net/tcp, proc_pid_net(5)).
func peers(t *testing.T, pid int) (ports []string) {
	t.Helper()
	own := map[string]bool{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil { // else it was closed meanwhile
			own[to] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if table == "tcp6" && errors.Is(err, os.ErrNotExist) { // the machine has no IPv6
			continue
		}
		must(t, err)
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || !own["socket:["+fields[9]+"]"] {
				continue
			}
			var port int
			_, hex, _ := strings.Cut(fields[2], ":")
			_, err := fmt.Sscanf(hex, "%x", &port)
			must(t, err)
			ports = append(ports, fmt.Sprint(port))
		}
		must(t, lines.Err())
		must(t, f.Close())
	}
	return ports
}
