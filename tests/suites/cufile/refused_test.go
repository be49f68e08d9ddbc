package cufile_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Where the daemon has no connection left, files are read through the mount, and say so. A path that must be is refused.
func TestReadWithoutAConnection(t *testing.T) {
	m, names, datas := smallMount(t)
	gpu := blackbox.FakeGPU(t)
	var clients []*control.Client
	var err error
	for err == nil && len(clients) < 1000 {
		var c *control.Client
		if c, err = control.Dial(t.Context(), m.Path(), "one of many"); err == nil {
			clients = append(clients, c)
		}
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatalf("%d connections, then %v, want that they are too many", len(clients), err)
	}
	const why = "too many connections"
	r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Arena: 1 << 20, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	files, errs := r.OpenMany(t.Context(), names[:3])
	for i, f := range files {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		readSpan(t, f, datas[i], 0, f.Size())
		if info := f.Info(); info.Mounted || !strings.Contains(info.Note, why) {
			t.Errorf("file %d: %+v, want a note of %s", i, info, why)
		}
		errs = append(errs, closed(f))
	}
	if err := errors.Join(append(errs, closed(r))...); err != nil {
		t.Error(err)
	}
	r, err = cufile.New(t.Context(), cufile.Options{Path: cufile.Direct, Libraries: cufile.Libraries{CUDA: gpu[1], CuFile: gpu[3], NVML: gpu[5]}, Arena: 1 << 20, Threads: 2, Slot: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Open(t.Context(), names[1]); !errors.Is(err, cufile.ErrUnavailable) || !strings.Contains(err.Error(), why) {
		t.Errorf("direct: %v, want that it cannot be had", err)
	}
	errs = []error{closed(r)}
	for _, c := range clients {
		errs = append(errs, c.Close())
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
