package main

/*
#include "libhbmfs.h"
*/
import "C"

import (
	"math"
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile"
)

//export hbmfs_go_batch_begin
func hbmfs_go_batch_begin(b *C.hbmfs_batch, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		files, err := list[uint64](b.files, b.file_count)
		if err != nil {
			return err
		}
		starts, err := list[int64](b.starts, b.count)
		if err != nil {
			return err
		}
		n := len(starts)
		batch := cufile.Batch{
			Begins: optional[int64](b.begins, len(files)), Element: int64(b.element), Sources: optional[int32](b.sources, n), Starts: starts,
			Lengths: optional[int64](b.lengths, n), Places: optional[int64](b.places, n), Length: int64(b.length),
		}
		sequences, err := sequencesOf(b)
		if err != nil {
			return err
		}
		to := target(b.dst, b.dst_length, b.stream)
		to.Widen, to.Targets = cufile.Widen(b.widen), cufile.Memory{Pointer: uintptr(b.targets), Length: int64(b.targets_length)}
		q, err := lib.batch(files, to, &batch, sequences)
		*out = C.hbmfs_handle(q)
		return err
	})
}

// optional is an array of C's as it lies there; nil for NULL.
func optional[T, U any](p *U, n int) []T {
	if p == nil {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(p)), n)
}

// sequencesOf gives the metadata of a batch's elements, as it lies there; nil where there is none.
func sequencesOf(b *C.hbmfs_batch) (*cufile.Sequences, error) {
	if b.cu_seqlens == 0 && b.sequence_count == 0 {
		return nil, nil
	}
	lengths, err := list[int64](b.sequence_lengths, b.sequence_count)
	if err != nil {
		return nil, err
	}
	documents, err := list[int64](b.sequence_documents, b.sequence_count)
	if err != nil {
		return nil, err
	}
	n := int64(b.elements)
	if n < 0 || n > math.MaxInt32 {
		return nil, failf(codeInvalid, "sequences of %d elements cannot be", n)
	}
	s := &cufile.Sequences{Lengths: lengths, Documents: documents, Tokens: n, Pad: uint64(b.pad)}
	if b.dst != 0 {
		s.Element = cufile.Widen(b.widen).Size(int64(b.element))
	}
	if b.cu_seqlens != 0 {
		s.Begins = cufile.Memory{Pointer: uintptr(b.cu_seqlens), Length: 4 * (int64(len(lengths)) + 1)}
		s.Positions = cufile.Memory{Pointer: uintptr(b.position_ids), Length: 8 * n}
		s.Numbers = cufile.Memory{Pointer: uintptr(b.document_ids), Length: 8 * n}
	}
	return s, nil
}
