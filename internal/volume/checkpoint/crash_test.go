package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	childEnv   = "HBMFS_TEST_PUBLISHING" // tells a child of the tests where to publish
	childStart = "/the-child-begins"     // what it tries to open then, for a trace
)

// childCalls are the system calls that a writer and Publish make on files.
var childCalls = []string{"openat", "write", "pwrite64", "fsync", "ftruncate", "fallocate", "mkdirat", "renameat", "renameat2", "unlinkat", "fchmod", "fchmodat", "flock",
	"newfstatat", "fstat", "getdents64"}

// publishingChild is a child of the tests, which is killed, or whose calls fail: a job that keeps one checkpoint. It takes away a
// dead writer's draft of step_2, writes and publishes step_2, and removes step_1.
func publishingChild() {
	dir := os.Getenv(childEnv)
	if dir == "" {
		return
	}
	runtime.LockOSThread() // strace counts the calls of each thread
	_, _ = os.Open(childStart)
	if err := oneJob(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func oneJob(dir string) error {
	d, err := Begin(context.Background(), filepath.Join(dir, "step_2"), Part{0, 1})
	if err != nil {
		return err
	}
	defer func() { _ = d.Drop() }() // it may fail as all else does
	files, err := childFiles(d.Dir())
	if err != nil {
		return err
	}
	if err := d.Publish(context.Background(), files); err != nil {
		return err
	}
	return Remove(context.Background(), filepath.Join(dir, "step_1"))
}

// childFiles writes as the writers of hbmfs do: allocated first, in aligned pieces, cut and synced.
func childFiles(dir string) (files []File, err error) {
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o777); err != nil {
		return nil, err
	}
	for i, name := range []string{"a", "sub/b"} {
		data := bytes.Repeat([]byte{byte(i + 1)}, 5000)
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return nil, err
		}
		_, write := f.WriteAt(append(slices.Clone(data), make([]byte, 8192-5000)...), 0)
		if err := errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, 8192), write, f.Truncate(5000), f.Sync(), f.Close()); err != nil {
			return nil, err
		}
		files = append(files, File{name, 5000, []uint32{crc32.Checksum(data, castagnoli())}})
	}
	return files, nil
}

// inMemory gives a directory that is fast to sync, where there is one: TestPowerLoss looks at disks.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hbmfs-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// scene makes the directory that the child works in.
func scene(t *testing.T) string {
	t.Helper()
	dir := inMemory(t)
	must(t, os.MkdirAll(filepath.Join(dir, ".step_2.hbmfs.tmp", "sub"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, ".step_2.hbmfs.tmp", "sub", "half"), []byte("half"), 0o600))
	d, err := Begin(t.Context(), filepath.Join(dir, "step_1"), Part{0, 1})
	must(t, err)
	files, err := childFiles(d.Dir())
	must(t, err)
	must(t, d.Publish(t.Context(), files))
	return dir
}

// strace runs the child under strace and gives what that saw, and whether the child succeeded.
func strace(t *testing.T, dir string, options ...string) (seen string, ok bool) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "seen")
	cmd := exec.CommandContext(t.Context(), "strace", append(append([]string{"-f", "-qq", "-o", out}, options...), os.Args[0])...)
	cmd.Env = append(os.Environ(), childEnv+"="+dir, "GOMAXPROCS=1", "GOGC=off")
	said, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	text, readErr := os.ReadFile(out)
	must(t, readErr)
	if err == nil && len(said) > 0 {
		t.Errorf("the child says %s", said)
	}
	return string(text), err == nil
}

// counts finds, for each system call of the child's first thread, how many it makes before it begins and in all.
func counts(seen string) (before, all map[string]int) {
	before, all = map[string]int{}, map[string]int{}
	first, _, _ := strings.Cut(seen, " ")
	began := false
	for line := range strings.Lines(seen) {
		m := regexp.MustCompile(`^(\d+) +(\w+)\(`).FindStringSubmatch(line)
		if m == nil || m[1] != first {
			continue
		}
		all[m[2]]++
		began = began || strings.Contains(line, childStart)
		if !began || strings.Contains(line, childStart) {
			before[m[2]]++
		}
	}
	return before, all
}

