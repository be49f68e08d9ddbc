package control

// Sizes of the ioctls' structs, bytes. The kernel takes at most 16,383 bytes in and out of an ioctl on FUSE.
const (
	InfoSize           = 128
	ExtentsHeaderSize  = 96
	ExtentSize         = 56
	PrefetchHeaderSize = 32
	RangeSize          = 16

	MaxExtents = (maxIoctl - ExtentsHeaderSize) / ExtentSize // of one EXTENTS
	MaxRanges  = (maxIoctl - PrefetchHeaderSize) / RangeSize // of one PREFETCH
	MaxObjects = 64                                          // that one ticket, or one message with descriptors, names
	maxIoctl   = 1<<14 - 1
)

// Op is the operation of an ioctl.
type Op uint8

// The operations.
const (
	OpInfo     Op = 0xB0
	OpExtents  Op = 0xB1
	OpPrefetch Op = 0xB2
)

// Directions and type of a command, as include/uapi/asm-generic/ioctl.h of Linux packs them.
const (
	iocWrite = 1 << 30
	iocRead  = 2 << 30
	iocType  = 'H' << 8
)

// InfoCommand is the ioctl command of INFO.
const InfoCommand uint32 = iocRead | iocWrite | InfoSize<<16 | iocType | uint32(OpInfo)

// ExtentsCommand returns the ioctl command of EXTENTS with room for n extents, at most [MaxExtents].
func ExtentsCommand(n int) uint32 {
	return iocRead | iocWrite | uint32(ExtentsHeaderSize+n*ExtentSize)<<16 | iocType | uint32(OpExtents)
}

// PrefetchCommand returns the ioctl command of PREFETCH of n ranges, at most [MaxRanges].
func PrefetchCommand(n int) uint32 {
	return iocWrite | uint32(PrefetchHeaderSize+n*RangeSize)<<16 | iocType | uint32(OpPrefetch)
}

// ParseCommand takes a command apart: the operation, and for how many extents or ranges its size has room. It reports
// false for a command of anybody else, or of a size that the operation does not have.
func ParseCommand(command uint32) (op Op, n int, ok bool) {
	size := int(command >> 16 & maxIoctl)
	switch op = Op(command); op {
	case OpInfo:
		return op, 0, command == InfoCommand
	case OpExtents:
		n = (size - ExtentsHeaderSize) / ExtentSize
		return op, n, size >= ExtentsHeaderSize && command == ExtentsCommand(n)
	case OpPrefetch:
		n = (size - PrefetchHeaderSize) / RangeSize
		return op, n, size >= PrefetchHeaderSize && command == PrefetchCommand(n)
	}
	return 0, 0, false
}

// InfoFlags say where a file's bytes are. All but InfoWhole can be set together.
type InfoFlags uint32

// The flags of INFO, and of a file of FILES.
const (
	InfoWhole   InfoFlags = 1 << iota // the file is one backing file from its first byte to its last
	InfoMount                         // some bytes exist only in the mount
	InfoBypass                        // some bytes lie in backing files
	InfoMore                          // FILES only: more extents than were given; EXTENTS has them
	InfoCached                        // backing files are segments of a cache: they come and, unless leased, go
	InfoGuessed                       // INFO only: the values of the source's files alone show the type of the elements
)

// FileInfo is the answer to INFO.
type FileInfo struct {
	Flags       InfoFlags
	Size        int64  // bytes
	DType       uint32 // of the elements, as numbered in docs/reference/control-protocol.md; 0 where unknown
	ElementSize uint32 // bytes, 0 where unknown
	Tokens      int64  // elements of the payload, -1 where unknown
	Alignment   int64  // largest power of two that divides each extent's offset, at most 1 MiB
	Runs        int64  // extents of the whole file
	Generation  uint64 // equal for equal content; a remount may change it all the same
	Epoch       Epoch
}

// AppendTo appends the struct as it comes out of the ioctl.
func (i *FileInfo) AppendTo(b []byte) []byte {
	b = put32(b, Version, uint32(i.Flags))
	b = put64(b, uint64(i.Size))
	b = put32(b, i.DType, i.ElementSize)
	b = put64(b, uint64(i.Tokens), uint64(i.Alignment), uint64(i.Runs), i.Generation)
	return pad(append(b, i.Epoch[:]...), InfoSize-72)
}

