package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// wantError says that a write failed by a system call on a file.
func wantError(t *testing.T, err error, errno error, words ...string) {
	t.Helper()
	var failed *Error
	if !errors.As(err, &failed) || !errors.Is(err, errno) {
		t.Errorf("%v, want %v", err, errno)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %q", err, word)
		}
	}
}

// do writes and waits.
func do(w *Writer, dir string, files ...File) (Result, error) {
	q, err := w.Write(dir, files, nil)
	if err != nil {
		return Result{}, err
	}
	return q.Result()
}

func TestFilesThatCannotBeMade(t *testing.T) {
	w := newWriter(t, Options{Device: HostDevice})
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "there"), []byte("old"), 0o600))
	must(t, os.Symlink("elsewhere", filepath.Join(dir, "link")))
	must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	for _, name := range []string{"there", "link", "folder"} {
		_, err := do(w, dir, File{Name: name, Size: 10})
		wantError(t, err, unix.EEXIST, filepath.Join(dir, name), "open")
	}
	if old, err := os.ReadFile(filepath.Join(dir, "there")); err != nil || string(old) != "old" {
		t.Errorf("%q %v: it was changed", old, err)
	}
	_, err := do(w, filepath.Join(dir, "missing"), File{Name: "a"})
	wantError(t, err, unix.ENOENT, "missing", "open")
	_, err = do(w, filepath.Join(dir, "there"), File{Name: "a"})
	wantError(t, err, unix.ENOTDIR)
	_, err = do(w, dir, File{Name: strings.Repeat("a", 300)})
	wantError(t, err, unix.ENAMETOOLONG)
	gone := filepath.Join(dir, "gone")
	must(t, os.Mkdir(gone, 0o700))
	d, err := openDirectory(gone)
	must(t, err)
	must(t, os.Remove(gone))
	o := newOutput(d, &File{Name: "a", Size: 1})
	wantError(t, o.make(true), unix.ENOENT, "gone/a", "open")
	must(t, unix.Close(d.fd))
}

func TestModeFollowsTheMask(t *testing.T) {
	w := newWriter(t, Options{Device: HostDevice})
	dir := t.TempDir()
	_, err := do(w, dir, File{Name: "a", Size: 1})
	must(t, err)
	old := unix.Umask(0)
	unix.Umask(old)
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Mode().Perm() != 0o644&^os.FileMode(old) {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// mount mounts a filesystem for a test.
func mount(t *testing.T, kind, options string, flags uintptr) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("hbmfs-test", dir, kind, flags, options); err != nil {
		t.Skipf("%s cannot be mounted here: %v", kind, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestFullDisk fills a small filesystem by every path. ramfs tells no size, so it has no test.
func TestFullDisk(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, put func(t *testing.T, w *Writer, p []byte) Memory) {
		for _, path := range []Path{Auto, Mapped, Buffered} {
			t.Run(string(path), func(t *testing.T) {
				o := o
				o.Path = path
				w := newWriter(t, o)
				dir := mount(t, "tmpfs", "size=20m", 0)
				p := pages(t, 15<<20, 1)
				m := put(t, w, p)
				_, err := do(w, dir, File{"a", int64(len(p)), []Part{{0, m}}}, File{"b", int64(len(p)), []Part{{0, m}}})
				wantError(t, err, unix.ENOSPC, "are free")
				if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
					t.Errorf("%v %v: it was known before anything was made", left, err)
				}
				r, err := do(w, dir, File{"a", int64(len(p)), []Part{{0, m}}})
				must(t, err)
				checkFiles(t, dir, []model{{"a", p}}, r)
			})
		}
	})
}

// TestDiskThatFillsMeanwhile takes the room between the look and the pages.
func TestDiskThatFillsMeanwhile(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, put func(t *testing.T, w *Writer, p []byte) Memory) {
		for _, path := range []Path{Mapped, Buffered} {
			t.Run(string(path), func(t *testing.T) {
				o := o
				o.Path = path
				w := newWriter(t, o)
				dir := mount(t, "tmpfs", "size=20m", 0)
				p := pages(t, 15<<20, 1)
				d, err := openDirectory(dir)
				must(t, err)
				q := &Write{w: w, dir: d, outputs: []*output{newOutput(d, &File{"a", int64(len(p)), []Part{{0, put(t, w, p)}}})}, first: []int64{0}, chunks: 4}
				q.result.Choice.Path = path
				must(t, os.WriteFile(filepath.Join(dir, "other"), make([]byte, 10<<20), 0o600))
				if path == Mapped {
					err = q.runMapped(t.Context())
				} else if err = q.make(t.Context(), q.outputs); err == nil {
					err = q.writeUpTo(t.Context(), 4)
				}
				wantError(t, err, unix.ENOSPC, filepath.Join(dir, "a"))
				q.abandon()
				must(t, unix.Close(d.fd))
			})
		}
	})
}

