package fs

import (
	"context"

	"github.com/hbmfs/hbmfs/internal/text/varint"
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
	b, ok := m.viewRecord(n, f)
	if !ok || m.savedViews.Add(int64(len(b))) > viewsMax {
		return nil
	}
	return m.journal.Append(recordView, b)
}

// viewRecord has a view: its node, the objects of its runs, the runs. ok is false where it cannot be saved.
func (m *Mount) viewRecord(n *node, f *layout.File) (record []byte, ok bool) {
	var w varint.Writer
	w.Text(n.name)
	w.Uint(uint64(n.view.number), n.ino, uint64(n.perm), uint64(n.uid), uint64(n.gid), typeWord(f), uint64(f.Tokens))
	w.Time(n.modTime)
	w.Time(f.ModTime)
	w.Uint(uint64(f.Body.Runs()))
	for r := range f.Body.RunsWithin(0, f.Size()) {
		if !m.recordObject(&w, r.Object) || len(w.B) > viewMax {
			return nil, false
		}
		w.Uint(uint64(r.Offset), uint64(r.Length), uint64(r.Stride), uint64(r.Count))
	}
	return w.B, true
}

// guessedType is set beside a type that was guessed. Daemons before 0.2 take the lower 8 bits alone.
const guessedType = 1 << 8

func typeWord(f *layout.File) uint64 {
	if f.Guessed {
		return uint64(f.DType) | guessedType
	}
	return uint64(f.DType)
}

// recordObject writes an object: its place in the listing and one, or nothing and its bytes.
func (m *Mount) recordObject(w *varint.Writer, o *layout.Object) (ok bool) {
	if i, ok := m.listing.Index(o.Name); ok && m.listing.Objects[i] == o {
		w.Uint(uint64(i) + 1)
		return true
	}
	if !o.Synthesized() || o.Size > inlineMax {
		return false
	}
	p := make([]byte, o.Size)
	if n, _ := o.ReadAt(context.Background(), p, 0); int64(n) < o.Size { // from memory
		return false
	}
	w.Uint(0)
	w.Text(string(p))
	return true
}

// adoptView takes a view that an earlier daemon has saved. One that does not come out as it was told is built again.
func (m *Mount) adoptView(record []byte) {
	if n := m.savedView(record); n != nil {
		m.tree.set(n.view.number, n)
	}
}

// savedView reads a view, nil where it is not what was told of it.
func (m *Mount) savedView(record []byte) *node {
	r := varint.Reader{B: record}
	n := &node{kind: kindView, name: r.Text()}
	number, f := int(r.Uint()), &layout.File{}
	n.ino, n.perm, n.uid, n.gid = r.Uint(), uint16(r.Uint()), uint32(r.Uint()), uint32(r.Uint())
	word := r.Uint()
	f.DType, f.Guessed, f.Tokens = layout.DType(word), word&guessedType != 0, int64(r.Uint())
	n.modTime, f.ModTime = r.Time(), r.Time()
	inline := map[string]*layout.Object{}
	for range r.Uint() {
		o := m.savedObject(&r, inline)
		offset, length, stride, count := int64(r.Uint()), int64(r.Uint()), int64(r.Uint()), int64(r.Uint())
		if r.Short || o == nil || length <= 0 || count <= 0 || stride < length || offset < 0 || offset > o.Size-length || count-1 > (o.Size-length-offset)/stride {
			return nil
		}
		f.Body.AddStrided(o, offset, length, stride, count)
	}
	if was, ok := m.told[n.ino]; r.Short || !ok || was.size != f.Size() || was.sum != bodySum(&f.Body) {
		return nil
	}
	n.view = builtView(f)
	n.view.number = number
	return n
}

// savedObject reads an object. The same bytes are the same object.
func (m *Mount) savedObject(r *varint.Reader, inline map[string]*layout.Object) *layout.Object {
	if i := r.Uint(); i > 0 {
		if i > uint64(len(m.listing.Objects)) {
			return nil
		}
		return m.listing.Objects[i-1]
	}
	p := r.Bytes()
	if inline[string(p)] == nil {
		inline[string(p)] = layout.Inline(p)
	}
	return inline[string(p)]
}
