package blackbox

import (
	"encoding/json"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/internal/observe/status"
)

// Status is that of the mount.
func (m *Mount) Status(t testing.TB) *status.Status {
	t.Helper()
	s := &status.Status{}
	text, err := os.ReadFile(m.Path(".hbmfs", "status"))
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Replace kills the daemon, and returns when the next one serves.
func (m *Mount) Replace(t testing.TB, patience time.Duration) {
	t.Helper()
	before := m.Status(t).PID
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !Within(patience, func() bool {
		var now struct{ PID int }
		text, err := os.ReadFile(m.Path(".hbmfs", "status"))
		return err == nil && json.Unmarshal(text, &now) == nil && now.PID != before
	}) {
		t.Fatal("no other daemon goes on")
	}
}

// EndsWellYet is [Mount.EndsWell], unless the test has unmounted it.
func (m *Mount) EndsWellYet(t testing.TB, log string, patience time.Duration) {
	t.Helper()
	if mounted, err := IsMounted(m.dir); err != nil || !mounted {
		return
	}
	m.EndsWell(t, m.Status(t).PID, log, patience)
}
