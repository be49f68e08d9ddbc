package main

/*
#include "libhbmfs.h"
*/
import "C"

import (
	"context"
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/cufile/kv"
)

//export hbmfs_go_kv_open
func hbmfs_go_kv_open(o *C.hbmfs_kv_options, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		if o.flags&^(C.HBMFS_KV_CREATE|C.HBMFS_KV_WRITE|C.HBMFS_KV_SUMS) != 0 {
			return failf(codeInvalid, "flags %#x are not known", uint32(o.flags))
		}
		opt := kv.Options{
			Device: int(o.device), BlockBytes: int64(o.block_bytes), Mode: uint32(o.mode), Threads: int(o.threads), Client: text(o.client),
			Create: o.flags&C.HBMFS_KV_CREATE != 0, Write: o.flags&C.HBMFS_KV_WRITE != 0, Sums: o.flags&C.HBMFS_KV_SUMS != 0,
			Libraries: cufile.Libraries{CUDA: text(o.libcuda)},
		}
		if opt.Client == "" {
			opt.Client = clientName
		}
		h, err := lib.openKV(text(o.mount), text(o.namespace_), opt)
		*out = C.hbmfs_handle(h)
		return err
	})
}

// kvKeys copies the keys of a batch.
func kvKeys(b *C.hbmfs_kv_batch) ([][]byte, error) {
	lengths, err := items((*int32)(unsafe.Pointer(b.key_lengths)), b.count)
	if err != nil {
		return nil, err
	}
	total := 0
	for i, n := range lengths {
		if n < 0 || n > 1<<16 {
			return nil, failf(codeInvalid, "key %d cannot have %d bytes", i, n)
		}
		total += int(n)
	}
	if total > mostItems || total > 0 && b.keys == nil {
		return nil, failf(codeInvalid, "keys of %d bytes cannot be", total)
	}
	all := C.GoBytes(unsafe.Pointer(b.keys), C.int(total))
	keys := make([][]byte, len(lengths))
	for i, n := range lengths {
		keys[i], all = all[:n:n], all[n:]
	}
	return keys, nil
}

// kvBlocks makes blocks of a batch: each has the next of the parts.
func kvBlocks(b *C.hbmfs_kv_batch) ([]kv.Block, error) {
	keys, err := kvKeys(b)
	if err != nil {
		return nil, err
	}
	parts, err := items(b.parts, b.part_count)
	if err != nil {
		return nil, err
	}
	var counts []int64
	if b.part_counts != nil {
		if counts, err = array(b.part_counts, b.count); err != nil {
			return nil, err
		}
	}
	memory := make([]kv.Memory, len(parts))
	for i := range parts {
		if memory[i], err = memoryOf(&parts[i]); err != nil {
			return nil, err
		}
	}
	blocks := make([]kv.Block, len(keys))
	for i := range blocks {
		n := int64(1)
		if counts != nil {
			n = counts[i]
		}
		if n < 0 || n > int64(len(memory)) {
			return nil, failf(codeInvalid, "block %d has %d parts, and %d are left", i, n, len(memory))
		}
		blocks[i] = kv.Block{Key: keys[i], Parts: memory[:n:n]}
		memory = memory[n:]
	}
	if len(memory) > 0 {
		return nil, failf(codeInvalid, "%d parts are of no block", len(memory))
	}
	return blocks, nil
}

//export hbmfs_go_kv_begin
func hbmfs_go_kv_begin(h C.hbmfs_handle, what C.int32_t, b *C.hbmfs_kv_batch, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		begin, err := kvBegin(int32(what), b)
		if err != nil {
			return err
		}
		q, err := lib.beginKV(uint64(h), int(b.eventfd), begin)
		*out = C.hbmfs_handle(q)
		return err
	})
}

// The verbs, as layer_kv.c has them.
const (
	kvPut int32 = iota
	kvGet
	kvContains
	kvPin
	kvUnpin
	kvRemove
)

func kvBegin(what int32, b *C.hbmfs_kv_batch) (begin func(s *kv.Store, ended func()) (*kv.Request, error), err error) {
	var blocks []kv.Block
	var keys [][]byte
	var tokens []uint64
	switch what {
	case kvPut, kvGet:
		blocks, err = kvBlocks(b)
	case kvUnpin:
		var given []C.uint64_t
		given, err = items(b.tokens, b.count)
		for _, t := range given {
			tokens = append(tokens, uint64(t))
		}
	default:
		keys, err = kvKeys(b)
	}
	return func(s *kv.Store, ended func()) (*kv.Request, error) {
		switch what {
		case kvPut:
			return s.Put(blocks, streamOf(b.stream), ended)
		case kvGet:
			return s.Get(blocks, streamOf(b.stream), ended)
		case kvContains:
			return s.Contains(keys, ended)
		case kvPin:
			return s.Pin(keys, ended)
		case kvUnpin:
			return s.Unpin(tokens, ended)
		}
		return s.Remove(keys, ended)
	}, err
}

//export hbmfs_go_kv_wait
func hbmfs_go_kv_wait(h C.hbmfs_handle, timeout C.int64_t, result *C.hbmfs_kv_result, outcomes *C.int32_t, tokens *C.uint64_t, count C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		room, err := items(outcomes, count)
		if err != nil {
			return err
		}
		r, err := lib.waitKV(uint64(h), timeoutOf(timeout))
		for i, o := range r.Outcomes {
			if o == kv.Done {
				result.done++
			}
			if i < len(room) {
				room[i] = C.int32_t(o)
			}
			if tokens != nil && i < len(room) && i < len(r.Tokens) {
				unsafe.Slice(tokens, len(room))[i] = C.uint64_t(r.Tokens[i])
			}
		}
		result.moved = kvMoved(r.Moved)
		return err
	})
}

func kvMoved(m kv.BlockBytes) C.hbmfs_kv_moved {
	return C.hbmfs_kv_moved{mapped: C.int64_t(m.Mapped), staged: C.int64_t(m.Staged), host: C.int64_t(m.Host), memory: C.int64_t(m.Memory), disk: C.int64_t(m.Disk)}
}

//export hbmfs_go_kv_stats
func hbmfs_go_kv_stats(h C.hbmfs_handle, stats *C.hbmfs_kv_stats, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		s, err := find[*kv.Store](lib.library, uint64(h))
		if err != nil {
			return err
		}
		st := s.Stats()
		stats.block_bytes, stats.put, stats.get = C.int64_t(s.BlockBytes()), kvMoved(st.Put), kvMoved(st.Get)
		stats.stored, stats.present, stats.refused = C.int64_t(st.Stored), C.int64_t(st.Present), C.int64_t(st.Refused)
		stats.loaded, stats.missing, stats.damaged = C.int64_t(st.Loaded), C.int64_t(st.Missing), C.int64_t(st.Damaged)
		stats.requests, stats.connections, stats.pinned_bytes = C.int64_t(st.Requests), C.int64_t(st.Connections), C.int64_t(st.PinnedBytes)
		stats.direct_bytes = C.int64_t(st.Put.Direct + st.Get.Direct)
		put(stats.buffered[:], st.Buffered)
		return nil
	})
}

//export hbmfs_go_kv_clear
func hbmfs_go_kv_clear(h C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		s, err := find[*kv.Store](lib.library, uint64(h))
		if err != nil {
			return err
		}
		return kvCode(s.Clear(context.Background()))
	})
}

//export hbmfs_go_kv_close
func hbmfs_go_kv_close(h C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error { return lib.closeKV(uint64(h)) })
}
