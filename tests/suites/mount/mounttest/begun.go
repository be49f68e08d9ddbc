package mounttest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Soon bounds calls that must not wait for a stuck daemon. On an idle machine all of it takes less than three
// seconds.
const Soon = 20 * time.Second

// Begun is a command that was started, with its standard error in a file.
type Begun struct {
	*exec.Cmd
	stderr string
	Ended  chan struct{} // closed when it has ended
}

// Begin starts a command.
func Begin(t *testing.T, suite *blackbox.Suite, cmd *exec.Cmd) *Begun {
	t.Helper()
	b := &Begun{cmd, filepath.Join(suite.NewDir(t), "stderr"), make(chan struct{})}
	out, err := os.Create(b.stderr)
	blackbox.Must(t, err)
	cmd.Stderr = out
	blackbox.Must(t, cmd.Start())
	blackbox.Must(t, out.Close())
	go func() {
		defer close(b.Ended)
		_ = cmd.Wait() // the exit code says it
	}()
	return b
}

// Said is the command's standard error.
func (b *Begun) Said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(b.stderr)
	blackbox.Must(t, err)
	return string(text)
}

// End waits for the end of a command, and kills it where that does not come.
func (b *Begun) End(t *testing.T) (ok bool) {
	t.Helper()
	select {
	case <-b.Ended:
		return true
	case <-time.After(Soon):
		t.Errorf("%q has not ended %v later; it said %q", b.Args[1:], Soon, b.Said(t))
		_ = b.Process.Kill()
		return false
	}
}

// IsStuck says whether a process has been waiting for FUSE for a while, in one place: each waits for an open or a
// lookup for a moment.
func IsStuck(pid int) bool {
	ran := func() []byte {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // gone: nothing is read
		_, switches, _ := bytes.Cut(status, []byte("voluntary_ctxt_switches:"))
		return switches
	}
	before := ran()
	if !WaitsForFUSE(pid) {
		return false
	}
	time.Sleep(50 * time.Millisecond)
	return WaitsForFUSE(pid) && len(before) > 0 && bytes.Equal(before, ran())
}

// WaitsForFUSE says whether a process waits for an answer of a FUSE daemon: the kernel's name of the place says it.
func WaitsForFUSE(pid int) bool {
	place, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
	return bytes.Contains(place, []byte("request_wait_answer")) || bytes.Contains(place, []byte("folio_wait"))
}
