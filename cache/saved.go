package cache

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// Save appends the listing for [LoadListing]: little-endian varints, and strings after their length.
func (l *Listing) Save(b []byte) []byte {
	w := saver{b}
	w.uint(uint64(len(l.Objects)))
	for _, o := range l.Objects {
		w.text(o.Name)
		w.uint(uint64(o.Size))
		w.time(o.ModTime)
		w.text(o.Version)
		w.rights(o.Perm, o.UID, o.GID)
		whole := uint64(0)
		if o.Whole {
			whole = 1
		}
		w.uint(whole)
	}
	w.uint(uint64(len(l.Dirs)))
	for _, d := range l.Dirs {
		w.text(d.Name)
		w.time(d.ModTime)
		w.rights(d.Perm, d.UID, d.GID)
	}
	w.uint(uint64(len(l.Links)))
	for _, k := range l.Links {
		w.text(k.Name)
		w.text(k.Target)
		w.time(k.ModTime)
	}
	w.uint(uint64(len(l.Denied)))
	for _, d := range l.Denied {
		w.text(d.Name)
		w.text(d.Why)
	}
	w.uint(uint64(len(l.Problems)))
	for _, p := range l.Problems {
		w.text(p.Object)
		w.uint(uint64(p.Offset))
		w.text(p.Detail)
	}
	return w.b
}

// LoadListing reads what Save has written. The objects are of origin.
func LoadListing(b []byte, origin layout.Origin) (*Listing, error) {
	r := loader{b: b}
	l := &Listing{Objects: make([]*layout.Object, 0, r.count())}
	for range cap(l.Objects) {
		o := &layout.Object{Name: r.text(), Size: int64(r.uint()), ModTime: r.time(), Version: r.text(), Origin: origin}
		o.Perm, o.UID, o.GID = r.rights()
		o.Whole = r.uint() == 1
		l.Objects = append(l.Objects, o)
	}
	for range r.count() {
		d := DirEntry{Name: r.text(), ModTime: r.time()}
		d.Perm, d.UID, d.GID = r.rights()
		l.Dirs = append(l.Dirs, d)
	}
	for range r.count() {
		l.Links = append(l.Links, LinkEntry{r.text(), r.text(), r.time()})
	}
	for range r.count() {
		l.Denied = append(l.Denied, Denied{r.text(), r.text()})
	}
	for range r.count() {
		l.Problems = append(l.Problems, layout.Problem{Object: r.text(), Offset: int64(r.uint()), Detail: r.text()})
	}
	if r.short || len(r.b) > 0 || len(l.Dirs) == 0 {
		return nil, errors.New("load a listing: it is not whole")
	}
	return l, nil
}

type saver struct{ b []byte }

func (w *saver) uint(v uint64) { w.b = binary.AppendUvarint(w.b, v) }
func (w *saver) text(s string) { w.uint(uint64(len(s))); w.b = append(w.b, s...) }
func (w *saver) time(t time.Time) {
	w.b = binary.AppendVarint(w.b, t.Unix())
	w.uint(uint64(t.Nanosecond()))
}
func (w *saver) rights(perm uint16, uid, gid uint32) {
	w.uint(uint64(perm))
	w.uint(uint64(uid))
	w.uint(uint64(gid))
}

// loader reads what saver has written. Once short is set, it returns nothing.
type loader struct {
	b     []byte
	short bool
}

func (r *loader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.short = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count is a number of entries, of which each takes a byte at least.
func (r *loader) count() int {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.b, r.short = nil, true
		return 0
	}
	return int(n)
}

func (r *loader) text() string {
	n := r.count()
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *loader) time() time.Time {
	sec, n := binary.Varint(r.b)
	if n <= 0 {
		r.b, r.short = nil, true
		return time.Time{}
	}
	r.b = r.b[n:]
	return time.Unix(sec, int64(r.uint()))
}

func (r *loader) rights() (perm uint16, uid, gid uint32) {
	return uint16(r.uint()), uint32(r.uint()), uint32(r.uint())
}
