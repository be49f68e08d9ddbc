package cufile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/klauspost/compress/zstd"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// remoteRows reads all rows of files, of one length, in batches in a random order.
type remoteRows struct {
	files  []*cufile.File
	data   [][]byte // of each
	to     cufile.Memory
	read   func() []byte // what is in to
	random *rand.Rand
}

const remoteRow, remoteBatch = 16 << 10, 32

// pass reads each row once, and compares it. It calls between after each batch.
func (p *remoteRows) pass(ctx context.Context, between func()) error {
	var rows [][2]int // file, byte
	for i, data := range p.data {
		for at := 0; at+remoteRow <= len(data); at += remoteRow {
			rows = append(rows, [2]int{i, at})
		}
	}
	p.random.Shuffle(len(rows), func(i, k int) { rows[i], rows[k] = rows[k], rows[i] })
	for some := range slices.Chunk(rows, remoteBatch) {
		b := cufile.Batch{Files: p.files, Element: 1, Length: remoteRow}
		for _, row := range some {
			b.Sources, b.Starts = append(b.Sources, int32(row[0])), append(b.Starts, int64(row[1]))
		}
		q, err := cufile.BeginBatch(ctx, cufile.Target{Memory: p.to}, &b, nil)
		if err == nil {
			_, err = q.Result()
		}
		if err != nil {
			return err
		}
		got := p.read()
		for i, row := range some {
			if !bytes.Equal(got[i*remoteRow:][:remoteRow], p.data[row[0]][row[1]:][:remoteRow]) {
				return fmt.Errorf("wrong bytes of the row at %d of file %d", row[1], row[0])
			}
		}
		between()
	}
	return nil
}

// segmentMapping is a line of /proc/self/maps: the daemon lends files through a mount of its own, in which they have no other path.
var segmentMapping = regexp.MustCompile(`(?m) r--s .* /[0-9a-f]{2}/[0-9a-f]{30}$`)

// mappedSegments counts the mappings of a cache's files in this process.
func mappedSegments(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(segmentMapping.FindAll(maps, -1))
}

// TestStreamsOverACacheThatEvicts has readers on the host and on a fake GPU read remote shards in random orders, which a cache has room for half of: by
// their view, and shards that are decoded into such a cache one by one. Each token is compared. Segments are evicted and fetched again meanwhile. The host
// reads rows from mappings of segments, and no mapping or lease stays behind.
func TestStreamsOverACacheThatEvicts(t *testing.T) {
	for name, decoded := range map[string]bool{"remote": false, "decoded": true} {
		t.Run(name, func(t *testing.T) { streamsOverACacheThatEvicts(t, decoded) })
	}
}

func streamsOverACacheThatEvicts(t *testing.T, decoded bool) {
	const shards, tokens, readers = 12, 200_000, 3
	files, names, flags := map[string][]byte{}, []string(nil), []string(nil)
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	var data [][]byte
	view := []byte(nil)
	for i := range shards {
		shard, name := llmcShard(t, tokens, byte(i)), fmt.Sprintf("fineweb_train_%06d.bin", i)
		names, data, view = append(names, name), append(data, shard), append(view, shard[1024:]...)
		if files[name] = shard; decoded {
			delete(files, name)
			files[name+".zst"] = w.EncodeAll(shard, nil)
			flags = []string{"--decode"}
		}
	}
	m := mountRemote(t, files, len(view)/2, flags...)
	for i, name := range names {
		names[i] = m.Path(name)
	}
	if !decoded {
		name, err := m.View("tokens.bin")
		if err != nil {
			t.Fatal(err)
		}
		names, data = []string{name}, [][]byte{view}
	}
	gpu := blackbox.FakeGPU(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	most := 0
	var wg sync.WaitGroup
	for i := range readers {
		path := []cufile.Path{cufile.Host, cufile.Auto}[i%2]
		r := evictReader(t, path, cufile.Libraries{CUDA: gpu[1], CuFile: gpu[3], NVML: gpu[5]}, 3+i)
		p := &remoteRows{data: data, random: rand.New(rand.NewPCG(uint64(i), 7))}
		p.to, p.read = remoteMemory(t, r, path)
		wg.Go(func() {
			var errs []error
			p.files, errs = r.OpenMany(ctx, names)
			err := errors.Join(errs...)
			for again := true; again && err == nil; again = i == 0 && most == 0 { // on a busy machine segments may go before they are mapped
				err = p.pass(ctx, func() {
					if i == 0 {
						most = max(most, mappedSegments(t))
					}
				})
			}
			for _, f := range p.files {
				err = errors.Join(err, closed(f))
			}
			if err != nil {
				t.Errorf("reader %d, %s: %v", i, path, err)
			}
		})
	}
	wg.Wait()
	s := m.stats(t)
	t.Logf("at most %d segments were mapped, %+v", most, s)
	if s.Evicted == 0 || most == 0 {
		t.Errorf("%d segments were mapped, and the cache says %+v", most, s)
	}
	if n := mappedSegments(t); n > 0 {
		t.Errorf("%d segments are mapped by files that are closed", n)
	}
	if !blackbox.Within(time.Minute, func() bool { return m.stats(t).Pinned == 0 }) {
		t.Errorf("leases are left: %+v", m.stats(t))
	}
}

// remoteMemory gives memory of a batch on a reader's device, and how to look at it.
func remoteMemory(t *testing.T, r *cufile.Reader, path cufile.Path) (to cufile.Memory, read func() []byte) {
	t.Helper()
	host := make([]byte, remoteBatch*remoteRow)
	if path == cufile.Host {
		return cufile.Memory{Pointer: uintptr(unsafe.Pointer(&host[0])), Length: int64(len(host))}, func() []byte { return host }
	}
	memory, err := r.Alloc(int64(len(host)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := memory.Free(); err != nil {
			t.Error(err)
		}
	})
	return memory.Memory(), func() []byte {
		if err := memory.CopyTo(host, 0); err != nil {
			t.Error(err)
		}
		return host
	}
}
