package main

/*
#include "libhbmfs.h"
*/
import "C"

import (
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile"
)

// border has the state that the exported functions share: C callers bring no receiver.
type border struct {
	*library
	version *C.char

	// ballast counts as live memory and is never touched, so it takes none. Without it the heap has 2 MB, and the collector runs for each two
	// megabytes of garbage. It stops all threads for that, 400 times a second on an H200, which took a quarter of the rate of small batches.
	ballast []byte

	packers sync.Pool // of *order.Packer: each has megabytes, which a pack of its own would leave to the collector
}

var lib = border{library: newLibrary(), version: C.CString(version), ballast: make([]byte, 32<<20)} //nolint:gochecknoglobals // a C library has no other place for its handles

// answer runs f, and puts its error where the caller wants it. Nothing of Go's may unwind into C.
func answer(why *C.hbmfs_failure, f func() error) (result C.int32_t) {
	defer func() {
		if p := recover(); p != nil {
			result = give(why, failf(codeInternal, "libhbmfs: internal error: %v", p))
		}
	}()
	if err := f(); err != nil {
		return give(why, err)
	}
	return C.int32_t(codeOK)
}

func give(why *C.hbmfs_failure, err error) C.int32_t {
	c, errno := codeOf(err)
	if why != nil {
		why.code, why.os_errno = C.int32_t(c), C.int32_t(errno)
		put(why.text[:], err.Error())
	}
	return C.int32_t(c)
}

// put writes text into an array of C's.
func put(to []C.char, text string) {
	text = clip(text, len(to))
	for i := range len(text) {
		to[i] = C.char(text[i])
	}
	to[len(text)] = 0
}

// mostItems bounds the arrays that come in.
const mostItems = 1 << 28

// array copies an array of C's.
func array(p *C.int64_t, n C.int64_t) ([]int64, error) {
	if n < 0 || n > mostItems {
		return nil, failf(codeInvalid, "an array of %d numbers cannot be", int64(n))
	}
	if n == 0 {
		return nil, nil
	}
	return slices.Clone(unsafe.Slice((*int64)(unsafe.Pointer(p)), int(n))), nil
}

func movedBytes(m cufile.Moved) C.hbmfs_moved_bytes {
	return C.hbmfs_moved_bytes{direct: C.int64_t(m.Direct), mapped: C.int64_t(m.Mapped), staged: C.int64_t(m.Staged), compat: C.int64_t(m.Compat), host: C.int64_t(m.Host)}
}

// timeoutOf is negative for forever.
func timeoutOf(ns C.int64_t) time.Duration { return time.Duration(ns) }

func text(p *C.char) string {
	if p == nil {
		return ""
	}
	return C.GoString(p)
}

//export hbmfs_go_version
func hbmfs_go_version() *C.char { return lib.version }

//export hbmfs_go_reader_open
func hbmfs_go_reader_open(o *C.hbmfs_reader_options, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		opt := readerOptions{method: text(o.method), require: text(o.require), hbmfs: text(o.hbmfs), Options: cufile.Options{
			Device: int(o.device), Threads: int(o.threads), Readers: int(o.readers), Arena: int64(o.arena_bytes), Pinned: int64(o.pinned_bytes),
			Slot: int64(o.slot_bytes), Reuse: o.reuse != 0, Client: text(o.client), PageCache: cufile.PageCache(o.page_cache),
			Libraries: cufile.Libraries{CUDA: text(o.libcuda), CuFile: text(o.libcufile), NVML: text(o.libnvml)},
		}}
		h, err := lib.openReader(&opt)
		*out = C.hbmfs_handle(h)
		return err
	})
}

//export hbmfs_go_reader_info
func hbmfs_go_reader_info(h C.hbmfs_handle, info *C.hbmfs_reader_info, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		r, err := find[*reader](lib.library, uint64(h))
		if err != nil {
			return err
		}
		info.device, info.numa = C.int32_t(r.opt.Device), -1
		put(info.name[:], "host")
		if g := r.r.GPU(); r.opt.Device != cufile.HostDevice {
			info.numa = C.int32_t(g.NUMA)
			put(info.name[:], g.Name)
			put(info.uuid[:], g.UUID)
			put(info.pci[:], g.PCI)
		}
		put(info.method[:], string(r.opt.Path))
		put(info.note[:], r.note)
		return nil
	})
}

//export hbmfs_go_reader_stats
func hbmfs_go_reader_stats(h C.hbmfs_handle, stats *C.hbmfs_reader_stats, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		s, err := lib.readerStats(uint64(h))
		if err != nil {
			return err
		}
		stats.files, stats.requests = C.int32_t(s.files), C.int32_t(s.requests)
		stats.moved, stats.pinned_bytes, stats.reads = movedBytes(s.moved), C.int64_t(s.pinned), C.int64_t(s.reads)
		put(stats.path[:], string(s.last.Path))
		put(stats.reason[:], s.last.Why)
		stats.dropped_bytes = C.int64_t(s.dropped)
		return nil
	})
}

//export hbmfs_go_reader_close
func hbmfs_go_reader_close(h C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error { return lib.closeReader(uint64(h)) })
}

