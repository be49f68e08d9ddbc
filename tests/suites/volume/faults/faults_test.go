package faults_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// inject makes system calls of a daemon fail until end is called. words are those of strace's -e inject=. Writes fail on one file only: Go's runtime
// makes some, and gives up where they fail.
func inject(t *testing.T, pid int, words, written string) (end func()) {
	t.Helper()
	options := []string{"-f", "-qq", "-o", "/dev/null", "-p", strconv.Itoa(pid), "-e", "inject=" + words}
	if strings.HasPrefix(words, "write:") {
		options = append(options, "-P", written)
	}
	tracer := exec.Command("strace", options...)
	blackbox.Must(t, tracer.Start())
	if !blackbox.Within(volumetest.Patience, func() bool { return blackbox.Traced(pid, tracer.Process.Pid) }) {
		t.Fatal("strace does not attach")
	}
	return func() {
		_ = tracer.Process.Signal(os.Interrupt) // it lets the daemon go
		_ = tracer.Wait()                       // by the signal
	}
}

// work does all that a program may do in a draft. It gives the error of each part that failed, and that of the publishing.
func work(v *volumetest.Volume, name string) (failed []error, published error) {
	do := func(errs ...error) { failed = append(failed, errors.Join(errs...)) }
	draft := v.Path(name + ".tmp")
	do(os.Mkdir(draft, 0o755))
	do(os.Mkdir(draft+"/sub", 0o755))
	for _, file := range []string{"a", "sub/b", "c"} {
		do(os.WriteFile(filepath.Join(draft, file), []byte(strings.Repeat(file, 4000)), 0o644))
	}
	if f, err := os.OpenFile(draft+"/a", os.O_RDWR, 0); err == nil {
		_, write := f.WriteAt([]byte("b"), 10)
		do(write, unix.Fallocate(int(f.Fd()), 0, 0, 8192), f.Truncate(5000), f.Sync(), f.Close())
	}
	do(os.Chmod(draft+"/a", 0o600))
	do(os.Rename(draft+"/c", draft+"/sub/d"))
	do(os.Remove(draft + "/sub/d"))
	_, err := os.ReadDir(draft + "/sub")
	do(err)
	published = v.Publish(name)
	return slices.DeleteFunc(failed, func(err error) bool { return err == nil }), published
}

// calls are the system calls that the daemon makes for drafts and for publishing. Every run of the tests tries the common ones.
func calls() (all, common []string) {
	common = []string{"openat2", "fsync", "renameat", "mkdirat", "fcntl", "write"}
	return append([]string{
		"openat", "statx", "ioctl", "renameat2", "unlinkat", "fallocate", "ftruncate", "truncate", "fchmodat", "fchmod", "fchownat", "fchown", "utimensat",
		"getdents64", "pread64", "faccessat2", "flock", "memfd_create", "fstat", "newfstatat", "fstatfs", "linkat", "dup3", "syncfs", "copy_file_range", "fgetxattr",
	}, common...), common
}

// TestDiskFails has the disk fail at each system call that the daemon makes while a draft is written and published: each program hears of it, the
// newest complete checkpoint stays whole, no half one is listed, and with the disk mended all goes on. HBMFS_FAULTS=1 tries every call, and a full disk.
func TestDiskFails(t *testing.T) {
	if err := blackbox.CanInject(); err != nil {
		t.Skip("needs strace: ", err)
	}
	every, some := calls()
	errnos := []string{"EIO"}
	whens := []string{"1+"}
	if os.Getenv("HBMFS_FAULTS") != "" {
		some, errnos, whens = every, []string{"EIO", "ENOSPC"}, []string{"1+", "1", "2", "3+3"} // strace counts the calls of each thread
	}
	v := mount(t)
	v.Draft(t, "step-0", map[string]string{"file": "bytes"})
	blackbox.Must(t, v.Publish("step-0"))
	n, refused := 0, 0
	for _, call := range some {
		for _, errno := range errnos {
			for _, when := range whens {
				n++
				words := fmt.Sprintf("%s:error=%s:when=%s", call, errno, when)
				name := fmt.Sprintf("step-%d", n)
				end := inject(t, v.PID(t), words, filepath.Join(v.Dir, checkpoint.DraftBase(name), checkpoint.ManifestName))
				failed, published := work(v, name)
				end()
				if published != nil {
					refused++
				}
				if !afterFault(t, v, name, len(failed) == 0, published) {
					t.Fatalf("with %s: %v; published: %v", words, failed, published)
				}
			}
		}
	}
	if c := v.State(t).Handover.Crashes; c != 0 {
		t.Errorf("%d daemons have crashed", c)
	}
	t.Logf("%d faults, %d of them kept a draft from being published", n, refused)
}

// afterFault looks at a volume whose disk has failed, and writes what could not be written.
func afterFault(t *testing.T, v *volumetest.Volume, name string, whole bool, published error) bool {
	t.Helper()
	all, err := checkpoint.List(v.Dir)
	blackbox.Must(t, err)
	there := false
	for _, e := range all {
		r, err := checkpoint.Verify(t.Context(), e.Path, checkpoint.VerifyOptions{Threads: 1})
		switch {
		case e.State != checkpoint.Complete:
			continue // no reader takes a draft for one
		case err != nil || r.Damaged > 0:
			t.Errorf("%s: %v %+v", e.Name, err, r)
		}
		there = there || e.Name == name
	}
	if published == nil && !there || published != nil && there {
		t.Errorf("%s is there: %v, but the rename said %v", name, there, published)
	}
	if text, err := os.ReadFile(v.Path("step-0", "file")); err != nil || string(text) != "bytes" {
		t.Errorf("what was published has %q, %v", text, err)
	}
	if published == nil && whole {
		if text, err := os.ReadFile(v.Path(name, "sub", "b")); err != nil || len(text) != 20000 {
			t.Errorf("sub/b has %d bytes, %v", len(text), err)
		}
	}
	if there {
		volumetest.Want(t, "remove what is published", os.Remove(v.Path(name)), 0)
	} else {
		volumetest.Want(t, "remove the draft", os.RemoveAll(v.Path(name+".tmp")), 0)
	}
	if failed, err := work(v, name); err != nil || len(failed) > 0 {
		t.Errorf("with the disk mended: %v, %v", failed, err)
	}
	volumetest.Want(t, "remove what is published", os.Remove(v.Path(name)), 0)
	if left := volumetest.Listed(t, v.Point); len(left) != 1 {
		t.Errorf("%q are left", left)
	}
	return !t.Failed()
}
