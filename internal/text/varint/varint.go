// Package varint writes and reads the records that a daemon leaves to the next: varints of encoding/binary, and bytes after
// their length.
package varint

import (
	"encoding/binary"
	"time"
)

// Writer appends to B.
type Writer struct{ B []byte }

// Uint appends numbers.
func (w *Writer) Uint(numbers ...uint64) {
	for _, v := range numbers {
		w.B = binary.AppendUvarint(w.B, v)
	}
}

// Text appends a length and bytes.
func (w *Writer) Text(s string) {
	w.Uint(uint64(len(s)))
	w.B = append(w.B, s...)
}

// Time appends seconds, signed, and nanoseconds.
func (w *Writer) Time(t time.Time) {
	w.B = binary.AppendVarint(w.B, t.Unix())
	w.Uint(uint64(t.Nanosecond()))
}

// Reader takes values from the front of B, as a Writer has appended them. Where B ends too early, it sets Short, and gives zeros
// from then on.
type Reader struct {
	B     []byte
	Short bool
}

// Whole reports whether all was there, and nothing is left.
func (r *Reader) Whole() bool { return !r.Short && len(r.B) == 0 }

func (r *Reader) cut() {
	r.B, r.Short = nil, true
}

// Uint takes a number.
func (r *Reader) Uint() uint64 {
	v, n := binary.Uvarint(r.B)
	if n <= 0 {
		r.cut()
		return 0
	}
	r.B = r.B[n:]
	return v
}

// Count takes a number of things that follow, of which each has a byte at least. So no allocation is larger than B.
func (r *Reader) Count() int {
	n := r.Uint()
	if n > uint64(len(r.B)) {
		r.cut()
		return 0
	}
	return int(n)
}

// Bytes takes a length and bytes, which stay those of B.
func (r *Reader) Bytes() []byte {
	n := r.Count()
	p := r.B[:n:n]
	r.B = r.B[n:]
	return p
}

// Text takes a length and bytes.
func (r *Reader) Text() string { return string(r.Bytes()) }

// Time takes a time.
func (r *Reader) Time() time.Time {
	sec, n := binary.Varint(r.B)
	if n <= 0 {
		r.cut()
		return time.Time{}
	}
	r.B = r.B[n:]
	nanoseconds := r.Uint()
	if r.Short {
		return time.Time{}
	}
	return time.Unix(sec, int64(nanoseconds))
}
