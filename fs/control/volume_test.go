package control

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/volume/kv"
)

// TestTheErrnoOfAProcessThatMayNotWrite: it is the kernel's where the process has the volume mounted read-only.
func TestTheErrnoOfAProcessThatMayNotWrite(t *testing.T) {
	store, err := kv.New(kv.Options{Directory: t.TempDir(), Size: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }() // nothing was written
	open := control.KVOpen{Name: "model", Flags: control.KVWrite}
	for _, c := range []struct {
		why  error
		want syscall.Errno
	}{
		{fmt.Errorf("mounted read-only: %w", syscall.EROFS), syscall.EROFS},
		{errors.New("nobody can tell"), syscall.EACCES},
	} {
		s := &session{server: New(Options{KV: store, MayWrite: func(int) error { return c.why }}), peer: &peer{}}
		if err := s.mayChange(open.AppendTo(nil)); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.why, err, c.want)
		}
	}
}
