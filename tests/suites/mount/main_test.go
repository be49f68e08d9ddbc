// Package mount_test tests the built hbmfs over real mounts, as its users see it: the command line, the files, the
// exit codes, the log.
//
// Under the race detector the daemon is built with it, too, and a race that it reports fails the run; otherwise
// HBMFS_BINARY names the binary to test. Every mount that a test makes must be gone when the test ends, and so must its
// daemon. Tests that need FUSE or root say so when they skip; root is needed to change users.
package mount_test

import (
	"os"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// patience bounds every wait of these tests. It is long, since nothing that works waits for its end.
const patience = blackbox.Patience

// nobody is the ordinary user of these tests: 65534 on every Linux.
const nobody = blackbox.Nobody

// suite is what all tests share; TestMain makes it.
var suite *blackbox.Suite

func TestMain(m *testing.M) {
	code, is := mounttest.RunChild(map[string]func(args []string) error{
		"bypass": func(args []string) error { return bypass(args[0], args[1]) }, // MOUNT NAME
	})
	if is {
		os.Exit(code)
	}
	os.Exit(blackbox.Main("mount", &suite, m.Run))
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
