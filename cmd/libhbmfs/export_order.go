package main

/*
#include "libhbmfs.h"
*/
import "C"

import (
	"unsafe"

	"github.com/hbmfs/hbmfs/cmd/libhbmfs/internal/order"
)

// list is an array of C's as it lies there, once its length can be.
func list[T, U any](p *U, n C.int64_t) ([]T, error) {
	if n < 0 || n > mostItems {
		return nil, failf(codeInvalid, "an array of %d elements cannot be", int64(n))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(p)), int(n)), nil
}

// mostDrawn is how many sources a mixture has at most, since a byte says which one gives a sample.
const mostDrawn = 256

//export hbmfs_go_pack
func hbmfs_go_pack(borders *C.int64_t, many C.int64_t, begins *C.int64_t, first, count, room C.int64_t, keys *C.uint64_t, rounds C.int64_t,
	out *C.hbmfs_packed, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		all, err := list[int64](borders, many)
		if err != nil {
			return err
		}
		if out.capacity < 0 || out.capacity >= mostItems || rounds < 0 || rounds > mostItems/2 {
			return failf(codeInvalid, "room for %d sequences, or keys of %d rounds, cannot be", int64(out.capacity), int64(rounds))
		}
		each, err := list[uint64](keys, 2*rounds)
		if err != nil {
			return err
		}
		d := order.Documents{Borders: all, Begins: optional[int64](begins, max(len(all)-1, 0))}
		w := order.Window{First: int64(first), Count: int64(count), Room: int64(room), Order: each[:rounds], Shuffle: each[rounds:]}
		n := int(out.capacity)
		to := order.Samples{Starts: optional[int64](out.starts, n), Lengths: optional[int64](out.lengths, n), Documents: optional[int64](out.documents, n)}
		to.Borders = optional[int64](out.borders, n+1)
		p, _ := lib.packers.Get().(*order.Packer)
		if p == nil {
			p = new(order.Packer)
		}
		defer lib.packers.Put(p)
		found, err := p.Pack(&d, &w, &to)
		if err != nil {
			return &otherwise{codeInvalid, err}
		}
		out.sequences, out.samples, out.tokens = C.int64_t(found.Sequences), C.int64_t(found.Samples), C.int64_t(found.Tokens)
		return nil
	})
}

//export hbmfs_go_cut
func hbmfs_go_cut(borders **C.int64_t, counts *C.int64_t, datasets C.int64_t, sources *C.int32_t, starts *C.int64_t, rows, length C.int64_t,
	each, lengths, documents *C.int64_t, goesOn *C.uint8_t, room C.int64_t, total *C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		where, err := list[int64](starts, rows)
		if err != nil {
			return err
		}
		many, err := list[int64](counts, datasets)
		if err != nil {
			return err
		}
		all := make([][]int64, len(many))
		for i, p := range unsafe.Slice(borders, len(many)) {
			if many[i] < 0 || p == nil && many[i] > 0 {
				return failf(codeInvalid, "%d borders cannot be", many[i])
			}
			all[i] = unsafe.Slice((*int64)(unsafe.Pointer(p)), int(many[i]))
		}
		c, err := order.NewCut(all, optional[int32](sources, len(where)), where, int64(length), unsafe.Slice((*int64)(unsafe.Pointer(each)), len(where)))
		if err != nil {
			return &otherwise{codeInvalid, err}
		}
		*total = C.int64_t(c.Total)
		if n := c.Total; n <= int64(room) {
			c.Fill(unsafe.Slice((*int64)(unsafe.Pointer(lengths)), n), unsafe.Slice((*int64)(unsafe.Pointer(documents)), n), unsafe.Slice((*byte)(unsafe.Pointer(goesOn)), n))
		}
		return nil
	})
}

//export hbmfs_go_starts
func hbmfs_go_starts(of *C.hbmfs_epochs, k, rounds C.int64_t, drawn *C.uint8_t, n C.int64_t, places *C.int64_t, count C.int64_t, starts *C.int64_t,
	sources *C.int32_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		if k < 1 || k > mostDrawn || rounds < 0 || rounds > mostItems {
			return failf(codeInvalid, "a mixture of %d datasets, with keys of %d rounds, cannot be", int64(k), int64(rounds))
		}
		asked, err := list[int64](places, count)
		if err != nil {
			return err
		}
		if n < 0 || n > mostItems {
			return failf(codeInvalid, "an array of %d elements cannot be", int64(n))
		}
		all := make([]order.Epochs, k)
		for i, c := range unsafe.Slice(of, int(k)) {
			e := order.Epochs{Count: int64(c.count), Apart: int64(c.apart), Given: int64(c.given), First: int64(c.first)}
			if c.epochs < 0 || rounds > 0 && c.epochs > mostItems/rounds || c.documents < 0 || c.documents > mostItems {
				return failf(codeInvalid, "keys of %d epochs, or borders of %d documents, cannot be", int64(c.epochs), int64(c.documents))
			}
			e.Keys = optional[uint64](c.keys, int(c.epochs*rounds))
			e.Borders, e.Before = optional[int64](c.borders, int(c.documents)+1), optional[int64](c.before, int(c.documents)+1)
			all[i] = e
		}
		begin, source := unsafe.Slice((*int64)(unsafe.Pointer(starts)), len(asked)), unsafe.Slice((*int32)(unsafe.Pointer(sources)), len(asked))
		if err := order.Starts(all, int(rounds), optional[byte](drawn, int(n)), asked, begin, source); err != nil {
			return &otherwise{codeInvalid, err}
		}
		return nil
	})
}

//export hbmfs_go_draw
func hbmfs_go_draw(sources *C.hbmfs_source, k, n, end C.int64_t, drawn *C.uint8_t, room C.int64_t, count *C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		if k < 1 || k > mostDrawn {
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

//export hbmfs_go_safetensors_header
func hbmfs_go_safetensors_header(fd C.int32_t, name, table *C.char, room C.int64_t, length *C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		found, err := safetensorsTable(int(fd), text(name))
		if *length = C.int64_t(len(found)); len(found) <= int(room) {
			copy(unsafe.Slice((*byte)(unsafe.Pointer(table)), int(room)), found)
		}
		return err
	})
}
