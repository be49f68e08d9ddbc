package credentials_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/observe/trace/tracetest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// looker looks for secrets in what others may see.
type looker struct {
	*testing.T
	place *place
	text  []byte // of a file, as head reads it
}

func (l *looker) look(where string, text []byte) {
	l.Helper()
	for _, secret := range l.place.secrets {
		if i := bytes.Index(text, []byte(secret)); i >= 0 {
			l.Errorf("%s shows %q: ...%q", where, secret, text[max(i-200, 0):min(i+len(secret)+40, len(text))])
		}
	}
}

// file looks into a file.
func (l *looker) file(name string) {
	l.Helper()
	text, err := os.ReadFile(name)
	must(l, err)
	l.look(name, text)
}

// argument looks into a text that may have the source as the user typed it.
func (l *looker) argument(where string, text []byte) {
	l.Helper()
	if l.place.typed {
		text = bytes.ReplaceAll(text, []byte(l.place.source), nil)
	}
	l.look(where, text)
}

// processes looks into all processes of a mount, its keeper and the next daemon too: arguments, the environment, and memory that they share.
func (l *looker) processes(m *blackbox.Mounted) {
	l.Helper()
	keeper := m.Status(l).Handover.PID
	found := map[string]bool{}
	all, err := filepath.Glob("/proc/[0-9]*")
	must(l, err)
	for _, dir := range all {
		args, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !bytes.Contains(args, []byte(m.Point)) && dir != fmt.Sprintf("/proc/%d", keeper) {
			continue // it may have ended
		}
		l.argument(dir+"/cmdline", args)
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue
		}
		l.look(dir+"/environ", environ)
		fds, err := filepath.Glob(filepath.Join(dir, "fd", "*"))
		must(l, err)
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "/memfd:") {
				l.argument(fd+" ("+to+")", l.head(fd))
				found[to] = true
			}
		}
	}
	if keeper != 0 && len(found) == 0 {
		l.Error("no process has memory for the next daemon")
	}
}

// head is the start of a file that may be large, nothing where it has gone. It is good until the next one: under the race detector, a buffer for each
// file took most of the time of the test.
func (l *looker) head(name string) []byte {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // opened for reading
	if l.text == nil {
		l.text = make([]byte, 16<<20)
	}
	n, _ := io.ReadFull(f, l.text)
	return l.text[:n]
}

// cache looks into the names of a cache, and into its files that have no bytes of objects.
func (l *looker) cache(dir string) {
	l.Helper()
	must(l, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			l.look(name, []byte(name))
			l.look(name, l.head(name))
		}
		return err
	}))
}

// reads reads a file whole, or wants an error.
func (s *server) reads(t *testing.T, m *blackbox.Mounted, name string, works bool) {
	t.Helper()
	got, err := os.ReadFile(m.Path(name))
	if works && (err != nil || !bytes.Equal(got, s.files[name])) {
		t.Errorf("%s: %v, or wrong bytes\nlog:\n%s", name, err, m.LogText(t))
	}
	if !works && err == nil {
		t.Errorf("%s is read, and the server gives an error", name)
	}
}

// TestNobodySeesSecrets mounts each origin, has its server fail, redirect and refuse old credentials, and replaces the daemon by a kill and by an
// upgrade. Then it looks for secrets: in the log with all its details, in traces, status, metrics, arguments, environments, shared memory, the cache,
// the words of commands, and at the server that redirects lead to.
func TestNobodySeesSecrets(t *testing.T) {
	blackbox.NeedFUSE(t)
	for kind := range places() {
		t.Run(kind, func(t *testing.T) {
			c := tracetest.New(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
			s := newServer(t, kind)
			l, cache := &looker{T: t, place: s.place}, suite.NewDir(t)
			m := suite.MountOn(t, s.place.source, suite.NewDir(t), "--cache-dir", cache, "--cache-segment=1MiB", "--log-level=debug", "--patience=20s")
			s.reads(t, m, "first.bin", true)
			s.faulty.Store(true)
			s.reads(t, m, "broken.bin", false)
			s.reads(t, m, "moved.bin", false)
			s.renew()
			s.reads(t, m, "second.bin", true)
			l.processes(m)
			if m.Status(t).Handover.Holder == "keeper" {
				m.Replace(t, blackbox.Patience)
				s.reads(t, m, "third.bin", true)
				s.renew()
				l.command("upgrade", m.Point)
				s.reads(t, m, "fourth.bin", true)
				s.reads(t, m, "moved.bin", false)
				l.processes(m)
				m.PID = m.Status(t).PID
			}
			l.cache(cache)
			for _, name := range []string{m.Path(".hbmfs", "status"), m.Path(".hbmfs", "metrics"), "/proc/self/mounts"} {
				l.file(name)
			}
			for _, args := range [][]string{
				{"status", m.Point}, {"status", "--json", m.Point}, {"cache", "ls", cache}, {"cache", "verify", cache}, {"ls", "--json", s.place.source}, {"inspect", "--json", s.place.source},
				{"inspect", "--verify", s.place.source}, {"locate", m.Path("first.bin")}, {"check", m.Path("first.bin")}, {"warm", m.Path("broken.bin")}, {"mount", s.place.source, m.Point},
			} {
				l.command(args...)
			}
			s.generation.Add(1) // the credentials have ended, and there are no others
			for _, args := range [][]string{{"ls", "--patience=2s", s.place.source}, {"mount", "--patience=2s", "--log-file", m.Log, s.place.source, suite.NewDir(t)}} {
				if !s.place.typed && l.command(args...).Code == 0 {
					t.Errorf("%q works with credentials that have ended", args)
				}
			}
			m.End(t)
			l.look("the log", []byte(m.LogText(t)))
			if !slices.ContainsFunc(strings.Split(m.LogText(t), "\n"), func(line string) bool { return strings.Contains(line, "broken.bin") }) {
				t.Errorf("the log has nothing of the broken file:\n%s", m.LogText(t))
			}
			spans, _ := c.Text()
			l.look("the collector", []byte(spans))
			if !strings.Contains(spans, "broken.bin") {
				t.Error("the collector hears nothing of the broken file")
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			l.look("the server of the redirect", []byte(s.heard.String()))
		})
	}
}

// command runs a command, which may fail, and looks into what it says.
func (l *looker) command(args ...string) blackbox.Result {
	l.Helper()
	r := suite.Run(l, args...)
	l.look(fmt.Sprintf("hbmfs %s (exit code %d)", args[0], r.Code), []byte(r.Stdout+r.Stderr))
	return r
}
