package drain

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// replaced has step-1, which is remote, replaced by another checkpoint of files with the same sizes.
func replaced(t *testing.T, dir string) {
	must(t, checkpoint.Remove(t.Context(), filepath.Join(dir, "step-1")))
	publish(t, dir, "again", checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	must(t, os.Rename(filepath.Join(dir, "again"), filepath.Join(dir, "step-1")))
}

// staysReplaced: the other checkpoint is here, and the drain says that it is not remote.
func staysReplaced(t *testing.T, dir, state string) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(dir, "step-1", "x")); err != nil || !bytes.Equal(got, content("againx", 5)) {
		t.Errorf("the checkpoint that replaced step-1 was never drained, and is gone: %v", err)
	}
	if !strings.Contains(state, "never overwritten") {
		t.Errorf("step-1 is %q", state)
	}
}

// TestKeepSparesAnother has the user replace a remote checkpoint beyond --keep while another is sent.
func TestKeepSparesAnother(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for _, name := range []string{"step-1", "step-2", "step-3"} {
		publish(t, dir, name, checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	}
	opt := fast()
	opt.Keep = 1
	opt.Begin = func(name string) (func(), error) {
		if name == "step-2" {
			replaced(t, dir)
		}
		return func() {}, nil
	}
	got := once(t, dir, s.url("run"), opt)
	staysReplaced(t, dir, got["step-1"])
	if len(got) != 2 || got["step-3"] != Remote {
		t.Errorf("the states are %v", got)
	}
}

// TestKeepSparesUnseen has the user replace a remote checkpoint after the last look at the directory.
func TestKeepSparesUnseen(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for _, name := range []string{"step-1", "step-2"} {
		publish(t, dir, name, checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	}
	d := open(t, dir, s.url("run"), fast())
	must(t, d.Once(t.Context()))
	replaced(t, dir)
	d.opt.Keep = 1
	d.evict(t.Context())
	must(t, d.Once(t.Context()))
	staysReplaced(t, dir, states(d)["step-1"])
}

// TestKeepSparesAnotherInAnOutage has the user replace a remote checkpoint while the store is asked whether it is still there.
func TestKeepSparesAnotherInAnOutage(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	for _, name := range []string{"step-1", "step-2"} {
		publish(t, dir, name, checkpoint.Part{Of: 1}, map[string]int{"x": 5})
	}
	var first sync.Once
	s.set(func() {
		s.before = func(op, _ string, w http.ResponseWriter, r *http.Request) (is bool, _ func(http.ResponseWriter)) {
			if op == "list" && r.URL.Query().Get("prefix") == "run/step-1/" && slices.Contains(s.keys(), "run/step-1/"+checkpoint.ManifestName) {
				first.Do(func() {
					replaced(t, dir)
					fail(w, http.StatusServiceUnavailable, "SlowDown")
					is = true
				})
			}
			return is, nil
		}
	})
	opt := fast()
	opt.Keep, opt.Patience = 1, 0
	d := open(t, dir, s.url("run"), opt)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); d.Run(ctx) }()
	defer func() { cancel(); <-done }()
	wait(t, d, "step-1", func(state string) bool { return strings.HasPrefix(state, Failed) || d.Status().Removed > 0 })
	staysReplaced(t, dir, states(d)["step-1"])
}
