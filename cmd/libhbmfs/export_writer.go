package main

/*
#include "libhbmfs.h"
*/
import "C"

import (
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/cufile/writer"
)

//export hbmfs_go_writer_open
func hbmfs_go_writer_open(o *C.hbmfs_writer_options, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		opt := writerOptions{method: text(o.method), require: text(o.require), hbmfs: text(o.hbmfs), Options: writer.Options{
			Device: int(o.device), Threads: int(o.threads), Arena: int64(o.arena_bytes), Rate: int64(o.rate),
			Libraries: cufile.Libraries{CUDA: text(o.libcuda), CuFile: text(o.libcufile), NVML: text(o.libnvml)},
		}}
		h, err := lib.openWriter(&opt)
		*out = C.hbmfs_handle(h)
		return err
	})
}

func writtenBytes(m writer.PathBytes) C.hbmfs_written_bytes {
	return C.hbmfs_written_bytes{direct: C.int64_t(m.Direct), mapped: C.int64_t(m.Mapped), staged: C.int64_t(m.Staged), buffered: C.int64_t(m.Buffered)}
}

//export hbmfs_go_writer_stats
func hbmfs_go_writer_stats(h C.hbmfs_handle, stats *C.hbmfs_writer_stats, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		w, err := find[*writer.Writer](lib.library, uint64(h))
		if err != nil {
			return err
		}
		if ready, err := w.IsReady(); ready && err == nil {
			stats.ready = 1
		}
		s := w.Stats()
		stats.arena_bytes, stats.moved, stats.writes = C.int64_t(w.Arena()), writtenBytes(s.Moved), C.int64_t(s.Writes)
		put(stats.path[:], string(s.Last.Path))
		put(stats.reason[:], s.Last.Why)
		return nil
	})
}

//export hbmfs_go_writer_wait_ready
func hbmfs_go_writer_wait_ready(h C.hbmfs_handle, timeout C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error { return lib.waitReady(uint64(h), timeoutOf(timeout)) })
}

//export hbmfs_go_writer_close
func hbmfs_go_writer_close(h C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error { return lib.closeWriter(uint64(h)) })
}

func memoryOf(m *C.hbmfs_memory) (writer.Memory, error) {
	switch {
	case m.reserved != 0:
		return writer.Memory{}, failf(codeInvalid, "a reserved field is not 0")
	case m.length != 0 && !(cufile.Memory{Pointer: uintptr(m.address), Length: int64(m.length)}).CanBe():
		return writer.Memory{}, failf(codeInvalid, "%d bytes at the address %#x cannot be", int64(m.length), uint64(m.address))
	case m.on_device != 0:
		return writer.Memory{HBM: uintptr(m.address), N: int64(m.length)}, nil
	}
	return writer.HostMemory(uintptr(m.address), int64(m.length)), nil
}

// streamOf is nil where there is nothing to wait for.
func streamOf(stream C.uint64_t) *uintptr {
	if stream == C.HBMFS_NO_STREAM {
		return nil
	}
	s := uintptr(stream)
	return &s
}

// items gives an array of C's, which stays C's.
func items[T any](p *T, n C.int64_t) ([]T, error) {
	if n < 0 || n > mostItems {
		return nil, failf(codeInvalid, "an array of %d entries cannot be", int64(n))
	}
	if n == 0 {
		return nil, nil
	}
	return unsafe.Slice(p, int(n)), nil
}

//export hbmfs_go_snapshot_begin
func hbmfs_go_snapshot_begin(h C.hbmfs_handle, list *C.hbmfs_memory, count C.int64_t, stream C.uint64_t, timeout C.int64_t,
	copies *C.uint64_t, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		given, err := items(list, count)
		if err != nil {
			return err
		}
		memory := make([]writer.Memory, len(given))
		for i := range given {
			if memory[i], err = memoryOf(&given[i]); err != nil {
				return err
			}
		}
		s, at, err := lib.snapshot(uint64(h), memory, streamOf(stream), timeoutOf(timeout))
		for i := range at {
			unsafe.Slice(copies, len(at))[i] = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(at[i]))))
		}
		*out = C.hbmfs_handle(s)
		return err
	})
}

//export hbmfs_go_snapshot_wait
func hbmfs_go_snapshot_wait(h C.hbmfs_handle, timeout C.int64_t, took *C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		t, err := lib.waitSnapshot(uint64(h), timeoutOf(timeout))
		*took = C.int64_t(t)
		return err
	})
}

//export hbmfs_go_snapshot_release
func hbmfs_go_snapshot_release(h C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error { return lib.releaseSnapshot(uint64(h)) })
}

// plan makes files of two arrays: each file has the next of the parts.
func plan(files []C.hbmfs_write_file, parts []C.hbmfs_write_part) ([]writer.File, error) {
	list := make([]writer.File, len(files))
	for i := range files {
		f := &files[i]
		if f.parts < 0 || int64(f.parts) > int64(len(parts)) {
			return nil, failf(codeInvalid, "file %q has %d parts, and %d are left", text(f.name), int64(f.parts), len(parts))
		}
		list[i] = writer.File{Name: text(f.name), Size: int64(f.size), Parts: make([]writer.Part, f.parts)}
		for j := range list[i].Parts {
			m, err := memoryOf(&parts[j].memory)
			if err != nil {
				return nil, err
			}
			list[i].Parts[j] = writer.Part{Offset: int64(parts[j].offset), Memory: m}
		}
		parts = parts[f.parts:]
	}
	if len(parts) > 0 {
		return nil, failf(codeInvalid, "%d parts are of no file", len(parts))
	}
	return list, nil
}

func planOf(files *C.hbmfs_write_file, fileCount C.int64_t, parts *C.hbmfs_write_part, partCount C.int64_t) ([]writer.File, error) {
	f, err := items(files, fileCount)
	if err != nil {
		return nil, err
	}
	p, err := items(parts, partCount)
	if err != nil {
		return nil, err
	}
	return plan(f, p)
}

//export hbmfs_go_write_begin
func hbmfs_go_write_begin(h C.hbmfs_handle, directory *C.char, files *C.hbmfs_write_file, fileCount C.int64_t, parts *C.hbmfs_write_part, partCount C.int64_t,
	stream C.uint64_t, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		list, err := planOf(files, fileCount, parts, partCount)
		if err != nil {
			return err
		}
		q, err := lib.write(uint64(h), text(directory), list, streamOf(stream))
		*out = C.hbmfs_handle(q)
		return err
	})
}

//export hbmfs_go_write_progress
func hbmfs_go_write_progress(h C.hbmfs_handle, written *C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		q, err := find[*writer.Write](lib.library, uint64(h))
		if err != nil {
			return err
		}
		n, _ := q.Progress()
		*written = C.int64_t(n)
		return nil
	})
}

//export hbmfs_go_write_wait
func hbmfs_go_write_wait(h C.hbmfs_handle, timeout C.int64_t, result *C.hbmfs_write_result, sums *C.uint32_t, count C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		room, err := items((*uint32)(unsafe.Pointer(sums)), count)
		if err != nil {
			return err
		}
		r, err := lib.waitWrite(uint64(h), timeoutOf(timeout), room)
		if err != nil {
			return err
		}
		result.moved, result.took_ns = writtenBytes(r.Moved), C.int64_t(r.Took)
		result.prepared_ns, result.released_ns = C.int64_t(r.Prepared), C.int64_t(r.Released)
		put(result.path[:], string(r.Choice.Path))
		put(result.reason[:], r.Choice.Why)
		return nil
	})
}