// TestFullDiskOfBlocks fills a filesystem on a loop device: allocating tells.
func TestFullDiskOfBlocks(t *testing.T) {
	dir := loop(t)
	w := newWriter(t, Options{Device: HostDevice})
	p := pages(t, 30<<20, 1)
	_, err := do(w, dir, File{"small", 1 << 20, []Part{{0, Memory{Host: p[:1<<20]}}}}, File{"a", 60 << 20, []Part{{0, Memory{Host: p}}}})
	wantError(t, err, unix.ENOSPC, filepath.Join(dir, "a"), "fallocate")
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err = do(w, dir, File{Name: "b", Size: 10})
	wantError(t, err, unix.EROFS, filepath.Join(dir, "b"), "open")
}

func run(command ...string) ([]byte, error) {
	return exec.Command(command[0], command[1:]...).CombinedOutput()
}

// loop is a filesystem of 40 MiB in a file.
func loop(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	image := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 40<<20))
	dir := t.TempDir()
	for _, command := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := run(command...); err != nil {
			t.Skipf("%v cannot run here: %v %s", command, err, out)
		}
	}
	t.Cleanup(func() { _, _ = run("umount", dir) })
	return dir
}

// TestFilesystemWithoutDirect writes where O_DIRECT is refused, and says so; required, it is an error. An overlay of tmpfs passes
// the refusal of its upper layer on, where tmpfs has no O_DIRECT (before Linux 6.6): so the refusal is scripted.
func TestFilesystemWithoutDirect(t *testing.T) {
	for _, only := range []bool{false, true} {
		d, err := openDirectory(t.TempDir())
		must(t, err)
		p := pages(t, ChunkSize, 1)
		o := newOutput(d, &File{Name: "a", Size: ChunkSize})
		o.only = only
		must(t, o.make(true))
		if direct, _ := o.isDirect(); !direct {
			t.Skip("the filesystem of the tests has no O_DIRECT")
		}
		// Memory that is not on a page is what every filesystem refuses with EINVAL.
		path, err := o.write(context.Background(), p[1:4097], 0)
		if only && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, want that it is not available", err)
		}
		if !only && (err != nil || path != Buffered) {
			t.Errorf("%s %v, want that it goes through the page cache", path, err)
		}
		if direct, why := o.isDirect(); direct || !strings.Contains(why, "refuses") {
			t.Errorf("%v %q", direct, why)
		}
		o.abandon()
		must(t, unix.Close(d.fd))
	}
}

func TestPathsThatAreRequired(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, _ func(t *testing.T, w *Writer, p []byte) Memory) {
		for _, c := range []struct {
			path Path
			dir  string
			why  string
		}{{Mapped, t.TempDir(), "do not lie in memory"}, {Staged, shm(t), "lie in memory"}} {
			for _, required := range []bool{true, false} {
				t.Run(fmt.Sprint(c.path, required), func(t *testing.T) {
					o := o
					o.Path, o.Require = c.path, required
					r, err := do(newWriter(t, o), c.dir, File{Name: "a", Size: 10})
					if required {
						if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.why) {
							t.Errorf("%v", err)
						}
						return
					}
					must(t, err)
					if r.Choice.Path == c.path || !strings.Contains(r.Choice.Why, c.why) {
						t.Errorf("%+v", r.Choice)
					}
				})
			}
		}
	})
	if _, err := New(Options{Device: HostDevice, Path: Direct, Require: true}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want that direct needs a GPU", err)
	}
}

