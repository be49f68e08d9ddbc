// Package lies_test tests the built hbmfs over servers that lie about bytes, deny files, or are not there: a mount fails with the
// reason or serves the truth. Lies about listings are in tests/suites/lies/listings, and tests/suites/origins has servers that are real and honest.
package lies_test

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
	os.Exit(blackbox.Main("lies", &suite, m.Run))
}

// mounted has the methods of this package's tests, too.
type mounted struct{ *blackbox.Mounted }

// mount mounts source on point, or on a new directory where point is empty. When the test ends it must come off, and the
// daemon must end.
func mount(t *testing.T, source, point string, flags ...string) *mounted {
	t.Helper()
	if point == "" {
		point = suite.NewDir(t)
	}
	return &mounted{suite.MountOn(t, source, point, append(flags, "--no-keeper")...)}
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	blackbox.Must(t, err)
}
