package control

import (
	"bytes"
	"syscall"
)

// NameSize is the room for a client's name in HELLO, bytes.
const NameSize = 48

// Hello is the first frame of a connection.
type Hello struct {
	Min, Max uint16 // versions that the client speaks
	Reader   uint32 // drawn by each reader for all of its connections, so that it counts as one; 0: counts as none
	Name     string // of the client, for status: at most [NameSize] bytes, printable ASCII
}

// AppendTo appends the payload.
func (m *Hello) AppendTo(b []byte) []byte {
	b = put32(b, uint32(m.Min)|uint32(m.Max)<<16, m.Reader)
	b = append(b, m.Name...)
	return pad(b, NameSize-len(m.Name))
}

// ParseHello reads the payload.
func ParseHello(p []byte) (Hello, error) {
	r := reader{rest: p}
	m := Hello{Min: r.u16(), Max: r.u16(), Reader: r.u32()}
	name, rest, _ := bytes.Cut(r.bytes(NameSize), []byte{0})
	m.Name = string(name)
	r.bad = r.bad || !isPrintable(m.Name)
	for _, c := range rest {
		r.bad = r.bad || c != 0
	}
	return m, r.end()
}

// WelcomeFlags describe the daemon's descriptors and abilities.
type WelcomeFlags uint32

// WelcomeReadOnly says that descriptors come through a read-only mount: to open one again for writing is EROFS, for root as
// well. A process with CAP_SYS_ADMIN in the daemon's mount namespace can still clone that mount and make the clone
// writable.
const WelcomeReadOnly WelcomeFlags = 1

// WelcomeDrafts says that the mount is a checkpoint volume: BEGIN makes a draft in it.
const WelcomeDrafts WelcomeFlags = 2

// WelcomeKV says that the mount is a KV volume: KV_OPEN opens a namespace of it.
const WelcomeKV WelcomeFlags = 4

// WelcomeChanges says that the daemon answers CHANGES.
const WelcomeChanges WelcomeFlags = 8

// WelcomeFields says that STATS may name fields of samples.
const WelcomeFields WelcomeFlags = 16

// Welcome answers HELLO.
type Welcome struct {
	Version   uint16 // that the connection speaks
	Flags     WelcomeFlags
	Epoch     Epoch
	MaxLeases uint32 // objects that the connection may lease
	MaxPaths  uint32 // of one LOOKUP
}

// AppendTo appends the payload.
func (m *Welcome) AppendTo(b []byte) []byte {
	b = put32(b, uint32(m.Version), uint32(m.Flags))
	return put32(append(b, m.Epoch[:]...), m.MaxLeases, m.MaxPaths)
}

// ParseWelcome reads the payload.
func ParseWelcome(p []byte) (Welcome, error) {
	r := reader{rest: p}
	m := Welcome{Version: r.u16()}
	r.zero(2)
	m.Flags, m.Epoch, m.MaxLeases, m.MaxPaths = WelcomeFlags(r.u32()), r.id(), r.u32(), r.u32()
	return m, r.end()
}

// Redeem asks for objects that a ticket names: in REDEEM for descriptors, in NAME for names. Either uses it up.
type Redeem struct {
	Ticket  Ticket
	Objects []uint64 // at most [MaxObjects]
}

// AppendTo appends the payload.
func (m *Redeem) AppendTo(b []byte) []byte {
	return appendObjects(append(b, m.Ticket[:]...), m.Objects)
}

// ParseRedeem reads the payload.
func ParseRedeem(p []byte) (Redeem, error) {
	r := reader{rest: p}
	m := Redeem{Ticket: r.id()}
	m.Objects = r.objects(MaxObjects)
	return m, r.end()
}

func appendObjects(b []byte, objects []uint64) []byte {
	return put64(put32(b, uint32(len(objects)), 0), objects...)
}

func (r *reader) objects(limit int) []uint64 {
	n := r.u32()
	r.zero(4)
	if int64(n) > int64(limit) || int64(n)*8 > int64(len(r.rest)) {
		r.bad = true
		return nil
	}
	objects := make([]uint64, n)
	for i := range objects {
		objects[i] = r.u64()
	}
	return objects
}

// AppendRelease appends the payload of RELEASE.
func AppendRelease(b []byte, objects []uint64) []byte { return appendObjects(b, objects) }

// ParseRelease reads the payload of RELEASE.
func ParseRelease(p []byte) ([]uint64, error) {
	r := reader{rest: p}
	objects := r.objects(MaxPayload / 8)
	return objects, r.end()
}

const objectSize = 48

