// Package origintest has the contract of every origin, as tests. A listed object can be read, byte by byte, for as long
// as it matches its listing. From then on a read is an error.
package origintest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// Subject is an origin under the contract.
type Subject interface {
	layout.Origin
	List(ctx context.Context) (*cache.Listing, error)
	Close() error
}

// Fixture is where an origin reads and a test writes.
type Fixture struct {
	Open   func(t testing.TB) Subject // an origin of all that was put
	Put    func(t testing.TB, name string, data []byte)
	Remove func(t testing.TB, name string)
	Names  []string // further names that the place can hold, beside plain ones
}

// Run runs the contract. place makes an empty place each time.
func Run(t *testing.T, place func(t *testing.T) Fixture) {
	for name, test := range map[string]func(*testing.T, Fixture){
		"Listing": testListing, "Ranges": testRanges, "Concurrent": testConcurrent, "Changes": testChanges,
		"RemountSeesTheNewVersion": testRemount, "ContextEnds": testContext,
	} {
		t.Run(name, func(t *testing.T) { test(t, place(t)) })
	}
}

// Data gives n bytes that depend on seed.
func Data(n int, seed byte) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p) // never fails
	return p
}

func open(t *testing.T, p Fixture) (Subject, map[string]*layout.Object) {
	t.Helper()
	o := p.Open(t)
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := o.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]*layout.Object{}
	for _, obj := range l.Objects {
		objects[obj.Name] = obj
	}
	if len(objects) != len(l.Objects) {
		t.Error("a name is listed twice")
	}
	if !slices.IsSortedFunc(l.Objects, func(a, b *layout.Object) int { return layout.ComparePaths(a.Name, b.Name) }) {
		t.Error("the listing is not in the order of paths")
	}
	return o, objects
}

func testListing(t *testing.T, p Fixture) {
	want := map[string][]byte{"empty": {}, "one": {1}, "a/b/c/deep": Data(5000, 1), "a/z": Data(10, 2), "b.bin": Data(100, 3)}
	for i, name := range p.Names {
		want[name] = Data(20+i, byte(10+i))
	}
	for name, data := range want {
		p.Put(t, name, data)
	}
	_, objects := open(t, p)
	for name, data := range want {
		o := objects[name]
		if o == nil {
			t.Errorf("%q is not listed", name)
			continue
		}
		if o.Size != int64(len(data)) || o.Version == "" || o.ModTime.IsZero() {
			t.Errorf("%q: size %d, version %q, time %v", name, o.Size, o.Version, o.ModTime)
		}
		got := make([]byte, len(data)+1)
		if n, err := o.ReadAt(t.Context(), got, 0); n != len(data) || !errors.Is(err, io.EOF) || !bytes.Equal(got[:n], data) {
			t.Errorf("%q: %d bytes, %v", name, n, err)
		}
	}
	_, again := open(t, p)
	for name, o := range objects {
		if a := again[name]; a == nil || a.Version != o.Version || !a.ModTime.Equal(o.ModTime) {
			t.Errorf("%q has another version or time when it is listed again, unchanged", name)
		}
	}
}

func testRanges(t *testing.T, p Fixture) {
	data := Data(3<<20+17, 1)
	p.Put(t, "shard", data)
	_, objects := open(t, p)
	o := objects["shard"]
	r := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		off := r.Int64N(int64(len(data)) + 10)
		buf := make([]byte, r.IntN(1<<r.IntN(21))+1)
		n, err := o.ReadAt(t.Context(), buf, off)
		want := max(0, min(len(buf), len(data)-int(off)))
		if n != want || (n < len(buf)) != errors.Is(err, io.EOF) || (err != nil && !errors.Is(err, io.EOF)) {
			t.Fatalf("ReadAt(%d bytes, %d) = %d, %v; want %d", len(buf), off, n, err, want)
		}
		if n > 0 && !bytes.Equal(buf[:n], data[off:off+int64(n)]) {
			t.Fatalf("ReadAt(%d bytes, %d) gives other bytes", len(buf), off)
		}
	}
}

func testConcurrent(t *testing.T, p Fixture) {
	for i := range 4 {
		p.Put(t, fmt.Sprint("shard-", i), Data(300_000, byte(i)))
	}
	_, objects := open(t, p)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			data := Data(300_000, byte(g%4))
			for i := range 10 {
				off := (g*7919 + i*104_729) % 200_000
				buf := make([]byte, 100_000)
				if _, err := objects[fmt.Sprint("shard-", g%4)].ReadAt(t.Context(), buf, int64(off)); err != nil || !bytes.Equal(buf, data[off:off+len(buf)]) {
					t.Errorf("shard %d at %d: other bytes, %v", g%4, off, err)
				}
			}
		})
	}
	wg.Wait()
}

// testChanges changes an object after it was listed. Reads give the listed bytes or ErrChanged.
func testChanges(t *testing.T, p Fixture) {
	old := Data(200_000, 1)
	for name, change := range map[string]func(name string){
		"same-size": func(name string) { p.Put(t, name, Data(200_000, 2)) },
		"shorter":   func(name string) { p.Put(t, name, Data(100, 3)) },
		"longer":    func(name string) { p.Put(t, name, Data(300_000, 4)) },
		"removed":   func(name string) { p.Remove(t, name) },
	} {
		p.Put(t, name, old)
		_, objects := open(t, p)
		change(name)
		buf := make([]byte, 1000)
		for _, off := range []int64{0, 50_000, 199_000} {
			if n, err := objects[name].ReadAt(t.Context(), buf, off); !errors.Is(err, cache.ErrChanged) {
				t.Errorf("%s: ReadAt(%d) = %d, %v; want ErrChanged", name, off, n, err)
			}
		}
	}
}

func testRemount(t *testing.T, p Fixture) {
	p.Put(t, "shard", Data(1000, 1))
	_, before := open(t, p)
	p.Put(t, "shard", Data(1000, 2))
	_, after := open(t, p)
	if before["shard"].Version == after["shard"].Version {
		t.Errorf("both versions are %q", after["shard"].Version)
	}
	buf := make([]byte, 1000)
	if _, err := after["shard"].ReadAt(t.Context(), buf, 0); err != nil || !bytes.Equal(buf, Data(1000, 2)) {
		t.Errorf("the new version does not read: %v", err)
	}
}

func testContext(t *testing.T, p Fixture) {
	p.Put(t, "shard", Data(1000, 1))
	_, objects := open(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := objects["shard"].ReadAt(ctx, make([]byte, 10), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a read under a context that has ended: %v", err)
	}
}
