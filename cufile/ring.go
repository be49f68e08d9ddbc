package cufile

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is the pinned memory of all slots of a crew, in rounds: one slot of each worker. Pinning is where opening a Reader
// spends its time, so only the first round is waited for; the others come while the first reads begin. It is quickest in
// huge pages that are there before they are registered, and from one thread: those that register at the same time wait
// for each other in the kernel and in the driver.
type ring struct {
	cu      *cuda
	context handle
	near    *unix.CPUSet
	each    int64  // bytes of a slot
	round   int64  // bytes of a round's slots
	stride  int64  // from one round to the next
	memory  []byte // begins with a huge page
	whole   []byte // the mapping that it lies in

	devices [slotsPerWorker]devicePointer // where the GPU sees each round
	rounds  atomic.Int32                  // that are registered
	failed  atomic.Pointer[error]         // why no more are
}

// slotsPerWorker: one is filled while another is copied and a third waits for the bus.
const slotsPerWorker = 3

const hugePage = 2 << 20

func newRing(o crewOptions) (*ring, error) {
	// Two pages more than a chunk, for the aligned envelope around it.
	r := &ring{cu: o.cu, context: o.context, near: o.near, each: o.slotSize + 2*pageSize}
	r.round = int64(o.threads) * r.each
	r.stride = roundUp(r.round, hugePage)
	n := slotsPerWorker * r.stride
	var err error
	if r.whole, err = unix.Mmap(-1, 0, int(n+hugePage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, fmt.Errorf("allocate %d bytes of host memory: %w", n, err)
	}
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(r.whole))) % hugePage)
	r.memory = r.whole[skip : skip+n]
	_ = unix.Madvise(r.memory, unix.MADV_HUGEPAGE) // small ones do, too
	return r, nil
}

// slot gives a worker's slot of a round.
func (r *ring) slot(worker, round int) slot {
	at := int64(round)*r.stride + int64(worker)*r.each
	return slot{memory: r.memory[at : at+r.each : at+r.each], ring: r, round: round}
}

// fill brings pages, which lie near the CPU that the thread runs on.
func fill(memory []byte) {
	_ = unix.Madvise(memory, unix.MADV_POPULATE_WRITE) // otherwise registering does it
}

// pin registers the next round.
func (r *ring) pin() error {
	next := r.rounds.Load()
	memory := r.part(int(next))
	return r.cu.within(r.context, func() (err error) {
		if err := r.cu.register(memory, hostPortable|hostDeviceMap); err != nil {
			return err
		}
		if r.devices[next], err = r.cu.deviceAddress(memory); err != nil {
			_ = r.cu.unregister(memory) // the first error counts
			return err
		}
		r.rounds.Add(1)
		return nil
	})
}

func (r *ring) part(round int) []byte { return r.memory[int64(round)*r.stride:][:r.round] }

// pinRest registers the other rounds, on a thread that ends with it. Where it fails, reads do.
func (r *ring) pinRest(quit <-chan struct{}) {
	runtime.LockOSThread()
	if r.near != nil {
		_ = unix.SchedSetaffinity(0, r.near)
	}
	for round := int(r.rounds.Load()); round < slotsPerWorker; round++ {
		select {
		case <-quit:
			return
		default:
		}
		fill(r.part(round))
		if err := r.pin(); err != nil {
			err = fmt.Errorf("pin %d bytes of host memory: %w", r.round, err)
			r.failed.Store(&err)
			return
		}
	}
}

// usable gives how many rounds may be used.
func (r *ring) usable() (int, error) {
	if err := r.failed.Load(); err != nil {
		return 0, *err
	}
	return int(r.rounds.Load()), nil
}

// free gives all back. Its errors have nobody who could act on them.
func (r *ring) free() {
	_ = r.cu.within(r.context, func() error {
		for round := range int(r.rounds.Load()) {
			_ = r.cu.unregister(r.part(round))
		}
		return nil
	})
	_ = unix.Munmap(r.whole)
}

// device is where the GPU sees the slot's memory.
func (s *slot) device() devicePointer {
	offset := uintptr(unsafe.Pointer(unsafe.SliceData(s.memory))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.ring.part(s.round))))
	return s.ring.devices[s.round] + devicePointer(offset)
}