// ParseFileInfo reads the struct that came out of the ioctl.
func ParseFileInfo(p []byte) (FileInfo, error) {
	r := reader{rest: p}
	r.bad = r.u32() != Version
	i := FileInfo{
		Flags: InfoFlags(r.u32()), Size: r.i64(), DType: r.u32(), ElementSize: r.u32(), Tokens: int64(r.u64()),
		Alignment: r.i64(), Runs: r.i64(), Generation: r.u64(), Epoch: r.id(),
	}
	r.zero(InfoSize - 72)
	return i, r.end()
}

// ParseInfoRequest checks the request of INFO: the version, and flags that must be zero.
func ParseInfoRequest(p []byte) error {
	r := reader{rest: p}
	r.bad = r.u32() != Version
	r.zero(4)
	r.bytes(InfoSize - 8)
	return r.end()
}

// ExtentsFlags ask for variants of EXTENTS, and describe the answer.
type ExtentsFlags uint32

// The flags of EXTENTS. ExtentsCount and ExtentsTicket go in; ExtentsLast and ExtentsTicket come out.
const (
	ExtentsCount  ExtentsFlags = 1 << iota // in: give no extents, only their number
	ExtentsTicket                          // in: a ticket is wanted; out: there is one
	ExtentsLast                            // out: the range ends with this answer
)

// ExtentsRequest is the request of EXTENTS.
type ExtentsRequest struct {
	Flags  ExtentsFlags
	Offset int64 // in the file, bytes
	Length int64 // bytes; beyond the end of the file there is nothing
	Cursor int64 // 0 at first, then that of the last answer
}

// AppendTo appends the header as it goes into the ioctl.
func (q *ExtentsRequest) AppendTo(b []byte) []byte {
	b = put32(b, Version, uint32(q.Flags))
	b = put64(b, uint64(q.Offset), uint64(q.Length), uint64(q.Cursor))
	return pad(b, ExtentsHeaderSize-32)
}

// ParseExtentsRequest reads the header that went into the ioctl. The room for extents behind the header may hold anything.
func ParseExtentsRequest(p []byte) (ExtentsRequest, error) {
	r := reader{rest: p}
	r.bad = r.u32() != Version
	q := ExtentsRequest{ExtentsFlags(r.u32()), r.i64(), r.i64(), r.i64()}
	r.zero(ExtentsHeaderSize - 32)
	if q.Flags&^(ExtentsCount|ExtentsTicket) != 0 || (q.Cursor != 0 && (q.Cursor < q.Offset || q.Cursor-q.Offset > q.Length)) {
		r.bad = true
	}
	r.rest = nil
	return q, r.end()
}

// ExtentFlags tell the kind of an extent's bytes.
type ExtentFlags uint32

// The flags of an extent. Readers refuse flags that they do not know.
const (
	ExtentMount   ExtentFlags = 1 << iota // the bytes lie in no backing file: read them from the file itself
	ExtentPending                         // with ExtentMount: they will lie in one once they are on this machine
	ExtentEncoded                         // reserved: the bytes are compressed in the backing file
)

// Extent is Count equally spaced pieces of Length bytes: piece k is at Logical + k*Length of the file, and at
// Offset + k*Stride of the object.
type Extent struct {
	Logical int64 // of the first piece, bytes
	Length  int64 // of one piece, bytes
	Offset  int64 // of the first piece in the object, bytes
	Object  uint64
	Stride  int64 // from one piece to the next in the object, bytes
	Count   int64
	Flags   ExtentFlags
}

// End returns where the extent's last piece ends in the file.
func (e *Extent) End() int64 { return e.Logical + e.Length*e.Count }

// AppendTo appends the 56 bytes of the extent.
func (e *Extent) AppendTo(b []byte) []byte {
	b = put64(b, uint64(e.Logical), uint64(e.Length), uint64(e.Offset), e.Object, uint64(e.Stride), uint64(e.Count))
	return put32(b, uint32(e.Flags), 0)
}

