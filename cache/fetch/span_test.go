package fetch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/internal/observe/trace/tracetest"
)

// TestSpans has one read of several attempts, and one that is refused.
func TestSpans(t *testing.T) {
	c := tracetest.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	tracer, err := trace.FromEnv("test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := &script{data: randomBytes(1 << 20)}
	s.do = func(number int64, body []byte) (io.Reader, error) {
		switch number {
		case 1:
			return bytes.NewReader(body[:1000]), nil
		case 2:
			return nil, errors.New("get https://host/?signature=secret: reset")
		case 4:
			return nil, fmt.Errorf("%w, secret", fs.ErrPermission)
		}
		return whole(number, body)
	}
	x := New(s, Options{Trace: tracer})
	if _, err := read(t, x, object(s), 0, 1<<20); err != nil {
		t.Error(err)
	}
	if _, err := read(t, x, object(s), 5, 10); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v, want that it is denied", err)
	}
	if err := tracer.Close(t.Context()); err != nil {
		t.Error(err)
	}
	var got []string
	for _, s := range c.Spans("request") {
		got = append(got, fmt.Sprint(s.About["object"], s.About["offset"], s.About["bytes"], s.About["bytes_received"], s.About["attempt"], s.About["hedge"], s.Status.Message))
	}
	if want := []string{
		fmt.Sprint("shard", "0", "1048576", "1000", "1", false, "short"),
		fmt.Sprint("shard", "1000", "1047576", nil, "2", false, "failed"),
		fmt.Sprint("shard", "1000", "1047576", "1047576", "3", false, ""),
		fmt.Sprint("shard", "5", "10", nil, "1", false, "denied"),
	}; !slices.Equal(got, want) {
		t.Errorf("the spans are %q, want %q", got, want)
	}
	if text, _ := c.Text(); strings.Contains(text, "secret") {
		t.Errorf("an error's text was sent:\n%s", text)
	}
}
