package control_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// readByExtents reads a range of a file as a reader does that knows the protocol alone. Bytes of the mount come from it.
func readByExtents(t testing.TB, c *control.Client, f *os.File, off, n int64) (data []byte, bypassed int64, err error) {
	for batch, err := range control.Batches(f, off, n, true) {
		if err != nil {
			return nil, 0, err
		}
		files := map[uint64]*os.File{}
		if objects := batch.Objects(); len(objects) > 0 {
			backings, err := c.Redeem(limited(t), batch.Ticket, objects)
			if err != nil {
				return nil, 0, err
			}
			for _, b := range backings {
				if b.Err != nil {
					return nil, 0, b.Err
				}
				files[b.Object] = b.File
				defer func() { _ = b.File.Close() }() // opened for reading
			}
			defer func() { must(t, c.Release(limited(t), objects...)) }()
		}
		for _, e := range batch.Extents {
			if e.Logical != off+int64(len(data)) {
				return nil, 0, fmt.Errorf("the extent at %d follows byte %d", e.Logical, off+int64(len(data)))
			}
			for k := range e.Count {
				p := make([]byte, e.Length)
				if e.Flags&control.ExtentMount != 0 {
					_, err = f.ReadAt(p, e.Logical+k*e.Length)
				} else {
					_, err = files[e.Object].ReadAt(p, e.Offset+k*e.Stride)
					bypassed += e.Length
				}
				if err != nil {
					return nil, 0, err
				}
				data = append(data, p...)
			}
		}
	}
	return data, bypassed, nil
}

// goldenFiles calls f for every file of every golden dataset's mount, views included.
func goldenFiles(t *testing.T, f func(t *testing.T, m *mounted, path string)) {
	sets, err := filepath.Glob("../../data/testdata/*")
	must(t, err)
	sets = slices.DeleteFunc(sets, func(name string) bool { info, err := os.Stat(name); return err != nil || !info.IsDir() })
	if len(sets) < 10 {
		t.Fatalf("only %d golden datasets", len(sets))
	}
	for i, set := range sets {
		if blackbox.Race && i%6 != 0 {
			continue // mounting takes seconds under the race detector
		}
		t.Run(filepath.Base(set), func(t *testing.T) {
			m := mount(t, set, "--show-views")
			must(t, filepath.WalkDir(m.Path(), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() && filepath.Dir(path) != m.Path(".hbmfs") {
					f(t, m, path)
				}
				return err
			}))
		})
	}
}

func TestEveryGoldenFileReadsTheSameByExtents(t *testing.T) {
	blackbox.NeedRoot(t)
	rng := rand.New(rand.NewPCG(3, 4))
	total, bypassedInAll := int64(0), int64(0)
	goldenFiles(t, func(t *testing.T, m *mounted, path string) {
		want, err := os.ReadFile(path)
		must(t, err)
		f, c := open(t, path), dial(t, m)
		info, err := control.Info(f)
		if err != nil || info.Size != int64(len(want)) || info.Epoch != c.Epoch() {
			t.Errorf("%s: %+v, %v", path, info, err)
		}
		got, bypassed, err := readByExtents(t, c, f, 0, math.MaxInt64)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes by extents, %d by the mount, %v", path, len(got), len(want), err)
		}
		total, bypassedInAll = total+int64(len(want)), bypassedInAll+bypassed
		if all := bypassed == int64(len(want)); all != (info.Flags&control.InfoMount == 0) || (bypassed > 0) != (info.Flags&control.InfoBypass != 0) {
			t.Errorf("%s: %d of %d bytes lie in backing files, flags %b", path, bypassed, len(want), info.Flags)
		}
		for range 5 {
			off := rng.Int64N(int64(len(want)) + 1)
			n := rng.Int64N(int64(len(want)) + 1)
			got, _, err := readByExtents(t, c, f, off, n)
			if err != nil || !bytes.Equal(got, want[off:min(off+n, int64(len(want)))]) {
				t.Errorf("%s: [%d, +%d): %d bytes, %v", path, off, n, len(got), err)
			}
			count, err := control.Count(f, off, n)
			if all, err2 := control.Extents(f, off, n); err != nil || err2 != nil || int64(len(all)) != count {
				t.Errorf("%s: [%d, +%d): %d extents, %d counted, %v, %v", path, off, n, len(all), count, err, err2)
			}
		}
	})
	t.Logf("%d bytes, %d of them past the mount", total, bypassedInAll)
}

func TestEveryGoldenFileIsFoundByLookup(t *testing.T) {
	blackbox.NeedRoot(t)
	goldenFiles(t, func(t *testing.T, m *mounted, path string) {
		name, err := filepath.Rel(m.Path(), path)
		must(t, err)
		want, err := os.ReadFile(path)
		must(t, err)
		for f, err := range dial(t, m).Lookup(limited(t), []string{name}) {
			must(t, err)
			if f.Err != nil || f.Size != int64(len(want)) || f.Path != name {
				t.Errorf("%s: %+v", name, f)
				continue
			}
			got := make([]byte, f.Size+10)
			n, err := f.ReadAt(got, 0)
			if errors.Is(err, control.ErrInMount) && f.Flags&control.InfoMount != 0 {
				continue
			}
			if f.Flags&control.InfoMore == 0 && (!errors.Is(err, io.EOF) || !bytes.Equal(got[:n], want)) {
				t.Errorf("%s: %d of %d bytes, %v", name, n, len(want), err)
			}
		}
	})
}

