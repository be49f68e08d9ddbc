package main

/*
#include "libhbmfs.h"
*/
import "C"

import (
	"slices"
	"unsafe"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// answerWriting is answer for calls that write: a failure of the system was not in reading.
func answerWriting(why *C.hbmfs_failure, f func() error) C.int32_t {
	result := answer(why, f)
	if result != C.int32_t(codeIO) {
		return result
	}
	if why != nil {
		why.code = C.int32_t(codeWrite)
	}
	return C.int32_t(codeWrite)
}

//export hbmfs_go_draft_begin
func hbmfs_go_draft_begin(path *C.char, part, parts C.int32_t, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answerWriting(why, func() error {
		d, err := lib.beginDraft(text(path), checkpoint.Part{Index: int(part), Of: int(parts)})
		*out = C.hbmfs_handle(d)
		return err
	})
}

//export hbmfs_go_draft_attach
func hbmfs_go_draft_attach(path *C.char, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answerWriting(why, func() error {
		d, err := lib.attachDraft(text(path))
		*out = C.hbmfs_handle(d)
		return err
	})
}

func yes(is bool) C.int32_t {
	if is {
		return 1
	}
	return 0
}

//export hbmfs_go_draft_is_in_volume
func hbmfs_go_draft_is_in_volume(h C.hbmfs_handle, is *C.int32_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		d, err := find[draftHandle](lib.library, uint64(h))
		if err == nil {
			*is = yes(d.inVolume())
		}
		return err
	})
}

//export hbmfs_go_checkpoint_in_volume
func hbmfs_go_checkpoint_in_volume(path *C.char, is *C.int32_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		in, err := inVolume(text(path))
		*is = yes(in)
		return err
	})
}

//export hbmfs_go_draft_write_begin
func hbmfs_go_draft_write_begin(h, draft C.hbmfs_handle, files *C.hbmfs_write_file, fileCount C.int64_t, parts *C.hbmfs_write_part, partCount C.int64_t,
	stream C.uint64_t, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		list, err := planOf(files, fileCount, parts, partCount)
		if err != nil {
			return err
		}
		q, err := lib.writeDraft(uint64(h), uint64(draft), list, streamOf(stream))
		*out = C.hbmfs_handle(q)
		return err
	})
}

//export hbmfs_go_draft_directory
func hbmfs_go_draft_directory(path *C.char, to *C.char, room C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		dir, err := checkpoint.DraftDir(text(path))
		if err != nil {
			return checkpointCode(err)
		}
		if int64(len(dir)) >= int64(room) {
			return failf(codeTooLarge, "the directory's path has %d bytes, and the room is for %d", len(dir)+1, int64(room))
		}
		copyOut(to, room, dir+"\x00")
		return nil
	})
}

// copyOut copies as much of a text to C's memory as there is room for.
func copyOut(to *C.char, room C.int64_t, text string) {
	if room > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(to)), int(room)), text)
	}
}

//export hbmfs_go_draft_publish
func hbmfs_go_draft_publish(h C.hbmfs_handle, files *C.hbmfs_draft_file, count C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answerWriting(why, func() error {
		if count < 0 || count > mostItems {
			return failf(codeInvalid, "%d files cannot be", int64(count))
		}
		list := make([]checkpoint.File, count)
		for i, f := range unsafe.Slice(files, int(count)) {
			if f.sums < 0 || f.sums > mostItems {
				return failf(codeInvalid, "%d sums cannot be", int64(f.sums))
			}
			list[i] = checkpoint.File{Name: text(f.name), Size: int64(f.size), Sums: slices.Clone(unsafe.Slice((*uint32)(unsafe.Pointer(f.crc32c)), int(f.sums)))}
		}
		return lib.publish(uint64(h), list)
	})
}

//export hbmfs_go_draft_drop
func hbmfs_go_draft_drop(h C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answerWriting(why, func() error { return lib.drop(uint64(h)) })
}

//export hbmfs_go_checkpoint_list
func hbmfs_go_checkpoint_list(dir *C.char, infos *C.hbmfs_checkpoint_info, room C.int64_t, count *C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		found, err := complete(text(dir))
		*count = C.int64_t(len(found))
		for i := range min(len(found), max(0, int(room))) {
			e, to := &found[i], &unsafe.Slice(infos, int(room))[i]
			put(to.name[:], e.Name)
			to.part, to.parts, to.files, to.size = C.int32_t(e.Index), C.int32_t(e.Of), C.int64_t(e.Files), C.int64_t(e.Size)
			to.created = C.int64_t(e.Created.UnixNano())
		}
		return err
	})
}

//export hbmfs_go_checkpoint_remove
func hbmfs_go_checkpoint_remove(path *C.char, why *C.hbmfs_failure) C.int32_t {
	return answerWriting(why, func() error { return removeCheckpoint(text(path)) })
}

//export hbmfs_go_checkpoint_clean
func hbmfs_go_checkpoint_clean(dir *C.char, names *C.char, room C.int64_t, length *C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answerWriting(why, func() error {
		removed, err := clean(text(dir))
		*length = C.int64_t(len(removed))
		copyOut(names, room, removed)
		return err
	})
}

//export hbmfs_go_verify_begin
func hbmfs_go_verify_begin(path *C.char, threads C.int32_t, out *C.hbmfs_handle, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		v, err := lib.beginVerify(text(path), int(threads))
		*out = C.hbmfs_handle(v)
		return err
	})
}

//export hbmfs_go_verify_wait
func hbmfs_go_verify_wait(h C.hbmfs_handle, timeout C.int64_t, out *C.hbmfs_verified, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error {
		v, err := lib.awaitVerify(uint64(h), timeoutOf(timeout))
		if v != nil {
			out.done, out.total = C.int64_t(v.bytes.Load()), C.int64_t(v.size.Load())
		}
		if v != nil && wait(v.done, 0) && v.report != nil {
			out.files, out.damaged = C.int64_t(v.report.Files), C.int64_t(v.report.Damaged)
		}
		return err
	})
}

//export hbmfs_go_verify_cancel
func hbmfs_go_verify_cancel(h C.hbmfs_handle, timeout C.int64_t, why *C.hbmfs_failure) C.int32_t {
	return answer(why, func() error { return lib.cancelVerify(uint64(h), timeoutOf(timeout)) })
}
