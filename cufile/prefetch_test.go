package cufile

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

func TestPrefetchBringsPagesIntoTheCache(t *testing.T) {
	name, _ := randomFile(t, 8<<20, 31)
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	o := smallOptions(driver.Libraries{}, Host)
	o.Device = HostDevice
	f := openFileIn(t, newReader(t, o), name)
	piece := []source.Piece{{File: f.source.Backing(nil), Offset: 4 << 20, N: 2 << 20}}
	if err := errors.Join(file.Sync(), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		t.Fatal(err)
	}
	if part, known := source.Resident(piece); !known || part > 0.1 {
		t.Skipf("needs a file system whose pages can be dropped: %.0f%% stay", 100*part)
	}
	if err := f.Prefetch(t.Context(), []Span{{4 << 20, 2 << 20}, {100, 0}}); err != nil {
		t.Fatal(err)
	}
	until(t, "the pages are in the cache", func() bool {
		part, known := source.Resident(piece)
		return known && part > 0.99
	})
}

func TestPrefetchRefusesWhatIsNotInTheFile(t *testing.T) {
	name, _ := randomFile(t, 10_000, 32)
	o := smallOptions(driver.Libraries{}, Host)
	o.Device = HostDevice
	f := openFileIn(t, newReader(t, o), name)
	const huge = 1<<63 - 1
	for _, s := range []Span{{-1, 1}, {0, 10_001}, {10_001, 0}, {1, huge}, {huge, 1}, {0, -1}} {
		if err := f.Prefetch(t.Context(), []Span{{0, 10}, s}); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("%+v: %v, want that it is outside", s, err)
		}
	}
	if err := f.Prefetch(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