// Object is a backing file in FDS and FILES.
type Object struct {
	ID      uint64
	Size    int64  // bytes
	Dev     uint64 // st_dev and st_ino of the backing file
	Ino     uint64
	ModTime int64         // nanoseconds since 1970
	Errno   syscall.Errno // why there is no descriptor, 0 if there is no reason
	FD      int32         // place among the message's descriptors; -1 for none
}

func (o *Object) appendTo(b []byte) []byte {
	b = put64(b, o.ID, uint64(o.Size), o.Dev, o.Ino, uint64(o.ModTime))
	return put32(b, uint32(o.Errno), uint32(o.FD))
}

func (r *reader) object() Object {
	o := Object{ID: r.u64(), Size: r.i64(), Dev: r.u64(), Ino: r.u64(), ModTime: int64(r.u64()), Errno: syscall.Errno(r.u32()), FD: int32(r.u32())}
	r.bad = r.bad || o.FD < -1 || o.FD >= MaxObjects
	return o
}

// AppendFDs appends the payload of FDS.
func AppendFDs(b []byte, objects []Object) []byte {
	b = put32(b, uint32(len(objects)), 0)
	for i := range objects {
		b = objects[i].appendTo(b)
	}
	return b
}

// ParseFDs reads the payload of FDS.
func ParseFDs(p []byte) ([]Object, error) {
	r := reader{rest: p}
	n := r.count(objectSize, MaxObjects)
	r.zero(4)
	objects := make([]Object, n)
	for i := range objects {
		objects[i] = r.object()
	}
	return objects, r.end()
}

// Ack says that the descriptors of FDS or FILES have arrived. Only then do they count as leased.
type Ack struct{ ID, Received uint32 }

// AppendTo appends the payload.
func (m *Ack) AppendTo(b []byte) []byte { return put32(b, m.ID, m.Received) }

// ParseAck reads the payload.
func ParseAck(p []byte) (Ack, error) {
	r := reader{rest: p}
	m := Ack{r.u32(), r.u32()}
	return m, r.end()
}

// MaxPaths is the most paths of one LOOKUP.
const MaxPaths = 1024

// LookupFDs asks LOOKUP for descriptors of those objects that are not leased by the connection already.
const LookupFDs = 1

// Lookup asks for many files at once.
type Lookup struct {
	Flags uint32
	Paths []string // relative to the root of the mount, without "." and "..", of at least one byte
}

// AppendTo appends the payload.
func (m *Lookup) AppendTo(b []byte) []byte {
	b = put32(b, uint32(len(m.Paths)), m.Flags)
	for _, p := range m.Paths {
		b = put32(b, uint32(len(p)))
	}
	for _, p := range m.Paths {
		b = append(b, p...)
	}
	return b
}

// ParseLookup reads the payload.
func ParseLookup(p []byte) (Lookup, error) {
	r := reader{rest: p}
	n := r.u32()
	m := Lookup{Flags: r.u32()}
	if n > MaxPaths || m.Flags&^LookupFDs != 0 {
		return Lookup{}, errMalformed
	}
	lengths := reader{rest: r.bytes(int(n) * 4)}
	for range n {
		m.Paths = append(m.Paths, string(r.bytes(int(lengths.u32()))))
	}
	return m, r.end()
}

const fileSize = 64

// File is a file in FILES.
type File struct {
	Size        int64
	Generation  uint64
	Tokens      int64 // -1 where unknown
	Alignment   int64
	Runs        int64
	Errno       syscall.Errno // why the file cannot be had; the rest is zero then
	Flags       InfoFlags
	DType       uint32
	ElementSize uint32
	First       uint32 // place of its first extent among the message's
	Extents     uint32 // that the message has of it
}

func (f *File) appendTo(b []byte) []byte {
	b = put64(b, uint64(f.Size), f.Generation, uint64(f.Tokens), uint64(f.Alignment), uint64(f.Runs))
	return put32(b, uint32(f.Errno), uint32(f.Flags), f.DType, f.ElementSize, f.First, f.Extents)
}

func (r *reader) file(extents int) File {
	f := File{
		Size: r.i64(), Generation: r.u64(), Tokens: int64(r.u64()), Alignment: r.i64(), Runs: r.i64(), Errno: syscall.Errno(r.u32()),
		Flags: InfoFlags(r.u32()), DType: r.u32(), ElementSize: r.u32(), First: r.u32(), Extents: r.u32(),
	}
	r.bad = r.bad || uint64(f.First)+uint64(f.Extents) > uint64(extents)
	return f
}

// Files answers LOOKUP for the first len(Files) of its paths; the client asks again for the rest.
type Files struct {
	Files   []File
	Extents []Extent
	Objects []Object // that the extents lie in
}

