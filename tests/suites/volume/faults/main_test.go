// Package faults_test tests what becomes of checkpoint volumes when daemons, keepers and writers die, when disks fail, and when power is lost.
package faults_test

import (
	"os"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// suite is what all tests share; TestMain makes it.
var suite *blackbox.Suite

func TestMain(m *testing.M) {
	if volumetest.ServeChild(nil) {
		return
	}
	powerloss.ServeChild()
	os.Exit(blackbox.Main("faults", &suite, m.Run))
}

func mount(t testing.TB, flags ...string) *volumetest.Volume {
	t.Helper()
	return volumetest.Mount(t, suite, flags...)
}

func mountAt(t testing.TB, dir string, flags ...string) *volumetest.Volume {
	t.Helper()
	return volumetest.MountAt(t, suite, dir, flags...)
}

// run runs hbmfs to its end.
func run(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	r := suite.Run(t, args...)
	return r.Code, r.Stdout, r.Stderr
}
