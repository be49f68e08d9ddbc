package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// mistake is a Mount that is refused before anything is mounted.
type mistake struct {
	says   string
	change func(m *Mount)
}

func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []mistake{
		{"belong to --drain", func(m *Mount) { m.Checkpoints.On, m.Checkpoints.Keep = true, 2 }},
		{"belong to --drain", func(m *Mount) { m.Checkpoints.TakeOver = true }},
		{"--keep -1", func(m *Mount) {
			m.Checkpoints.On, m.Checkpoints.Drain, m.Checkpoints.Keep = true, "s3://b/run", -1
		}},
		{"s3://b is an address", func(m *Mount) { m.Checkpoints.On, m.Source = true, "s3://b" }},
		{"a checkpoint volume takes no --format", func(m *Mount) { m.Checkpoints.On, m.Options.UID = true, new(uint32) }},
		{"a checkpoint volume takes no --format", func(m *Mount) { m.Checkpoints.On, m.Select = true, []string{"a=b"} }},
		{`want direct or buffered, not "mapped"`, func(m *Mount) { m.KV.On, m.KV.Size, m.KV.DiskIO = true, 1<<30, "mapped" }},
		{"--size is missing", func(m *Mount) { m.KV.On = true }},
		{"at least 1MiB, or none", func(m *Mount) { m.KV.On, m.KV.Size, m.KV.Memory = true, 1<<30, 1 }},
		{"a KV volume takes no --format", func(m *Mount) { m.KV.On, m.KV.Size, m.Dataset.CacheDir = true, 1<<30, dir }},
	} {
		m := &Mount{Source: dir, Point: t.TempDir()}
		c.change(m)
		err := errors.Join(m.Checkpoints.check(m), m.KV.check(m))
		if wrong := (cli.Mistake{}); !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want the mistake %q", err, c.says)
		}
	}
	for _, c := range []mistake{
		{"is more than this machine has free", func(m *Mount) { m.KV.On, m.KV.Size, m.KV.Memory = true, 1<<30, 1<<60 }},
		{"mkdir -p makes it", func(m *Mount) { m.Checkpoints.On, m.Source = true, filepath.Join(dir, "none") }},
		{"is no directory", func(m *Mount) { m.Checkpoints.On, m.Source = true, file }},
		{"cannot be mounted on itself", func(m *Mount) { m.KV.On, m.KV.Size, m.Point = true, 1<<30, dir }},
		{"lies in the directory itself", func(m *Mount) { m.Checkpoints.On, m.Point = true, filepath.Join(dir, "point") }},
	} {
		m := &Mount{Source: dir, Point: t.TempDir()}
		c.change(m)
		err := errors.Join(m.Checkpoints.check(m), m.KV.check(m))
		if wrong := (cli.Mistake{}); err == nil || errors.As(err, &wrong) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
	m := &Mount{Source: dir, Point: t.TempDir()}
	if err := errors.Join(m.Checkpoints.check(m), m.KV.check(m)); err != nil {
		t.Errorf("a dataset: %v", err)
	}
}

func TestBuffered(t *testing.T) {
	for want, k := range map[string]KV{
		"--disk-io buffered": {DiskIO: diskBuffered, Memory: 1 << 30}, "without --memory": {}, "": {Memory: 1 << 30},
	} {
		if got := k.buffered(); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%+v: %q, want %q", k, got, want)
		}
	}
}

// The mount point is made where it is missing, and goes again, unless something was put there or the next daemon has it.
func TestPoint(t *testing.T) {
	source, point := t.TempDir(), filepath.Join(t.TempDir(), "point")
	there := func() bool { _, err := os.Stat(point); return err == nil }
	p := &places{Source: source, Point: point}
	if err := p.makePoint(); err != nil || !there() {
		t.Fatalf("%v, made: %v", err, there())
	}
	section, err := p.Save()
	if err != nil {
		t.Fatal(err)
	}
	next := &places{}
	if err := next.Adopt(section); err != nil || next.Point != point || next.Source != source || next.Inode != p.Inode {
		t.Errorf("%v: the next daemon has %+v of %+v", err, next, p)
	}
	if notes, err := checkPoint(point, source); err != nil || notes != nil {
		t.Errorf("an empty mount point: %q, %v", notes, err)
	}
	left := filepath.Join(point, "left")
	if err := os.WriteFile(left, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if notes, err := checkPoint(point, source); err != nil || len(notes) != 1 || !strings.Contains(notes[0], `"left" for one`) {
		t.Errorf("a mount point with a file in it: %q, %v", notes, err)
	}
	if next.removePoint(); !there() {
		t.Error("what was put there is gone")
	}
	if err := os.Remove(left); err != nil {
		t.Fatal(err)
	}
	if next.removePoint(); there() {
		t.Error("the mount point that was made stays")
	}
	if _, err := checkPoint(filepath.Join(point, "deeper"), source); err == nil || !strings.Contains(err.Error(), "mkdir -p "+point) {
		t.Errorf("a mount point without its directory: %v", err)
	}
}

// served is a mount that is in use, or not.
type served struct {
	busy  bool
	calls []string
	over  chan struct{}
}

func (s *served) Unmount() error {
	s.calls = append(s.calls, "unmount")
	if s.busy {
		return mountpoint.ErrBusy
	}
	close(s.over)
	return nil
}

func (s *served) Detach() error { s.calls = append(s.calls, "detach"); return nil }

func TestUntilUnmounted(t *testing.T) {
	for _, c := range []struct {
		busy  bool
		calls string
		says  string // of a second signal
	}{{false, "unmount", ""}, {true, "unmount detach", "ended by a second terminated with files open"}} {
		mount, signals := &served{busy: c.busy, over: make(chan struct{})}, make(chan os.Signal, 2)
		signals <- syscall.SIGTERM
		if c.busy {
			signals <- syscall.SIGTERM
		}
		err := untilUnmounted(mount, slog.New(slog.DiscardHandler), signals, mount.over)
		if got := strings.Join(mount.calls, " "); got != c.calls || (err == nil) != (c.says == "") || err != nil && err.Error() != c.says {
			t.Errorf("busy %v: %q and %v, want %q and %q", c.busy, got, err, c.calls, c.says)
		}
	}
}

func TestDefaultLog(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	want := "/state/hbmfs/hbmfs.log"
	if os.Geteuid() == 0 {
		want = "/var/log/hbmfs.log"
	}
	m := &Mount{}
	if got := m.logName(); got != want {
		t.Errorf("the log is %s, want %s", got, want)
	}
	m.LogFile = filepath.Join(t.TempDir(), "log")
	out, closeLog, err := m.openLog()
	if err != nil {
		t.Fatal(err)
	}
	m.LogLevel = "warn"
	log := m.newLog(out)
	log.Info("not said")
	log.Warn("said")
	closeLog()
	if text, err := os.ReadFile(m.LogFile); err != nil || !strings.Contains(string(text), "msg=said") || strings.Contains(string(text), "not said") {
		t.Errorf("%v: %s", err, text)
	}
}