// whole checks that something complete is there, that all that is complete verifies, and that nothing half is listed.
func whole(t *testing.T, dir string, published bool) {
	t.Helper()
	all, err := List(dir)
	must(t, err)
	complete := map[string]bool{}
	for _, e := range all {
		switch e.State {
		case Complete:
			complete[e.Name] = true
			if r, err := Verify(t.Context(), e.Path, VerifyOptions{Threads: 1}); err != nil || r.Damaged != 0 || r.Files != 2 {
				t.Errorf("%s is %+v, %v", e.Name, r, err)
			}
		case Leftover:
		default:
			t.Errorf("it leaves %+v", e)
		}
	}
	if len(complete) == 0 || published && (!complete["step_2"] || complete["step_1"]) {
		t.Errorf("complete are %v (published: %v)", complete, published)
	}
	// The next job goes on: it publishes what is missing, and nothing is left of the one before.
	d, err := Begin(t.Context(), filepath.Join(dir, "step_2"), Part{0, 1})
	if complete["step_2"] {
		if !errors.Is(err, ErrExists) {
			t.Errorf("step_2 is complete, and begins again: %v", err)
		}
	} else if err != nil {
		t.Errorf("the next writer: %v", err)
	} else {
		files, err := childFiles(d.Dir())
		must(t, err)
		if err := d.Publish(t.Context(), files); err != nil {
			t.Errorf("the next writer: %v", err)
		}
	}
	if err := Remove(t.Context(), filepath.Join(dir, "step_1")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removing step_1: %v", err)
	}
	if _, err := Clean(t.Context(), dir); err != nil {
		t.Errorf("cleaning: %v", err)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 1 || names[0].Name() != "step_2" {
		t.Errorf("in the end there are %v, %v", names, err)
	}
	sound(t, dir, "step_2")
}

// TestEverySystemCallFails has a job that publishes and removes killed at each system call that it makes on files, and has each of
// them fail, once and from then on.
func TestEverySystemCallFails(t *testing.T) {
	if out, err := exec.Command("strace", "-f", "-qq", "-o", os.DevNull, "-e", "inject=fsync:error=EIO", "true").CombinedOutput(); err != nil {
		t.Skipf("needs strace and the right to use it: %v: %s", err, out)
	}
	t.Parallel()
	dir := scene(t)
	seen, ok := strace(t, dir, "-e", "trace="+strings.Join(childCalls, ","))
	if !ok {
		t.Fatal("the child fails by itself")
	}
	whole(t, dir, true)
	before, all := counts(seen)
	for _, call := range []string{"openat", "pwrite64", "fsync", "ftruncate", "fallocate", "mkdirat", "unlinkat", "fchmod", "flock"} {
		if all[call] == before[call] {
			t.Errorf("the child makes no %s: %v", call, all)
		}
	}
	if all["renameat"]+all["renameat2"] < 2 {
		t.Errorf("the child renames too little: %v", all)
	}
	var ways []string
	changing := []string{"openat", "write", "pwrite64", "fsync", "ftruncate", "fallocate", "mkdirat", "renameat", "renameat2", "unlinkat", "fchmod", "fchmodat", "flock"}
	for _, call := range childCalls {
		for n := before[call] + 1; n <= all[call]; n++ {
			if !slices.Contains(changing, call) {
				ways = append(ways, fmt.Sprintf("%s:error=EIO:when=%d", call, n))
				continue
			}
			ways = append(ways, fmt.Sprintf("%s:signal=KILL:when=%d", call, n), fmt.Sprintf("%s:error=EIO:when=%d", call, n), fmt.Sprintf("%s:error=EROFS:when=%d+", call, n))
			if slices.Contains([]string{"openat", "write", "pwrite64", "fsync", "fallocate", "mkdirat", "renameat", "renameat2"}, call) {
				ways = append(ways, fmt.Sprintf("%s:error=ENOSPC:when=%d+", call, n))
			}
		}
	}
	for n := before["fsync"] + 1; n <= all["fsync"]; n++ { // and what was renamed cannot be renamed back
		ways = append(ways, fmt.Sprintf("fsync:error=EIO:when=%d+ renameat:error=EIO:when=2+ renameat2:error=EIO:when=2+", n))
	}
	var harmless atomic.Int32
	var atOnce errgroup.Group
	atOnce.SetLimit(8) // they wait for strace more than they compute
	for _, way := range ways {
		atOnce.Go(func() error {
			t.Run(way, func(t *testing.T) {
				dir := scene(t)
				options := []string{"-e", "trace=" + strings.Join(childCalls, ",")}
				for inject := range strings.FieldsSeq(way) {
					options = append(options, "-e", "inject="+inject)
				}
				_, ok := strace(t, dir, options...)
				whole(t, dir, ok)
				if ok {
					harmless.Add(1)
				}
			})
			return nil
		})
	}
	_ = atOnce.Wait() // none fails
	succeeded := int(harmless.Load())
	t.Logf("%d ways to fail, %d of which did no harm", len(ways), succeeded)
	if succeeded > len(ways)/4 {
		t.Errorf("%d of %d ways to fail did no harm: they do not reach the child", succeeded, len(ways))
	}
}