func TestRate(t *testing.T) {
	w := newWriter(t, Options{Device: HostDevice, Rate: 40 << 20})
	p := pages(t, 24<<20, 1)
	began := time.Now()
	_, err := do(w, t.TempDir(), File{"a", int64(len(p)), []Part{{0, Memory{Host: p}}}})
	must(t, err)
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("24 MiB at 40 MiB/s took %v", took)
	}
}

// TestCancel ends writes that wait for their rate: soon, and with nothing under way.
func TestCancel(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, put func(t *testing.T, w *Writer, p []byte) Memory) {
		o.Rate = 1 << 20
		w := newWriter(t, o)
		p := pages(t, 40<<20, 1)
		q, err := w.Write(t.TempDir(), []File{{"a", int64(len(p)), []Part{{0, put(t, w, p)}}}}, nil)
		must(t, err)
		untilWaiting(t, "writer.(*rate).wait")
		q.Cancel()
		if _, err := q.Result(); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that it was cancelled", err)
		}
		if written, total := q.Progress(); written >= total {
			t.Errorf("%d of %d bytes", written, total)
		}
	})
}

// TestWritesShareTheThreads: one that goes on for long keeps no other from being written, or from being cancelled.
func TestWritesShareTheThreads(t *testing.T) {
	w := newWriter(t, Options{Device: HostDevice, Threads: 2, Rate: 16 << 20})
	long, err := w.Write(t.TempDir(), []File{{Name: "a", Size: 1 << 30}}, nil)
	must(t, err)
	_, err = do(w, t.TempDir(), File{Name: "a", Size: 8 << 20})
	must(t, err)
	other, err := w.Write(t.TempDir(), []File{{Name: "a", Size: 1 << 30}}, nil)
	must(t, err)
	other.Cancel()
	if _, err := other.Result(); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was cancelled", err)
	}
	if written, total := long.Progress(); written >= total {
		t.Error("the others waited for the long one")
	}
	long.Cancel()
}

// TestManyAtOnce writes, snapshots and closes, all at once.
func TestManyAtOnce(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, put func(t *testing.T, w *Writer, p []byte) Memory) {
		o.Arena = 16 << 20
		w := newWriter(t, o)
		p := pages(t, 9<<20+77, 1)
		m := put(t, w, p)
		var all sync.WaitGroup
		var rounds atomic.Int64
		for i := range 8 {
			root := t.TempDir()
			if i%2 == 0 {
				root = shm(t)
			}
			all.Go(func() {
				for j := 0; ; j++ {
					dir := filepath.Join(root, string(rune('a'+j)))
					must(t, os.Mkdir(dir, 0o700))
					s, err := w.Snapshot(t.Context(), []Memory{m}, nil)
					if errors.Is(err, ErrClosed) {
						return
					}
					must(t, err)
					r, err := do(w, dir, File{"a", int64(len(p)), []Part{{0, Memory{Host: s.Copies[0]}}}}, File{"b", int64(len(p)), []Part{{0, m}}})
					must(t, s.Release())
					if errors.Is(err, ErrClosed) || errors.Is(err, context.Canceled) {
						return
					}
					must(t, err)
					checkFiles(t, dir, []model{{"a", p}, {"b", p}}, r)
					must(t, os.RemoveAll(dir))
					rounds.Add(1)
				}
			})
		}
		blackbox.Within(time.Minute, func() bool { return t.Failed() || rounds.Load() >= 4 })
		must(t, closed(w))
		all.Wait()
	})
}

