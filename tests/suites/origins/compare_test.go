package origins_test

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
	"testing"

	"golang.org/x/sys/unix"
)

// compare reads all files of a mount, by pread at odd places, by read and by mmap, and compares them with want.
func (m *mounted) compare(t *testing.T, want map[string][]byte) {
	t.Helper()
	found := 0
	must(t, filepath.WalkDir(m.point, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(m.point, path)
		if err != nil {
			return err
		}
		data, ok := want[filepath.ToSlash(name)]
		switch {
		case ok:
			found++
			if err := compareFile(path, data); err != nil {
				t.Errorf("%v\nlog:\n%s", err, m.logText(t))
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

func compareFile(path string, want []byte) (err error) {
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

// views gives the hash of every view, by its path.
func (m *mounted) views(t *testing.T) map[string][sha256.Size]byte {
	t.Helper()
	sums := map[string][sha256.Size]byte{}
	root := m.Path(".hbmfs", "views")
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		sums[path[len(root):]] = sha256.Sum256(data)
		return err
	}))
	return sums
}

// extents are where the bytes of a file lie, as hbmfs extents says.
type extents struct {
	Size    int64
	Extents []struct {
		Logical, Length int64
		Path            string
		Flags           []string
	}
}

func (m *mounted) extents(t *testing.T, name string) (e extents) {
	t.Helper()
	out, err := suite.Output(t.Context(), "extents", "--json", m.Path(name))
	must(t, err)
	must(t, json.Unmarshal(out, &e))
	return e
}

// readByExtents reads files as GPU readers do, into the memory of the host: what lies on this machine from where it lies,
// and the rest through the mount. It compares their hashes, by path below the mount.
func (m *mounted) readByExtents(t *testing.T, want map[string][sha256.Size]byte) {
	t.Helper()
	args := []string{"read", "--to", "host", "--json"}
	for name := range want {
		args = append(args, m.Path(name))
	}
	out, err := suite.Output(t.Context(), args...)
	must(t, err)
	read := 0
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); read++ {
		var got struct{ File, SHA256 string }
		must(t, d.Decode(&got))
		name, err := filepath.Rel(m.point, got.File)
		must(t, err)
		if sum := fmt.Sprintf("%x", want[name]); got.SHA256 != sum {
			t.Errorf("hbmfs read of %s gave bytes with hash %s, want %s", name, got.SHA256, sum)
		}
	}
	if read != len(want) {
		t.Errorf("hbmfs read answers for %d of %d files", read, len(want))
	}
}

// sum is the one file of readByExtents.
func sum(name string, data []byte) map[string][sha256.Size]byte {
	return map[string][sha256.Size]byte{name: sha256.Sum256(data)}
}
