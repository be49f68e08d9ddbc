package cufile_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestRowsOfShards gathers random rows of 300 shards of a mount. Once all are registered, each gather is one launch; with few descriptors shards are
// opened again, and the bytes are the same. A shard that is written to ends the gathers with its name.
func TestRowsOfShards(t *testing.T) {
	const shards, tokens, rows, length = 300, 4 << 10, 100, 5000
	blackbox.NeedRoot(t)
	dir, data := t.TempDir(), []byte(nil)
	for i := range shards {
		shard := llmcShard(t, tokens, byte(i))
		data = append(data, shard[1024:]...)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("fineweb_train_%06d.bin", i)), shard, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	gpu := blackbox.FakeGPU(t)
	random := rand.New(rand.NewPCG(3, 4))
	gather := func(t *testing.T, f *cufile.File, to *cufile.Allocation, changed bool) (cufile.Result, error) {
		offsets, want := make([]int64, rows), []byte(nil)
		for i := range offsets {
			offsets[i] = random.Int64N(f.Size() - length + 1)
			want = append(want, data[offsets[i]:][:length]...)
		}
		result, err := f.GatherInto(t.Context(), cufile.Target{Memory: to.Memory()}, offsets, length)
		got := make([]byte, len(want))
		if failed := to.CopyTo(got, 0); failed != nil || err == nil && !changed && !bytes.Equal(got, want) {
			t.Fatalf("wrong bytes by %+v: %v", result, failed)
		}
		return result, err
	}
	for name, descriptors := range map[string]int{"few open": 32, "all open": 1024} {
		t.Run(name, func(t *testing.T) {
			m, err := blackbox.Given(t).Mount(t.Context(), dir, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
			view, err := m.View("tokens.bin")
			if err != nil {
				t.Fatal(err)
			}
			r, err := cufile.New(t.Context(), cufile.Options{Libraries: cufile.Libraries{CUDA: gpu[1], CuFile: gpu[3], NVML: gpu[5]},
				Reuse: true, Descriptors: descriptors, Pinned: 256 << 20, Arena: 4 << 20, Slot: 64 << 10, Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}()
			f, err := r.Open(t.Context(), view)
			if err != nil {
				t.Fatal(err)
			}
			to, err := r.Alloc(rows * length)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := to.Free(); err != nil {
					t.Error(err)
				}
			}()
			registered := 0
			for range 60 {
				result, err := gather(t, f, to, false)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(result.Choice.Why, "registered with the GPU already") {
					registered++
				}
			}
			if registered < 30 {
				t.Errorf("%d of 60 gathers found their rows registered", registered)
			}
			victim := filepath.Join(dir, "fineweb_train_000007.bin")
			if descriptors > shards { // written to, which only an open descriptor tells
				err = os.Chtimes(victim, time.Time{}, time.Unix(int64(descriptors), 0))
			} else {
				err = os.Truncate(victim, 1024+2*tokens-1)
			}
			if err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); err == nil && time.Now().Before(end); {
				_, err = gather(t, f, to, true) // until it is found, bytes may be wrong
			}
			// A daemon that is asked for the shard again finds the change, too.
			if !errors.Is(err, cufile.ErrShort) && !errors.Is(err, control.ErrStale) && !errors.Is(err, syscall.ESTALE) {
				t.Errorf("a shard has changed: %v", err)
			}
			if descriptors <= shards {
				if err := os.WriteFile(victim, llmcShard(t, tokens, 7), 0o644); err != nil { // for the other case
					t.Fatal(err)
				}
			}
		})
	}
}