//export hbmfs_go_file_open
func hbmfs_go_file_open(h C.hbmfs_handle, path *C.char, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		f, err := lib.openFile(uint64(h), text(path))
		*out = C.hbmfs_handle(f)
		return err
	})
}

//export hbmfs_go_file_open_many
func hbmfs_go_file_open_many(h C.hbmfs_handle, paths **C.char, count C.int64_t, files *C.hbmfs_handle, codes *C.int32_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		if count < 0 || count > mostItems {
			return failf(codeInvalid, "%d files cannot be", int64(count))
		}
		names := make([]string, count)
		for i, p := range unsafe.Slice(paths, int(count)) {
			names[i] = text(p)
		}
		handles, errs, err := lib.openFiles(uint64(h), names)
		if err != nil {
			return err
		}
		for i := range handles {
			unsafe.Slice(files, int(count))[i] = C.hbmfs_handle(handles[i])
			c, _ := codeOf(errs[i])
			unsafe.Slice(codes, int(count))[i] = C.int32_t(c)
			if err == nil {
				err = errs[i]
			}
		}
		return err
	})
}

//export hbmfs_go_file_info
func hbmfs_go_file_info(h C.hbmfs_handle, info *C.hbmfs_file_info, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		i, err := lib.fileInfo(uint64(h))
		if err != nil {
			return err
		}
		if i.Mounted {
			info.mounted = 1
		}
		info.size, info.dtype, info.element_size = C.int64_t(i.Size), C.uint32_t(i.DType), C.uint32_t(i.ElementSize)
		info.tokens, info.generation, info.runs = C.int64_t(i.Tokens), C.uint64_t(i.Generation), C.int64_t(i.Runs)
		info.moved = movedBytes(i.moved)
		put(info.note[:], i.Note)
		if i.Seen {
			info.seen = 1
		}
		return nil
	})
}

//export hbmfs_go_file_uncache
func hbmfs_go_file_uncache(h C.hbmfs_handle, pageCache C.int32_t, dropped *C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		n, err := lib.uncache(uint64(h), cufile.PageCache(pageCache))
		*dropped = C.int64_t(n)
		return err
	})
}

//export hbmfs_go_file_close
func hbmfs_go_file_close(h C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error { return lib.closeFile(uint64(h)) })
}

//export hbmfs_go_prefetch
func hbmfs_go_prefetch(h C.hbmfs_handle, offsets, lengths *C.int64_t, count C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		at, err := list[int64](offsets, count)
		if err != nil {
			return err
		}
		n, err := list[int64](lengths, count)
		if err != nil {
			return err
		}
		return lib.prefetch(uint64(h), at, n)
	})
}

//export hbmfs_go_gather_begin
func hbmfs_go_gather_begin(h C.hbmfs_handle, dst C.uint64_t, room C.int64_t, offsets *C.int64_t, count, length C.int64_t, widen C.int32_t,
	stream C.uint64_t, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		list, err := array(offsets, count)
		if err != nil {
			return err
		}
		to := target(dst, room, stream)
		to.Widen = cufile.Widen(widen)
		q, err := lib.begin(uint64(h), to, list, int64(length))
		*out = C.hbmfs_handle(q)
		return err
	})
}

func target(dst C.uint64_t, room C.int64_t, stream C.uint64_t) cufile.Target {
	to := cufile.Target{Memory: cufile.Memory{Pointer: uintptr(dst), Length: int64(room)}}
	if stream != C.HBMFS_NO_STREAM {
		s := uintptr(stream)
		to.Stream = &s
	}
	return to
}

//export hbmfs_go_wait
func hbmfs_go_wait(h C.hbmfs_handle, timeout C.int64_t, result *C.hbmfs_result, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		r, err := lib.waitFor(uint64(h), timeoutOf(timeout))
		if err != nil {
			return err
		}
		result.moved = movedBytes(r.Moved)
		put(result.path[:], string(r.Choice.Path))
		put(result.reason[:], r.Choice.Why)
		return nil
	})
}

//export hbmfs_go_cancel
func hbmfs_go_cancel(h C.hbmfs_handle, timeout C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error { return lib.cancel(uint64(h), timeoutOf(timeout)) })
}

//export hbmfs_go_memory_alloc
func hbmfs_go_memory_alloc(h C.hbmfs_handle, n C.int64_t, out *C.hbmfs_handle, pointer *C.uint64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		memory, at, err := lib.alloc(uint64(h), int64(n))
		*out, *pointer = C.hbmfs_handle(memory), C.uint64_t(at)
		return err
	})
}

//export hbmfs_go_memory_copy_out
func hbmfs_go_memory_copy_out(h C.hbmfs_handle, offset, n C.int64_t, to unsafe.Pointer, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		if n < 0 {
			return failf(codeInvalid, "%d bytes cannot be copied", int64(n))
		}
		return lib.copyOut(uint64(h), unsafe.Slice((*byte)(to), int(n)), int64(offset))
	})
}

//export hbmfs_go_memory_free
func hbmfs_go_memory_free(h C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error { return lib.free(uint64(h)) })
}
