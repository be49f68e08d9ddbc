package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/hbmfs/hbmfs/internal/trace"
)

// openTracer makes the tracer that the environment asks for. A mount is worth more than its traces: where they cannot be, the log
// says so, and there are none.
func openTracer(log *slog.Logger) *trace.Tracer {
	tracer, err := trace.FromEnv(version, log)
	if err != nil {
		log.Warn(err.Error())
	}
	return tracer
}

// closeTracer sends the last spans, if the collector takes them soon.
func closeTracer(tracer *trace.Tracer) {
	const soon = 3 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	_ = tracer.Close(ctx) // the log names lost spans
}
