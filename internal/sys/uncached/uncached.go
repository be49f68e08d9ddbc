// Package uncached reads and writes slots of a file past the page cache (O_DIRECT), and through it where the filesystem does not allow that.
//
//	f := uncached.Open(file)            // its description gets O_DIRECT
//	err := f.ReadAt(p, at)              // at is a multiple of Align
//	err = f.WriteAt(p, at)
//	why := f.Buffered()                 // why the page cache is used; empty where it is not
//
// Memory may lie anywhere. Bytes that the device cannot reach at their place go through a buffer.
//
// Pitfalls. A write goes on with zeros up to the next multiple of Align, which must be the slot's. Pages that others wrote through the page cache come
// to the disk first, which costs them their cache.
package uncached

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Align divides the places of slots, and all offsets of ReadAt and WriteAt.
const Align = 4096

// Chunk is the part that goes through a buffer at a time.
const Chunk = 1 << 20

// File is an open file. Its methods may be called at once.
type File struct {
	file     *os.File
	memory   uintptr // the alignment of memory that the device reaches
	buffered atomic.Pointer[string]
	buffers  sync.Pool // of *Buffer
}

// Open takes a file over, whose description nobody else uses.
func Open(f *os.File) *File {
	u := &File{file: f, memory: Align}
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	switch known := err == nil && st.Mask&unix.STATX_DIOALIGN != 0; {
	case known && st.Dio_offset_align == 0:
		u.through("its filesystem does not allow O_DIRECT")
	case known && st.Dio_offset_align > Align:
		u.through(fmt.Sprintf("its filesystem allows O_DIRECT for multiples of %d bytes, and slots are multiples of %d", st.Dio_offset_align, Align))
	default:
		if known {
			u.memory = uintptr(max(st.Dio_mem_align, 1))
		}
		if err := u.setDirect(true); err != nil {
			u.through(fmt.Sprintf("its filesystem does not allow O_DIRECT: %v", err))
		}
	}
	return u
}

// Through takes a file over that is read and written through the page cache, and says why.
func Through(f *os.File, why string) *File {
	u := &File{file: f}
	u.through(why)
	return u
}

func (u *File) through(why string) { u.buffered.Store(&why) }

func (u *File) setDirect(on bool) error {
	flags, err := unix.FcntlInt(u.file.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if flags &^= unix.O_DIRECT; on {
		flags |= unix.O_DIRECT
	}
	_, err = unix.FcntlInt(u.file.Fd(), unix.F_SETFL, flags)
	return err
}

// Buffered says why the page cache is used. It is empty where it is not.
func (u *File) Buffered() string {
	if why := u.buffered.Load(); why != nil {
		return *why
	}
	return ""
}

// Close closes the file.
func (u *File) Close() error { return u.file.Close() }

// ReadAt fills p. It fails with io.EOF where the file ends before.
func (u *File) ReadAt(p []byte, at int64) error { return u.move(p, at, false) }

// WriteAt writes p, and zeros behind it up to the next multiple of Align.
func (u *File) WriteAt(p []byte, at int64) error { return u.move(p, at, true) }

func (u *File) move(p []byte, at int64, write bool) error {
	if u.buffered.Load() == nil {
		err := u.moveDirect(p, at, write)
		if !errors.Is(err, unix.EINVAL) { // a filesystem that does not tell its alignment
			return err
		}
		u.through("its filesystem refuses O_DIRECT where it should allow it")
		if err := u.setDirect(false); err != nil {
			return err
		}
	}
	return u.call(p, at, write)
}

func (u *File) call(p []byte, at int64, write bool) (err error) {
	if write {
		_, err = u.file.WriteAt(p, at)
	} else {
		_, err = u.file.ReadAt(p, at)
	}
	return err
}

func (u *File) moveDirect(p []byte, at int64, write bool) error {
	if whole := len(p) &^ (Align - 1); whole > 0 && uintptr(unsafe.Pointer(unsafe.SliceData(p)))%u.memory == 0 {
		if err := u.call(p[:whole], at, write); err != nil {
			return err
		}
		p, at = p[whole:], at+int64(whole)
	}
	if len(p) == 0 {
		return nil
	}
	b := u.Take()
	defer u.Give(b)
	for len(p) > 0 {
		n := min(len(p), Chunk)
		padded := b.Bytes[:(n+Align-1)&^(Align-1)]
		if write {
			copy(padded, p[:n])
			clear(padded[n:])
		}
		if err := u.call(padded, at, write); err != nil {
			return err
		}
		if !write {
			copy(p[:n], padded)
		}
		p, at = p[n:], at+int64(n)
	}
	return nil
}

// Buffer is Chunk bytes of aligned memory.
type Buffer struct{ Bytes []byte }

// NewBuffer makes one.
func NewBuffer() *Buffer {
	b := make([]byte, Chunk+Align)
	skip := -uintptr(unsafe.Pointer(&b[0])) % Align
	return &Buffer{b[skip : skip+Chunk : skip+Chunk]}
}

// Take gives a buffer, for Give to take back.
func (u *File) Take() *Buffer {
	if b, ok := u.buffers.Get().(*Buffer); ok {
		return b
	}
	return NewBuffer()
}

// Give takes a buffer back.
func (u *File) Give(b *Buffer) { u.buffers.Put(b) }
