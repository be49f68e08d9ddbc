// Package tracetest is a collector of OpenTelemetry traces for tests: they can look at all spans that are
// sent to it.
package tracetest

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
)

// Collector takes OTLP in JSON over HTTP.
type Collector struct {
	*httptest.Server

	mu       sync.Mutex // guards the fields below
	requests int
	header   http.Header // of the last request
	text     string      // of all
	service  map[string]any
	spans    []Span
	problems []string // requests that no collector would take
}

// Span is a span as it arrived. Of an attribute it has the value as JSON has it: numbers of 64 bits are text.
type Span struct {
	TraceID, SpanID, ParentSpanID string
	Name                          string
	Kind                          int
	Start, End                    string
	Status                        struct {
		Code    int
		Message string
	}
	About map[string]any
}

// New starts a collector, which ends with the test.
func New(t *testing.T) *Collector {
	t.Helper()
	c := &Collector{}
	c.Server = httptest.NewServer(c)
	t.Cleanup(func() {
		c.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, p := range c.problems {
			t.Error(p)
		}
	})
	return c
}

type attributes []struct {
	Key   string
	Value map[string]any
}

func (a attributes) byKey() map[string]any {
	out := map[string]any{}
	for _, kv := range a {
		for _, v := range kv.Value {
			out[kv.Key] = v
		}
	}
	return out
}

// ServeHTTP implements [http.Handler].
func (c *Collector) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var body struct {
		ResourceSpans []struct {
			Resource   struct{ Attributes attributes }
			ScopeSpans []struct {
				Spans []struct {
					Span
					StartTimeUnixNano, EndTimeUnixNano string
					Attributes                         attributes
				}
			}
		}
	}
	var raw json.RawMessage
	err := json.NewDecoder(q.Body).Decode(&raw)
	if err == nil {
		err = json.Unmarshal(raw, &body)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	c.header, c.text = q.Header.Clone(), c.text+string(raw)
	if err != nil || q.URL.Path != "/v1/traces" || q.Method != http.MethodPost || q.Header.Get("Content-Type") != "application/json" {
		c.problems = append(c.problems, "the collector was sent "+q.Method+" "+q.URL.Path+" of "+q.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for _, r := range body.ResourceSpans {
		c.service = r.Resource.Attributes.byKey()
		for _, of := range r.ScopeSpans {
			for _, s := range of.Spans {
				s.Start, s.End, s.About = s.StartTimeUnixNano, s.EndTimeUnixNano, s.Attributes.byKey()
				c.spans = append(c.spans, s.Span)
			}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte("{}")) // who sent it does not read it
}

// Requests is how many came.
func (c *Collector) Requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

// Text is the text of all requests, and Header the header of the last one.
func (c *Collector) Text() (text string, header http.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text, c.header
}

// Service is the name of the sender.
func (c *Collector) Service() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.service)
}

// Spans gives the spans of a name, and all for none.
func (c *Collector) Spans(name string) []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.spans), func(s Span) bool { return name != "" && s.Name != name })
}

// Parent gives the span above s, if it came.
func (c *Collector) Parent(s Span) (Span, bool) {
	for _, other := range c.Spans("") {
		if other.SpanID == s.ParentSpanID && other.TraceID == s.TraceID {
			return other, true
		}
	}
	return Span{}, false
}