// manyFiles makes count files of size random bytes below a new directory, and returns their names and checksums.
func manyFiles(t testing.TB, count, size int) (source string, names []string, sums [][32]byte) {
	t.Helper()
	source = suite.NewDir(t)
	rng := rand.NewChaCha8([32]byte{})
	p := make([]byte, size)
	for i := range count {
		_, _ = rng.Read(p) // never fails
		name := fmt.Sprintf("d%02d/f%05d.bin", i%20, i)
		must(t, os.MkdirAll(filepath.Join(source, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(source, name), p, 0o644))
		names, sums = append(names, name), append(sums, sha256.Sum256(p))
	}
	return source, names, sums
}

func TestLookupOfManyFiles(t *testing.T) {
	source, names, sums := manyFiles(t, 1000, 3000)
	m := mount(t, source)
	fds, c := m.fds(t), dial(t, m)
	p, i := make([]byte, 4000), 0
	for f, err := range c.Lookup(limited(t), names) {
		must(t, err)
		n, err := f.ReadAt(p, 0)
		if f.Path != names[i] || !errors.Is(err, io.EOF) || sha256.Sum256(p[:n]) != sums[i] {
			t.Fatalf("%s: %d bytes, %v", f.Path, n, err)
		}
		i++
	}
	if i != len(names) {
		t.Errorf("%d files of %d", i, len(names))
	}
	if s := m.status(t); s.Leases > 400 {
		t.Errorf("%d leases are kept for a reader that is done with them", s.Leases)
	}
	must(t, c.Close())
	m.idle(t, fds)
}

func TestLookupChecksPermissions(t *testing.T) {
	source := suite.NewDir(t)
	for _, name := range []string{"open", "closed", "group", "dir/in", "private/in", "listonly/in"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(source, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(source, name), []byte(name), 0o644))
	}
	must(t, os.Chmod(filepath.Join(source, "closed"), 0o600))
	must(t, os.Chmod(filepath.Join(source, "group"), 0o640))
	must(t, os.Chown(filepath.Join(source, "group"), 0, nobody))
	must(t, os.Chmod(filepath.Join(source, "private"), 0o700))
	must(t, os.Chmod(filepath.Join(source, "listonly"), 0o744))
	must(t, os.Symlink("dir", filepath.Join(source, "link")))
	m := mount(t, source)
	for name, want := range map[string][2]string{ // root, nobody
		"open": {"open", "open"}, "closed": {"closed", "EACCES"}, "group": {"group", "group"}, "dir/in": {"dir/in", "dir/in"},
		"private/in": {"private/in", "EACCES"}, "listonly/in": {"listonly/in", "EACCES"}, "none": {"ENOENT", "ENOENT"},
		"dir": {"EISDIR", "EISDIR"}, "dir/in/x": {"ENOTDIR", "ENOTDIR"}, "link/in": {"ELOOP", "ELOOP"}, "dir/../open": {"EINVAL", "EINVAL"},
		"/open": {"EINVAL", "EINVAL"}, ".hbmfs/status": {"ENOTSUP", "ENOTSUP"}, "private/none": {"ENOENT", "EACCES"},
	} {
		for i, ordinary := range []bool{false, true} {
			if got := child(t, ordinary, "lookup", m.Path(), name); got != want[i] {
				t.Errorf("lookup of %s, as nobody %v: %s, want %s", name, ordinary, got, want[i])
			}
		}
	}
}

func TestAReplacedFileIsStale(t *testing.T) {
	source := suite.NewDir(t)
	must(t, os.WriteFile(filepath.Join(source, "a"), []byte("one"), 0o644))
	m := mount(t, source)
	f, c := open(t, m.Path("a")), dial(t, m)
	must(t, os.WriteFile(filepath.Join(source, "b"), []byte("two"), 0o644))
	must(t, os.Rename(filepath.Join(source, "b"), filepath.Join(source, "a")))
	if _, _, err := readByExtents(t, c, f, 0, 3); !errors.Is(err, syscall.ESTALE) || !strings.Contains(err.Error(), "mount the source again") {
		t.Errorf("by extents: %v, want ESTALE and a remedy", err)
	}
	for f, err := range c.Lookup(limited(t), []string{"a"}) {
		must(t, err)
		if n, err := f.ReadAt(make([]byte, 3), 0); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("by lookup: %d bytes, %v, want ESTALE", n, err)
		}
	}
}

