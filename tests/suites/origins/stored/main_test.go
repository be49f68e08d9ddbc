// Package stored_test tests what outlives a daemon, on real servers: segments of a cache when it is killed, its disk fails or power is lost,
// records of reads, and checkpoints that drain to a bucket.
package stored_test

import (
	"os"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
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
	powerloss.ServeChild()
	os.Exit(sitetest.Main("stored", func(s *sitetest.Servers) { servers, suite, s3, nginx = s, s.Suite, s.S3, s.Nginx }, m.Run))
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	blackbox.Must(t, err)
}
