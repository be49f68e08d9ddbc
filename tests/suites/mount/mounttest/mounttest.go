// Package mounttest is shared by the suites over mounts. It has golden datasets, made shards, and comparisons in every way of reading.
package mounttest

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"golang.org/x/sys/unix"
)

// Testdata is where the golden datasets are.
const Testdata = "../../data/testdata"

// Expectation is the result of an independent reading of a golden dataset; tests/data/golden/make.py writes
// it.
type Expectation struct {
	Format string                      `json:"format"`
	DType  string                      `json:"dtype"` // as NumPy names it, "" for none
	View   *bool                       `json:"view"`  // false where no view of the tokens can be exact
	Splits map[string]SplitExpectation `json:"splits"`
}

// SplitExpectation is the expectation of a split.
type SplitExpectation struct {
	Files          []string `json:"files"`
	Tokens         int64    `json:"tokens"`
	TokensSHA256   string   `json:"tokens_sha256"`
	DocumentStarts []int64  `json:"document_starts"`
}

// HasTokens tells whether a split must have views of its tokens.
func (e Expectation) HasTokens(s SplitExpectation) bool {
	return s.TokensSHA256 != "" && (e.View == nil || *e.View)
}

// Goldens returns the golden datasets on disk, by name, each with its expectation.
func Goldens(t *testing.T) map[string]Expectation {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(Testdata, "expect.json"))
	blackbox.Must(t, err)
	var expected map[string]Expectation
	blackbox.Must(t, json.Unmarshal(data, &expected))
	entries, err := os.ReadDir(Testdata)
	blackbox.Must(t, err)
	found := map[string]Expectation{}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == "fuzz" {
			continue
		}
		want, ok := expected[e.Name()]
		if !ok {
			t.Errorf("expect.json does not say what is in %s", e.Name())
		}
		found[e.Name()] = want
	}
	if len(found) == 0 {
		t.Fatal("there are no golden datasets")
	}
	return found
}

// Golden returns the absolute path of a golden dataset.
func Golden(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(Testdata, name))
	blackbox.Must(t, err)
	return path
}

// WantMounted says whether something must be mounted on point.
func WantMounted(t *testing.T, point string, want bool) {
	t.Helper()
	if is, err := blackbox.IsMounted(point); err != nil || is != want {
		t.Errorf("mounted: %v (%v), want %v", is, err, want)
	}
}

// WriteFiles writes files below dir: slash-separated name to content.
func WriteFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		blackbox.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		blackbox.Must(t, os.WriteFile(path, []byte(content), 0o644))
	}
}

// ShardedTokens writes llm.c shards (a header of 1024 bytes, then u16 tokens) and returns the whole token stream.
func ShardedTokens(t *testing.T, suite *blackbox.Suite, shards, tokens int) (source string, stream []byte) {
	t.Helper()
	source = suite.NewDir(t)
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(shards))
	binary.LittleEndian.PutUint64(seed[8:], uint64(tokens))
	random := rand.NewChaCha8(seed) // random bytes at once: a call for each token takes long with the race detector
	for i := range shards {
		header := make([]byte, 1024)
		for k, v := range []uint32{20240520, 1, uint32(tokens)} {
			header[4*k], header[4*k+1], header[4*k+2], header[4*k+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
		}
		content := make([]byte, 2*tokens, 2*tokens+8)
		_, err := random.Read(content)
		blackbox.Must(t, err)
		for words := content[:2*tokens+7]; len(words) >= 8; words = words[8:] { // tokens below 1 << 15, four at a time
			binary.LittleEndian.PutUint64(words, binary.LittleEndian.Uint64(words)&0x7fff7fff7fff7fff)
		}
		blackbox.Must(t, os.WriteFile(filepath.Join(source, fmt.Sprintf("shard_%06d.bin", i)), append(header, content...), 0o644))
		stream = append(stream, content...)
	}
	return source, stream
}

// OpenFiles counts the descriptors of a process.
func OpenFiles(t *testing.T, pid int) int {
	t.Helper()
	fds, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	blackbox.Must(t, err)
	return len(fds)
}

// HexSum is the SHA-256 of data, in hexadecimal.
func HexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// WantAbsent fails the test where there is a file.
func WantAbsent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there (%v), and should not be", path, err)
	}
}

// Lstat is lstat's result for a path, which must be there.
func Lstat(t *testing.T, path string) syscall.Stat_t {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Fatalf("lstat %s: %v", path, err)
	}
	return st
}

// ReadPastCache reads a file with O_DIRECT. Reads that fail are repeated, and make the whole an error.
func ReadPastCache(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // opened for reading: nothing is lost
	buf, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Munmap(buf) }() // it was made above
	var content []byte
	for failed := 0; ; {
		n, err := unix.Pread(fd, buf, int64(len(content)))
		switch {
		case err != nil:
			if failed++; failed == 10 {
				return nil, fmt.Errorf("%d reads failed, the last at %d: %w", failed, len(content), err)
			}
		case n == 0 && failed > 0:
			return nil, fmt.Errorf("%d reads failed", failed)
		case n == 0:
			return content, nil
		}
		content = append(content, buf[:max(n, 0)]...)
	}
}

// MakeFUSEPublic gives ordinary users the device, as every distribution does and some containers do not, until the
// test ends.
func MakeFUSEPublic(t *testing.T) {
	t.Helper()
	private, err := blackbox.PublicFUSE()
	blackbox.Must(t, err)
	t.Cleanup(func() { blackbox.Must(t, private()) })
}
