package sitetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"golang.org/x/sys/unix"
)

// Segment is the size of a segment of these suites' caches, and SegmentFlag says it to a mount.
const (
	Segment     = 2 << 20
	SegmentFlag = "--cache-segment=2MiB"
)

// Mounted is a mount of a test.
type Mounted struct {
	*blackbox.Mounted
	suite *blackbox.Suite
}

// Mount mounts source on point, or on a new directory where point is empty. When the test ends it must come off, and the
// daemon must end.
func (s *Servers) Mount(t *testing.T, source, point string, flags ...string) *Mounted {
	t.Helper()
	if point == "" {
		point = s.Suite.NewDir(t)
	}
	return &Mounted{s.Suite.MountOn(t, source, point, append(flags, "--no-keeper")...), s.Suite} // here daemons are killed for good
}

// MountKept mounts source on a new directory. When its daemon is killed another one goes on.
func (s *Servers) MountKept(t *testing.T, source string, flags ...string) *Mounted {
	t.Helper()
	return &Mounted{s.Suite.MountOn(t, source, s.Suite.NewDir(t), flags...), s.Suite}
}

// Kill ends the daemon at once, as a crash or the out-of-memory killer does.
func (m *Mounted) Kill(t *testing.T) {
	t.Helper()
	blackbox.Must(t, syscall.Kill(m.PID, syscall.SIGKILL))
	if !blackbox.Within(blackbox.Patience, func() bool { return blackbox.Ended(m.PID) }) {
		t.Fatal("the daemon survives SIGKILL")
	}
}

// GoesOn kills the daemon, and waits for the one that goes on with the mount. It says whether there is one.
func (m *Mounted) GoesOn(t *testing.T) bool {
	t.Helper()
	before := m.PID
	blackbox.Must(t, syscall.Kill(before, syscall.SIGKILL))
	return blackbox.Within(blackbox.Patience, func() bool {
		now, err := m.DaemonPID()
		if err != nil || now == before {
			return false
		}
		m.PID = now
		return true
	})
}

// Settled waits until nothing is being filled any more, and gives the status.
func (m *Mounted) Settled(t *testing.T) (s *status.Status) {
	t.Helper()
	if !blackbox.Within(blackbox.Patience, func() bool { s = m.Status(t); return s.Cache.Filling == 0 && !s.Indexing }) {
		t.Fatalf("segments stay half filled although all was read: %+v\nlog:\n%s", s, m.LogText(t))
	}
	return s
}

// Compare reads all files of a mount, by pread at odd places, by read and by mmap, and compares them with want.
func (m *Mounted) Compare(t *testing.T, want map[string][]byte) {
	t.Helper()
	found := 0
	blackbox.Must(t, filepath.WalkDir(m.Point, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(m.Point, path)
		if err != nil {
			return err
		}
		data, ok := want[filepath.ToSlash(name)]
		switch {
		case ok:
			found++
			if err := CompareFile(path, data); err != nil {
				t.Errorf("%v\nlog:\n%s", err, m.LogText(t))
			}
		case name != "index.json": // which the test added
			t.Errorf("the mount has %q, which nobody put there", name)
		}
		return nil
	}))
	if found != len(want) {
		t.Errorf("the mount has %d of %d files", found, len(want))
	}
}

// CompareFile reads a file by pread at odd places, by read and by mmap, and compares it with want.
func CompareFile(path string, want []byte) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	random := rand.New(rand.NewPCG(1, uint64(len(want))))
	for range 12 {
		off := random.Int64N(int64(len(want)) + 1)
		p := make([]byte, 1+random.IntN(min(len(want), 200_000)+64))
		n, err := f.ReadAt(p, off)
		end := min(off+int64(len(p)), int64(len(want)))
		if n != int(end-off) || (err != nil && err != io.EOF) || !bytes.Equal(p[:n], want[off:end]) {
			return fmt.Errorf("%s: a pread of %d bytes at %d gave %d (%w), which are not the %d of the origin", path, len(p), off, n, err, end-off)
		}
	}
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("%s: reading gave %d bytes (%w), which are not the %d of the origin", path, len(got), err, len(want))
	}
	if len(want) == 0 {
		return nil
	}
	// Populated by the call: a page fault that needed the origin would wait for this process, which serves it, and which
	// Go's collector stops until the fault is over.
	mapped, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	same := bytes.Equal(mapped, want)
	if err := unix.Munmap(mapped); err != nil {
		return err
	}
	if !same {
		return fmt.Errorf("%s: the mapped bytes are not the origin's", path)
	}
	return nil
}

// Views gives the hash of every view, by its path.
func (m *Mounted) Views(t *testing.T) map[string][sha256.Size]byte {
	t.Helper()
	sums := map[string][sha256.Size]byte{}
	root := m.Path(".hbmfs", "views")
	blackbox.Must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		sums[path[len(root):]] = sha256.Sum256(data)
		return err
	}))
	return sums
}

// Extents are where the bytes of a file lie, as hbmfs locate --extents says.
type Extents struct {
	Size    int64
	Extents []struct {
		Logical, Length int64
		Path            string
		Flags           []string
	}
}

// Extents asks where the bytes of a file lie.
func (m *Mounted) Extents(t *testing.T, name string) (e Extents) {
	t.Helper()
	out, err := m.suite.Output(t.Context(), "locate", "--extents", "--json", m.Path(name))
	blackbox.Must(t, err)
	blackbox.Must(t, json.Unmarshal(out, &e))
	return e
}

// ReadByExtents reads files as GPU readers do, into the memory of the host: what lies on this machine from where it lies,
// and the rest through the mount. It compares their hashes, by path below the mount.
func (m *Mounted) ReadByExtents(t *testing.T, want map[string][sha256.Size]byte) {
	t.Helper()
	args := []string{"read", "--to", "host", "--json"}
	for name := range want {
		args = append(args, m.Path(name))
	}
	out, err := m.suite.Output(t.Context(), args...)
	blackbox.Must(t, err)
	read := 0
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); read++ {
		var got struct{ File, SHA256 string }
		blackbox.Must(t, d.Decode(&got))
		name, err := filepath.Rel(m.Point, got.File)
		blackbox.Must(t, err)
		if sum := fmt.Sprintf("%x", want[name]); got.SHA256 != sum {
			t.Errorf("hbmfs read of %s gave bytes with hash %s, want %s", name, got.SHA256, sum)
		}
	}
	if read != len(want) {
		t.Errorf("hbmfs read answers for %d of %d files", read, len(want))
	}
}

// Sum is the one file of ReadByExtents.
func Sum(name string, data []byte) map[string][sha256.Size]byte {
	return map[string][sha256.Size]byte{name: sha256.Sum256(data)}
}

// SettledBut waits until at most n segments are being filled.
func (m *Mounted) SettledBut(t *testing.T, n int) {
	t.Helper()
	if !blackbox.Within(blackbox.Patience, func() bool { s := m.Status(t); return s.Cache.Filling <= n && !s.Indexing }) {
		t.Fatalf("more than %d segments are being filled: %+v", n, m.Status(t).Cache)
	}
}
