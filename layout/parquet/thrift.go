package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errThrift says that metadata is cut off or no Thrift.
var errThrift = errors.New("the metadata is broken")

// The types of Thrift's compact protocol (apache/thrift, doc/specs/thrift-compact-protocol.md).
const (
	thriftStop = iota
	thriftTrue
	thriftFalse
	thriftI8
	thriftI16
	thriftI32
	thriftI64
	thriftDouble
	thriftBinary
	thriftList
	thriftSet
	thriftMap
	thriftStruct
	thriftUUID
)

// maxThriftDepth bounds how deep structs and lists lie in each other.
const maxThriftDepth = 32

// thrift reads the compact protocol. After a mistake all that it gives is zero, and err is set. A list is never
// believed to have more elements than bytes follow.
type thrift struct {
	buf   []byte
	at    int
	depth int
	left  int64 // bytes that objects which are made of it may take
	err   error
}

// errRoom says that metadata of few bytes takes much memory.
var errRoom = errors.New("too much is described")

// take counts the bytes of an object that is made of the metadata.
func (t *thrift) take(n int64) {
	if t.left -= n; t.left < 0 {
		t.fail("%w", errRoom)
	}
}

func (t *thrift) fail(format string, args ...any) {
	if t.err == nil {
		t.err = fmt.Errorf("%w at its byte %d: %w", errThrift, t.at, fmt.Errorf(format, args...))
	}
	t.at = len(t.buf)
}

func (t *thrift) byte() byte {
	if t.at >= len(t.buf) {
		t.fail("it is cut off")
		return 0
	}
	t.at++
	return t.buf[t.at-1]
}

func (t *thrift) uvarint() uint64 {
	v, n := binary.Uvarint(t.buf[t.at:])
	if n <= 0 {
		t.fail("a number is cut off")
		return 0
	}
	t.at += n
	return v
}

// number reads an integer of any width.
func (t *thrift) number(kind byte) int64 {
	switch kind {
	case thriftI8:
		return int64(int8(t.byte()))
	case thriftI16, thriftI32, thriftI64:
		v := t.uvarint()
		return int64(v>>1) ^ -int64(v&1)
	}
	t.fail("type %d stands where an integer is expected", kind)
	return 0
}

func (t *thrift) bytes(kind byte) []byte {
	if kind != thriftBinary {
		t.fail("type %d stands where a string is expected", kind)
		return nil
	}
	n := t.uvarint()
	if n > uint64(len(t.buf)-t.at) {
		t.fail("a string has %d bytes, %d follow", n, len(t.buf)-t.at)
		return nil
	}
	t.at += int(n)
	return t.buf[t.at-int(n) : t.at]
}

// fields calls each for every field of a struct. each reads the value, or returns false to skip it.
func (t *thrift) fields(kind byte, each func(id int, kind byte) bool) {
	if kind != thriftStruct {
		t.fail("type %d stands where a struct is expected", kind)
		return
	}
	if t.depth++; t.depth > maxThriftDepth {
		t.fail("it is nested more than %d deep", maxThriftDepth)
	}
	defer func() { t.depth-- }()
	for id := 0; t.err == nil; {
		b := t.byte()
		if b == thriftStop {
			return
		}
		if b>>4 != 0 {
			id += int(b >> 4)
		} else {
			id = int(t.number(thriftI16))
		}
		if !each(id, b&15) {
			t.skip(b & 15)
		}
	}
}

// numbers reads a struct, the integers among its fields by their ids. The other fields are for each, or skipped where that is nil.
func (t *thrift) numbers(kind byte, into map[int]*int64, each func(id int, kind byte) bool) {
	t.fields(kind, func(id int, kind byte) bool {
		if to := into[id]; to != nil {
			*to = t.number(kind)
			return true
		}
		return each != nil && each(id, kind)
	})
}

// list calls each for every element of a list, of which there are at most as many as bytes.
func (t *thrift) list(kind byte, each func(kind byte)) {
	if kind != thriftList && kind != thriftSet {
		t.fail("type %d stands where a list is expected", kind)
		return
	}
	if t.depth++; t.depth > maxThriftDepth {
		t.fail("it is nested more than %d deep", maxThriftDepth)
	}
	defer func() { t.depth-- }()
	b := t.byte()
	n := uint64(b >> 4)
	if n == 15 {
		n = t.uvarint()
	}
	if n > uint64(len(t.buf)-t.at) {
		t.fail("a list has %d elements, %d bytes follow", n, len(t.buf)-t.at)
	}
	for ; n > 0 && t.err == nil; n-- {
		each(b & 15)
	}
}

func (t *thrift) skip(kind byte) {
	switch kind {
	case thriftTrue, thriftFalse:
	case thriftI8:
		t.byte()
	case thriftI16, thriftI32, thriftI64:
		t.uvarint()
	case thriftDouble, thriftUUID:
		n := 8
		if kind == thriftUUID {
			n = 16
		}
		if n > len(t.buf)-t.at {
			t.fail("it is cut off")
			return
		}
		t.at += n
	case thriftBinary:
		t.bytes(kind)
	case thriftList, thriftSet:
		t.list(kind, t.skipElement)
	case thriftMap:
		n := t.uvarint()
		if n == 0 {
			return
		}
		if n > uint64(len(t.buf)-t.at) {
			t.fail("a map has %d entries, %d bytes follow", n, len(t.buf)-t.at)
		}
		for kinds := t.byte(); n > 0 && t.err == nil; n-- {
			t.skipElement(kinds >> 4)
			t.skipElement(kinds & 15)
		}
	case thriftStruct:
		t.fields(kind, func(int, byte) bool { return false })
	default:
		t.fail("type %d is not known", kind)
	}
}

// skipElement skips a value in a list, where a truth value takes a byte.
func (t *thrift) skipElement(kind byte) {
	if kind == thriftTrue || kind == thriftFalse {
		t.byte()
		return
	}
	t.skip(kind)
}