// extent reads an extent and checks that its arithmetic stays within 63 bits.
func (r *reader) extent() Extent {
	e := Extent{
		Logical: r.i64(), Length: r.i64(), Offset: r.i64(), Object: r.u64(), Stride: r.i64(), Count: r.i64(), Flags: ExtentFlags(r.u32()),
	}
	r.zero(4)
	const most = 1<<63 - 1
	switch {
	case e.Length == 0, e.Count == 0, e.Stride < e.Length,
		e.Length > (most-e.Logical)/e.Count,                            // End
		e.Offset > most-e.Length,                                       // of the first piece
		e.Count > 1 && e.Stride > (most-e.Offset-e.Length)/(e.Count-1): // of the last
		r.bad = true
	}
	return e
}

// Batch is the answer to EXTENTS.
type Batch struct {
	Flags   ExtentsFlags
	Offset  int64 // as asked for
	Length  int64
	Cursor  int64  // of the next request
	Ticket  Ticket // for the objects of these extents, if ExtentsTicket is set
	Epoch   Epoch
	Total   int64 // extents of the range from the request's cursor on, those of this answer included
	Extents []Extent
}

// Last reports whether the range ends with this answer.
func (a *Batch) Last() bool { return a.Flags&ExtentsLast != 0 }

// Objects returns the objects that the extents lie in, each once, in the order of their first extent.
func (a *Batch) Objects() []uint64 {
	var objects []uint64
	seen := map[uint64]bool{0: true} // 0 is the mount itself
	for _, e := range a.Extents {
		if !seen[e.Object] {
			seen[e.Object] = true
			objects = append(objects, e.Object)
		}
	}
	return objects
}

// AppendTo appends the header and the extents, without the room that is left.
func (a *Batch) AppendTo(b []byte) []byte {
	b = put32(b, Version, uint32(a.Flags))
	b = put64(b, uint64(a.Offset), uint64(a.Length), uint64(a.Cursor))
	b = put32(b, uint32(len(a.Extents)), 0)
	b = append(append(b, a.Ticket[:]...), a.Epoch[:]...)
	b = pad(put64(b, uint64(a.Total)), ExtentsHeaderSize-80)
	for i := range a.Extents {
		b = a.Extents[i].AppendTo(b)
	}
	return b
}

// ParseBatch reads the struct that came out of the ioctl, and ignores the room that is left.
func ParseBatch(p []byte) (Batch, error) {
	r := reader{rest: p}
	r.bad = r.u32() != Version
	a := Batch{Flags: ExtentsFlags(r.u32()), Offset: r.i64(), Length: r.i64(), Cursor: r.i64()}
	n := int(r.u32())
	r.zero(4)
	a.Ticket, a.Epoch, a.Total = r.id(), r.id(), r.i64()
	r.zero(ExtentsHeaderSize - 80)
	if n > len(r.rest)/ExtentSize {
		return Batch{}, errMalformed
	}
	for range n {
		a.Extents = append(a.Extents, r.extent())
	}
	r.rest = nil
	return a, r.end()
}

// Range is a part of a file.
type Range struct{ Offset, Length int64 }

// AppendPrefetch appends the request of PREFETCH.
func AppendPrefetch(b []byte, ranges []Range) []byte {
	b = pad(put32(b, Version, 0, uint32(len(ranges)), 0), PrefetchHeaderSize-16)
	for _, g := range ranges {
		b = put64(b, uint64(g.Offset), uint64(g.Length))
	}
	return b
}

// ParsePrefetch reads the request of PREFETCH.
func ParsePrefetch(p []byte) ([]Range, error) {
	r := reader{rest: p}
	r.bad = r.u32() != Version
	r.zero(4)
	n := r.u32()
	r.zero(PrefetchHeaderSize - 12)
	if int64(n)*RangeSize != int64(len(r.rest)) {
		return nil, errMalformed
	}
	ranges := make([]Range, n)
	for i := range ranges {
		ranges[i] = Range{r.i64(), r.i64()}
	}
	return ranges, r.end()
}
