package store

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/internal/observe/trace/tracetest"
)

// TestSpans reads more than may be kept, and an object that cannot be had.
func TestSpans(t *testing.T) {
	c := tracetest.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	tracer, err := trace.FromEnv("test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	u := newUpstream(mib, mib, mib, mib)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 2 * mib, Trace: tracer})
	for i := range 3 {
		m.readAll(t, u, fmt.Sprint(i))
		until(t, "it is published", func() bool { return m.Stats().Published == int64(i+1) })
	}
	fails := errors.New("the address is https://secret")
	u.fail.Store(&fails)
	if _, err := m.objects["3"].ReadAt(t.Context(), make([]byte, 10), 0); !errors.Is(err, fails) {
		t.Error(err)
	}
	m.close(t)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	bytes := map[any]int{}
	for _, s := range c.Spans("fill") {
		if s.About["object"] == "3" {
			if s.Status.Code != 2 || s.Status.Message != "origin" {
				t.Errorf("%+v", s)
			}
			continue
		}
		var n, blocks int
		if _, err := fmt.Sscan(fmt.Sprint(s.About["bytes"], " ", s.About["blocks"]), &n, &blocks); err != nil || n != blocks*block || s.Status.Code != 0 {
			t.Errorf("%+v", s)
		}
		bytes[s.About["object"]] += n
	}
	if fmt.Sprint(bytes) != fmt.Sprintf("map[0:%d 1:%[1]d 2:%[1]d]", mib) {
		t.Errorf("the fills brought %v", bytes)
	}
	if list := c.Spans("publish"); len(list) != 3 {
		t.Errorf("%d segments were published", len(list))
	}
	// Two are kept. The third had one evicted, and so did what was begun of the fourth.
	if list := c.Spans("evict"); len(list) == 0 || list[0].About["segment"] == "" || list[0].About["filling"] != false {
		t.Errorf("evicted: %+v", list)
	}
	if text, _ := c.Text(); strings.Contains(text, "secret") {
		t.Errorf("an error's text was sent:\n%s", text)
	}
}