// AppendTo appends the payload.
func (m *Files) AppendTo(b []byte) []byte {
	b = put32(b, uint32(len(m.Files)), uint32(len(m.Extents)), uint32(len(m.Objects)), 0)
	for i := range m.Files {
		b = m.Files[i].appendTo(b)
	}
	for i := range m.Extents {
		b = m.Extents[i].AppendTo(b)
	}
	for i := range m.Objects {
		b = m.Objects[i].appendTo(b)
	}
	return b
}

// Room reports whether a file of n more extents and o more objects still fits into one frame.
func (m *Files) Room(n, o int) bool {
	size := 16 + (len(m.Files)+1)*fileSize + (len(m.Extents)+n)*ExtentSize + (len(m.Objects)+o)*objectSize
	return size <= MaxPayload
}

// ParseFiles reads the payload.
func ParseFiles(p []byte) (Files, error) {
	r := reader{rest: p}
	files, extents, objects := int64(r.u32()), int64(r.u32()), int64(r.u32())
	r.zero(4)
	if files*fileSize+extents*ExtentSize+objects*objectSize != int64(len(r.rest)) {
		return Files{}, errMalformed
	}
	m := Files{make([]File, files), make([]Extent, extents), make([]Object, objects)}
	for i := range m.Files {
		m.Files[i] = r.file(len(m.Extents))
	}
	for i := range m.Extents {
		m.Extents[i] = r.extent()
	}
	for i := range m.Objects {
		m.Objects[i] = r.object()
	}
	return m, r.end()
}

// Named is an object with its name at the source.
type Named struct {
	Object uint64
	Name   string // slash-separated, relative to the source
}

const namedSize = 16

// AppendNames appends the payload of NAMES: as many of the names as fit, and how many those are.
func AppendNames(b []byte, names []Named) (payload []byte, n int) {
	size := 8
	for n < len(names) && size+namedSize+len(names[n].Name) <= MaxPayload {
		size += namedSize + len(names[n].Name)
		n++
	}
	b = put32(b, uint32(n), 0)
	for _, m := range names[:n] {
		b = put32(put64(b, m.Object), uint32(len(m.Name)), 0)
	}
	for _, m := range names[:n] {
		b = append(b, m.Name...)
	}
	return b, n
}

// ParseNames reads the payload of NAMES.
func ParseNames(p []byte) ([]Named, error) {
	r := reader{rest: p}
	n := r.count(namedSize, MaxObjects)
	r.zero(4)
	table := reader{rest: r.bytes(n * namedSize)}
	names := make([]Named, n)
	for i := range names {
		names[i].Object = table.u64()
		names[i].Name = string(r.bytes(int(table.u32())))
		table.zero(4)
	}
	r.bad = r.bad || table.bad
	return names, r.end()
}

// ObjectRange is a part of a backing file.
type ObjectRange struct {
	Object uint64
	Range
}

// AppendObjectRanges appends the payload of the frame PREFETCH.
func AppendObjectRanges(b []byte, ranges []ObjectRange) []byte {
	b = put32(b, uint32(len(ranges)), 0)
	for _, g := range ranges {
		b = put64(b, g.Object, uint64(g.Offset), uint64(g.Length))
	}
	return b
}

// ParseObjectRanges reads the payload of the frame PREFETCH.
func ParseObjectRanges(p []byte) ([]ObjectRange, error) {
	r := reader{rest: p}
	n := r.count(24, MaxRanges)
	r.zero(4)
	ranges := make([]ObjectRange, n)
	for i := range ranges {
		ranges[i] = ObjectRange{r.u64(), Range{r.i64(), r.i64()}}
	}
	return ranges, r.end()
}

// Refusal is ERROR: why a request was refused. It is an error, which wraps the errno.
type Refusal struct {
	Errno syscall.Errno
	Text  string
}

// Error returns the daemon's sentence.
func (m *Refusal) Error() string { return m.Text }

// Unwrap returns the errno.
func (m *Refusal) Unwrap() error { return m.Errno }

// AppendTo appends the payload.
func (m *Refusal) AppendTo(b []byte) []byte {
	text := m.Text[:min(len(m.Text), 1024)]
	return append(put32(b, uint32(m.Errno), uint32(len(text))), text...)
}

// ParseRefusal reads the payload.
func ParseRefusal(p []byte) (Refusal, error) {
	r := reader{rest: p}
	m := Refusal{Errno: syscall.Errno(r.u32())}
	m.Text = string(r.bytes(int(r.u32())))
	return m, r.end()
}
