package kv_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/kv"
)

// diskEnv is a directory where TestDiskLatency measures, and how many bytes of blocks it moves each time, such as /nvme:256MiB.
const diskEnv = "HBMFS_TEST_KV_DISK"

// cached is what the page cache has of a volume's slab.
func cached(t testing.TB, slab string) (sum int64) {
	t.Helper()
	f, err := os.Open(slab)
	must(t, err)
	defer func() { _ = f.Close() }() // opened for reading
	info, err := f.Stat()
	must(t, err)
	if info.Size() == 0 {
		return 0
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(b)) }()
	page := os.Getpagesize()
	pages := make([]byte, (len(b)+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for _, p := range pages {
		sum += int64(p&1) * int64(page)
	}
	return sum
}

// store opens a namespace as engines do, on the host.
func (v *volume) store(t testing.TB, name string, block int64) *kv.Store {
	t.Helper()
	s, err := kv.Open(t.Context(), v.point, name, kv.Options{Device: kv.HostDevice, BlockBytes: block, Create: true, Write: true, Threads: 1})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// each stores or loads blocks one by one, and gives how long each took.
func each(t testing.TB, keys []string, memory []byte, begin func([]kv.Block, *uintptr, func()) (*kv.Request, error)) (took []time.Duration) {
	t.Helper()
	for _, key := range keys {
		began := time.Now()
		q, err := begin([]kv.Block{{Key: []byte(key), Parts: []kv.Memory{{Host: memory}}}}, nil, nil)
		must(t, err)
		r, err := q.Result()
		must(t, err)
		took = append(took, time.Since(began))
		if r.Outcomes[0] != kv.Done {
			t.Fatalf("%s is %v", key, r.Outcomes[0])
		}
	}
	return took
}

// TestDiskBlocksPassThePageCache, the daemon's copies too, or go through it where the mount says so. The status and the client say which.
func TestDiskBlocksPassThePageCache(t *testing.T) {
	for _, c := range []struct{ way, flags string }{{"direct", "--disk-io direct"}, {"buffered", "--disk-io buffered"}, {"buffered", ""}, {"direct", "--memory 1MiB"}} {
		way := c.way
		v := mount(t, append([]string{"--size", "64MiB"}, strings.Fields(c.flags)...)...)
		s := v.store(t, "model", 100_000)
		keys, block := keysOf(0, 100), blockOf("a", 99_001)
		each(t, keys, block, s.Put)
		back := make([]byte, len(block))
		each(t, keys, back, s.Get)
		if string(back) != string(block) {
			t.Error("other bytes come back")
		}
		d, st := v.status(t).KV.Namespaces[0].Disk, s.Stats()
		moved := st.Put.Direct + st.Get.Direct
		if direct := st.Buffered == ""; direct != (d.IO == "direct") || direct != (d.IOReason == "") || direct != (moved == st.Put.Disk+st.Get.Disk) || way == "buffered" && direct {
			t.Errorf("%s: the status says %q %q, the client %q, and %d bytes", way, d.IO, d.IOReason, st.Buffered, moved)
		}
		if got := cached(t, filepath.Join(v.dir, "model", "slab")); (got > 0) == (d.IO == "direct") {
			t.Errorf("%s: the page cache has %d bytes of the slab; %s", way, got, d.IOReason)
		}
		out, err := suite.Command(t.Context(), "kv", "stats", "--json", v.point).CombinedOutput()
		if err != nil || !strings.Contains(string(out), fmt.Sprintf(`"io": %q`, d.IO)) {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// TestDiskLatency measures blocks on the disk past the page cache and through it, in turn.
func TestDiskLatency(t *testing.T) {
	dir, text, found := strings.Cut(os.Getenv(diskEnv), ":")
	if !found {
		t.Skip("measures where ", diskEnv, " says")
	}
	total, err := strconv.ParseInt(text, 10, 64)
	must(t, err)
	ways := []string{"direct", "buffered"}
	volumes := map[string]*volume{}
	for _, way := range ways {
		v := &volume{dir: filepath.Join(dir, way), point: suite.NewDir(t), flags: []string{"--size", strconv.FormatInt(4*total+64<<20, 10), "--disk-io", way}}
		v.log = filepath.Join(suite.NewDir(t), "log")
		must(t, os.MkdirAll(v.dir, 0o755))
		v.mount(t)
		t.Cleanup(func() { v.end(t); must(t, os.RemoveAll(v.dir)) })
		volumes[way] = v
	}
	for _, block := range []int64{64 << 10, 2 << 20} {
		took := map[string][]time.Duration{}
		for round := range 5 {
			for _, way := range ways {
				v, name := volumes[way], fmt.Sprintf("blocks-%d", block)
				s := v.store(t, name, block)
				keys, memory := keysOf(round*100_000, int(total/block)), blockOf("a", int(block))
				slab, err := os.Open(filepath.Join(v.dir, name, "slab"))
				must(t, err)
				took["put "+way] = append(took["put "+way], each(t, keys, memory, s.Put)...)
				took["get after "+way] = append(took["get after "+way], each(t, keys, memory, s.Get)...)
				has := cached(t, slab.Name())
				must(t, slab.Sync())
				must(t, unix.Fadvise(int(slab.Fd()), 0, 0, unix.FADV_DONTNEED))
				took["get cold "+way] = append(took["get cold "+way], each(t, keys, memory, s.Get)...)
				t.Logf("blocks of %d, round %d, %s: %d MiB in the page cache", block, round, way, has>>20)
				must(t, slab.Close())
				q, err := s.Remove(raw(keys), nil)
				must(t, err)
				_, err = q.Result()
				must(t, err)
			}
		}
		for _, what := range []string{"put", "get after", "get cold"} {
			for _, way := range ways {
				all := took[what+" "+way]
				slices.Sort(all)
				sum := time.Duration(0)
				for _, d := range all {
					sum += d
				}
				t.Logf("blocks of %d, %s %s: p50 %v, p99 %v, %.2f GB/s", block, what, way, all[len(all)/2], all[len(all)*99/100], float64(int64(len(all))*block)/sum.Seconds()/1e9)
			}
		}
	}
}

func raw(keys []string) (all [][]byte) {
	for _, k := range keys {
		all = append(all, []byte(k))
	}
	return all
}
