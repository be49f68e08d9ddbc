package cache

import (
	"errors"

	"github.com/hbmfs/hbmfs/internal/text/varint"
	"github.com/hbmfs/hbmfs/layout"
)

// Save appends the listing for [LoadListing]: little-endian varints, and strings after their length.
func (l *Listing) Save(b []byte) []byte {
	w := varint.Writer{B: b}
	w.Uint(uint64(len(l.Objects)))
	for _, o := range l.Objects {
		w.Text(o.Name)
		w.Uint(uint64(o.Size))
		w.Time(o.ModTime)
		w.Text(o.Version)
		appendRights(&w, o.Perm, o.UID, o.GID)
		whole := uint64(0)
		if o.Whole {
			whole = 1
		}
		w.Uint(whole)
	}
	w.Uint(uint64(len(l.Dirs)))
	for _, d := range l.Dirs {
		w.Text(d.Name)
		w.Time(d.ModTime)
		appendRights(&w, d.Perm, d.UID, d.GID)
	}
	w.Uint(uint64(len(l.Links)))
	for _, k := range l.Links {
		w.Text(k.Name)
		w.Text(k.Target)
		w.Time(k.ModTime)
	}
	w.Uint(uint64(len(l.Denied)))
	for _, d := range l.Denied {
		w.Text(d.Name)
		w.Text(d.Why)
	}
	w.Uint(uint64(len(l.Problems)))
	for _, p := range l.Problems {
		w.Text(p.Object)
		w.Uint(uint64(p.Offset))
		w.Text(p.Detail)
	}
	return w.B
}

// LoadListing reads a listing that Save has written. The objects are of origin.
func LoadListing(b []byte, origin layout.Origin) (*Listing, error) {
	r := varint.Reader{B: b}
	l := &Listing{Objects: make([]*layout.Object, 0, r.Count())}
	for range cap(l.Objects) {
		o := &layout.Object{Name: r.Text(), Size: int64(r.Uint()), ModTime: r.Time(), Version: r.Text(), Origin: origin}
		o.Perm, o.UID, o.GID = takeRights(&r)
		o.Whole = r.Uint() == 1
		l.Objects = append(l.Objects, o)
	}
	for range r.Count() {
		d := DirEntry{Name: r.Text(), ModTime: r.Time()}
		d.Perm, d.UID, d.GID = takeRights(&r)
		l.Dirs = append(l.Dirs, d)
	}
	for range r.Count() {
		l.Links = append(l.Links, LinkEntry{r.Text(), r.Text(), r.Time()})
	}
	for range r.Count() {
		l.Denied = append(l.Denied, Denied{r.Text(), r.Text()})
	}
	for range r.Count() {
		l.Problems = append(l.Problems, layout.Problem{Object: r.Text(), Offset: int64(r.Uint()), Detail: r.Text()})
	}
	if !r.Whole() || len(l.Dirs) == 0 {
		return nil, errors.New("load a listing: it is not whole")
	}
	return l, nil
}

func appendRights(w *varint.Writer, perm uint16, uid, gid uint32) {
	w.Uint(uint64(perm), uint64(uid), uint64(gid))
}

func takeRights(r *varint.Reader) (perm uint16, uid, gid uint32) {
	return uint16(r.Uint()), uint32(r.Uint()), uint32(r.Uint())
}
