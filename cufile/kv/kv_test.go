package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/kv/kvtest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bed is a store, its daemon, and memory of its device.
type bed struct {
	t testing.TB
	*Store
	daemon *kvtest.Daemon
	on     string // the device
}

// compiled is the fake libcuda.
var compiled = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "hbmfs-fakes-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := fakegpu.Compile(dir, fakegpu.CUDA); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, fakegpu.CUDA))
})

// devices are where every test runs: on the host, and on a fake GPU with and without registered memory.
var devices = []string{"host", "gpu", "gpu without registration"}

// each runs a test on all devices.
func each(t *testing.T, d kvtest.Options, o Options, test func(b *bed)) {
	for _, on := range devices {
		t.Run(on, func(t *testing.T) { test(open(t, on, d, o)) })
	}
}

// open fails the test when the Store does not give everything back.
func open(t *testing.T, on string, d kvtest.Options, o Options) *bed {
	t.Helper()
	before := goleak.IgnoreCurrent()
	d.Dir = t.TempDir()
	daemon, err := kvtest.Start(d)
	must(t, err)
	o.Device, o.Create, o.Write, o.BlockBytes, o.slot = HostDevice, true, true, d.BlockBytes, 64<<10
	if o.Threads == 0 {
		o.Threads = 3
	}
	if on != "host" {
		o.Device, o.Libraries = 0, fake(t)
		if on != "gpu" { // nothing but the slots of four threads
			t.Setenv("FAKE_CUDA_PINNABLE", "1000000")
		}
	}
	s, err := Open(context.Background(), d.Dir, "test", o)
	must(t, err)
	t.Cleanup(func() {
		// On a busy machine a step may take longer than Close waits.
		blackbox.Within(time.Minute, func() bool { err = s.Close(); return !errors.Is(err, ErrUnderWay) })
		if err := errors.Join(err, daemon.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := leaks.Goroutines(before); err != nil {
			t.Error(err)
		}
		if on == "host" {
			return
		}
		for _, name := range []string{"fake_cuda_violations", "fake_cuda_pinned", "fake_cuda_retained", "fake_cuda_events"} {
			if n, err := fakegpu.Ask(o.Libraries.CUDA, name); n != 0 || err != nil {
				t.Errorf("%s is %d after Close (%v), want 0", name, n, err)
			}
		}
	})
	return &bed{t, s, daemon, on}
}

func fake(t *testing.T) driver.Libraries {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("the fake GPU libraries need a C compiler: ", err)
	}
	if _, err := driver.LoadCUDA("libc.so.6"); err != nil && !strings.Contains(err.Error(), "too old or another library") {
		t.Skip(err) // a build that loads no library
	}
	data, err := compiled()
	must(t, err)
	path := filepath.Join(t.TempDir(), fakegpu.CUDA) // a name of its own, so that every test gets a fresh one
	must(t, os.WriteFile(path, data, 0o755))
	return driver.Libraries{CUDA: path}
}

// memory brings bytes to the device, and gives a look at them.
func (b *bed) memory(p []byte) (Memory, func() []byte) {
	b.t.Helper()
	if b.gpu == nil {
		m := slices.Clone(p)
		return Memory{Host: m}, func() []byte { return m }
	}
	g := b.gpu
	var at driver.Pointer
	must(b.t, g.Within(func() (err error) {
		if at, err = g.CUDA.Alloc(int64(len(p))); err != nil {
			return err
		}
		return g.CUDA.CopyPageable(at, p)
	}))
	b.t.Cleanup(func() { must(b.t, g.Within(func() error { return g.CUDA.Free(at) })) })
	return Memory{HBM: uintptr(at), N: int64(len(p))}, func() []byte {
		p := make([]byte, len(p))
		must(b.t, g.Within(func() error { return g.CUDA.CopyBack(p, at) }))
		return p
	}
}

func noise(n int, seed byte) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

