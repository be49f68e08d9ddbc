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
		parts, err := spansOf(b, len(files))
		if err != nil {
			return err
		}
		sequences, err := sequencesOf(b)
		if err != nil {
			return err
		}
		q, err := lib.batch(files, target(b.dst, b.dst_length, b.stream), parts, sequences)
		*out = C.hbmfs_handle(q)
		return err
	})
}

// mostBytes bounds sums of two offsets.
const mostBytes = math.MaxInt64 / 4

// unread is the start of a span of which nothing is read.
const unread = -1

// spansOf gives the spans of each file, in bytes.
func spansOf(b *C.hbmfs_batch, files int) ([][]cufile.Placed, error) {
	starts, err := list[int64](b.starts, b.count)
	if err != nil {
		return nil, err
	}
	element, length := int64(b.element), int64(b.length)
	if element < 1 || element > 16 || files == 0 && len(starts) > 0 {
		return nil, failf(codeInvalid, "%d files, and elements of %d bytes, cannot be", files, element)
	}
	sources, lengths, places, begins := optional[int32](b.sources, len(starts)), optional[int64](b.lengths, len(starts)), optional[int64](b.places, len(starts)), optional[int64](b.begins, files)
	counts := make([]int, files)
	for _, k := range sources {
		if k < 0 || int(k) >= files {
			return nil, failf(codeInvalid, "a span is of file %d, of %d", k, files)
		}
		counts[k]++
	}
	parts := make([][]cufile.Placed, files)
	if all := make([]cufile.Placed, len(starts)); sources == nil && files > 0 {
		parts[0] = all[:0]
	} else {
		for k, n := range counts {
			parts[k], all = all[:0:n], all[n:]
		}
	}
	end := int64(0) // of the span before
	for i, start := range starts {
		k, n, place, begin := int32(0), length, end, int64(0)
		if sources != nil {
			k = sources[i]
		}
		if lengths != nil {
			n = lengths[i]
		}
		if places != nil {
			place = places[i]
		}
		if begins != nil {
			begin = begins[k]
		}
		const most = mostBytes / 16
		if start < unread || start > most || begin < 0 || begin > mostBytes {
			return nil, failf(codeOutOfRange, "a span from element %d on is not inside any file", start)
		}
		if n < 0 || n > most || place < 0 || place > most {
			return nil, failf(codeInvalid, "a span of %d elements to element %d of the memory cannot be", n, place)
		}
		if end = place + n; start != unread {
			parts[k] = append(parts[k], cufile.Placed{Offset: begin + start*element, N: n * element, To: place * element})
		}
	}
	return parts, nil
}

// optional is an array of C's as it lies there; nil for NULL.
func optional[T, U any](p *U, n int) []T {
	if p == nil {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(p)), n)
}

// sequencesOf gives what a batch says of its elements, as it lies there; nil where it says nothing.
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
		s.Element = int64(b.element)
	}
	if b.cu_seqlens != 0 {
		s.Begins = cufile.Memory{Pointer: uintptr(b.cu_seqlens), Length: 4 * (int64(len(lengths)) + 1)}
		s.Positions = cufile.Memory{Pointer: uintptr(b.position_ids), Length: 8 * n}
		s.Numbers = cufile.Memory{Pointer: uintptr(b.document_ids), Length: 8 * n}
	}
	return s, nil
}
