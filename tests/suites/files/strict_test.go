package files_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// hidden rewrites a file in place with as many other bytes, and puts its modification time back.
func hidden(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return errors.Join(
		edit(path, 0, func(f *os.File) error { _, err := f.WriteAt(bytes.Repeat([]byte{0xee}, 4096), 4096); return err }),
		os.Chtimes(path, time.Time{}, info.ModTime()),
	)
}

// With --strict a rewrite that hides itself is seen, by every way to the bytes; without, it is what the documents say.
// So is what changes a file's inode alone.
func TestStrict(t *testing.T) {
	blackbox.NeedRoot(t)
	const name = "shard_000000.bin"
	changes := map[string]func(path string) error{
		"rewritten, with the time put back": hidden,
		"permissions":                       func(path string) error { return os.Chmod(path, 0o600) },
		"another link":                      func(path string) error { return os.Link(path, filepath.Join(filepath.Dir(path), "..", "link")) },
	}
	for what, change := range changes {
		for _, flags := range [][]string{nil, {"--strict"}, {"-o", "ro,strict"}} {
			t.Run(what+" "+strings.Join(flags, " "), func(t *testing.T) {
				base := suite.NewDir(t)
				tokens, _ := mounttest.ShardedTokens(t, suite, 2, 100_000)
				source := filepath.Join(base, "source")
				must(t, os.CopyFS(source, os.DirFS(tokens)))
				settle()
				m := mount(t, source, flags...)
				view, err := os.Open(m.Path(".hbmfs", "views", "tokens.bin"))
				must(t, err)
				defer func() { must(t, view.Close()) }()
				part := make([]byte, 1000)
				_, err = view.ReadAt(part, 190_000) // so that the daemon has the file open
				must(t, err)
				settle()
				must(t, change(filepath.Join(source, name)))
				strict := flags != nil
				for how, err := range map[string]error{
					"opening": func() error { _, err := os.ReadFile(m.Path(name)); return err }(),
					"a view":  func() error { _, err := view.ReadAt(part, 10_000); return err }(),
					"LOOKUP":  lookUp(t, m.Point, name),
				} {
					if strict != errors.Is(err, syscall.ESTALE) || (!strict && err != nil) {
						t.Errorf("%s: %v", how, err)
					}
				}
			})
		}
	}
	for _, from := range []string{"s3://bucket/prefix", "http://127.0.0.1:1/"} {
		if r := run(t, "mount", "--strict", from, suite.NewDir(t)); r.Code == 0 || !strings.Contains(r.Stderr, "ETag") {
			t.Errorf("--strict of %s: exit code %d: %s", from, r.Code, r.Stderr)
		}
	}
}

// lookUp reads a byte of a file past FUSE.
func lookUp(t *testing.T, mount, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := control.Dial(ctx, mount, "strict")
	must(t, err)
	defer func() { _ = c.Close() }() // nothing of it is needed any more
	for found, err := range c.Lookup(ctx, []string{name}) {
		if err == nil {
			_, err = found.ReadAt(make([]byte, 1), 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