func TestWhatIsNotOurs(t *testing.T) {
	source := suite.NewDir(t)
	must(t, os.WriteFile(filepath.Join(source, "a"), []byte("one"), 0o644))
	m := mount(t, source)
	for _, path := range []string{source, filepath.Join(source, "a"), m.Path(".hbmfs", "status"), os.DevNull} {
		if _, err := control.Info(open(t, path)); !errors.Is(err, control.ErrNotHBMFS) {
			t.Errorf("info of %s: %v", path, err)
		}
	}
	if _, err := control.Dial(limited(t), source, ""); !errors.Is(err, control.ErrNoSocket) {
		t.Errorf("dial beside the mount: %v", err)
	}
	if err := syscall.Mknod(m.Path(".hbmfs", "other"), syscall.S_IFSOCK|0o666, 0); !errors.Is(err, syscall.EROFS) {
		t.Errorf("another socket: %v, want EROFS", err)
	}
	if err := os.Remove(m.Path(".hbmfs", "control")); !errors.Is(err, syscall.EROFS) {
		t.Errorf("remove the socket: %v, want EROFS", err)
	}
}

func TestStatisticsAndPrefetch(t *testing.T) {
	source, names, _ := manyFiles(t, 1, 1<<20)
	m := mount(t, source)
	f, c := open(t, m.Path(names[0])), dial(t, m)
	must(t, control.Prefetch(f, control.Range{Offset: 0, Length: 1 << 20}))
	for b, err := range control.Batches(f, 0, math.MaxInt64, true) {
		must(t, err)
		if err := c.Prefetch(limited(t), control.ObjectRange{Object: b.Objects()[0]}); !errors.Is(err, syscall.EACCES) {
			t.Errorf("prefetch of what is not leased: %v", err)
		}
		got, err := c.Redeem(limited(t), b.Ticket, b.Objects())
		must(t, err)
		must(t, got[0].File.Close())
		must(t, c.Prefetch(limited(t), control.ObjectRange{Object: got[0].Object, Range: control.Range{Offset: 0, Length: 1 << 20}}))
		if _, err := c.Redeem(limited(t), b.Ticket, b.Objects()); !errors.Is(err, control.ErrStale) {
			t.Errorf("a ticket used twice: %v", err)
		}
	}
	must(t, c.ReportStats(limited(t), control.PathReport{Path: control.PathHost, Reason: "asked for", Bytes: 100, Reads: 2}))
	must(t, c.ReportStats(limited(t), control.PathReport{Path: control.PathHost, Reason: "no\nGPU", Bytes: 11, Reads: 1}, control.PathReport{Path: control.PathDirect, Bytes: 5, Reads: 1, Field: "j\npg"}))
	var s status // what has no answer may not have come yet
	if !within(func() bool {
		s = m.status(t)
		return s.Prefetched == 2<<20 && len(s.Clients) == 1 && s.Clients[0].Bytes["direct"] > 0
	}) {
		t.Errorf("%d bytes prefetched, want 2 MiB", s.Prefetched)
	}
	if len(s.Clients) != 1 || s.Clients[0].Bytes["host"] != 111 || s.Clients[0].Reads["host"] != 3 || s.Clients[0].Bytes["direct"] != 5 || s.Leases != 1 {
		t.Errorf("status %+v", s)
	}
	if want := []choice{{"host", "asked for", 2, 100}, {"host", "no?GPU", 1, 11}, {"direct", "", 1, 5}}; !slices.Equal(s.Clients[0].Choices, want) {
		t.Errorf("choices %+v, want %+v", s.Clients[0].Choices, want)
	}
	if want := []fieldUse{{"j?pg", "direct", 5}}; !slices.Equal(s.Clients[0].Fields, want) {
		t.Errorf("fields %+v, want %+v", s.Clients[0].Fields, want)
	}
	metrics, err := os.ReadFile(m.Path(".hbmfs", "metrics"))
	must(t, err)
	for _, line := range []string{
		`hbmfs_client_bytes_total{client="TestStatisticsAndPre",path="host"} 111`,
		`hbmfs_client_field_bytes_total{client="TestStatisticsAndPre",field="j?pg",path="direct"} 5`,
	} {
		if !strings.Contains(string(metrics), line) {
			t.Errorf("the metrics lack %s:\n%s", line, metrics)
		}
	}
}

func TestReadersAreCounted(t *testing.T) {
	m := mount(t, suite.NewDir(t))
	asker := dial(t, m)
	count := func(want int) {
		t.Helper()
		var got int
		if !within(func() (ok bool) {
			var err error
			got, err = asker.Readers(limited(t))
			must(t, err)
			return got == want
		}) {
			t.Errorf("%d readers are counted, want %d", got, want)
		}
	}
	count(0)
	var clients []*control.Client
	for _, number := range []uint32{7, 7, 8, 0} {
		c, err := control.DialReader(limited(t), m.Path(), "reader", number)
		must(t, err)
		clients = append(clients, c)
	}
	count(2)
	must(t, clients[0].Close())
	must(t, clients[2].Close())
	count(1)
	if s := m.status(t); s.Readers != 1 {
		t.Errorf("status counts %d readers, want 1", s.Readers)
	}
	must(t, clients[1].Close())
	must(t, clients[3].Close())
	count(0)
}
