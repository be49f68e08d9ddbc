// Package origins_test tests what hbmfs reads from elsewhere against real servers: versitygw's S3 (s3server, a module of
// its own, which HBMFS_S3SERVER names built) and nginx. Between them and hbmfs stands a proxy of the test, which counts
// what is asked for and breaks what a test wants broken.
//
// The origins' contract is tested on the packages themselves, everything else on mounts of the built hbmfs, as its users
// see it. Under the race detector the daemon is built with it, too.
package origins_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
)

// patience bounds every wait of these tests. It is long, since nothing that works waits for its end.
const patience = time.Minute

// Shared by all tests; TestMain makes them.
var (
	suite *blackbox.Suite
	s3    *s3Server    // nil where HBMFS_S3SERVER is not set
	nginx *nginxServer // nil where there is no nginx
)

func TestMain(m *testing.M) {
	powerloss.ServeChild()
	os.Exit(blackbox.Main("origins", &suite, func() int {
		code := 1
		err := startServers()
		if err == nil {
			code = m.Run()
		}
		if err := errors.Join(err, stopServers()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}))
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mounted is a mount of a test.
type mounted struct {
	*blackbox.Mount
	point, log string
	pid        int // of the daemon
}

// mount mounts source on point, or on a new directory where point is empty. When the test ends it must come off, and the
// daemon must end.
func mount(t *testing.T, source, point string, flags ...string) *mounted {
	t.Helper()
	if point == "" {
		point = suite.NewDir(t)
	}
	m := &mounted{point: point, log: filepath.Join(suite.NewDir(t), "log")}
	var err error
	m.Mount, err = suite.Mount(t.Context(), source, point, append(flags, "--no-keeper", "--log-file", m.log)...) // here daemons are killed for good
	must(t, err)
	m.pid, err = m.DaemonPID()
	must(t, err)
	t.Cleanup(func() { m.end(t) })
	return m
}

func (m *mounted) end(t *testing.T) {
	t.Helper()
	m.EndsWell(t, m.pid, m.log, patience)
}

// kill ends the daemon at once, as a crash or the out-of-memory killer does.
func (m *mounted) kill(t *testing.T) {
	t.Helper()
	must(t, syscall.Kill(m.pid, syscall.SIGKILL))
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(m.pid) }) {
		t.Fatal("the daemon survives SIGKILL")
	}
}

func (m *mounted) logText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(m.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return string(text)
}

// mountStatus is the part of .hbmfs/status that these tests read.
type mountStatus struct {
	Indexing bool
	Counters struct {
		PassthroughOpens int64 `json:"passthrough_opens"`
	}
	Passthrough struct{ On bool }
	Origin      status.OriginTotals
	Cache       status.Cache
}

func (m *mounted) status(t *testing.T) mountStatus {
	t.Helper()
	data, err := os.ReadFile(m.Path(".hbmfs", "status"))
	must(t, err)
	var s mountStatus
	must(t, json.Unmarshal(data, &s))
	return s
}

// settled waits until nothing is being filled any more, and gives the status.
func (m *mounted) settled(t *testing.T) (s mountStatus) {
	t.Helper()
	if !blackbox.Within(patience, func() bool { s = m.status(t); return s.Cache.Filling == 0 && !s.Indexing }) {
		t.Fatalf("segments stay half filled although all was read: %+v\nlog:\n%s", s, m.logText(t))
	}
	return s
}
