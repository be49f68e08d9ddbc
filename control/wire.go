package control

import (
	"encoding/binary"
	"errors"
)

// Version is the version of the protocol that this package speaks, in ioctls and in frames.
const Version = 1

// Epoch is a random number that is drawn for each mount. Answers of another epoch are void.
type Epoch [16]byte

// Ticket authorizes its holder to redeem, once, the objects of the answer that it came with.
type Ticket [16]byte

// errMalformed is the error of every parser of this package for bytes that are not exactly one message.
var errMalformed = errors.New("malformed message")

// reader reads little-endian fields off the front of a message. Once the bytes run out, bad is set and all is zero.
type reader struct {
	rest []byte
	bad  bool
}

// bytes returns the next n bytes, or nil.
func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.bad, r.rest = true, nil
		return nil
	}
	p := r.rest[:n:n]
	r.rest = r.rest[n:]
	return p
}

func (r *reader) u16() uint16 {
	if p := r.bytes(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if p := r.bytes(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if p := r.bytes(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// i64 is a size or an offset, which is never negative.
func (r *reader) i64() int64 {
	v := int64(r.u64())
	if v < 0 {
		r.bad = true
	}
	return v
}

func (r *reader) id() (id [16]byte) {
	copy(id[:], r.bytes(16))
	return id
}

// zero reads n reserved bytes, which must be zero so that they can get a meaning later.
func (r *reader) zero(n int) {
	for _, b := range r.bytes(n) {
		r.bad = r.bad || b != 0
	}
}

// count reads a number of entries that are size bytes each, at most limit and no more than the rest can hold.
func (r *reader) count(size, limit int) int {
	n := r.u32()
	if int64(n) > int64(limit) || int64(n)*int64(size) > int64(len(r.rest)) {
		r.bad = true
		return 0
	}
	return int(n)
}

// end returns an error unless the message was read to its last byte without a fault.
func (r *reader) end() error {
	if r.bad || len(r.rest) != 0 {
		return errMalformed
	}
	return nil
}

func put32(b []byte, v ...uint32) []byte {
	for _, v := range v {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func put64(b []byte, v ...uint64) []byte {
	for _, v := range v {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func pad(b []byte, n int) []byte { return append(b, make([]byte, n)...) }
