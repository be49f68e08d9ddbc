package volume_test

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// TestLeasesInTheDirectory: a process with a write lease of a file, past the mount, has no open and no publishing wait until its lease is broken by
// the kernel. Others go on.
func TestLeasesInTheDirectory(t *testing.T) {
	v := mount(t)
	dir := v.Draft(t, "step", map[string]string{"other": "bytes"})
	// The daemon has a file open that a program wrote, so no other process can lease it. A file that was made past the mount can be leased.
	blackbox.Must(t, os.WriteFile(v.Dir+"/.step.hbmfs.tmp/file", []byte("bytes"), 0o644))
	lease := func(path string) (release func()) {
		f, err := os.Open(path)
		blackbox.Must(t, err)
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
			t.Skipf("needs leases: %v", err)
		}
		return func() { blackbox.Must(t, f.Close()) } // and the lease with it
	}
	soon := func(what string, errno unix.Errno, do func() error) {
		t.Helper()
		over := make(chan error, 1)
		go func() { over <- do() }()
		select {
		case err := <-over:
			volumetest.Want(t, what, err, errno)
		case <-time.After(volumetest.Patience): // fs.lease-break-time is 45 s
			t.Errorf("%s waits", what)
		}
	}
	read := func(path string) func() error {
		return func() error {
			_, err := os.ReadFile(path)
			return err
		}
	}
	release := lease(v.Dir + "/.step.hbmfs.tmp/file")
	soon("open of a leased file of a draft", unix.EAGAIN, read(dir+"/file"))
	soon("open of another", 0, read(dir+"/other"))
	soon("making it again", unix.EAGAIN, func() error { return os.WriteFile(dir+"/file", []byte("more"), 0o644) })
	soon("publishing it", unix.EBUSY, func() error { return v.Publish("step") })
	release()
	blackbox.Must(t, v.Publish("step"))
	release = lease(v.Dir + "/step/file")
	soon("open of a leased file of a checkpoint", unix.EAGAIN, read(v.Path("step", "file")))
	soon("open of another", 0, read(v.Path("step", "other")))
	release()
	soon("open once there is no lease", 0, read(v.Path("step", "file")))
}