// blocks makes blocks of the sizes, each of two parts on the device and, if mixed, one on the host, and what they have.
func (b *bed) blocks(mixed bool, seed byte, sizes ...int) (blocks []Block, data [][]byte, look []func() []byte) {
	for i, n := range sizes {
		p := noise(n, seed+byte(i))
		cuts := []int{0, n / 3, n}
		if mixed {
			cuts = []int{0, n / 4, n / 2, n}
		}
		block := Block{Key: fmt.Appendf(nil, "key %d of %d", i, n)}
		var looks []func() []byte
		for c := range len(cuts) - 1 {
			part := p[cuts[c]:cuts[c+1]]
			if len(part) == 0 {
				continue
			}
			if c == 2 {
				m := slices.Clone(part)
				block.Parts, looks = append(block.Parts, Memory{Host: m}), append(looks, func() []byte { return m })
				continue
			}
			m, l := b.memory(part)
			block.Parts, looks = append(block.Parts, m), append(looks, l)
		}
		blocks, data = append(blocks, block), append(data, p)
		look = append(look, func() (all []byte) {
			for _, l := range looks {
				all = append(all, l()...)
			}
			return all
		})
	}
	return blocks, data, look
}

// put waits for a put.
func (b *bed) put(blocks []Block) Result {
	b.t.Helper()
	q, err := b.Put(blocks, nil, nil)
	must(b.t, err)
	r, err := q.Result()
	must(b.t, err)
	return r
}

func (b *bed) get(blocks []Block) Result {
	b.t.Helper()
	q, err := b.Get(blocks, nil, nil)
	must(b.t, err)
	r, err := q.Result()
	must(b.t, err)
	return r
}

func (b *bed) want(got []Outcome, want ...Outcome) {
	b.t.Helper()
	if !slices.Equal(got, want) {
		b.t.Fatalf("outcomes are %v, want %v", got, want)
	}
}

func all(o Outcome, n int) []Outcome { return slices.Repeat([]Outcome{o}, n) }

// empty gives blocks of the same keys and sizes with other bytes.
func (b *bed) empty(data [][]byte, like []Block) (blocks []Block, look []func() []byte) {
	for i := range data {
		m, l := b.memory(bytes.Repeat([]byte{0xEE}, len(data[i])))
		blocks, look = append(blocks, Block{Key: like[i].Key, Parts: []Memory{m}}), append(look, l)
	}
	return blocks, look
}

func (b *bed) same(data [][]byte, look []func() []byte) {
	b.t.Helper()
	for i := range data {
		if !bytes.Equal(data[i], look[i]()) {
			b.t.Fatalf("block %d came back with other bytes", i)
		}
	}
}

var sizes = []int{1, 4095, 4096, 70_000, 200_000, 65_536, 199_999}

func TestBlocksComeBack(t *testing.T) {
	for _, sums := range []bool{false, true} {
		for _, tiers := range [][3]int64{{20, 0, 0}, {0, 20, 0}, {0, 20, 1}, {5, 15, 0}, {5, 15, 1}} {
			t.Run(fmt.Sprintf("sums %v, slots %v", sums, tiers), func(t *testing.T) {
				d := kvtest.Options{BlockBytes: 200_000, Memory: tiers[0], Disk: tiers[1], Region: 5, Direct: tiers[2] > 0}
				each(t, d, Options{Sums: sums}, func(b *bed) {
					for _, mixed := range []bool{false, true} {
						blocks, data, _ := b.blocks(mixed, 3, sizes...)
						b.want(b.put(blocks).Outcomes, all(Done, len(blocks))...)
						b.want(b.put(blocks).Outcomes, all(Present, len(blocks))...)
						fresh, look := b.empty(data, blocks)
						b.want(b.get(fresh).Outcomes, all(Done, len(blocks))...)
						b.same(data, look)
						parts, _, looks := b.blocks(mixed, 99, sizes...)
						b.want(b.get(parts).Outcomes, all(Done, len(blocks))...)
						b.same(data, looks)
						keys := [][]byte{blocks[2].Key, []byte("another")}
						q, err := b.Contains(keys, nil)
						must(t, err)
						r, err := q.Result()
						must(t, err)
						b.want(r.Outcomes, Done, Missing)
						must(t, b.Clear(context.Background()))
						b.want(b.get(fresh).Outcomes, all(Missing, len(blocks))...)
					}
					if n := b.daemon.Held(); n != 0 {
						t.Errorf("%d pins and reservations are held, want none", n)
					}
					st := b.Stats()
					want := st.Put.Disk
					if st.Buffered != "" {
						want = 0
					}
					if st.Put.Direct != want || tiers[1] > 0 && !d.Direct && st.Buffered == "" {
						t.Errorf("stats are %+v", st)
					}
				})
			})
		}
	}
}
