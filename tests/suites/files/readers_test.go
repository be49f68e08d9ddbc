package files_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// Loaders keep thousands of shards open and mapped, and mappings outlive their descriptors.
func TestThousandsOpenAndMapped(t *testing.T) {
	blackbox.NeedFUSE(t)
	const count = 2000
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Max < count+100 {
		t.Skipf("needs %d open files, this process may have %d", count+100, limit.Max)
	}
	limit.Cur = limit.Max // Go has raised it already, unless somebody lowered it since
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	source := suite.NewDir(t)
	files := map[string]string{}
	for i := range count {
		files[fmt.Sprintf("%04d.bin", i)] = fmt.Sprintf("shard %d", i)
	}
	mounttest.WriteFiles(t, source, files)
	m := mount(t, source)
	_, err := os.ReadDir(m.Path(".hbmfs", "views")) // waits until the daemon has looked at the files itself
	must(t, err)
	before := mounttest.OpenFiles(t, m.PID)
	var open []*os.File
	var maps [][]byte
	defer func() {
		for _, p := range maps {
			must(t, unix.Munmap(p))
		}
	}()
	for i := range count {
		f, err := os.Open(m.Path(fmt.Sprintf("%04d.bin", i)))
		must(t, err)
		open = append(open, f)
		p, err := unix.Mmap(int(f.Fd()), 0, len(fmt.Sprintf("shard %d", i)), unix.PROT_READ, unix.MAP_SHARED)
		must(t, err)
		maps = append(maps, p)
	}
	if after := mounttest.OpenFiles(t, m.PID); after > before+16 {
		t.Errorf("the daemon had %d files open, and has %d since %d files of the mount are open", before, after, count)
	}
	for _, f := range open {
		must(t, f.Close())
	}
	for i, p := range maps {
		if want := fmt.Sprintf("shard %d", i); string(p) != want {
			t.Fatalf("mapping %d shows %q, want %q", i, p, want)
		}
	}
}

// Many readers of one view, which go-fuse answers in parallel.
func TestConcurrentReaders(t *testing.T) {
	source, want := mounttest.ShardedTokens(t, suite, 16, 300_001)
	m := mount(t, source)
	const readers, preads = 16, 60
	errs := make(chan error, readers)
	var all sync.WaitGroup
	for r := range readers {
		all.Go(func() { errs <- readAtRandom(m, want, uint64(r), preads) })
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

func readAtRandom(m *mounted, want []byte, seed uint64, preads int) error {
	f, err := os.Open(m.Path(".hbmfs", "views", "tokens.bin"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	random := rand.New(rand.NewPCG(seed, 7))
	for range preads {
		off := random.IntN(len(want))
		p := make([]byte, min(1+random.IntN(400_000), len(want)-off))
		if _, err := f.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, want[off:off+len(p)]) {
			return fmt.Errorf("reader %d: %d bytes at %d: %w, or they are wrong", seed, len(p), off, err)
		}
	}
	return nil
}

// The daemon's descriptors come back when files are closed: what it had after some reading, it has after more.
func TestDescriptorsComeBack(t *testing.T) {
	source, stream := mounttest.ShardedTokens(t, suite, 8, 100_000)
	m := mount(t, source)
	readAll := func() {
		names, err := mounttest.ListTree(m.Point)
		must(t, err)
		for _, name := range append(names[1:], ".hbmfs/status", ".hbmfs/views/tokens.npy", ".hbmfs/views/tokens.bin") {
			_, err := os.ReadFile(m.Path(name))
			must(t, err)
		}
		must(t, readAtRandom(m, stream, 1, 10))
	}
	readAll()
	before := mounttest.OpenFiles(t, m.PID)
	for range 15 {
		readAll()
	}
	// A pipe (two descriptors) for each splice at once may be kept for the next.
	if after := mounttest.OpenFiles(t, m.PID); after > before+16 {
		t.Errorf("the daemon had %d files open after one reading, and %d after 15 more", before, after)
	}
}

// Two mounts of a source cannot be told apart by what loaders and rsync look at.
func TestMountsAgree(t *testing.T) {
	source := mounttest.Golden(t, "megatron-merge")
	first := mount(t, source)
	second := mount(t, source)
	names, err := mounttest.ListTree(first.Point)
	must(t, err)
	names = append(names, ".hbmfs", ".hbmfs/views", ".hbmfs/views/tokens.npy", ".hbmfs/views/megatron.idx", ".hbmfs/status")
	for _, name := range names {
		a, b := mounttest.Lstat(t, first.Path(name)), mounttest.Lstat(t, second.Path(name))
		if a.Ino != b.Ino || a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Nlink != b.Nlink {
			t.Errorf("%s: %+v in one mount, %+v in the other", name, a, b)
		}
		lives := filepath.Base(name) == "status" || filepath.Dir(name) == ".hbmfs" || name == ".hbmfs"
		if !lives && (a.Mtim != b.Mtim || a.Size != b.Size) {
			t.Errorf("%s: %d bytes of %v in one mount, %d of %v in the other", name, a.Size, a.Mtim, b.Size, b.Mtim)
		}
	}
	inodes := map[uint64]string{}
	for _, name := range names {
		ino := mounttest.Lstat(t, first.Path(name)).Ino
		if other, twice := inodes[ino]; twice {
			t.Errorf("%s and %s have one inode number", name, other)
		}
		inodes[ino] = name
	}
}
