package trace

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/observe/trace/tracetest"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// tracer makes one that sends to c.
func tracer(t *testing.T, endpoint string, log *slog.Logger) *Tracer {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	x, err := FromEnv("v1.2.3", log)
	if err != nil || x == nil {
		t.Fatalf("%v, %v", x, err)
	}
	return x
}

func TestSpansArriveBelowEachOther(t *testing.T) {
	c := tracetest.New(t)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=n7")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret, x-tenant=a")
	x := tracer(t, c.URL, slog.New(slog.DiscardHandler))
	ctx, fill := x.Start(t.Context(), "fill")
	fill.Text("object", "a/b.bin").Int("bytes", 1<<60).Bool("planned", true)
	_, request := x.Request(ctx, "request")
	request.End("stalled")
	_, child := Child(ctx, "publish")
	child.End("")
	_, other := x.Root(ctx, "LOOKUP")
	other.End("")
	fill.End("")
	if err := x.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	one := map[string]tracetest.Span{}
	for _, s := range c.Spans("") {
		one[s.Name] = s
		if len(s.TraceID) != 32 || len(s.SpanID) != 16 || len(s.Start) != 19 || s.End < s.Start {
			t.Errorf("%+v", s)
		}
	}
	f, r := one["fill"], one["request"]
	if f.About["object"] != "a/b.bin" || f.About["bytes"] != "1152921504606846976" || f.About["planned"] != true || f.ParentSpanID != "" || f.Status.Code != 0 || f.Kind != 1 {
		t.Errorf("%+v", f)
	}
	if r.ParentSpanID != f.SpanID || r.TraceID != f.TraceID || r.Status.Code != 2 || r.Status.Message != "stalled" || r.About["error.type"] != "stalled" || r.Kind != 3 {
		t.Errorf("%+v", r)
	}
	if p := one["publish"]; p.ParentSpanID != f.SpanID {
		t.Errorf("%+v", p)
	}
	if l := one["LOOKUP"]; l.TraceID == f.TraceID || l.ParentSpanID != "" {
		t.Errorf("%+v", l)
	}
	if s := c.Service(); s["service.name"] != "hbmfs" || s["service.version"] != "v1.2.3" || s["k8s.node.name"] != "n7" {
		t.Errorf("the service is %v", s)
	}
	if _, h := c.Text(); h.Get("Authorization") != "Bearer secret" || h.Get("X-Tenant") != "a" {
		t.Errorf("the headers are %v", h)
	}
}

func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		to   string // "" for none
		err  string
	}{
		{name: "nothing is asked for"},
		{"an endpoint", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces", ""},
		{"one with a path", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/otlp/"}, "https://c/otlp/v1/traces", ""},
		{"one of traces alone", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://d"}, "https://c/x", ""},
		{"otlp", map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318/v1/traces", ""},
		{"none", map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, "", ""},
		{"disabled", map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, "", ""},
		{"another exporter", map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, "", "zipkin"},
		{"grpc", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "", "4318"},
		{"no address", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "", "no address"},
		{"a header that is none", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "secret"}, "", "KEY=VALUE"},
		{"a time that is none", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "10s"}, "", "milliseconds"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := fromEnv(func(name string) string { return c.env[name] })
			to := ""
			if e != nil {
				to = e.to
			}
			if to != c.to || (err == nil) != (c.err == "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%q, %v", to, err)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error gives a secret away: %v", err)
			}
		})
	}
}

// TestOffIsNothing calls everything on what is off.
func TestOffIsNothing(t *testing.T) {
	var x *Tracer
	for _, start := range []func(context.Context, string) (context.Context, *Span){x.Start, x.Root, x.Request, Child} {
		ctx, s := start(t.Context(), "fill")
		if s.Text("a", "b").Int("c", 1).Bool("d", true).End("e"); s != nil || ctx != t.Context() {
			t.Error("there is a span")
		}
	}
	if err := x.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		_, s := x.Start(t.Context(), "fill")
		s.Text("object", "name").Int("bytes", 1<<40).End("")
	}); n != 0 {
		t.Errorf("a span that is off takes %v allocations", n)
	}
}

// TestCollectorFails has a collector that takes nothing, and then nobody listens: it is said once, without the password
// in the address, and nothing waits.
func TestCollectorFails(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	down := httptest.NewServer(nil)
	down.Close()
	defer s.Close()
	for want, endpoint := range map[string]string{"503": s.URL, "refused": down.URL} {
		var said bytes.Buffer
		t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
		x := tracer(t, strings.Replace(endpoint, "://", "://me:password@", 1)+"/?key=hidden", slog.New(slog.NewTextHandler(&said, nil)))
		for range 5 {
			_, span := x.Start(t.Context(), "fill")
			span.End("")
		}
		if err := x.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if text := said.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, want) || regexp.MustCompile("password|hidden").MatchString(text) {
			t.Errorf("the log says:\n%s", text)
		}
	}
}

// TestTransport has requests carry the span that they are of, and the span the status.
func TestTransport(t *testing.T) {
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		got = append(got, q.Header.Get("Traceparent"))
		w.WriteHeader(http.StatusPartialContent)
	}))
	defer s.Close()
	c := tracetest.New(t)
	x := tracer(t, c.URL, slog.New(slog.DiscardHandler))
	client := &http.Client{Transport: Transport(http.DefaultTransport.(*http.Transport).Clone())}
	defer client.CloseIdleConnections()
	ask := func(ctx context.Context) {
		t.Helper()
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		if _, there := q.Header["Traceparent"]; there || res.Body.Close() != nil {
			t.Error("the caller's request was changed, or does not end")
		}
	}
	ask(t.Context())
	ctx, span := x.Request(t.Context(), "request")
	ask(ctx)
	span.End("")
	if err := x.Close(t.Context()); err != nil {
		t.Error(err)
	}
	r := c.Spans("request")
	if len(r) != 1 || len(got) != 2 || got[0] != "" || got[1] != "00-"+r[0].TraceID+"-"+r[0].SpanID+"-01" || r[0].About["http.response.status_code"] != "206" {
		t.Errorf("%q, %+v", got, r)
	}
}

// BenchmarkOff is what a mount without traces pays for each request to its origin.
func BenchmarkOff(b *testing.B) {
	var x *Tracer
	ctx := b.Context()
	for b.Loop() {
		_, s := x.Start(ctx, "fill")
		s.Text("object", "name").Int("offset", 1<<40).Int("bytes", 1<<20).Bool("planned", false).End("")
	}
}
