package mount_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// leased takes a write lease on a file, as a file server does that lets a client write behind. A process that opens the
// file waits until it is given back.
func leased(t *testing.T, path string) (release func()) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("needs leases: %v", err)
	}
	return func() { must(t, f.Close()) } // which ends the lease
}

// A file of the source that somebody has leased cannot be opened, which its program hears while the lease is held. Others can be.
func TestLeasedFilesAreNotOpened(t *testing.T) {
	blackbox.NeedFUSE(t)
	source, _ := mounttest.ShardedTokens(t, suite, 2, 1000)
	const shard, another = "shard_000001.bin", "shard_000000.bin"
	release := leased(t, filepath.Join(source, shard)) // before anybody has it open: then there is no lease to be had
	m := mount(t, source)
	opened := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(m.Path(shard))
		opened <- err
	}()
	_, err := os.ReadFile(m.Path(another))
	must(t, err)
	select {
	case err = <-opened:
	case <-time.After(patience): // fs.lease-break-time is 45 s
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("opening a leased file: %v, want EAGAIN", err)
	}
	if log := m.LogText(t); !strings.Contains(log, "its holder of a lease has not let go of it yet") {
		t.Errorf("the log does not say why:\n%s", log)
	}
	release()
	_, err = os.ReadFile(m.Path(shard))
	must(t, err)
}

// A file in a view that somebody has leased is waited for by reads, as the kernel has any other program wait. The wait ends with the reader.
func TestLeasedFilesAreWaitedFor(t *testing.T) {
	blackbox.NeedFUSE(t)
	const name = ".hbmfs/views/tokens.bin"
	source, want := mounttest.ShardedTokens(t, suite, 2, 100_000)
	release := leased(t, filepath.Join(source, "shard_000001.bin")) // before anybody has it open: then there is no lease to be had
	m := mount(t, source)
	stuck := exec.CommandContext(t.Context(), "cat", m.Path(name))
	must(t, stuck.Start())
	if !blackbox.Within(patience, func() bool { return mounttest.IsStuck(stuck.Process.Pid) }) {
		t.Error("a reader does not wait")
	}
	must(t, stuck.Process.Kill())
	_ = stuck.Wait() // killed, which is its error
	read := make(chan error, 1)
	go func() {
		got, err := mounttest.ReadPastCache(m.Path(name))
		if err == nil && !bytes.Equal(got, want) {
			err = errors.New("wrong bytes")
		}
		read <- err
	}()
	release()
	must(t, <-read)
}

// A reader past FUSE is told to come back: the daemon's answers wait for nobody.
func TestLeasedFilesPastFUSE(t *testing.T) {
	blackbox.NeedRoot(t)
	source := suite.NewDir(t)
	mounttest.WriteFiles(t, source, map[string]string{"shard.bin": strings.Repeat("tokens ", 1000)})
	defer leased(t, filepath.Join(source, "shard.bin"))()
	m := mount(t, source)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := control.Dial(ctx, m.Point, "leased")
	must(t, err)
	defer func() { _ = c.Close() }() // nothing of it is needed any more
	for found, err := range c.Lookup(ctx, []string{"shard.bin"}) {
		must(t, err)
		if _, err := found.ReadAt(make([]byte, 1), 0); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("a leased file past FUSE: %v, want EAGAIN", err)
		}
	}
}

// Files below a path that is longer than one system call takes are files like any others: by themselves, in views, and
// past FUSE.
func TestPathsLongerThanACallTakes(t *testing.T) {
	blackbox.NeedFUSE(t)
	tokens, stream := mounttest.ShardedTokens(t, suite, 1, 5000)
	shard, err := os.ReadFile(filepath.Join(tokens, "shard_000000.bin"))
	must(t, err)
	source := suite.NewDir(t)
	dir := strings.Repeat(strings.Repeat("d", 255)+"/", 20) // 5,120 bytes
	root, err := os.OpenRoot(source)
	must(t, err)
	must(t, root.MkdirAll(dir, 0o755))
	must(t, root.WriteFile(dir+"shard_000000.bin", shard, 0o644))
	must(t, root.Symlink("../"+strings.Repeat("d", 255)+"/shard_000000.bin", dir+"link.bin"))
	must(t, root.Close())
	m := mount(t, source)
	mounted, err := os.OpenRoot(m.Point)
	must(t, err)
	defer func() { must(t, mounted.Close()) }()
	for name, want := range map[string][]byte{
		dir + "shard_000000.bin": shard, dir + "link.bin": shard, ".hbmfs/views/" + dir + "tokens.bin": append(bytes.Clone(stream), stream...),
	} {
		if got, err := mounted.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, or wrong bytes", filepath.Base(name), err)
		}
	}
	if os.Geteuid() == 0 {
		if err := bypass(m.Point, dir+"shard_000000.bin"); err != nil {
			t.Errorf("past FUSE: %v", err)
		}
	}
	f, err := mounted.OpenFile(dir+"shard_000000.bin", os.O_RDWR, 0)
	if err == nil {
		_, err = io.WriteString(f, "x")
		must(t, f.Close())
	}
	if !errors.Is(err, syscall.EROFS) {
		t.Errorf("writing: %v, want EROFS", err)
	}
}
