package cufile

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is the pinned memory of all slots of a crew. Pinning is where opening a Reader spends its time, and this is the
// quick way: in huge pages, filled by all threads at once, registered by one. (For 8 threads with 24 MiB each on an H200:
// about 10 ms; 60 where each registers its own, since they wait for each other in the kernel and in the driver.)
type ring struct {
	cu      *cuda
	context handle
	each    int64  // bytes of a slot
	memory  []byte // begins with a huge page
	whole   []byte // the mapping that it lies in
	pinned  bool
	device  devicePointer // where the GPU sees memory
}

const hugePage = 2 << 20

func newRing(o crewOptions) (*ring, error) {
	// Two pages more than a chunk, for the aligned envelope around it.
	r := &ring{cu: o.cu, context: o.context, each: o.slotSize + 2*pageSize}
	n := int64(o.threads) * slotsPerWorker * r.each
	var err error
	if r.whole, err = unix.Mmap(-1, 0, int(n+hugePage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, fmt.Errorf("allocate %d bytes of host memory: %w", n, err)
	}
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(r.whole))) % hugePage)
	r.memory = r.whole[skip : skip+n : skip+n]
	_ = unix.Madvise(r.memory, unix.MADV_HUGEPAGE) // small ones do, too
	return r, nil
}

// take gives the slot at an offset, its pages there.
func (r *ring) take(at int64) []byte {
	memory := r.memory[at : at+r.each : at+r.each]
	_ = unix.Madvise(memory, unix.MADV_POPULATE_WRITE) // otherwise registering does it
	return memory
}

// pin registers the memory.
func (r *ring) pin() error {
	return r.cu.within(r.context, func() (err error) {
		if err := r.cu.register(r.memory, hostPortable|hostDeviceMap); err != nil {
			return err
		}
		r.pinned = true
		r.device, err = r.cu.deviceAddress(r.memory)
		return err
	})
}

// free gives all back. Its errors have nobody who could act on them.
func (r *ring) free() {
	if r.pinned {
		_ = r.cu.within(r.context, func() error { return r.cu.unregister(r.memory) })
	}
	_ = unix.Munmap(r.whole)
}

// device is where the GPU sees a slot's memory.
func (s *slot) device() devicePointer { return s.ring.device + devicePointer(s.at) }
