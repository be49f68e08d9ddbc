package cufile_test

import (
	"bytes"
	le "encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// hostRows gathers random rows of a view to memory of the host, and compares them.
type hostRows struct {
	f      *cufile.File
	data   []byte
	memory []byte
	random *rand.Rand
}

const hostLength = 5000

func (h *hostRows) gather(t *testing.T, kind cufile.Widen, changed bool, offsets ...int64) error {
	t.Helper()
	for len(offsets) < 100 {
		offsets = append(offsets, 2*h.random.Int64N((h.f.Size()-hostLength)/2))
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(h.memory)))
	_, err := h.f.GatherInto(t.Context(), cufile.Target{Memory: cufile.Memory{Pointer: at, Length: int64(len(h.memory))}, Widen: kind}, offsets, hostLength)
	for i, offset := range offsets {
		want, got := h.data[offset:][:hostLength], h.memory[i*hostLength:][:hostLength]
		if kind != cufile.WidenNone {
			got = make([]byte, hostLength)
			for k := range hostLength / 2 {
				le.LittleEndian.PutUint16(got[2*k:], uint16(le.NativeEndian.Uint64(h.memory[4*(i*hostLength+2*k):])))
			}
		}
		if err == nil && !changed && !bytes.Equal(got, want) {
			t.Fatalf("wrong bytes of row %d", i)
		}
	}
	return err
}

// TestRowsOfShardsOnTheHost gathers random rows of 300 shards of a mount, of which 32 may be open. Once all were read they come without the daemon,
// which is killed. A shard that is cut is an error, and no SIGBUS.
func TestRowsOfShardsOnTheHost(t *testing.T) {
	const shards, tokens = 300, 4 << 10
	blackbox.NeedRoot(t)
	dir, data := t.TempDir(), []byte(nil)
	for i := range shards {
		shard := llmcShard(t, tokens, byte(i))
		data = append(data, shard[1024:]...)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("fineweb_train_%06d.bin", i)), shard, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m, err := blackbox.Given(t).Mount(t.Context(), dir, t.TempDir(), "--no-keeper")
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
	r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Descriptors: 32, Arena: 4 << 20, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.Open(t.Context(), view)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(-1, 0, 4*100*hostLength, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	h := &hostRows{f, data, memory, rand.New(rand.NewPCG(3, 4))}
	for first := 0; first < shards; first += 100 {
		var each []int64
		for i := range 100 {
			each = append(each, int64(first+i)*2*tokens)
		}
		if err := h.gather(t, cufile.WidenNone, false, each...); err != nil {
			t.Fatal(err)
		}
	}
	pid, err := m.DaemonPID()
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil || !blackbox.Within(time.Minute, func() bool { return blackbox.Ended(pid) }) {
		t.Fatalf("the daemon does not end: %v", err)
	}
	for i := range 40 {
		if err := h.gather(t, []cufile.Widen{cufile.WidenNone, cufile.WidenU16ToI64}[i%2], false); err != nil {
			t.Fatalf("gather %d: %v", i, err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "fineweb_train_000007.bin"), 1024+2*tokens-1); err != nil {
		t.Fatal(err)
	}
	blackbox.Within(time.Minute, func() bool { err = h.gather(t, cufile.WidenNone, true, 7*2*tokens); return err != nil })
	if !errors.Is(err, cufile.ErrShort) && !errors.Is(err, control.ErrStale) || !strings.Contains(err.Error(), "tokens.bin (object ") {
		t.Errorf("a shard was cut: %v", err)
	}
	if err := closed(f, r); err != nil {
		t.Error(err)
	}
}
