// Package control_test tests the control channel of the built hbmfs over real mounts: what readers get by it, and what
// hostile clients do not. It speaks the protocol through package control, and where a client has to misbehave through a
// socket of its own.
//
// Under the race detector the daemon is built with it, too; otherwise HBMFS_BINARY names the binary to test. Tests that
// need FUSE or root say so when they skip: without root there is no control socket.
package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// patience bounds every wait. It is long, since nothing that works waits for its end.
const patience = 40 * time.Second

// nobody is the ordinary user of these tests.
const nobody = 65534

var suite *blackbox.Suite

func TestMain(m *testing.M) {
	if verb := os.Getenv(childVerb); verb != "" {
		os.Exit(runChild(verb, os.Args[1:]))
	}
	os.Exit(blackbox.Main("control", &suite, m.Run))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mounted is a mount of a test.
type mounted struct {
	*blackbox.Mount
	source, log string
	pid         int
}

// mount mounts source for everybody. When the test ends the mount must come off and the daemon end, without a crash.
func mount(t testing.TB, source string, flags ...string) *mounted {
	t.Helper()
	blackbox.NeedRoot(t)
	m := &mounted{source: source, log: filepath.Join(suite.NewDir(t), "log")}
	var err error
	m.Mount, err = suite.Mount(t.Context(), source, suite.NewDir(t), append(flags, "--no-spare", "--allow-other", "--log-file", m.log)...)
	must(t, err)
	m.follow(t)
	// Recognizing formats opens files; afterwards their number says something.
	if !within(func() bool { return !m.text(t).Indexing }) {
		t.Fatal("the formats are still being recognized")
	}
	return m
}

// mountAs mounts source as an ordinary user does, for that user alone.
func mountAs(t testing.TB, uid uint32, source string) *mounted {
	t.Helper()
	point, logs := suite.NewDir(t), suite.NewDir(t)
	must(t, errors.Join(os.Chown(point, int(uid), int(uid)), os.Chown(logs, int(uid), int(uid))))
	m := &mounted{Mount: suite.At(point), source: source, log: filepath.Join(logs, "log")}
	cmd := suite.Command(t.Context(), "mount", "--log-file", m.log, source, point)
	cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("user %d mounts: %v: %s", uid, err, out)
	}
	m.follow(t)
	return m
}

// follow finds the daemon, and has the mount come off when the test ends.
func (m *mounted) follow(t testing.TB) {
	t.Helper()
	var err error
	m.pid, err = m.DaemonPID()
	must(t, err)
	t.Cleanup(func() { m.EndsWell(t, m.pid, m.log, patience) })
}

func within(ok func() bool) bool { return blackbox.Within(patience, ok) }

// status is the part of .hbmfs/status that these tests look at.
type status struct {
	On          bool   `json:"on"`
	Why         string `json:"why"`
	ReadOnly    bool   `json:"read_only_descriptors"`
	Connections int    `json:"connections"`
	Readers     int    `json:"readers"`
	TurnedAway  int    `json:"turned_away"`
	Leases      int    `json:"leases"`
	Prefetched  int64  `json:"prefetched_bytes"`
	Clients     []struct {
		Name        string           `json:"name"`
		Connections int              `json:"connections"`
		Bytes       map[string]int64 `json:"bytes"`
		Reads       map[string]int64 `json:"reads"`
		Choices     []choice         `json:"choices"`
		Fields      []fieldUse       `json:"fields"`
	} `json:"clients"`
}

type fieldUse struct {
	Field string `json:"field"`
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

type choice struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Reads  int64  `json:"reads"`
	Bytes  int64  `json:"bytes"`
}

func (m *mounted) status(t testing.TB) status {
	t.Helper()
	return m.text(t).Control
}

// text is the status as the mount gives it.
func (m *mounted) text(t testing.TB) (s struct {
	Indexing bool   `json:"indexing"`
	Control  status `json:"control"`
}) {
	t.Helper()
	content, err := os.ReadFile(m.Path(".hbmfs", "status"))
	must(t, err)
	must(t, json.Unmarshal(content, &s))
	return s
}

// fds counts the open files of the daemon.
func (m *mounted) fds(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(m.pid), "fd"))
	must(t, err)
	return len(names)
}

// memory returns the resident bytes of the daemon.
func (m *mounted) memory(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(m.pid), "statm"))
	must(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	must(t, err)
	return pages * os.Getpagesize()
}

// idle waits until nobody is connected, and fails the test if the daemon then holds more than it did before.
func (m *mounted) idle(t testing.TB, fds int) {
	t.Helper()
	var s status
	if !within(func() bool { s = m.status(t); return s.Connections == 0 && s.Leases == 0 }) {
		t.Errorf("%d connections and %d leases are left of clients that have gone", s.Connections, s.Leases)
	}
	if !within(func() bool { return m.fds(t) <= fds }) {
		t.Errorf("the daemon has %d files open, and had %d before", m.fds(t), fds)
	}
}

func dial(t testing.TB, m *mounted) *control.Client {
	t.Helper()
	c, err := control.Dial(t.Context(), m.Path(), t.Name()[:min(len(t.Name()), 20)])
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func open(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() }) // opened for reading
	return f
}

func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
