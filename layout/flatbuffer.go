package layout

import (
	"encoding/binary"
	"fmt"
)

// flatbuffer reads a buffer of google/flatbuffers (docs/source/internals.md) that nobody has verified: every place is
// checked when it is followed. After the first failure all reads give zero values, and err is that failure.
type flatbuffer struct {
	buf []byte
	err error
}

// flatTable is a table of a flatbuffer; the zero value has no fields.
type flatTable struct {
	f      *flatbuffer
	pos    int64 // of the table in buf
	size   int64
	vtable []byte // of the fields alone
}

// flatVector is n elements of width bytes, beginning at pos.
type flatVector struct {
	f             *flatbuffer
	pos, n, width int64
}

func (f *flatbuffer) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

// bytes returns n bytes at pos, or nil when they are not all there.
func (f *flatbuffer) bytes(pos, n int64) []byte {
	if f.err != nil {
		return nil
	}
	if size := int64(len(f.buf)); pos < 0 || n < 0 || n > size || pos > size-n {
		f.fail("%d bytes at %d of the metadata are referred to, it has %d", n, pos, size)
		return nil
	}
	return f.buf[pos : pos+n]
}

func (f *flatbuffer) u16(pos int64) int64 {
	if p := f.bytes(pos, 2); p != nil {
		return int64(binary.LittleEndian.Uint16(p))
	}
	return 0
}

func (f *flatbuffer) u32(pos int64) int64 {
	if p := f.bytes(pos, 4); p != nil {
		return int64(binary.LittleEndian.Uint32(p))
	}
	return 0
}

func (f *flatbuffer) i64(pos int64) int64 {
	if p := f.bytes(pos, 8); p != nil {
		return int64(binary.LittleEndian.Uint64(p))
	}
	return 0
}

func (f *flatbuffer) root() flatTable { return f.table(f.u32(0)) }

func (f *flatbuffer) table(pos int64) flatTable {
	at := pos - int64(int32(f.u32(pos))) // of the vtable
	length, size := f.u16(at), f.u16(at+2)
	if f.err == nil && (length < 4 || size < 4) {
		f.fail("a vtable of %d bytes for a table of %d, at %d of the metadata", length, size, at)
	}
	vtable := f.bytes(at, length)
	f.bytes(pos, size)
	if f.err != nil {
		return flatTable{}
	}
	return flatTable{f, pos, size, vtable[4:]}
}

// field returns where field i of width bytes lies; ok is false when the table leaves it out.
func (t flatTable) field(i int, width int64) (pos int64, ok bool) {
	if len(t.vtable) < 2*i+2 {
		return 0, false
	}
	off := int64(binary.LittleEndian.Uint16(t.vtable[2*i:]))
	if off == 0 {
		return 0, false
	}
	if off < 4 || off > t.size-width {
		t.f.fail("field %d of a table at %d of the metadata lies outside it", i, t.pos)
		return 0, false
	}
	return t.pos + off, true
}

// number returns the signed integer of width bytes in field i, 0 if the table leaves it out.
func (t flatTable) number(i int, width int64) int64 {
	pos, ok := t.field(i, width)
	if !ok {
		return 0
	}
	switch width {
	case 1:
		if p := t.f.bytes(pos, 1); p != nil {
			return int64(int8(p[0]))
		}
		return 0
	case 2:
		return int64(int16(t.f.u16(pos)))
	case 4:
		return int64(int32(t.f.u32(pos)))
	}
	return t.f.i64(pos)
}

// reference returns the object that the offset in field i refers to.
func (t flatTable) reference(i int) (pos int64, ok bool) {
	pos, ok = t.field(i, 4)
	if !ok {
		return 0, false
	}
	return pos + t.f.u32(pos), t.f.err == nil
}

// has reports whether the table has field i, an offset.
func (t flatTable) has(i int) bool {
	_, ok := t.field(i, 4)
	return ok
}

func (t flatTable) table(i int) flatTable {
	pos, ok := t.reference(i)
	if !ok {
		return flatTable{}
	}
	return t.f.table(pos)
}

// text returns a part of the buffer: any number of tables may refer to one text.
func (t flatTable) text(i int) []byte {
	v := t.vector(i, 1)
	if v.n == 0 {
		return nil
	}
	return v.f.bytes(v.pos, v.n)
}

func (t flatTable) vector(i int, width int64) flatVector {
	pos, ok := t.reference(i)
	if !ok {
		return flatVector{}
	}
	n := t.f.u32(pos)
	t.f.bytes(pos+4, n*width) // n is below 2^32, and width at most 16
	if t.f.err != nil {
		return flatVector{}
	}
	return flatVector{t.f, pos + 4, n, width}
}

// at returns where element i begins.
func (v flatVector) at(i int64) int64 {
	if i < 0 || i >= v.n {
		if v.f != nil {
			v.f.fail("entry %d of a vector of %d is referred to", i, v.n)
		}
		return -1
	}
	return v.pos + i*v.width
}

// table returns element i of a vector of tables.
func (v flatVector) table(i int64) flatTable {
	pos := v.at(i)
	return v.f.table(pos + v.f.u32(pos))
}

// pair returns element i of a vector of structs of two i64.
func (v flatVector) pair(i int64) (a, b int64) {
	if v.f == nil {
		return 0, 0
	}
	pos := v.at(i)
	return v.f.i64(pos), v.f.i64(pos + 8)
}
