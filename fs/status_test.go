package fs

import (
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Go's own quoting has escapes that Prometheus refuses, and with them the whole page.
func TestLabelsOfMetrics(t *testing.T) {
	var w metrics
	w.sample("m", 1, "a", "tab\t\u200b", "b", "\"\\\n", "c", "\xff")
	want := "m{a=\"tab\t\u200b\",b=\"\\\"\\\\\\n\",c=\"\uFFFD\"} 1\n"
	if got := w.String(); got != want {
		t.Errorf("labels are written as %q, want %q", got, want)
	}
}

func TestMetricsOfPassthroughAndErrors(t *testing.T) {
	var failed failures
	failed.count(fuse.Status(syscall.ENOSPC))
	failed.count(fuse.EIO)
	failed.count(fuse.EIO)
	s := Status{Passthrough: Passthrough{Why: `the "kernel" is old`}}
	s.Counters.ErrorsByErrno, s.Counters.Errors = failed.counted()
	s.Control.Clients = []ClientStatus{{Name: "train", Choices: []ChoiceStatus{{Path: "staged", Reason: "no GDS", Bytes: 7}}}}
	var w metrics
	s.writeMetrics(&w)
	for _, line := range []string{
		"hbmfs_passthrough 0",
		`hbmfs_passthrough_off{reason="the \"kernel\" is old"} 1`,
		`hbmfs_errors_total{errno="EIO"} 2`,
		`hbmfs_errors_total{errno="ENOSPC"} 1`,
		`hbmfs_errors_total{errno="ESTALE"} 0`,
		`hbmfs_client_choice_bytes_total{client="train",path="staged",reason="no GDS"} 7`,
	} {
		if !strings.Contains(w.String(), line+"\n") {
			t.Errorf("no line %q in\n%s", line, w.String())
		}
	}
	if s.Counters.Errors != 3 {
		t.Errorf("%d errors in all, want 3", s.Counters.Errors)
	}
}
