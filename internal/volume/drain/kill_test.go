package drain

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// TestKill kills the drain at each of its requests, before the store has carried it out and after. What is there is never half a
// checkpoint, and the next life sends nothing that is there. HBMFS_TEST_LONG has two files in parts.
func TestKill(t *testing.T) {
	sizes := map[string]int{"small": 1000, "big": 8*mib + 17, "more": mib}
	if os.Getenv("HBMFS_TEST_LONG") != "" {
		sizes = map[string]int{"small": 1000, "big": 16*mib + 17, "more": 9 * mib}
	}
	var requests int
	{
		s, dir := newStore(t), t.TempDir()
		publish(t, dir, "step-1", checkpoint.Part{Of: 1}, sizes)
		once(t, dir, s.url("run"), fast())
		requests = len(s.calls)
	}
	for _, after := range []bool{false, true} {
		for at := 1; at <= requests; at++ {
			name := fmt.Sprintf("before request %d", at)
			if after {
				name = fmt.Sprintf("after request %d", at)
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				killAt(t, at, after, sizes)
			})
		}
	}
}

func killAt(t *testing.T, at int, after bool, sizes map[string]int) {
	s, dir := newStore(t), t.TempDir()
	publish(t, dir, "step-1", checkpoint.Part{Of: 1}, sizes)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir+"\n"+s.url("run"))
	var seen atomic.Int64
	var step atomic.Value
	started, killed := make(chan struct{}), make(chan struct{})
	s.set(func() {
		s.before = func(op, key string, _ http.ResponseWriter, _ *http.Request) (bool, func(http.ResponseWriter)) {
			if seen.Add(1) != int64(at) {
				select {
				case <-killed:
					return true, nil // of the dead
				default:
					return false, nil
				}
			}
			step.Store(op + " " + key)
			kill := func() { <-started; _ = cmd.Process.Kill(); _ = cmd.Wait(); close(killed) }
			if !after {
				kill()
				return true, nil
			}
			return false, func(http.ResponseWriter) { kill() }
		}
	})
	must(t, cmd.Start())
	close(started)
	select {
	case <-killed:
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		t.Fatalf("it made only %d requests", seen.Load())
	}
	until(t, func() bool { return s.connections.Load() == 0 }) // the last requests of the dead have ended
	s.mu.Lock()
	s.before = nil
	before := maps.Clone(s.parts)
	_, complete := s.objects["run/step-1/"+checkpoint.ManifestName]
	s.mu.Unlock()
	if complete {
		compare(t, s, "run/", dir, "step-1", sizes)
	}
	if got := once(t, dir, s.url("run"), fast()); got["step-1"] != Remote {
		t.Fatalf("killed at %v: the states are %v", step.Load(), got)
	}
	compare(t, s, "run/", dir, "step-1", sizes)
	s.mu.Lock()
	defer s.mu.Unlock()
	for part, n := range before {
		if s.parts[part] > n && !strings.HasSuffix(part, checkpoint.ManifestName) && !strings.HasSuffix(part, MarkName) {
			t.Errorf("killed at %v: %s was there, and was sent again", step.Load(), part)
		}
	}
}
