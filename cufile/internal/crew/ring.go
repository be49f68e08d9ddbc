package crew

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// ring is the pinned memory of all slots of a crew. Opening a Reader spends its time with pinning. This is the quick
// way: in huge pages, filled by all threads at once, registered by one. (96 MiB for 8 threads on an H200: 5 ms; 27 where
// each maps, registers and gives back its own, since they wait for each other in the kernel and in the driver.)
type ring struct {
	cu      *driver.CUDA
	context driver.Handle
	each    int64  // bytes of a slot
	memory  []byte // begins with a huge page
	whole   []byte // the mapping that it lies in
	pinned  bool
	device  driver.Pointer // where the GPU sees memory
}

const hugePage = 2 << 20

func newRing(o Options) (*ring, error) {
	// Two pages more than a chunk, for the aligned envelope around it.
	r := &ring{cu: o.CUDA, context: o.Context, each: o.SlotSize + 2*driver.PageSize}
	n := int64(o.Threads) * SlotsPerWorker * r.each
	var err error
	if r.whole, err = unix.Mmap(-1, 0, int(n+hugePage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, fmt.Errorf("allocate %d bytes of host memory: %w", n, err)
	}
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(r.whole))) % hugePage)
	r.memory = r.whole[skip : skip+n : skip+n]
	_ = unix.Madvise(r.memory, unix.MADV_HUGEPAGE) // small ones do, too
	return r, nil
}

// fill brings the pages of a worker's slots. It is up to its thread, whose memory is near. Those of the host come when they are
// used.
func (r *ring) fill(worker int) {
	if r.cu == nil {
		return
	}
	n := SlotsPerWorker * r.each
	_ = unix.Madvise(r.memory[int64(worker)*n:][:n], unix.MADV_POPULATE_WRITE) // otherwise registering does it
}

func (r *ring) slot(index int) Slot {
	at := int64(index) * r.each
	return Slot{Memory: r.memory[at : at+r.each : at+r.each], ring: r, at: at}
}

// pin registers the memory, if there is a GPU.
func (r *ring) pin() error {
	if r.cu == nil {
		return nil
	}
	return r.cu.Within(r.context, func() (err error) {
		if err := r.cu.Register(r.memory, driver.HostPortable|driver.HostDeviceMap); err != nil {
			return err
		}
		r.pinned = true
		r.device, err = r.cu.DeviceAddress(r.memory)
		return err
	})
}

// free gives all back. It drops errors, since no call waits for it.
func (r *ring) free() {
	if r.pinned {
		_ = r.cu.Within(r.context, func() error { return r.cu.Unregister(r.memory) })
	}
	_ = unix.Munmap(r.whole)
}

// Device is where the GPU sees a slot's memory.
func (s *Slot) Device() driver.Pointer { return s.ring.device + driver.Pointer(s.at) }
