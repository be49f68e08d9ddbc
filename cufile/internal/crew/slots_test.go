package crew

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/fakegpu"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// TestWarmSlot sends slots whose copies end at once, and others that do not end.
func TestWarmSlot(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("the fake GPU needs a C compiler: ", err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	must(fakegpu.Compile(dir, fakegpu.CUDA))
	library := filepath.Join(dir, fakegpu.CUDA)
	cu, err := driver.LoadCUDA(library)
	must(err)
	gpu, err := driver.Describe(cu, driver.Libraries{}, 0)
	must(err)
	primary, err := cu.RetainPrimary(gpu.Device)
	must(err)
	var hbm driver.Pointer
	must(cu.Within(primary, func() (err error) { hbm, err = cu.Alloc(64 << 10); return err }))
	c, err := New(Options{CUDA: cu, Context: primary, Threads: 1, SlotSize: 64 << 10})
	must(err)
	ask := func(function string) error {
		_, err := fakegpu.Ask(library, function)
		return err
	}
	_, err = c.Run(t.Context(), 1, 1, func(w *Worker, _ int64) error {
		check := func(err error) {
			if err != nil {
				t.Error(err)
			}
		}
		send := func() *Slot {
			s, err := w.WarmSlot()
			check(errors.Join(err, cu.CopyIn(hbm, s.Memory[:64<<10], w.Stream), w.Sent(s)))
			return s
		}
		first := send()
		check(cu.Synchronize(w.Stream))
		if s := send(); s != first {
			t.Error("another slot is used although the copy of the last one has ended")
		}
		check(cu.Synchronize(w.Stream))
		check(ask("fake_cuda_hold"))
		used := map[*Slot]bool{}
		var last *Slot
		for range SlotsPerWorker {
			last = send()
			used[last] = true
		}
		if len(used) != SlotsPerWorker || w.oldest() != first {
			t.Errorf("%d slots are used while no copy ends, and the oldest is the first: %v", len(used), w.oldest() == first)
		}
		check(ask("fake_cuda_go_on"))
		check(cu.Synchronize(w.Stream))
		if s := send(); s != last {
			t.Error("the slot is not the one that was sent last")
		}
		check(cu.Synchronize(w.Stream))
		check(ask("fake_cuda_hold"))
		for range SlotsPerWorker {
			send()
		}
		oldest, went := w.oldest(), make(chan error, 1)
		go func() { went <- ask("fake_cuda_go_on") }()
		if s, err := w.WarmSlot(); err != nil || s != oldest && oldest.busy {
			t.Errorf("%v; it waits for a slot that was sent later than another", err)
		}
		check(<-went)
		return nil
	})
	must(errors.Join(err, c.Close()))
}
