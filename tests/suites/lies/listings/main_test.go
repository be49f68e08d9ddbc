// Package listings_test tests the built hbmfs over servers that lie about what there is: a mount fails with the reason, or serves the truth.
package listings_test

import (
	"os"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// patience bounds every wait of these tests. It is long, since nothing that works waits for its end.
const patience = blackbox.Patience

// suite is what all tests share; TestMain makes it.
var suite *blackbox.Suite

func TestMain(m *testing.M) {
	os.Exit(blackbox.Main("listings", &suite, m.Run))
}

// mount mounts source on a new directory. When the test ends it must come off, and the daemon must end.
func mount(t *testing.T, source string, flags ...string) *blackbox.Mounted {
	t.Helper()
	return suite.MountOn(t, source, suite.NewDir(t), append(flags, "--no-keeper")...)
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	blackbox.Must(t, err)
}
