// Package hub_test tests hf:// sources against a small Hugging Face Hub: the origin on its package, everything else on the built
// hbmfs. huggingface_hub's own client asks the same Hub, so that it answers as the real one does.
package hub_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/hforigin"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// suite is what all tests share; TestMain makes it.
var suite *blackbox.Suite

func TestMain(m *testing.M) {
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"} {
		_ = os.Unsetenv(name) // there is no reason for an error
	}
	os.Exit(blackbox.Main("hub", &suite, func() int {
		if err := os.Setenv("HF_HOME", suite.Dir); err != nil { // where no token is
			return 1
		}
		return m.Run()
	}))
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	blackbox.Must(t, err)
}

// open opens a source as an origin.
func open(t testing.TB, source string, opt fetch.Options) *hforigin.Repo {
	t.Helper()
	s, err := hforigin.Parse(source)
	must(t, err)
	return hforigin.Open(s, opt)
}

// mount mounts a source. When the test ends it must come off, and the daemon must end.
func mount(t *testing.T, source string, flags ...string) *blackbox.Mounted {
	t.Helper()
	return suite.MountOn(t, source, suite.NewDir(t), append(flags, "--no-keeper")...)
}

// mountStatus is the part of .hbmfs/status that these tests read.
type mountStatus struct {
	Source string
	Origin status.OriginTotals
}

func statusOf(t *testing.T, m *blackbox.Mounted) (s mountStatus) {
	t.Helper()
	text, err := os.ReadFile(m.Path(".hbmfs", "status"))
	must(t, err)
	must(t, json.Unmarshal(text, &s))
	return s
}
