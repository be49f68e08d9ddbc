package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hbmfs/hbmfs/layout"
)

// TestWindows says how much is fetched ahead of whom.
func TestWindows(t *testing.T) {
	const kib = 1 << 10
	inOrder := func(from, n, end int64) (reads [][2]int64) {
		for off := from; off < end; off += n {
			reads = append(reads, [2]int64{off, n})
		}
		return reads
	}
	large := func(r *rand.Rand) (reads [][2]int64) { // 2 MiB at random, as the kernel asks for them
		for range 200 {
			off := 2*mib + r.Int64N(1<<40)
			reads = append(reads, inOrder(off, 512*kib, off+2*mib)...)
		}
		return reads
	}(rand.New(rand.NewPCG(1, 1)))
	for _, c := range []struct {
		name         string
		reads        [][2]int64
		least, most  int64 // ahead of the last read
		mostInBefore int64 // of all reads before
		limit        int64
	}{
		{"the first", [][2]int64{{0, 4096}}, 0, 0, 0, 8 * mib},
		{"from the beginning", inOrder(0, 64*kib, mib), 8 * mib, 8 * mib, 8 * mib, 8 * mib},
		{"after a header", inOrder(1024, 64*kib, mib), 8 * mib, 8 * mib, 8 * mib, 8 * mib},
		{"reordered", [][2]int64{{0, 512 * kib}, {mib, 512 * kib}, {512 * kib, 512 * kib}, {2 * mib, 512 * kib}, {3 * mib / 2, 512 * kib}, {5 * mib / 2, 512 * kib}}, 4 * mib, 8 * mib, 8 * mib, 8 * mib},
		{"from the middle, not far", inOrder(100*mib, 512*kib, 103*mib), 0, 0, 0, 8 * mib},
		{"from the middle", inOrder(100*mib, 512*kib, 120*mib), 8 * mib, 8 * mib, 8 * mib, 8 * mib},
		{"from the middle, four times what it has read", inOrder(100*mib, 512*kib, 106*mib), 24 * mib, 24 * mib, 22 * mib, 1 << 30},
		{"large ones at random", large, 0, 0, 0, 8 * mib},
		{"an eighth of what it passes", func() (reads [][2]int64) {
			for off := int64(0); off < 64*mib; off += 800 * kib {
				reads = append(reads, [2]int64{off, 100 * kib})
			}
			return reads
		}(), 0, 0, 0, 8 * mib},
	} {
		f, ahead := &file{last: -1}, int64(0)
		for i, g := range c.reads {
			if ahead > c.mostInBefore {
				t.Errorf("%s: %d bytes are fetched ahead of read %d", c.name, ahead, i-1)
				break
			}
			ahead = f.ahead(g[0], g[0]+g[1], c.limit)
		}
		if ahead < c.least || ahead > c.most {
			t.Errorf("%s: %d bytes are fetched ahead of the last read, want %d to %d", c.name, ahead, c.least, c.most)
		}
	}
}

// TestReadsAtRandomFetchWhatTheyTouch, of a dataset of ten times the cache, in the pieces that the kernel makes of them.
// What is fetched is bounded by the blocks of all reads; whole segments would be many times that.
func TestReadsAtRandomFetchWhatTheyTouch(t *testing.T) {
	const objects, size, piece = 8, 8 * mib, 512 << 10
	for name, longest := range map[string]int64{"128 KiB": 128 << 10, "up to 2 MiB": 2 * mib} {
		u := newUpstream(slices.Repeat([]int{size}, objects)...)
		m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: objects * size / 10})
		r := rand.New(rand.NewPCG(3, 3))
		var read, touched int64
		for read < objects*size {
			n := longest
			if longest > mib {
				n = 1 + r.Int64N(1<<(6+r.IntN(16)))
			}
			object, off := fmt.Sprint(r.IntN(objects)), r.Int64N(size-n)
			for at := off; at < off+n; at += piece {
				m.check(t, u, object, at, min(piece, off+n-at))
			}
			read += n
			touched += (off+n+block-1)/block*block - off/block*block
		}
		until(t, "nothing is fetched any more", func() bool { return m.Stats().Pinned == 0 })
		got := u.fetched.Load()
		t.Logf("%s: %.2f bytes fetched for each that was read, without a cache %.2f", name, float64(got)/float64(read), float64(touched)/float64(read))
		if got > touched+touched/2 {
			t.Errorf("%s: %d bytes were fetched for %d that were read, in blocks of %d bytes", name, got, read, touched)
		}
		m.close(t)
	}
}

