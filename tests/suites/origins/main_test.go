// Package origins_test tests what hbmfs reads from elsewhere against real servers: versitygw's S3 and nginx, which tests/suites/origins/sitetest
// starts. The origins' contract is tested on the packages themselves, everything else on mounts of the built hbmfs, as its users see it. Under
// the race detector the daemon is built with it, too.
package origins_test

import (
	"os"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// patience bounds every wait of these tests. It is long, since nothing that works waits for its end.
const patience = blackbox.Patience

// Shared by all tests; TestMain makes them.
var (
	servers *sitetest.Servers
	suite   *blackbox.Suite
	s3      *sitetest.S3Server    // nil where HBMFS_S3SERVER is not set
	nginx   *sitetest.NginxServer // nil where there is no nginx
)

func TestMain(m *testing.M) {
	os.Exit(sitetest.Main("origins", func(s *sitetest.Servers) { servers, suite, s3, nginx = s, s.Suite, s.S3, s.Nginx }, m.Run))
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	blackbox.Must(t, err)
}
