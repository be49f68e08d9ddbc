package kv

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// scaleEnv names a directory with room for TestTenMillionKeys, whose slabs are sparse: 1.3 GB of index, and as many keys as it says, DIRECTORY:KEYS.
const scaleEnv = "HBMFS_TEST_KV_SCALE"

// resident is what this process has in memory, bytes: of its own, without pages of files.
func resident(t testing.TB) (n int64) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			_, _ = fmt.Sscan(rest, &n)
		}
	}
	return n << 10
}

// cpuTime is what this process has worked.
func cpuTime(t testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// threadTime is what this thread has worked.
func threadTime(t testing.TB) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// keyOf is a key of 16 to 64 bytes.
func keyOf(i int) []byte {
	b := make([]byte, 16+i%49)
	binary.LittleEndian.PutUint64(b, uint64(i)*0x9e3779b97f4a7c15)
	binary.LittleEndian.PutUint64(b[8:], uint64(i))
	return b
}

// TestTenMillionKeys writes an index of many keys, and measures what a daemon needs of it: the start after a kill, memory, and the time of a lookup of 256 keys.
// Blocks have 4 KiB, and no bytes: their slab is a hole.
func TestTenMillionKeys(t *testing.T) {
	in, keys := "", 3_000
	if told := os.Getenv(scaleEnv); told != "" {
		if _, err := fmt.Sscanf(strings.Replace(told, ":", " ", 1), "%s %d", &in, &keys); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp(in, "kv")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // it is big
	limit := int64(keys)*(4096+recordSize)*5/4 + 16<<20
	sparse(t, dir, limit, keys)
	before := resident(t)
	began, began0 := time.Now(), cpuTime(t)
	s, err := New(Options{Directory: dir, Size: limit, Log: open(t, t.TempDir(), 4<<20, 0).opt.Log})
	if err != nil {
		t.Fatal(err)
	}
	s.sparse = true
	if err := s.Load(); err != nil {
		t.Fatal(err)
	}
	start, worked := time.Since(began), cpuTime(t)-began0
	memory := resident(t) - before
	defer func() { _ = s.Close() }() // it is thrown away
	c := (&volume{Store: s, t: t}).connect("model", 4096)
	defer c.close()
	if n := c.space.disk().queue.n; n != int64(keys) {
		t.Fatalf("%d keys are there, of %d", n, keys)
	}
	runtime.LockOSThread() // threadTime is of one
	defer runtime.UnlockOSThread()
	random := rand.New(rand.NewPCG(blackbox.Seed(t), 1))
	for _, pins := range []bool{false, true} {
		var took, works []time.Duration // by the clock, and of CPU time: others may want the CPUs
		for range min(4000, keys/30) {
			batch := make([][]byte, 256)
			at := random.Uint64()
			for i := range batch {
				batch[i] = keyOf(int((at + uint64(i)*7919) % uint64(keys)))
			}
			began, work := time.Now(), threadTime(t)
			slots := c.lookup(c.space, batch, pins)
			took, works = append(took, time.Since(began)), append(works, threadTime(t)-work)
			var tokens []uint64
			for _, s := range slots {
				if s.Errno != 0 {
					t.Fatalf("a key is lost: %v", s.Errno)
				}
				tokens = append(tokens, s.Token)
			}
			if pins {
				c.drop(c.space, tokens, false)
			}
		}
		slices.Sort(took)
		slices.Sort(works)
		t.Logf("%d keys: start %.2f s with %.2f s of CPU time, memory %.0f MiB (%.1f bytes a key); lookup of 256 keys, pins %v: p50 %v, p99 %v; CPU time p50 %v, p99 %v, most %v",
			keys, start.Seconds(), worked.Seconds(), float64(memory)/(1<<20), float64(memory)/float64(keys), pins, took[len(took)/2], took[len(took)*99/100], works[len(works)/2], works[len(works)*99/100], works[len(works)-1])
	}
	if keys >= 10_000_000 && memory > 1<<30 {
		t.Errorf("%d bytes of memory", memory)
	}
}

// sparse makes the directory of a volume that was killed, with an index and without bytes.
func sparse(t *testing.T, dir string, limit int64, keys int) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	m := meta{Version: metaVersion, ID: 77, Block: 4096, Slot: 4096, Disk: regionOf(limit, 4096), Ended: true}
	at := filepath.Join(dir, "model")
	must(os.Mkdir(at, 0o700))
	must(os.WriteFile(filepath.Join(at, metaName), m.encode(), 0o600))
	tier := &tier{kind: control.KVDisk, slotBytes: 4096, perRegion: m.Disk}
	regions := (int64(keys) + m.Disk - 1) / m.Disk
	slab, err := os.Create(filepath.Join(at, slabName))
	must(err)
	must(slab.Truncate(regions * tier.regionBytes()))
	must(slab.Close())
	index, err := os.Create(filepath.Join(at, indexName))
	must(err)
	region := make([]byte, tier.indexBytes())
	for r := range regions {
		clear(region)
		for i := range m.Disk {
			n := r*m.Disk + i
			if n >= int64(keys) {
				break
			}
			rec := record{key: keyOf(int(n)), length: 4096, crc: uint32(n), hasCRC: true, serial: uint64(n)}
			rec.encode(region[i*recordSize:], m.ID, uint32(n))
		}
		_, err := index.Write(region)
		must(err)
	}
	must(index.Close())
}
