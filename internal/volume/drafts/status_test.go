package drafts_test

import (
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs/checkpoints"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

const patience = 20 * time.Second

// TestStatusStopsNobody: who looks at the status waits for a draft that is being sealed or published, and nobody else waits.
func TestStatusStopsNobody(t *testing.T) {
	v, err := checkpoints.Open(t.Context(), t.TempDir(), checkpoints.Options{MaxOpen: 8, Log: slog.New(slog.DiscardHandler)})
	blackbox.Must(t, err)
	defer func() {
		v.End()
		blackbox.Must(t, v.Close())
	}()
	writer := v.Fast().Session(asuser.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, nil)
	defer writer.End()
	_, err = writer.Handle(t.Context(), control.TypeBegin, (&control.Begin{Parts: 1, Name: "step"}).AppendTo(nil))
	blackbox.Must(t, err)
	release := v.Fast().Hold()
	looked, answered := make(chan int, 1), make(chan struct{})
	go func() { looked <- len(v.Status().Drafts) }() // awaited below
	waits := func() bool {
		stacks := make([]byte, 1<<20)
		return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "drafts.(*clientDraft).info")
	}
	if !blackbox.Within(patience, waits) {
		t.Error("the status does not wait for the draft")
	}
	go func() { // awaited below
		v.Around(nil).Forget(1<<62, 1) // as each request of the kernel about drafts, it looks into the volume's books
		close(answered)
	}()
	select {
	case <-answered:
	case <-time.After(patience):
		t.Error("the kernel's requests wait for the status")
	}
	release()
	<-answered
	if n := <-looked; n != 1 {
		t.Errorf("the status shows %d drafts, want 1", n)
	}
}
