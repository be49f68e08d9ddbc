package main

/*
#include "libhbmfs.h"
*/
import "C"

import (
	"unsafe"

	"github.com/hbmfs/hbmfs/internal/order"
)

// list is an array of C's as it lies there, once its length can be.
func list[T, U any](p *U, n C.int64_t) ([]T, error) {
	if n < 0 || n > mostItems {
		return nil, failf(codeInvalid, "an array of %d elements cannot be", int64(n))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(p)), int(n)), nil
}

//export hbmfs_go_best_fit
func hbmfs_go_best_fit(lengths *C.int64_t, n, room C.int64_t, sample, samples *C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		pieces, err := list[int64](lengths, n)
		if err != nil {
			return err
		}
		if room < 1 || room > mostItems {
			return failf(codeInvalid, "a sample of %d tokens cannot be", int64(room))
		}
		found, err := order.BestFit(pieces, int64(room), unsafe.Slice((*int64)(unsafe.Pointer(sample)), int(n)))
		*samples = C.int64_t(found)
		if err != nil {
			return &otherwise{codeInvalid, err}
		}
		return nil
	})
}

//export hbmfs_go_draw
func hbmfs_go_draw(sources *C.hbmfs_source, k, n, end C.int64_t, drawn *C.uint8_t, room C.int64_t, count *C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		if k < 1 || k > 256 {
			return failf(codeInvalid, "a mixture of %d sources cannot be drawn", int64(k))
		}
		out, err := list[byte](drawn, room)
		if err != nil {
			return err
		}
		// The fields are those of order.Source, in its order.
		*count = C.int64_t(order.Draw(unsafe.Slice((*order.Source)(unsafe.Pointer(sources)), int(k)), int64(n), int64(end), out))
		return nil
	})
}
