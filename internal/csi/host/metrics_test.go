package host

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
)

// answering is a host whose volumes have no daemons: a program answers in their place, that of those named "stuck" once the
// returned function was called. asked counts the questions.
func answering(t *testing.T, keys []string) (h *Host, release func(), asked func(key string) int) {
	t.Helper()
	dir := t.TempDir()
	program, log, released := filepath.Join(dir, "hbmfs"), filepath.Join(dir, "log"), filepath.Join(dir, "released")
	script := fmt.Sprintf(`#!/bin/sh
echo "$3" >> %q
echo # it asks from now on
case "$3" in *stuck*) while [ ! -e %q ]; do sleep 0.1; done;; esac
echo '{"state": "ok", "text": "aGJtZnNfb2JqZWN0cyAxCg=="}'
`, log, released) // hbmfs_objects 1
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	h, err := New(t.Context(), Options{StateDir: filepath.Join(dir, "state"), HBMFS: program, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		h.volumes[key] = newNodeVolume(h, key, record{Spec: volume.Spec{Source: "/" + key}})
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	asked = func(key string) int {
		text, _ := os.ReadFile(log) // nobody was asked before it is there
		return strings.Count(string(text), "/"+key+"/")
	}
	return h, func() {
		if err := os.WriteFile(released, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}, asked
}

// up is what a page says of a volume.
func up(page, key, metric string) string {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, metric+"{") && strings.Contains(line, `volume="`+key+`"`) {
			return line[strings.LastIndexByte(line, ' ')+1 : len(line)-1]
		}
	}
	return ""
}

// TestMetricsBesideStuckDaemons has most daemons of a node answer nothing, and the volumes of the others in every page all the
// same, sooner than Prometheus gives up (scrape_timeout, 10 s). Those that are stuck are told of, and asked no second time.
func TestMetricsBesideStuckDaemons(t *testing.T) {
	var keys []string
	for i := range 60 {
		keys = append(keys, fmt.Sprintf("stuck-%02d", i))
	}
	for i := range 10 {
		keys = append(keys, fmt.Sprintf("well-%d", i)) // after those, in the order that they are asked
	}
	h, release, asked := answering(t, keys)
	const scrape = 10 * time.Second
	for n := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*scrape)
		began := time.Now()
		page := h.metrics(ctx)
		cancel()
		took := time.Since(began)
		if took > 10*scrape { // on a machine that has other work
			t.Errorf("page %d took %v", n, took)
		}
		for _, key := range keys {
			want := "1"
			if strings.HasPrefix(key, "stuck") {
				want = "0"
			}
			if got := up(page, key, "hbmfs_up"); got != want {
				t.Errorf("page %d, which took %v: %s is up: %q, want %s", n, took, key, got, want)
			}
			if got := up(page, key, "hbmfs_csi_unanswered_seconds"); (got != "") != (want == "0") {
				t.Errorf("page %d: %s has not answered for %q seconds", n, key, got)
			}
		}
	}
	for _, key := range keys {
		if n := asked(key); n != 1 && strings.HasPrefix(key, "stuck") {
			t.Errorf("%s was asked %d times, and the first question is not answered", key, n)
		}
	}
	release()
	end := time.Now().Add(patience)
	for {
		page := h.metrics(t.Context())
		if !slices.ContainsFunc(keys, func(key string) bool { return up(page, key, "hbmfs_up") != "1" }) && !strings.Contains(page, "hbmfs_csi_unanswered_seconds{") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not all are well again:\n%s", page)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestMetricsWhenNobodyWaits has a scrape end before its answers come: the next one has them.
func TestMetricsWhenNobodyWaits(t *testing.T) {
	h, release, asked := answering(t, []string{"stuck"})
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan string)
	go func() { gone <- h.metrics(ctx) }()
	for end := time.Now().Add(patience); asked("stuck") == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-gone
	release()
	if got := up(h.metrics(t.Context()), "stuck", "hbmfs_up"); got != "1" {
		t.Errorf("up: %q", got)
	}
}
