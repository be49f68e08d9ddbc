package cufile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// sharedReaders makes Readers that share registrations, of two fake GPUs or of GPU 0.
func sharedReaders(t *testing.T, o Options, n int) []*Reader {
	t.Helper()
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	gpus := 1
	if o.Libraries.CUDA != "" {
		gpus = 2
	}
	t.Cleanup(func() { // after the Readers
		if gpus == 1 {
			return
		}
		for _, name := range []string{"fake_cuda_violations", "fake_cuda_pinned", "fake_cuda_retained"} {
			if n := ask(t, o.Libraries.CUDA, name); n != 0 {
				t.Errorf("%s is %d after all was closed", name, n)
			}
		}
	})
	var readers []*Reader
	for i := range n {
		o.Device = i % gpus
		r, err := New(t.Context(), o)
		must(t, err)
		t.Cleanup(func() { must(t, r.Close()) })
		readers = append(readers, r)
	}
	return readers
}

// TestReadersShareRegistrations has each of three readers, which nobody told of each other, find what the first one registered, also once that is closed.
func TestReadersShareRegistrations(t *testing.T) {
	l := fakeLibraries(t)
	name, data := randomFile(t, 1<<20, 21)
	o := smallOptions(l, Auto)
	o.Reuse, o.Pinned = true, 4<<20
	readers := sharedReaders(t, o, 3)
	slots := int64(ask(t, l.CUDA, "fake_cuda_pinned"))
	for i, r := range readers {
		f := openFileIn(t, r, name)
		v, err := f.Read(t.Context(), 0, f.Size())
		must(t, err)
		if why := v.Choice().Why; i > 0 && why != seenWhy {
			t.Errorf("reader %d: %q, want that the other one registered them", i, why)
		}
		if !bytes.Equal(content(t, v), data) {
			t.Errorf("reader %d: wrong bytes", i)
		}
		if pinned := int64(ask(t, l.CUDA, "fake_cuda_pinned")) - slots; pinned != 1<<20 || r.PinnedBytes() != pinned {
			t.Errorf("after reader %d %d bytes are registered, counted %d, want %d once", i, pinned, r.PinnedBytes(), 1<<20)
		}
		if i == 1 {
			must(t, readers[0].Close())
			slots -= slots / 3
		}
	}
}

// TestReadersOfAChangedFile has a file replaced, and then written to, between two readers: the second one registers it anew.
func TestReadersOfAChangedFile(t *testing.T) {
	o := smallOptions(fakeLibraries(t), Auto)
	o.Reuse, o.Pinned = true, 4<<20
	name, data := randomFile(t, 300_000, 22)
	for i, r := range sharedReaders(t, o, 3) {
		must(t, os.Chtimes(name, time.Time{}, time.Unix(int64(1000+i), 0)))
		f := openFileIn(t, r, name)
		v, err := f.Read(t.Context(), 0, f.Size())
		must(t, err)
		if why := v.Choice().Why; why == seenWhy {
			t.Errorf("reader %d: %q", i, why)
		}
		if !bytes.Equal(content(t, v), data) {
			t.Errorf("reader %d: wrong bytes", i)
		}
		var other []byte
		if i == 0 {
			other = bytes.Repeat([]byte{1}, len(data))
			must(t, os.WriteFile(name+".new", other, 0o600))
			must(t, os.Rename(name+".new", name))
		} else {
			other = bytes.Repeat([]byte{2}, len(data))
			must(t, os.WriteFile(name, other, 0o600))
		}
		data = other
	}
}