// TestReadersInOrderFetchOnce: several go through objects of more than the cache together, each once.
func TestReadersInOrderFetchOnce(t *testing.T) {
	const objects, size = 4, 16 * mib
	u := newUpstream(slices.Repeat([]int{size}, objects)...)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: objects * size / 4})
	for off := int64(0); off < size; off += 256 << 10 {
		for i := range objects {
			m.check(t, u, fmt.Sprint(i), off, 256<<10)
		}
	}
	until(t, "nothing is fetched any more", func() bool { return m.Stats().Pinned == 0 })
	got := u.fetched.Load()
	t.Logf("%d bytes were fetched of %d", got, objects*size)
	if got > objects*size*3/2 {
		t.Error("what is fetched ahead is evicted before it is read")
	}
}

// TestOnInOrder goes on in order where what is here ends: what is read where it lies counts as well.
func TestOnInOrder(t *testing.T) {
	u := newUpstream(32 * mib)
	m := mount(t, t.TempDir(), u, Options{Segment: 16 * mib, Size: 1 << 30})
	for off := int64(0); off < 16*mib; off += mib {
		m.origin.WasRead(m.objects["0"], off, mib)
	}
	m.check(t, u, "0", 16*mib, 64<<10)
	until(t, "the rest comes", func() bool { return u.fetched.Load() == 16*mib })
}

// TestSaidTwice plans what is planned already, as a reader does that announces what it reads. It is read once; in one
// plan it is twice what the reader says twice.
func TestSaidTwice(t *testing.T) {
	u := newUpstream(mib, mib)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 8 * mib})
	count := func() int {
		m.ledger.mu.Lock()
		defer m.ledger.mu.Unlock()
		return m.ledger.plans.reads
	}
	zero, one := whole(m.objects["0"]), whole(m.objects["1"])
	part := layout.Run{Object: m.objects["0"], Offset: 1000, Length: 1000, Stride: 1000, Count: 1}
	for i, step := range []struct {
		runs []layout.Run
		want int
	}{
		{[]layout.Run{zero, one, zero}, 3},
		{[]layout.Run{zero}, 3},
		{[]layout.Run{part}, 3},
		{[]layout.Run{one, one}, 3},
	} {
		if !m.Plan("reader", step.runs) {
			t.Fatal("the plan was refused")
		}
		if got := count(); got != step.want {
			t.Errorf("step %d: %d reads are planned, want %d", i, got, step.want)
		}
	}
	if !m.Plan("another", []layout.Run{zero}) || count() != 4 {
		t.Errorf("%d reads are planned, another reader's among them", count())
	}
	m.readAll(t, u, "0")
	if !m.Plan("reader", []layout.Run{part}) || count() != 3 {
		t.Errorf("%d reads are planned after one was read", count())
	}
}

// TestFewAreFilledAtATime reads a little of many segments: each that is being filled has a file open.
func TestFewAreFilledAtATime(t *testing.T) {
	const objects, most = 64, 4
	u := newUpstream(slices.Repeat([]int{mib}, objects)...)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 1 << 30, MaxOpen: 2 * most})
	for range 2 {
		for i := range objects {
			m.check(t, u, fmt.Sprint(i), 1000, 1000)
			until(t, "the fetch has ended", func() bool { return m.Stats().Pinned == 0 })
			if s := m.Stats(); s.Filling > most {
				t.Fatalf("%d segments are being filled, %d may be", s.Filling, most)
			}
		}
	}
	m.readAll(t, u, "7")
	until(t, "it is published", func() bool { return m.Stats().Segments == 1 })
	m.ledger.mu.Lock()
	fills := m.ledger.fills
	m.ledger.mu.Unlock()
	if s := m.Stats(); s.Filling != fills || s.Uncached != 0 || s.Failures != 0 || s.Bytes > mib+most*block {
		t.Errorf("%d are counted as being filled; stats %+v", fills, s)
	}
}
