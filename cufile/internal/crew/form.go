package crew

import (
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Form is how a request's elements are written to its destination. Places of bytes that are read count the source's bytes: the destination
// has a place for each element, of another size.
type Form struct {
	From, Size int64 // bytes of an element: as it is read, and as it is written
	Signed     bool
	widen      func(to, from []byte) // on the host; nil: elements stay as they are

	// Row, if it is not 0, is how many elements are read for a row. The destination gets all but the last one, and Beside all but the first.
	Row    int64
	Beside Destination
}

// Element is the size of the unit that is not divided on the way.
func (d *Destination) Element() int64 {
	if d.Form == nil {
		return 1
	}
	return d.Form.From
}

// LaunchBytes is the most of an entry of a kernel's table, so that no warp works long after the others.
const LaunchBytes = 32 << 10

// Piece is the entry of a kernel's table for n bytes that the GPU reads from an address on and that go to a place. With a form they are whole elements of one row.
func (d *Destination) Piece(from driver.Pointer, place, n int64) driver.Piece {
	if d.Form == nil {
		return driver.Piece{From: from, To: d.HBM + driver.Pointer(place), N: n}
	}
	at, bytes := d.Form.Piece(place, n)
	return driver.Piece{From: from, To: driver.Pointer(at), N: int64(bytes)}
}

// Piece gives where n bytes, which are whole elements of one row, go in both outputs. It gives the element of the first
// one, and the form in which widen.cu takes their length.
func (f *Form) Piece(place, n int64) (at int64, bytes uint64) {
	at, bytes = place/f.From, uint64(n)
	if f.Row == 0 {
		return at, bytes
	}
	row, column := at/f.Row, at%f.Row
	if column == 0 {
		bytes |= driver.NotInSecond
	}
	if column+n/f.From == f.Row {
		bytes |= driver.NotInFirst
	}
	return at - row, bytes
}

// Widening is the kernel's argument for a destination of this form.
func (d *Destination) Widening() *driver.Widening {
	w := &driver.Widening{To: d.HBM, Beside: d.Form.Beside.HBM, From: uint32(d.Form.From), Size: uint32(d.Form.Size)}
	if d.Form.Signed {
		w.Signed = 1
	}
	return w
}

// Write writes elements to a place on the host, as widen.cu does on a GPU.
func (d *Destination) Write(place int64, from []byte) {
	f := d.Form
	if f == nil {
		copy(d.Host[place:], from)
		return
	}
	at, bytes := f.Piece(place, int64(len(from)))
	first, second := from, from
	if bytes&driver.NotInFirst != 0 {
		first = from[:len(from)-int(f.From)]
	}
	f.convert(d.Host[at*f.Size:], first)
	if f.Row == 0 {
		return
	}
	if bytes&driver.NotInSecond != 0 {
		second, at = from[f.From:], at+1
	}
	f.convert(f.Beside.Host[(at-1)*f.Size:], second)
}

func (f *Form) convert(to, from []byte) {
	if f.widen == nil {
		copy(to, from)
		return
	}
	f.widen(to, from)
}

// Widened is the form of integers that are read as one type and written as another. It needs a little-endian host, as all hosts with GPUs are.
func Widened[From int8 | uint8 | int16 | uint16 | int32 | uint32, To int32 | int64]() Form {
	widen := func(to, from []byte) {
		elements := numbers[From](from)
		wider := numbers[To](to)[:len(elements)]
		for i, v := range elements {
			wider[i] = To(v)
		}
	}
	return Form{From: int64(unsafe.Sizeof(From(0))), Size: int64(unsafe.Sizeof(To(0))), Signed: From(0)-1 < 0, widen: widen}
}

// numbers is memory as an array, at any alignment.
func numbers[T any](memory []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)/int(unsafe.Sizeof(*new(T))))
}
