package mounttest

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring is an io_uring with as much as a test needs. The layout is that of linux/io_uring.h.
type Ring struct {
	Fd       int
	sq, cq   []byte
	sqes     []ringEntry
	params   ringParams
	sqTail   *uint32
	cqHead   *uint32
	cqTail   *uint32
	sqArray  []uint32
	cqEvents []ringEvent
}

// RingEntries is how many requests a ring has room for.
const RingEntries = 32

type ringParams struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sqOff                                                                  struct {
		head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
		_                                                           uint64
	}
	cqOff struct {
		head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
		_                                                           uint64
	}
}

type ringEntry struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off, addr     uint64
	length        uint32
	_             uint32
	userData      uint64
	_             [3]uint64
}

type ringEvent struct {
	userData uint64
	result   int32
	_        uint32
}

// NewRing makes a ring. Its end is that of the process.
func NewRing() (*Ring, error) {
	r := &Ring{}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, RingEntries, uintptr(unsafe.Pointer(&r.params)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	r.Fd = int(fd)
	p := &r.params
	var sqes []byte
	for _, region := range []struct {
		at     int64 // IORING_OFF_*
		length uint32
		to     *[]byte
	}{
		{0, p.sqOff.array + 4*p.sqEntries, &r.sq},
		{0x8000000, p.cqOff.cqes + uint32(unsafe.Sizeof(ringEvent{}))*p.cqEntries, &r.cq},
		{0x10000000, uint32(unsafe.Sizeof(ringEntry{})) * p.sqEntries, &sqes},
	} {
		var err error
		if *region.to, err = unix.Mmap(r.Fd, region.at, int(region.length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			return nil, fmt.Errorf("map a ring: %w", err)
		}
	}
	word := func(b []byte, off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&b[off])) }
	r.sqTail, r.cqHead, r.cqTail = word(r.sq, p.sqOff.tail), word(r.cq, p.cqOff.head), word(r.cq, p.cqOff.tail)
	r.sqArray = unsafe.Slice(word(r.sq, p.sqOff.array), p.sqEntries)
	r.sqes = unsafe.Slice((*ringEntry)(unsafe.Pointer(&sqes[0])), p.sqEntries)
	r.cqEvents = unsafe.Slice((*ringEvent)(unsafe.Pointer(&r.cq[p.cqOff.cqes])), p.cqEntries)
	return r, nil
}

// Read reads count pieces of a file from the given one on to their places in buf, and returns how many failed.
func (r *Ring) Read(fd int, buf []byte, piece, first, count int) (failed int, err error) {
	const opRead = 22
	tail := *r.sqTail
	for i := range count {
		slot := (tail + uint32(i)) % uint32(len(r.sqes))
		at := (first + i) * piece
		r.sqes[slot] = ringEntry{
			opcode: opRead, fd: int32(fd), off: uint64(at), addr: uint64(uintptr(unsafe.Pointer(&buf[at]))), length: uint32(piece), userData: uint64(i),
		}
		r.sqArray[slot] = slot
	}
	atomic.StoreUint32(r.sqTail, tail+uint32(count))
	submit := count
	for done := 0; done < count; {
		const getEvents = 1
		n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.Fd), uintptr(submit), 1, getEvents, 0, 0)
		if errno != 0 && errno != syscall.EINTR {
			return failed, os.NewSyscallError("io_uring_enter", errno)
		}
		if errno == 0 {
			submit -= int(n)
		}
		for head := atomic.LoadUint32(r.cqHead); head != atomic.LoadUint32(r.cqTail); head = atomic.AddUint32(r.cqHead, 1) {
			if r.cqEvents[head%uint32(len(r.cqEvents))].result < 0 {
				failed++
			}
			done++
		}
	}
	return failed, nil
}
