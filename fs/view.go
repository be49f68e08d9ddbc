package fs

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// lazyView is a view that is built when the kernel first asks for it: its size may need a walk over offset tables.
type lazyView struct {
	build  func(context.Context) (*layout.File, error)
	tell   func(*layout.File) error // called once it is built, before anybody sees it; nil for nobody
	number int                      // of its node
	built  once
	file   *layout.File // nil where the view turned out to be absent; valid once built
}

// get returns the view's file, nil where the view cannot be exact.
func (v *lazyView) get(ctx context.Context) (*layout.File, error) {
	err := v.built.do(ctx, func(ctx context.Context) error {
		file, err := v.build(ctx)
		if _, ok := errors.AsType[*layout.AbsentError](err); ok {
			file, err = nil, nil
		}
		if err == nil && v.tell != nil {
			err = v.tell(file)
		}
		if err == nil {
			v.file = file
		}
		return err
	})
	if err != nil { // somebody else may be building it
		return nil, err
	}
	return v.file, nil
}

// foundViews counts the views that were built, or found to be absent.
type foundViews struct {
	known         sync.Map // by path
	there, absent atomic.Int64
}

func (f *foundViews) note(path string, exists bool) {
	switch _, known := f.known.LoadOrStore(path, nil); {
	case known:
	case exists:
		f.there.Add(1)
	default:
		f.absent.Add(1)
	}
}

// count returns how many of all views are there, and how many nobody has built yet.
func (f *foundViews) count(all int) (there, unbuilt int) {
	there = int(f.there.Load())
	return there, max(0, all-there-int(f.absent.Load()))
}

// viewMaker makes the nodes of the views of a listing. A view is for users who may read all objects behind it.
type viewMaker struct {
	opt     *Options
	told    *toldViews
	built   *foundViews
	started time.Time
	of      *cache.Listing
	rights  *access
}

func (m *Mount) views(of *cache.Listing, rights *access) *viewMaker {
	return &viewMaker{&m.opt, &m.told, &m.found.views, m.started, of, rights}
}

// entries makes the nodes of .hbmfs/views.
func (k *viewMaker) entries(v *layout.Volume) []entry {
	var entries []entry
	var set *layout.Set // of the view before
	var shared node     // the attributes that the views of one set share
	for i := range v.Views {
		view := &v.Views[i]
		if view.Set != set {
			set, shared = view.Set, node{modTime: k.started}
			shared.perm, shared.uid, shared.gid = k.rights.of(objectsOfSet(set))
		}
		n := shared
		n.ino = inoOf(".hbmfs/views/"+view.Path, "view")
		if view.Entries != nil {
			n.kind, n.perm = kindDir, n.perm|n.perm>>2 // readers of a directory may enter it
			n.dir = &directory{expand: k.members(view)}
		} else {
			n.kind, n.view = kindView, &lazyView{build: view.File}
			n.view.tell = func(f *layout.File) error {
				k.built.note(view.Path, f != nil)
				return k.told.record(&n, f)
			}
		}
		k.opt.adopt(&n)
		entries = append(entries, entry{view.Path, &n})
	}
	return append(entries, k.dirs(v)...)
}

// dirs makes the directories of the source that hold views, with the source's permissions. A user who may not list one
// there learns no names here.
func (k *viewMaker) dirs(v *layout.Volume) (entries []entry) {
	with := map[string]bool{"": true}
	for _, s := range v.Sets {
		for dir := s.Dir; !with[dir]; dir = parent(dir) {
			with[dir] = true
		}
	}
	for _, d := range k.of.Dirs[1:] {
		if with[d.Name] {
			n := node{kind: kindDir, ino: inoOf(d.Name, "dir"), modTime: k.started, perm: d.Perm, uid: d.UID, gid: d.GID}
			k.opt.adopt(&n)
			entries = append(entries, entry{d.Name, &n})
		}
	}
	return entries
}

// members makes the nodes of a view that is a directory: members of an archive, tensors of a checkpoint.
func (k *viewMaker) members(view *layout.View) func(context.Context) ([]entry, error) {
	return func(ctx context.Context) ([]entry, error) {
		files, err := view.Entries(ctx)
		if _, ok := errors.AsType[*layout.AbsentError](err); ok {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		var shared node
		if view.Joint {
			shared.perm, shared.uid, shared.gid = k.rights.of(objectsOfSet(view.Set))
		}
		entries := make([]entry, 0, len(files))
		for _, f := range files {
			n := node{kind: kindView, view: builtView(f), modTime: f.ModTime, ino: inoOf(".hbmfs/views/"+view.Path+"/"+f.Name, "view")}
			if n.perm, n.uid, n.gid = shared.perm, shared.uid, shared.gid; !view.Joint {
				n.perm, n.uid, n.gid = k.rights.of(objectsOfFile(f))
			}
			k.opt.adopt(&n)
			entries = append(entries, entry{f.Name, &n})
		}
		return entries, nil
	}
}

func builtView(f *layout.File) *lazyView {
	v := &lazyView{file: f}
	v.built.done.Store(true)
	return v
}

func objectsOfSet(s *layout.Set) iter.Seq[*layout.Object] {
	return func(yield func(*layout.Object) bool) {
		for _, h := range s.Shards {
			for _, o := range h.Objects {
				if !yield(o) {
					return
				}
			}
		}
	}
}

func objectsOfFile(f *layout.File) iter.Seq[*layout.Object] {
	return func(yield func(*layout.Object) bool) {
		for e := range f.Body.Extents(0, f.Size()) {
			if !yield(e.Object) {
				return
			}
		}
	}
}

// adopt applies the options that override owners and permissions.
func (o *Options) adopt(n *node) {
	if o.UID != nil {
		n.uid = *o.UID
	}
	if o.GID != nil {
		n.gid = *o.GID
	}
	if n.kind != kindLink {
		n.perm &^= 0o222 | o.Umask
	}
	if n.modTime.IsZero() {
		n.modTime = time.Unix(0, 0)
	}
}
