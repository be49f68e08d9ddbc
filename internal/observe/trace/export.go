package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// exporter sends spans to a collector. The SDK calls it from one goroutine at a time.
type exporter struct {
	to     string
	header http.Header // with credentials for the collector
	client *http.Client
	log    *slog.Logger
	lost   int // spans since the collector took some last
}

// ExportSpans implements [sdk.SpanExporter]. It tries nothing again: the next spans are on their way already. It logs
// errors itself, since the SDK's global handler prints them to stderr.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.send(ctx, spans)
	switch {
	case err != nil && e.lost == 0:
		e.log.Warn("traces are lost: the collector does not take them", "error", err)
		fallthrough
	case err != nil:
		e.lost += len(spans)
	case e.lost > 0:
		e.log.Info("the collector takes traces again", "spans_lost", e.lost)
		e.lost = 0
	}
	return nil
}

func (e *exporter) send(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	text, err := json.Marshal(encode(spans))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.to, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header = e.header.Clone()
	req.Header.Set("Content-Type", "application/json")
	res, err := e.client.Do(req)
	if sent, ok := errors.AsType[*url.Error](err); ok { // its address may have a password in it
		return sent.Err
	}
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection can be used again
	_ = res.Body.Close()                                         // the status says all
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("it answers %s", res.Status)
	}
	return nil
}

// Shutdown implements [sdk.SpanExporter].
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

// The types below are ExportTraceServiceRequest of OTLP 1.x (opentelemetry-proto, trace/v1/trace.proto) as its JSON has it:
// identifiers in hexadecimal, 64-bit numbers as text.
type request struct {
	ResourceSpans []resourceSpans `json:"resourceSpans"`
}

type resourceSpans struct {
	Resource   attributes   `json:"resource"`
	ScopeSpans []scopeSpans `json:"scopeSpans"`
}

type attributes struct {
	Attributes []keyValue `json:"attributes"`
}

type scopeSpans struct {
	Scope named  `json:"scope"`
	Spans []span `json:"spans"`
}

type named struct {
	Name string `json:"name"`
}

type span struct {
	TraceID  string     `json:"traceId"`
	SpanID   string     `json:"spanId"`
	ParentID string     `json:"parentSpanId,omitempty"`
	Flags    uint32     `json:"flags"`
	Name     string     `json:"name"`
	Kind     int        `json:"kind"`
	Start    string     `json:"startTimeUnixNano"`
	End      string     `json:"endTimeUnixNano"`
	About    []keyValue `json:"attributes,omitempty"`
	Dropped  int        `json:"droppedAttributesCount,omitempty"`
	Status   status     `json:"status"`
}

type status struct {
	Code    int    `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

type keyValue struct {
	Key   string         `json:"key"`
	Value map[string]any `json:"value"`
}

// encode makes one request of spans, which are all of one resource and one scope.
func encode(spans []sdk.ReadOnlySpan) request {
	var r resourceSpans
	list := make([]span, len(spans))
	for i, s := range spans {
		r.Resource.Attributes = encodeAttributes(s.Resource().Attributes())
		c := s.SpanContext()
		list[i] = span{
			TraceID: c.TraceID().String(), SpanID: c.SpanID().String(), Flags: uint32(c.TraceFlags()), Name: s.Name(),
			Kind:  int(s.SpanKind()), // the numbers are OTLP's
			Start: strconv.FormatInt(s.StartTime().UnixNano(), 10), End: strconv.FormatInt(s.EndTime().UnixNano(), 10),
			About: encodeAttributes(s.Attributes()), Dropped: s.DroppedAttributes(),
		}
		if p := s.Parent(); p.HasSpanID() {
			list[i].ParentID = p.SpanID().String()
		}
		if st := s.Status(); st.Code == codes.Error {
			list[i].Status = status{2, st.Description}
		}
	}
	r.ScopeSpans = []scopeSpans{{named{scope}, list}}
	return request{[]resourceSpans{r}}
}

func encodeAttributes(about []attribute.KeyValue) []keyValue {
	out := make([]keyValue, len(about))
	for i, a := range about {
		value := map[string]any{"stringValue": a.Value.String()}
		switch a.Value.Type() {
		case attribute.INT64:
			value = map[string]any{"intValue": strconv.FormatInt(a.Value.AsInt64(), 10)}
		case attribute.BOOL:
			value = map[string]any{"boolValue": a.Value.AsBool()}
		}
		out[i] = keyValue{string(a.Key), value}
	}
	return out
}
