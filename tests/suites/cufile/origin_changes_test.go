package cufile_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestOriginsObjectChangesUnderAStream replaces and removes most objects at their origin, while a stream reads them over a cache that holds half of all. Rows
// that the cache or the kernel has stay right. Those that have to be fetched again fail. Rows of other objects go on.
func TestOriginsObjectChangesUnderAStream(t *testing.T) {
	gpu := blackbox.FakeGPU(t)
	for _, path := range []cufile.Path{cufile.Host, cufile.Auto} {
		for what, other := range map[string]bool{"replaced": true, "removed": false} {
			t.Run(fmt.Sprintf("%s/%s", path, what), func(t *testing.T) {
				originChanges(t, path, cufile.Libraries{CUDA: gpu[1], CuFile: gpu[3], NVML: gpu[5]}, other)
			})
		}
	}
}

func originChanges(t *testing.T, path cufile.Path, l cufile.Libraries, other bool) {
	const shards, tokens, changed = 12, 200_000, 4 // objects from there on change
	name := func(i int) string { return fmt.Sprintf("fineweb_train_%06d.bin", i) }
	files, view := map[string][]byte{}, []byte(nil)
	for i := range shards {
		files[name(i)] = llmcShard(t, tokens, byte(i))
		view = append(view, files[name(i)][1024:]...)
	}
	m := mountRemote(t, files, len(view)/2)
	tokensView, err := m.View("tokens.bin")
	if err != nil {
		t.Fatal(err)
	}
	r := evictReader(t, path, l, 8)
	f, err := r.Open(t.Context(), tokensView)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := closed(f); err != nil {
			t.Error(err)
		}
	}()
	p := &remoteRows{files: []*cufile.File{f}, data: [][]byte{view}, random: rand.New(rand.NewPCG(blackbox.Seed(t), 9))}
	p.to, p.read = remoteMemory(t, r, path)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := p.pass(ctx, func() {}); err != nil {
		t.Fatal(err)
	}
	for i := changed; i < shards; i++ {
		data := llmcShard(t, tokens, 99)
		if !other {
			data = nil
		}
		m.change(name(i), data)
	}
	fd, err := unix.Open(tokensView, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }() // it was read
	batches := 0
	for err == nil {
		if err = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err == nil { // what the kernel has of the file
			err = p.pass(ctx, func() { batches++ })
		}
	}
	t.Logf("after %d batches: %v", batches, err)
	if !errors.Is(err, syscall.ESTALE) && !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "tokens.bin") {
		t.Errorf("it ends with %v, want ESTALE or EIO, and the file's name", err)
	}
	p.data = [][]byte{view[:2*tokens*changed]}
	if err := p.pass(ctx, func() {}); err != nil {
		t.Errorf("rows of other objects: %v", err)
	}
}
