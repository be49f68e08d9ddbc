package trace

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// FromEnv makes a tracer as the variables of OpenTelemetry say (opentelemetry.io/docs/specs/otel/protocol/exporter): nil,
// for none, unless there is an OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_TRACES_EXPORTER is otlp. The error names a setting that
// cannot be met. The tracer logs spans that are lost on the way to the collector. FromEnv sends nothing.
//
// FromEnv reads OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER, and of OTEL_EXPORTER_OTLP_* and OTEL_EXPORTER_OTLP_TRACES_*
// ENDPOINT, HEADERS, PROTOCOL and TIMEOUT. The SDK reads OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER,
// OTEL_TRACES_SAMPLER_ARG and OTEL_BSP_*.
func FromEnv(version string, log *slog.Logger) (*Tracer, error) {
	to, err := fromEnv(os.Getenv)
	if to == nil || err != nil {
		return nil, err
	}
	to.log = log
	about, err := resource.New(context.Background(), resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "hbmfs"), attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("no traces are sent: read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	p := sdk.NewTracerProvider(sdk.WithBatcher(to), sdk.WithResource(about))
	return &Tracer{p, p.Tracer(scope)}, nil
}

// fromEnv reads the variables, nil if they ask for nothing.
func fromEnv(get func(string) string) (*exporter, error) {
	setting := func(name string) string {
		return strings.TrimSpace(cmp.Or(get("OTEL_EXPORTER_OTLP_TRACES_"+name), get("OTEL_EXPORTER_OTLP_"+name)))
	}
	endpoint, wanted := setting("ENDPOINT"), strings.TrimSpace(get("OTEL_TRACES_EXPORTER"))
	switch {
	case strings.EqualFold(strings.TrimSpace(get("OTEL_SDK_DISABLED")), "true"), wanted == "none", wanted == "" && endpoint == "":
		return nil, nil
	case wanted != "" && !slices.Contains(strings.Split(wanted, ","), "otlp"):
		return nil, fmt.Errorf("no traces are sent: OTEL_TRACES_EXPORTER is %q, and there is otlp alone", wanted)
	}
	if p := setting("PROTOCOL"); p == "grpc" {
		return nil, fmt.Errorf("no traces are sent: OTEL_EXPORTER_OTLP_PROTOCOL is grpc, and there is HTTP alone: set it to http/json, and the endpoint to the collector's port for HTTP, 4318 as a rule")
	}
	u, err := url.Parse(cmp.Or(endpoint, "http://localhost:4318"))
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("no traces are sent: OTEL_EXPORTER_OTLP_ENDPOINT is no address such as http://HOST:4318")
	}
	if strings.TrimSpace(get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) == "" { // that one needs no path added
		u = u.JoinPath("v1/traces")
	}
	e := &exporter{to: u.String(), header: http.Header{}}
	for pair := range strings.SplitSeq(setting("HEADERS"), ",") {
		key, value, ok := strings.Cut(pair, "=")
		if value, err = url.PathUnescape(strings.TrimSpace(value)); ok && err == nil {
			e.header.Set(strings.TrimSpace(key), value)
		} else if strings.TrimSpace(pair) != "" {
			return nil, fmt.Errorf("no traces are sent: OTEL_EXPORTER_OTLP_HEADERS is no list of KEY=VALUE, separated by commas")
		}
	}
	timeout := 10 * time.Second
	if text := setting("TIMEOUT"); text != "" {
		ms, err := strconv.ParseUint(text, 10, 31)
		if err != nil || ms == 0 {
			return nil, fmt.Errorf("no traces are sent: OTEL_EXPORTER_OTLP_TIMEOUT is %q: want milliseconds", text)
		}
		timeout = time.Duration(ms) * time.Millisecond
	}
	e.client = &http.Client{Timeout: timeout, Transport: http.DefaultTransport.(*http.Transport).Clone()}
	return e, nil
}
