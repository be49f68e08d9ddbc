// Package stuck_test tests mounts whose daemon or reader is stuck, stopped or dead: what commands say of them, what ends, and what signals do.
// It tests the built hbmfs as tests/suites/mount does, over real mounts.
package stuck_test

import (
	"os"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// patience bounds every wait of these tests. It is long, since nothing that works waits for its end.
const patience = blackbox.Patience

// suite is what all tests share; TestMain makes it.
var suite *blackbox.Suite

func TestMain(m *testing.M) {
	code, is := mounttest.RunChild(map[string]func(args []string) error{
		"jam":       func(args []string) error { return serveJammed(args[0]) },        // MOUNTPOINT
		"signalled": func(args []string) error { return signalled(args[0], args[1]) }, // HOW FILE
	})
	if is {
		os.Exit(code)
	}
	os.Exit(blackbox.Main("stuck", &suite, m.Run))
}

// mounted has the methods of this package's tests, too.
type mounted struct{ *blackbox.Mounted }

// mount mounts source on a new directory. When the test ends it must come off, and the daemon must end.
func mount(t *testing.T, source string, flags ...string) *mounted {
	t.Helper()
	return mountOn(t, source, suite.NewDir(t), flags...)
}

func mountOn(t *testing.T, source, point string, flags ...string) *mounted {
	t.Helper()
	blackbox.NeedFUSE(t)
	return &mounted{suite.MountOn(t, source, point, flags...)}
}

// run runs `hbmfs args...` to its end.
func run(t testing.TB, args ...string) blackbox.Result {
	t.Helper()
	return suite.Run(t, args...)
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	blackbox.Must(t, err)
}
