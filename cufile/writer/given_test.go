package writer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

// give makes files ones that are given without a name, and get it when they are sealed.
func give(t *testing.T, root string, files []File, sealed *atomic.Int64) []Given {
	t.Helper()
	given := make([]Given, len(files))
	for i := range files {
		given[i].File = files[i]
		f := &given[i]
		read := -1
		f.Open = func() (*os.File, error) {
			fd, err := unix.Open(root, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return nil, err
			}
			if size := (f.Size + 4095) / 4096 * 4096; size > 0 {
				err = unix.Fallocate(fd, 0, 0, size)
			}
			var again error
			read, again = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			return os.NewFile(uintptr(fd), f.Name), errors.Join(err, again)
		}
		f.Sealed = func(sums []uint32) error {
			sealed.Add(1)
			if int64(len(sums)) != chunks(f.Size) {
				t.Errorf("%s has %d sums", f.Name, len(sums))
			}
			if _, err := unix.FcntlInt(uintptr(read), unix.F_SETLEASE, unix.F_RDLCK); err != nil && !strings.HasPrefix(root, "/dev/shm") {
				t.Errorf("%s is still open for writing when it is sealed: %v", f.Name, err)
			}
			err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", read), unix.AT_FDCWD, filepath.Join(root, f.Name), unix.AT_SYMLINK_FOLLOW)
			return errors.Join(err, unix.Close(read))
		}
	}
	return given
}

// Files that are given come out as files that are made, by every path, and nothing keeps them open for writing.
func TestGivenFiles(t *testing.T) {
	onEachDevice(t, func(t *testing.T, o Options, put func(t *testing.T, w *Writer, p []byte) Memory) {
		memory := pages(t, 12<<20, 7)
		for _, path := range []Path{Auto, Staged, Buffered, Mapped} {
			for _, root := range []string{t.TempDir(), shm(t)} {
				onTmpfs := strings.HasPrefix(root, "/dev/shm")
				if path == Mapped && !onTmpfs || path == Staged && onTmpfs {
					continue
				}
				t.Run(string(path)+strings.ReplaceAll(root, "/", "_"), func(t *testing.T) {
					o := o
					o.Path, o.Require = path, path != Auto
					w := newWriter(t, o)
					random := rand.New(rand.NewPCG(uint64(len(path)), 5))
					var files []File
					var models []model
					for _, name := range []string{"a", "b", "c"} {
						f, m := layout(random, name, memory, func(p []byte) Memory { return put(t, w, p) })
						files, models = append(files, f), append(models, m)
					}
					var sealed atomic.Int64
					q, err := w.WriteGiven("the volume", give(t, root, files, &sealed), nil)
					must(t, err)
					r, err := q.Result()
					must(t, err)
					checkFiles(t, root, models, r)
					if sealed.Load() != 3 {
						t.Errorf("%d files are sealed", sealed.Load())
					}
				})
			}
		}
	})
}

func TestGivenFilesThatFail(t *testing.T) {
	w := newWriter(t, Options{Device: HostDevice})
	memory := pages(t, 5<<20, 7)
	whole := File{"a", 5 << 20, []Part{{0, Memory{Host: memory}}}}
	for what, f := range map[string]Given{
		"is not given":      {File: whole, Open: func() (*os.File, error) { return nil, syscall.EDQUOT }},
		"cannot be sealed":  {File: whole, Sealed: func([]uint32) error { return syscall.EDQUOT }},
		"is open to read":   {File: whole, Open: func() (*os.File, error) { return os.Open("/dev/null") }},
		"is on a full disk": {File: whole, Open: func() (*os.File, error) { return os.OpenFile("/dev/full", os.O_WRONLY, 0) }},
	} {
		if f.Open == nil {
			f.Open = func() (*os.File, error) { return os.CreateTemp(t.TempDir(), "") }
		}
		left := leaks.Files(t)
		q, err := w.WriteGiven("the volume", []Given{f}, nil)
		must(t, err)
		if _, err := q.Result(); err == nil {
			t.Errorf("a file that %s is written", what)
		}
		if err := left(); err != nil {
			t.Errorf("a file that %s: %v", what, err)
		}
	}
}

// Direct is proven by one of the files themselves, which is overwritten, and is claimed only then.
func TestDirectIsProvenOnGivenFiles(t *testing.T) {
	for moved, want := range map[string]string{"p2p": "", "posix": "POSIX writes"} {
		t.Run(moved, func(t *testing.T) {
			t.Setenv("FAKE_CUFILE_MOVED", moved)
			w := newWriter(t, directOptions(fakeLibraries(t)))
			root, p := t.TempDir(), pages(t, 5*ChunkSize+100, 1)
			files := []File{{"a", int64(len(p)), []Part{{0, hbm(t, w, p)}}}, {"b", ChunkSize, nil}}
			var sealed atomic.Int64
			given := give(t, root, files, &sealed)
			if want != "" { // nothing is sealed, which closes what give has open
				given[0].Open = func() (*os.File, error) { return os.CreateTemp(root, "") }
			}
			q, err := w.WriteGiven(root, given, nil)
			must(t, err)
			r, err := q.Result()
			if want != "" {
				if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), want) || sealed.Load() != 0 {
					t.Errorf("%v, want one that says %q; %d sealed", err, want, sealed.Load())
				}
				return
			}
			must(t, err)
			checkFiles(t, root, []model{{"a", p}, {"b", make([]byte, ChunkSize)}}, r)
			if r.Choice.Path != Direct || r.Moved.Direct == 0 {
				t.Errorf("%+v %+v", r.Choice, r.Moved)
			}
		})
	}
}
