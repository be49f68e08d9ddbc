package fs

import (
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/internal/observe/status"
)

func TestMetricsOfPassthroughAndErrors(t *testing.T) {
	var failed failures
	failed.count(fuse.Status(syscall.ENOSPC))
	failed.count(fuse.EIO)
	failed.count(fuse.EIO)
	s := status.Status{Passthrough: status.Passthrough{Why: `the "kernel" is old`}}
	s.Counters.ErrorsByErrno, s.Counters.Errors = failed.counted()
	s.Control.Clients = []status.Client{{Name: "train", Choices: []status.PathUse{{Path: "staged", Reason: "no GDS", Bytes: 7}}}}
	page := s.Metrics()
	for _, line := range []string{
		"hbmfs_passthrough 0",
		`hbmfs_passthrough_off{reason="the \"kernel\" is old"} 1`,
		`hbmfs_errors_total{errno="EIO"} 2`,
		`hbmfs_errors_total{errno="ENOSPC"} 1`,
		`hbmfs_errors_total{errno="ESTALE"} 0`,
		`hbmfs_client_choice_bytes_total{client="train",path="staged",reason="no GDS"} 7`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("no line %q in\n%s", line, page)
		}
	}
	if s.Counters.Errors != 3 {
		t.Errorf("%d errors in all, want 3", s.Counters.Errors)
	}
}

// TestPanicsAreCounted: a request that a panic has answered is a failure of the mount.
func TestPanicsAreCounted(t *testing.T) {
	m := &Mount{log: slog.New(slog.DiscardHandler)}
	if status := m.panicked("oops"); status != fuse.EIO || m.mountOptions().PanicHandler == nil {
		t.Errorf("a panic is answered with %v", status)
	}
	if byErrno, all := m.failed.counted(); byErrno["EIO"] != 1 || all != 1 {
		t.Errorf("%v, want one EIO", byErrno)
	}
}
