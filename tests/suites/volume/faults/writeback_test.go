package faults_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/thin"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// lostBytes is how much of a file the disk loses in these tests.
const lostBytes = 1 << 20

// lossyDraft makes a draft whose file has blocks that the disk no longer has, and opens the file. Writes to it succeed, and are lost.
func lossyDraft(t *testing.T, v *volumetest.Volume, disk *thin.Disk, name string, flags int) *os.File {
	t.Helper()
	dir := v.Draft(t, name, map[string]string{"sub/file": "", "other": "bytes"})
	f, err := os.OpenFile(dir+"/sub/file", os.O_RDWR|flags, 0)
	blackbox.Must(t, err)
	blackbox.Must(t, errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, lostBytes), f.Sync()))
	disk.Starve(t, filepath.Join(v.Dir, checkpoint.DraftBase(name), "sub/file"))
	return f
}

// lossy are programs that write to a file, and do not care what the kernel says of it.
var lossy = []struct {
	name  string
	flags int
	write func(t *testing.T, f *os.File)
}{
	{"writes", 0, func(t *testing.T, f *os.File) {
		_, err := f.Write(bytes.Repeat([]byte("x"), lostBytes))
		blackbox.Must(t, err)
	}},
	{"ignores fsync", 0, func(t *testing.T, f *os.File) {
		_, err := f.Write(bytes.Repeat([]byte("x"), lostBytes))
		blackbox.Must(t, err)
		if err := f.Sync(); err == nil {
			t.Error("fsync did not fail")
		}
	}},
	{"ignores O_DSYNC", unix.O_DSYNC, func(t *testing.T, f *os.File) {
		if _, err := f.Write(bytes.Repeat([]byte("x"), lostBytes)); err == nil {
			t.Error("write did not fail")
		}
	}},
	{"ignores msync", 0, func(t *testing.T, f *os.File) {
		m, err := unix.Mmap(int(f.Fd()), 0, lostBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		blackbox.Must(t, err)
		copy(m, bytes.Repeat([]byte("x"), lostBytes))
		if err := unix.Msync(m, unix.MS_SYNC); err == nil {
			t.Error("msync did not fail")
		}
		blackbox.Must(t, unix.Munmap(m))
	}},
}

// TestWriteBackFails: a draft that lost bytes is not published, however often that is tried, until the file is written again. What the kernel
// has forgotten, and which daemon is asked, makes no difference. Drafts beside it are published.
func TestWriteBackFails(t *testing.T) {
	mount(t).End(t) // skips where nothing can be mounted
	for _, kind := range thin.Kinds() {
		t.Run(kind, func(t *testing.T) {
			disk := thin.New(t, kind, suite.NewDir(t), suite.NewDir(t))
			v := mountAt(t, disk.Dir)
			loseBytes(t, v, disk, "one-daemon", 0, lossy[0].write, false)
			for _, program := range lossy {
				name := strings.ReplaceAll(program.name, " ", "-")
				t.Run(name, func(t *testing.T) { loseBytes(t, v, disk, name, program.flags, program.write, true) })
			}
		})
	}
}

func loseBytes(t *testing.T, v *volumetest.Volume, disk *thin.Disk, name string, flags int, write func(*testing.T, *os.File), replaced bool) {
	f := lossyDraft(t, v, disk, name, flags)
	write(t, f)
	blackbox.Must(t, f.Close())
	v.Draft(t, name+"-beside", map[string]string{"file": "bytes"})
	disk.Forget(t)
	disk.Feed(t)
	if replaced {
		v.KillSlowly(t, func() { disk.Forget(t) })
	}
	for range 3 {
		if err := v.Publish(name); err == nil {
			code, out, errs := run(t, "checkpoint", "verify", filepath.Join(v.Dir, name))
			t.Fatalf("a draft that lost bytes was published: verify: %d %s%s", code, out, errs)
		}
	}
	v.Said(t, `"sub/file"`)
	code, out, errs := run(t, "publish", v.Path(name+".tmp"))
	if code == 0 || !strings.Contains(out+errs, `"sub/file"`) || !strings.Contains(out+errs, "write it again") {
		t.Errorf("publish: %d %s%s", code, out, errs)
	}
	blackbox.Must(t, v.Publish(name+"-beside"))
	blackbox.Must(t, os.WriteFile(v.Path(name+".tmp", "sub/file"), bytes.Repeat([]byte("y"), lostBytes), 0o644))
	blackbox.Must(t, v.Publish(name))
	disk.Forget(t)
	for _, name := range []string{name, name + "-beside"} {
		if code, out, errs := run(t, "checkpoint", "verify", filepath.Join(v.Dir, name)); code != 0 {
			t.Errorf("verify %s: %d %s%s", name, code, out, errs)
		}
		blackbox.Must(t, os.Remove(v.Path(name)))
	}
}
