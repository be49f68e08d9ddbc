package fs

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/text/varint"
	"github.com/hbmfs/hbmfs/layout"
)

// Views that the kernel was told of are saved, so that the next daemon serves them before it has recognized the dataset again. Those that
// are large, or compute their bytes, are built again.

// Most bytes that are saved of one view, and of all views of a life.
const (
	viewMax   = 8 << 20
	viewsMax  = 64 << 20
	inlineMax = 64 << 10 // of bytes that exist in this process alone
)

// told is an earlier answer about a view: its size, -1 where it is absent, and a digest of its extents.
type told struct {
	size int64
	sum  uint64
}

// toldViews are the views that the kernel was told of.
type toldViews struct {
	listing *cache.Listing
	journal *handover.Journal // nil where nobody holds the mount
	told    map[uint64]told   // by earlier daemons, by inode number
	saved   atomic.Int64      // bytes
}

// record records a view before the kernel hears of it. A view that contradicts an earlier daemon's answer is [cache.ErrChanged].
func (v *toldViews) record(n *node, f *layout.File) error {
	if v.journal == nil {
		return nil
	}
	ino := n.ino
	now := told{size: -1}
	if f != nil {
		now = told{f.Size(), bodySum(&f.Body)}
	}
	switch before, ok := v.told[ino]; {
	case ok && before != now:
		return fmt.Errorf("the view is not what it was before the daemon was replaced: %w", cache.ErrChanged)
	case ok:
		return nil
	}
	b := binary.LittleEndian.AppendUint64(nil, ino)
	b = binary.LittleEndian.AppendUint64(b, uint64(now.size))
	if err := v.journal.Append(recordTold, binary.LittleEndian.AppendUint64(b, now.sum)); err != nil {
		return err
	}
	return v.save(n, f)
}

// save saves a view that is built.
func (v *toldViews) save(n *node, f *layout.File) error {
	if f == nil {
		return nil
	}
	b, ok := v.encode(n, f)
	if !ok || v.saved.Add(int64(len(b))) > viewsMax {
		return nil
	}
	return v.journal.Append(recordView, b)
}

// encode writes a view: its node, the objects of its runs, the runs. ok is false where it cannot be saved.
func (v *toldViews) encode(n *node, f *layout.File) (record []byte, ok bool) {
	var w varint.Writer
	w.Text(n.name)
	w.Uint(uint64(n.view.number), n.ino, uint64(n.perm), uint64(n.uid), uint64(n.gid), typeWord(f), uint64(f.Tokens))
	w.Time(n.modTime)
	w.Time(f.ModTime)
	w.Uint(uint64(f.Body.Runs()))
	for r := range f.Body.RunsWithin(0, f.Size()) {
		if !v.writeObject(&w, r.Object) || len(w.B) > viewMax {
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

// writeObject writes an object: its place in the listing and one, or nothing and its bytes.
func (v *toldViews) writeObject(w *varint.Writer, o *layout.Object) (ok bool) {
	if i, ok := v.listing.Index(o.Name); ok && v.listing.Objects[i] == o {
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

// decode reads a view that an earlier daemon has saved, nil where it contradicts that answer.
func (v *toldViews) decode(record []byte) *node {
	r := varint.Reader{B: record}
	n := &node{kind: kindView, name: r.Text()}
	number, f := int(r.Uint()), &layout.File{}
	n.ino, n.perm, n.uid, n.gid = r.Uint(), uint16(r.Uint()), uint32(r.Uint()), uint32(r.Uint())
	word := r.Uint()
	f.DType, f.Guessed, f.Tokens = layout.DType(word), word&guessedType != 0, int64(r.Uint())
	n.modTime, f.ModTime = r.Time(), r.Time()
	inline := map[string]*layout.Object{}
	for range r.Uint() {
		o := v.readObject(&r, inline)
		offset, length, stride, count := int64(r.Uint()), int64(r.Uint()), int64(r.Uint()), int64(r.Uint())
		if r.Short || o == nil || length <= 0 || count <= 0 || stride < length || offset < 0 || offset > o.Size-length || count-1 > (o.Size-length-offset)/stride {
			return nil
		}
		f.Body.AddStrided(o, offset, length, stride, count)
	}
	if was, ok := v.told[n.ino]; r.Short || !ok || was.size != f.Size() || was.sum != bodySum(&f.Body) {
		return nil
	}
	n.view = builtView(f)
	n.view.number = number
	return n
}

// readObject reads an object. The same bytes are the same object.
func (v *toldViews) readObject(r *varint.Reader, inline map[string]*layout.Object) *layout.Object {
	if i := r.Uint(); i > 0 {
		if i > uint64(len(v.listing.Objects)) {
			return nil
		}
		return v.listing.Objects[i-1]
	}
	p := r.Bytes()
	if inline[string(p)] == nil {
		inline[string(p)] = layout.Inline(p)
	}
	return inline[string(p)]
}
