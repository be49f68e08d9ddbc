package writer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// writesArgument makes the test binary write two files, for strace.
const writesArgument = "write-two-files"

// writeTwo writes files by a path, and gives the error.
func writeTwo(path Path, dir string) error {
	w, err := New(Options{Device: HostDevice, Path: path, Threads: 1}) // strace counts calls by thread
	if err != nil {
		return err
	}
	const n = 9<<20 + 5
	p, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	_, err = do(w, dir, File{"a", n, []Part{{0, Memory{Host: p}}}}, File{"b", n, []Part{{100, Memory{Host: p[:n-100]}}}})
	if closeErr := closed(w); err == nil {
		err = closeErr
	}
	return err
}

// TestEverySystemCallThatFails has each system call on a file fail, once, and looks for its name, the file and the reason.
func TestEverySystemCallThatFails(t *testing.T) {
	if out, err := exec.Command("strace", "-o", "/dev/null", "true").CombinedOutput(); err != nil {
		t.Skipf("strace cannot trace here: %v %s", err, out)
	}
	for _, c := range []struct {
		path         Path
		call, errno  string
		says, reason string // empty: it is no error
	}{
		{Staged, "openat", "EACCES", "open", "permission denied"},
		{Staged, "openat", "EROFS", "open", "read-only file system"},
		{Staged, "openat", "EINTR", "", ""},
		{Staged, "fallocate", "ENOSPC", "fallocate", "no space left on device"},
		{Staged, "fallocate", "EDQUOT", "fallocate", "disk quota exceeded"},
		{Staged, "fallocate", "EOPNOTSUPP", "", ""},
		{Staged, "fallocate", "EINTR", "", ""},
		{Staged, "pwrite64", "EIO", "pwrite", "input/output error"},
		{Staged, "pwrite64", "ENOSPC", "pwrite", "no space left on device"},
		{Staged, "pwrite64", "EINTR", "", ""},
		{Staged, "pwrite64", "EINVAL", "", ""}, // goes on through the page cache
		{Staged, "ftruncate", "EIO", "ftruncate", "input/output error"},
		{Staged, "fsync", "EIO", "fsync", "input/output error"},
		{Staged, "fsync", "ENOSPC", "fsync", "no space left on device"},
		{Staged, "close", "EIO", "close", "input/output error"},
		{Buffered, "pwrite64", "EIO", "pwrite", "input/output error"},
		{Buffered, "fsync", "EDQUOT", "fsync", "disk quota exceeded"},
		{Buffered, "sync_file_range", "EIO", "sync_file_range", "input/output error"},
		{Mapped, "openat", "ENOSPC", "open", "no space left on device"},
		{Mapped, "ftruncate", "EFBIG", "ftruncate", "file too large"},
		{Mapped, "mmap", "ENODEV", "", ""}, // goes on through the page cache
	} {
		t.Run(fmt.Sprint(c.path, c.call, c.errno), func(t *testing.T) {
			dir := t.TempDir()
			if c.path == Mapped {
				dir = shm(t)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			file := filepath.Join(dir, "a")
			cmd := exec.CommandContext(ctx, "strace", "-f", "-qq", "-o", filepath.Join(t.TempDir(), "trace"), "-P", file, "-P", "a", "-e", "inject="+c.call+":error="+c.errno+":when=1",
				os.Args[0], writesArgument, string(c.path), dir)
			out, err := cmd.CombinedOutput()
			must(t, err)
			said := strings.TrimSpace(string(out))
			if want := fmt.Sprintf("write %s: %s: %s", file, c.says, c.reason); c.says != "" && said != want {
				t.Errorf("%q, want %q", said, want)
			}
			if c.says == "" && said != "<nil>" {
				t.Errorf("%q, want no error", said)
			}
		})
	}
}
