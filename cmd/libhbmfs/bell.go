package main

/*
#include <linux/futex.h>

#include "bell.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hang gives a read a word by which a thread waits for it in the kernel, see bell.h. ring, which it gives, must be called once the read has ended.
// It is nil where another read has the place.
func hang(handle uint64) (ring func()) {
	bell := (*uint64)(unsafe.Pointer(&C.hbmfs_bells[handle%C.HBMFS_BELLS]))
	live := handle << C.HBMFS_BELL_BITS
	if !atomic.CompareAndSwapUint64(bell, 0, live) {
		return nil
	}
	return func() {
		was := atomic.SwapUint64(bell, 0)
		if was&C.HBMFS_AWAITED != 0 {
			_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(bell)), C.FUTEX_WAKE_PRIVATE, 1<<30, 0, 0, 0)
		}
	}
}