// Readers that share few windows, of files that they open and close, in order and at random.
func TestSharedWindowsMove(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		t.Setenv("FAKE_CUDA_DELAY_US", "5")
		o := smallOptions(fakeLibraries(t), Mapped)
		sharedWindowsMove(t, o)
		slots := int64(o.Threads+1) * crew.SlotsPerWorker * (o.Slot + 2*driver.PageSize) * sharedReadersMoving
		windows := (sharedReadersMoving + 1) * o.Window
		if peak := int64(ask(t, o.Libraries.CUDA, "fake_cuda_pinned_peak")); peak > slots+windows {
			t.Errorf("%d bytes were pinned at once, at most %d for slots and %d for windows are allowed", peak, slots, windows)
		}
		if n := ask(t, o.Libraries.CUDA, "fake_cuda_violations"); n != 0 {
			t.Errorf("%d copies from what was not registered", n)
		}
	})
	if os.Getenv("HBMFS_GPU") != "" {
		t.Run("gpu mapped", func(t *testing.T) { sharedWindowsMove(t, smallOptions(driver.Libraries{}, Mapped)) })
	}
}

const sharedReadersMoving = 3

func sharedWindowsMove(t *testing.T, o Options) {
	t.Helper()
	const readers = sharedReadersMoving
	o.Pinned = (readers + 1) * o.Window
	list := sharedReaders(t, o, readers)
	var names []string
	var datas [][]byte
	for i := range 2 {
		name, data := randomFile(t, 3<<20+4000*i, uint64(22+i))
		names, datas = append(names, name), append(datas, data)
	}
	var wg sync.WaitGroup
	for i, r := range list {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(6, uint64(i)))
			for round := range 6 {
				k := random.IntN(len(names))
				if err := readAll(t, r, names[k], datas[k], random, round%2 == 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// readAll reads a file in order by a stream, or gathers from it, and compares.
func readAll(t *testing.T, r *Reader, name string, data []byte, random *rand.Rand, inOrder bool) error {
	f, err := r.Open(t.Context(), name)
	if err != nil {
		return err
	}
	if inOrder {
		err = streamAll(t, f, data, 100_000)
	} else {
		offsets := make([]int64, 60)
		var want []byte
		for i := range offsets {
			offsets[i] = random.Int64N(f.Size() - 5000)
			want = append(want, data[offsets[i]:offsets[i]+5000]...)
		}
		var v *View
		if v, err = f.Gather(t.Context(), offsets, 5000); err == nil && !bytes.Equal(content(t, v), want) {
			err = errors.New("wrong bytes gathered")
		}
	}
	return errors.Join(err, f.Close())
}

func streamAll(t *testing.T, f *File, data []byte, step int64) error {
	var plan []Span
	for at := int64(0); at < f.Size(); at += step {
		plan = append(plan, Span{at, min(step, f.Size()-at)})
	}
	s := f.Stream(t.Context(), plan, 4)
	defer s.Close()
	for _, span := range plan {
		v, err := s.Next(t.Context())
		if err != nil {
			return err
		}
		if !bytes.Equal(content(t, v), data[span.Offset:span.Offset+span.Length]) {
			return errors.New("wrong bytes streamed")
		}
	}
	return nil
}

// until polls, since what happens between two requests has no other sign.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

func TestNextWindowIsRegisteredBeforeItIsAskedFor(t *testing.T) {
	name, data := randomFile(t, 2<<20, 24)
	o := smallOptions(fakeLibraries(t), Mapped)
	r := newReader(t, o)
	f := openFileIn(t, r, name)
	for i := range int64(6) {
		v, err := f.Read(t.Context(), i*o.Window, o.Window) // more than a small row
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(content(t, v), data[i*o.Window:][:o.Window]) {
			t.Fatal("wrong bytes")
		}
		if i == 0 {
			continue // one request is no order
		}
		b := f.source.Unshare()[0]
		until(t, "the window after the last one", func() bool {
			return r.mapped.Unseen([]source.Piece{{File: b, Offset: (i + 1) * o.Window, N: 1}}) == 0
		})
		if r.PinnedBytes() > o.Pinned {
			t.Errorf("%d bytes pinned, at most %d allowed", r.PinnedBytes(), o.Pinned)
		}
	}
}
