package files_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// The limits here only catch what is far off, on a busy machine and under the race detector: `make bench` measures.
const (
	scaleShards    = 20_000
	scaleMountTime = 15 * time.Second
	scaleFindTime  = 15 * time.Second
	pythiaMount    = 5 * time.Second
)

func TestManyShards(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := suite.NewDir(t)
	header := make([]byte, 1024)
	binary.LittleEndian.PutUint32(header, 20240520)
	binary.LittleEndian.PutUint32(header[4:], 1)
	binary.LittleEndian.PutUint32(header[8:], 4)
	const kinds = 16 // the others are hard links to these, which takes a fraction of the time
	shard := func(i int) string { return filepath.Join(source, fmt.Sprintf("part-%02d/shard_%06d.bin", i/2000, i)) }
	for i := range scaleShards {
		switch k := i % 2000; {
		case k == 0:
			must(t, os.Mkdir(filepath.Dir(shard(i)), 0o755))
			fallthrough
		case k < kinds:
			must(t, os.WriteFile(shard(i), binary.LittleEndian.AppendUint64(header, uint64(i)), 0o644))
		default:
			must(t, os.Link(shard(i-k+k%kinds), shard(i)))
		}
	}
	began := time.Now()
	m := mount(t, source)
	if took := time.Since(began); took > scaleMountTime {
		t.Errorf("%d shards mount in %v, want at most %v", scaleShards, took, scaleMountTime)
	} else {
		t.Logf("%d shards mount in %v", scaleShards, took)
	}
	began = time.Now()
	files := 0
	must(t, filepath.WalkDir(m.Point, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Size() == 1032 {
			files++
		}
		return err
	}))
	took := time.Since(began)
	if files != scaleShards || took > scaleFindTime {
		t.Errorf("a walk finds %d of %d shards in %v, want at most %v", files, scaleShards, took, scaleFindTime)
	}
	t.Logf("a walk with stat takes %v, the daemon has needed %d KiB", took, memoryPeak(t, m.PID))
	tokens, err := os.ReadFile(m.Path(".hbmfs", "views", "part-03", "tokens.bin"))
	if err != nil || len(tokens) != 2000*8 || binary.LittleEndian.Uint64(tokens[8*1999:]) != 6000+1999%kinds {
		t.Errorf("a view over 2000 shards: %d bytes, %v", len(tokens), err)
	}
}

// Pythia's data as it is published: pieces of exactly 5,000,000,000 bytes, cut without regard to anything, and the index
// of the file that they were. The pieces are sparse but for some bytes around every border.
func TestPythiaPieces(t *testing.T) {
	blackbox.NeedFUSE(t)
	const full, pieceSize, lastSize = 82, int64(5_000_000_000), int64(1_234_567_890)
	const total = full*pieceSize + lastSize
	source := suite.NewDir(t)
	for i := range full + 1 {
		size := pieceSize
		if i == full {
			size = lastSize
		}
		writePiece(t, filepath.Join(source, fmt.Sprintf("document-%05d-of-%05d.bin", i, full)), i, size)
	}
	index := pythiaIndex(total / 2)
	must(t, os.WriteFile(filepath.Join(source, "document.idx"), index, 0o644))
	began := time.Now()
	m := mount(t, source)
	took := time.Since(began)
	t.Logf("%d pieces of %d bytes mount in %v", full+1, total, took)
	if took > pythiaMount {
		t.Errorf("they mount in %v, want at most %v", took, pythiaMount)
	}
	for _, name := range []string{"document", "megatron"} {
		got, err := os.ReadFile(m.Path(".hbmfs", "views", name+".idx"))
		if err != nil || !bytes.Equal(got, index) {
			t.Errorf("%s.idx: %v, or it is not the source's", name, err)
		}
		if info, err := os.Stat(m.Path(".hbmfs", "views", name+".bin")); err != nil || info.Size() != total {
			t.Errorf("%s.bin: %v, %v; want %d bytes", name, info, err, total)
		}
	}
	checkBorders(t, m.Path(".hbmfs", "views", "document.bin"), full, pieceSize, total)
}

// marker is what lies in the pieces around a border, on the side of piece i.
func marker(i int, end string) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "<%s of piece %05d>", end, i), 200)
}

func writePiece(t *testing.T, path string, i int, size int64) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	if err := f.Truncate(size); err != nil {
		t.Skipf("needs a filesystem with sparse files of %d bytes: %v", size, err)
	}
	_, err = f.WriteAt(marker(i, "begin"), 0)
	must(t, err)
	end := marker(i, "end")
	_, err = f.WriteAt(end, size-int64(len(end)))
	must(t, err)
}

// pythiaIndex is a Megatron index of u16 tokens in sequences as long as an i32 can say, two of them a document.
func pythiaIndex(tokens int64) []byte {
	const longest = 2_000_000_001
	var lengths, pointers []byte
	var documents []byte
	sequences := int64(0)
	for at := int64(0); at < tokens; sequences++ {
		if sequences%2 == 0 {
			documents = binary.LittleEndian.AppendUint64(documents, uint64(sequences))
		}
		n := min(longest, tokens-at)
		lengths = binary.LittleEndian.AppendUint32(lengths, uint32(n))
		pointers = binary.LittleEndian.AppendUint64(pointers, uint64(2*at))
		at += n
	}
	documents = binary.LittleEndian.AppendUint64(documents, uint64(sequences))
	out := binary.LittleEndian.AppendUint64([]byte("MMIDIDX\x00\x00"), 1)
	out = append(out, 8)
	out = binary.LittleEndian.AppendUint64(out, uint64(sequences))
	out = binary.LittleEndian.AppendUint64(out, uint64(len(documents)/8))
	return append(append(append(out, lengths...), pointers...), documents...)
}

// checkBorders reads across every border, by pread at odd places and through a mapping.
func checkBorders(t *testing.T, path string, borders int, pieceSize, total int64) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	for i := range borders {
		border := int64(i+1) * pieceSize
		want := append(marker(i, "end"), marker(i+1, "begin")...)
		middle := int64(len(marker(i, "end")))
		for _, window := range [][2]int64{{-1, 2}, {-1025, 2049}, {-4097, 8194}, {0, 1}, {-middle, int64(len(want))}} {
			from := max(window[0], -middle)
			p := make([]byte, min(window[1], int64(len(want))-middle-from))
			if _, err := f.ReadAt(p, border+from); err != nil || !bytes.Equal(p, want[middle+from:middle+from+int64(len(p))]) {
				t.Errorf("%d bytes at %d before border %d: %v, or they are wrong", len(p), -from, i, err)
			}
		}
		page := (border - 1024) &^ (int64(os.Getpagesize()) - 1)
		mapped, err := unix.Mmap(int(f.Fd()), page, 1<<14, unix.PROT_READ, unix.MAP_SHARED)
		must(t, err)
		at := border - page
		if !bytes.Equal(mapped[at-500:at+500], want[middle-500:middle+500]) {
			t.Errorf("border %d is wrong in a mapping", i)
		}
		must(t, unix.Munmap(mapped))
	}
	var last [8]byte
	if _, err := f.ReadAt(last[:], total-8); err != nil || !bytes.HasSuffix(marker(borders, "end"), last[:]) {
		t.Errorf("the last bytes are %q, %v", last, err)
	}
}