// TestCloseWhileTheGPUHangs says that something is under way, until it is not.
func TestCloseWhileTheGPUHangs(t *testing.T) {
	o := Options{Threads: 2, Arena: 1 << 20, Libraries: fakeLibraries(t)}
	w := newWriter(t, o)
	p := pages(t, 1<<20, 1)
	m := hbm(t, w, p)
	ask(t, o.Libraries.CUDA, "fake_cuda_hold")
	s, err := w.Snapshot(t.Context(), []Memory{m}, nil)
	must(t, err)
	q, err := w.Write(t.TempDir(), []File{{"a", m.N, []Part{{0, m}}}}, nil)
	must(t, err)
	if err := w.Close(); !errors.Is(err, ErrUnderWay) || !strings.Contains(err.Error(), "close it again then") {
		t.Errorf("close: %v, want that something is under way", err)
	}
	if _, err := w.Write(t.TempDir(), nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("write: %v, want that it is closed", err)
	}
	ask(t, o.Libraries.CUDA, "fake_cuda_go_on")
	if _, err := q.Result(); !errors.Is(err, context.Canceled) {
		t.Errorf("the write: %v, want that it was cancelled", err)
	}
	_, err = s.Result()
	must(t, err)
	must(t, s.Release())
	must(t, closed(w))
}

// TestMemoryThatIsNotThere is an error, and not the end of the process.
func TestMemoryThatIsNotThere(t *testing.T) {
	p := pages(t, 1<<20, 1)
	gone := HostMemory(1<<20, 5<<20) // no process has memory so low
	w := newWriter(t, Options{Device: HostDevice, Arena: 6 << 20})
	_, err := do(w, t.TempDir(), File{"a", 6 << 20, []Part{{0, Memory{Host: p}}, {1 << 20, gone}}})
	if !errors.Is(err, ErrMemory) {
		t.Errorf("%v, want that the memory is not usable", err)
	}
	s, err := w.Snapshot(t.Context(), []Memory{gone}, nil)
	must(t, err)
	if _, err := s.Result(); !errors.Is(err, ErrMemory) {
		t.Errorf("%v, want that the memory is not usable", err)
	}
	must(t, s.Release())
	if _, err := New(Options{Device: HostDevice, Threads: -1}); err == nil {
		t.Error("a writer of -1 threads")
	}
}

func TestGPUErrorsNameTheFix(t *testing.T) {
	for name, c := range map[string]struct {
		env, value string
		device     int
		want       string
	}{
		"no GPU":          {"FAKE_CUDA_DEVICES", "0", 0, "shows no GPU; check nvidia-smi"},
		"index too large": {"FAKE_CUDA_DEVICES", "2", 2, "gpu 2 does not exist: this process sees gpu 0 to 1"},
		"cannot pin":      {"FAKE_CUDA_PINNABLE", "100000", 0, "of host memory for each of 3 threads"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(c.env, c.value)
			if _, err := New(Options{Device: c.device, Threads: 3, Libraries: fakeLibraries(t)}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want one that says %q", err, c.want)
			}
		})
	}
}

// TestGPUThatIsLost ends writes and snapshots with CUDA's error, and the writer can be closed.
func TestGPUThatIsLost(t *testing.T) {
	o := Options{Threads: 2, Arena: 4 << 20, Libraries: fakeLibraries(t)}
	w, err := New(o)
	must(t, err)
	<-w.Ready()
	m := Memory{HBM: 0, N: 1 << 20}
	p := pages(t, 1<<20, 1)
	var at uint64
	must(t, w.device.Within(func() error {
		a, err := w.device.CUDA.Alloc(1 << 20)
		at = uint64(a)
		return err
	}))
	m.HBM = uintptr(at)
	s, err := w.Snapshot(t.Context(), []Memory{m}, nil)
	must(t, err)
	_, err = s.Result()
	must(t, err)
	ask(t, o.Libraries.CUDA, "fake_cuda_lose")
	if _, err := do(w, t.TempDir(), File{"a", 1 << 20, []Part{{0, m}}}); err == nil || !strings.Contains(err.Error(), "start the process again") {
		t.Errorf("write: %v, want CUDA's error", err)
	}
	if _, err := w.Snapshot(t.Context(), []Memory{m}, nil); err == nil {
		t.Error("a snapshot of a lost GPU")
	}
	dir := t.TempDir()
	r, err := do(w, dir, File{"b", 1 << 20, []Part{{0, Memory{Host: p}}}})
	must(t, err) // what lies on the host can still be written
	checkFiles(t, dir, []model{{"b", p}}, r)
	must(t, s.Release())
	_ = w.Close() // it tells what could not be given back
	if !w.ended {
		t.Error("it could not be closed")
	}
}
