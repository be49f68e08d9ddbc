// Package trace owns the OpenTelemetry traces of a mount. Spans are mounting, indexing, fills of segments, requests to
// an origin, passes of a decoder, evictions, and requests on the control channel. Reads of the kernel are no spans:
// there are too many.
//
// It is off unless OpenTelemetry's own variables turn it on ([FromEnv]). Off is a nil [Tracer]: its spans are nil, too,
// and everything may be called on them.
//
//	ctx, span := tracer.Start(ctx, "fill")
//	span.Text("object", o.Name).Int("bytes", n)
//	err := fill(ctx)
//	span.End(classOf(err))
//
// Spans carry names of objects and numbers. Never give them an error's text, an address or a path of this machine:
// errors of HTTP clients have addresses in them, and addresses signatures. [Span.End] takes a class instead.
//
// It sends OTLP over HTTP as JSON, which collectors take at the same address as protobuf. The exporter of the OpenTelemetry
// project would bring all of gRPC into the daemon.
package trace

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/hbmfs/hbmfs"

// Tracer makes spans; nil makes none. It is safe for concurrent use.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// Start begins a span below the one in ctx, or a trace where there is none.
func (t *Tracer) Start(ctx context.Context, name string) (context.Context, *Span) {
	return t.start(ctx, name)
}

// Root begins a trace, and ignores one in ctx.
func (t *Tracer) Root(ctx context.Context, name string) (context.Context, *Span) {
	return t.start(ctx, name, trace.WithNewRoot())
}

// Request begins a span as Start does, for a request to another service: see [Transport].
func (t *Tracer) Request(ctx context.Context, name string) (context.Context, *Span) {
	return t.start(ctx, name, trace.WithSpanKind(trace.SpanKindClient))
}

func (t *Tracer) start(ctx context.Context, name string, opt ...trace.SpanStartOption) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	ctx, s := t.tracer.Start(ctx, name, opt...)
	return ctx, &Span{s}
}

// Child begins a span below the one in ctx, and none where there is none.
func Child(ctx context.Context, name string) (context.Context, *Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.SpanContext().IsValid() {
		return ctx, nil
	}
	ctx, s := parent.TracerProvider().Tracer(scope).Start(ctx, name)
	return ctx, &Span{s}
}

// Close sends the spans that are left, as long as ctx lasts.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Span is something that takes time; nil is none.
type Span struct{ span trace.Span }

// Text notes a name. It returns s.
func (s *Span) Text(key, value string) *Span {
	if s != nil {
		s.span.SetAttributes(attribute.String(key, value))
	}
	return s
}

// Int notes a number. It returns s.
func (s *Span) Int(key string, value int64) *Span {
	if s != nil {
		s.span.SetAttributes(attribute.Int64(key, value))
	}
	return s
}

// Bool notes whether something is so. It returns s.
func (s *Span) Bool(key string, value bool) *Span {
	if s != nil {
		s.span.SetAttributes(attribute.Bool(key, value))
	}
	return s
}

// End ends the span. class says in a word or two why it failed, "" that it did not.
func (s *Span) End(class string) {
	if s == nil {
		return
	}
	if class != "" {
		s.span.SetStatus(codes.Error, class)
		s.span.SetAttributes(attribute.String("error.type", class))
	}
	s.span.End()
}

// Transport adds the span in a request's context to its headers (traceparent, W3C Trace Context). A span of
// [Tracer.Request] gets the status of the answer.
func Transport(base http.RoundTripper) http.RoundTripper { return transport{base} }

type transport struct{ base http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t transport) RoundTrip(q *http.Request) (*http.Response, error) {
	span := trace.SpanFromContext(q.Context())
	if !span.SpanContext().IsValid() {
		return t.base.RoundTrip(q)
	}
	q = q.Clone(q.Context()) // a transport must not change its request
	propagation.TraceContext{}.Inject(q.Context(), propagation.HeaderCarrier(q.Header))
	res, err := t.base.RoundTrip(q)
	if s, ok := span.(sdk.ReadOnlySpan); ok && res != nil && s.SpanKind() == trace.SpanKindClient {
		span.SetAttributes(attribute.Int("http.response.status_code", res.StatusCode))
	}
	return res, err
}

// CloseIdleConnections serves [http.Client.CloseIdleConnections].
func (t transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
