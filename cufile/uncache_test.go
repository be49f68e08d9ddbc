package cufile

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// cleanFile is a random file whose pages are clean and in the page cache.
func cleanFile(t *testing.T, size int) (string, []byte) {
	t.Helper()
	name, data := randomFile(t, size, 31)
	f, err := os.Open(name)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
	if _, err := os.ReadFile(name); err != nil {
		t.Fatal(err)
	}
	return name, data
}

// residentOf is the part of a file that is in the page cache.
func residentOf(t *testing.T, name string) float64 {
	t.Helper()
	f, err := source.OpenPlain(name, 1)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	b := f.Backing(nil)
	part, ok := source.Resident([]source.Piece{{File: b, N: b.Length}})
	if !ok {
		t.Skip("the kernel does not say what is in the page cache")
	}
	return part
}

// TestUncache reads a file by each path, drops it, and reads it again; then a reader drops it by closing it.
func TestUncache(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := cleanFile(t, 3<<20)
		if residentOf(t, name) < 1 {
			t.Skip("this file system keeps no pages")
		}
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		for round := range 2 { // what is not in the page cache may be read past it
			v, err := f.Read(t.Context(), 0, f.Size())
			must(t, err)
			if !bytes.Equal(content(t, v), data) {
				t.Fatal("wrong bytes")
			}
			before := r.DroppedBytes()
			if n, err := f.Uncache(t.Context(), KeepPageCache); n != 0 || err != nil {
				t.Fatalf("keep: %d, %v", n, err)
			}
			if n := r.PinnedBytes(); n != 0 {
				t.Errorf("%d bytes are registered", n)
			}
			n, err := f.Uncache(t.Context(), DropPageCache)
			must(t, err)
			if part := residentOf(t, name); part > 0.01 || round == 0 && n < f.Size()*99/100 || r.DroppedBytes()-before != n {
				t.Errorf("%v is in the page cache, %d of %d bytes went, the reader counts %d", part, n, f.Size(), r.DroppedBytes()-before)
			}
		}
		if _, err := f.Uncache(t.Context(), 3); err == nil {
			t.Error("a policy that there is not")
		}
		must(t, f.Close())
		if _, err := f.Uncache(t.Context(), DropPageCache); !errors.Is(err, os.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// TestCloseDrops has readers drop what they close: plain files, and files that a cache lends. AutoPageCache keeps a file for which there is room.
func TestCloseDrops(t *testing.T) {
	for policy, dropped := range map[PageCache]bool{KeepPageCache: false, DropPageCache: true, AutoPageCache: false} {
		for _, lent := range []bool{false, true} {
			name, _ := cleanFile(t, 1<<20)
			o := smallOptions(driver.Libraries{}, Host)
			o.Device, o.PageCache = HostDevice, policy
			r := newReader(t, o)
			f, err := r.Open(t.Context(), name)
			must(t, err)
			if lent {
				must(t, f.Close())
				warm, err := os.ReadFile(name)
				must(t, err)
				plain, err := source.OpenPlain(name, 100)
				must(t, err)
				f, err = r.admit(t.Context(), name, newRestless(plain), "")
				must(t, err)
				must(t, errors.Join(err, f.read(t, warm)))
			}
			must(t, f.Close())
			if part := residentOf(t, name); (part < 0.01) != dropped || !dropped && part < 0.99 || (r.DroppedBytes() > 0) != dropped {
				t.Errorf("policy %d, lent %t: %v is in the page cache, %d bytes went", policy, lent, part, r.DroppedBytes())
			}
		}
	}
}

// read compares all bytes.
func (f *File) read(t *testing.T, want []byte) error {
	t.Helper()
	v, err := f.Read(t.Context(), 0, f.Size())
	if err == nil && !bytes.Equal(content(t, v), want) {
		t.Error("wrong bytes")
	}
	return err
}

// TestAnotherMappingKeepsPages drops a file that is mapped elsewhere, also in part.
func TestAnotherMappingKeepsPages(t *testing.T) {
	name, _ := cleanFile(t, 1<<20)
	o := smallOptions(driver.Libraries{}, Host)
	o.Device = HostDevice
	f := openFileIn(t, newReader(t, o), name)
	fd, err := source.OpenFile(name)
	must(t, err)
	memory, err := unix.Mmap(fd, 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	must(t, errors.Join(err, unix.Close(fd)))
	if n, err := f.Uncache(t.Context(), DropPageCache); n != 0 || err != nil || residentOf(t, name) < 1 {
		t.Errorf("%d bytes went, %v", n, err)
	}
	must(t, unix.Munmap(memory))
	if n, err := f.Uncache(t.Context(), DropPageCache); n != 1<<20 || err != nil || residentOf(t, name) > 0 {
		t.Errorf("%d bytes went once nothing maps it, %v", n, err)
	}
}
