package fs

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// Views that the kernel was told of are saved, so that the next daemon serves them before it has recognized the dataset again. Those that
// are large, or compute their bytes, are built again.

// What is saved of views, bytes: of one, and of all of a life.
const (
	viewMax   = 8 << 20
	viewsMax  = 64 << 20
	inlineMax = 64 << 10 // of bytes that exist in this process alone
)

// recordView saves a view that is built.
func (m *Mount) recordView(n *node, f *layout.File) error {
	if f == nil {
		return nil
	}
	b, ok := m.appendView(nil, n, f)
	if !ok || m.savedViews.Add(int64(len(b))) > viewsMax {
		return nil
	}
	return m.journal.Append(recordView, b)
}

// appendView writes a view as varints: its node, the objects of its runs, the runs. ok is false where it cannot be saved.
func (m *Mount) appendView(b []byte, n *node, f *layout.File) (_ []byte, ok bool) {
	b = binary.AppendUvarint(b, uint64(len(n.name)))
	b = append(b, n.name...)
	for _, v := range []uint64{uint64(n.view.number), n.ino, uint64(n.perm), uint64(n.uid), uint64(n.gid), uint64(f.DType), uint64(f.Tokens)} {
		b = binary.AppendUvarint(b, v)
	}
	for _, t := range []time.Time{n.modTime, f.ModTime} {
		b = binary.AppendUvarint(binary.AppendVarint(b, t.Unix()), uint64(t.Nanosecond()))
	}
	b = binary.AppendUvarint(b, uint64(f.Body.Runs()))
	for r := range f.Body.RunsWithin(0, f.Size()) {
		if b, ok = m.appendObject(b, r.Object); !ok || len(b) > viewMax {
			return nil, false
		}
		for _, v := range []int64{r.Offset, r.Length, r.Stride, r.Count} {
			b = binary.AppendUvarint(b, uint64(v))
		}
	}
	return b, true
}

// appendObject writes an object: its place in the listing and one, or nothing and its bytes.
func (m *Mount) appendObject(b []byte, o *layout.Object) (_ []byte, ok bool) {
	if i, ok := m.listing.Index(o.Name); ok && m.listing.Objects[i] == o {
		return binary.AppendUvarint(b, uint64(i)+1), true
	}
	if !o.Synthesized() || o.Size > inlineMax {
		return nil, false
	}
	p := make([]byte, o.Size)
	if n, _ := o.ReadAt(context.Background(), p, 0); int64(n) < o.Size { // from memory
		return nil, false
	}
	return append(binary.AppendUvarint(append(b, 0), uint64(len(p))), p...), true
}

// adoptView takes a view that an earlier daemon has saved. One that does not come out as it was told is built again.
func (m *Mount) adoptView(record []byte) {
	if n := m.savedView(record); n != nil {
		m.tree.set(n.view.number, n)
	}
}

// savedView reads a view, nil where it is not what was told of it.
func (m *Mount) savedView(record []byte) *node {
	r := viewReader{b: record}
	n := &node{kind: kindView, name: string(r.bytes())}
	number, f := int(r.uint()), &layout.File{}
	n.ino, n.perm, n.uid, n.gid = r.uint(), uint16(r.uint()), uint32(r.uint()), uint32(r.uint())
	f.DType, f.Tokens = layout.DType(r.uint()), int64(r.uint())
	n.modTime, f.ModTime = r.time(), r.time()
	inline := map[string]*layout.Object{}
	for range r.uint() {
		o := m.savedObject(&r, inline)
		offset, length, stride, count := int64(r.uint()), int64(r.uint()), int64(r.uint()), int64(r.uint())
		if r.failed || o == nil || length <= 0 || count <= 0 || stride < length || offset < 0 || offset > o.Size-length || count-1 > (o.Size-length-offset)/stride {
			return nil
		}
		f.Body.AddStrided(o, offset, length, stride, count)
	}
	if was, ok := m.told[n.ino]; r.failed || !ok || was.size != f.Size() || was.sum != bodySum(&f.Body) {
		return nil
	}
	n.view = builtView(f)
	n.view.number = number
	return n
}

// savedObject reads an object. The same bytes are the same object.
func (m *Mount) savedObject(r *viewReader, inline map[string]*layout.Object) *layout.Object {
	if i := r.uint(); i > 0 {
		if i > uint64(len(m.listing.Objects)) {
			return nil
		}
		return m.listing.Objects[i-1]
	}
	p := r.bytes()
	if inline[string(p)] == nil {
		inline[string(p)] = layout.Inline(p)
	}
	return inline[string(p)]
}

// viewReader reads what appendView has written. Once it has failed, it gives nothing.
type viewReader struct {
	b      []byte
	failed bool
}

func (r *viewReader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.failed = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *viewReader) bytes() []byte {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.b, r.failed = nil, true
		return nil
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

func (r *viewReader) time() time.Time {
	sec, n := binary.Varint(r.b)
	if n <= 0 {
		r.b, r.failed = nil, true
		return time.Time{}
	}
	r.b = r.b[n:]
	return time.Unix(sec, int64(r.uint()))
}
