package lies_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
)

// TestDarkSource has a server list a thousand objects and give none, where the mount needs to know all formats. Patience is for the
// source then, and not for each object.
func TestDarkSource(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	files := map[string][]byte{}
	for i := range 1000 {
		files[fmt.Sprintf("shard-%04d.npy", i)] = origintest.Data(600, 1)
	}
	chosen := filepath.Join(suite.NewDir(t), "chosen")
	must(t, os.WriteFile(chosen, []byte("0\n"), 0o600))
	for name, c := range map[string]struct {
		flags []string
		tell  func(x *liar.Exchange)
		says  string
	}{
		"format, errors":  {[]string{"--format", "npy"}, func(x *liar.Exchange) { x.Text(http.StatusInternalServerError, "") }, "500"},
		"select, errors":  {[]string{"--select", "all=" + chosen}, func(x *liar.Exchange) { x.Text(http.StatusInternalServerError, "") }, "500"},
		"format, silence": {[]string{"--format", "npy"}, func(x *liar.Exchange) { <-x.R.Context().Done() }, "no byte came"},
		"format, cache":   {[]string{"--format", "npy", "--cache-dir", suite.NewDir(t)}, func(x *liar.Exchange) { x.Text(http.StatusInternalServerError, "") }, "500"},
		"inspect":         {nil, func(x *liar.Exchange) { x.Text(http.StatusInternalServerError, "") }, "500"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked sync.Map
			l := liar.S3(t, files, func(x *liar.Exchange) bool {
				asked.Store(x.Name, true)
				c.tell(x)
				return true
			}, nil)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			args := append([]string{"mount", "-f", "--patience", "6s", l.Source(), suite.NewDir(t)}, c.flags...)
			if c.flags == nil {
				args = []string{"inspect", "--patience", "6s", l.Source()}
			}
			cmd := suite.Command(ctx, args...)
			cmd.Env = append(os.Environ(), "GOMAXPROCS=2") // of which the number of objects that are read at once follows
			said, err := cmd.CombinedOutput()
			if err == nil || ctx.Err() != nil || !strings.Contains(string(said), "cannot be reached") || !strings.Contains(string(said), c.says) {
				t.Errorf("it ends by %v (%v) and says %.1000q, want %q", err, ctx.Err(), said, c.says)
			}
			n := 0
			asked.Range(func(any, any) bool { n++; return true })
			if n >= len(files) {
				t.Errorf("all %d objects were asked for", n)
			}
		})
	}
}

// TestKilledCommand kills the command that waits for its daemon, which waits for the source. The daemon ends.
func TestKilledCommand(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	for _, name := range []string{"listing", "recognizing"} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			wait := func(x *liar.Exchange) bool {
				select {
				case asked <- struct{}{}:
				default:
				}
				<-x.R.Context().Done()
				return true
			}
			read, list := wait, (func(*liar.Exchange) bool)(nil)
			if name == "listing" {
				read, list = list, wait
			}
			l := liar.S3(t, map[string][]byte{"shard.npy": {1}}, read, list)
			cmd := suite.Command(t.Context(), "mount", "--patience", "1h", "--format", "npy", "--log-file", filepath.Join(suite.NewDir(t), "log"), l.Source(), suite.NewDir(t))
			must(t, cmd.Start())
			<-asked
			var daemon int
			paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
			must(t, err)
			for _, path := range paths { // any thread may have started it
				text, _ := os.ReadFile(path) // a thread that has ended has none
				_, _ = fmt.Sscan(string(text), &daemon)
			}
			if daemon == 0 {
				t.Fatal("the command has no daemon")
			}
			must(t, cmd.Process.Signal(syscall.SIGKILL))
			_ = cmd.Wait() // by the signal
			if !blackbox.Within(patience, func() bool { return blackbox.Ended(daemon) }) {
				t.Error("the daemon stays")
				must(t, syscall.Kill(daemon, syscall.SIGKILL))
			}
		})
	}
}
