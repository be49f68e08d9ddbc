package cufile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hbmfs/hbmfs/control"
)

// OpenMany opens many files, as Open does, and gives a File or an error for each. Small files of a mount, and members of
// its archives, are asked for in one message per few hundred, and not opened in the mount at all: thousands of them cost
// no round trip each. Where they are more than Options.Descriptors, those that are read in their order are opened again
// in the same way.
func (r *Reader) OpenMany(ctx context.Context, names []string) ([]*File, []error) {
	files, errs := make([]*File, len(names)), make([]error, len(names))
	inMount := map[string][]int{} // by the mount's root
	paths := make([]string, len(names))
	dirs := map[string]place{}
	for i, name := range names {
		if p := placeOf(filepath.Dir(name), dirs); p.root != "" {
			paths[i] = filepath.Join(p.inside, filepath.Base(name))
			inMount[p.root] = append(inMount[p.root], i)
		}
	}
	for root, list := range inMount {
		r.openBatch(ctx, root, list, names, paths, files)
	}
	for i, name := range names {
		switch {
		case ctx.Err() != nil:
			errs[i] = ctx.Err()
			if files[i] != nil {
				errs[i] = errors.Join(errs[i], files[i].Close())
				files[i] = nil
			}
		case files[i] == nil: // it is no such file, or cannot be opened, and Open says why
			files[i], errs[i] = r.Open(ctx, name)
		case r.opt.Path == Direct:
			if errs[i] = files[i].proveDirect(ctx); errs[i] != nil {
				errs[i] = errors.Join(errs[i], files[i].Close())
				files[i] = nil
			}
		}
	}
	return files, errs
}

// place is where a directory lies in a mount; zero for what is in none.
type place struct{ root, inside string }

// placeOf asks about directories alone, and about each once: asking about each file would cost what is to be saved.
func placeOf(dir string, known map[string]place) place {
	p, ok := known[dir]
	if ok {
		return p
	}
	whole, err := filepath.EvalSymlinks(dir)
	if err == nil {
		whole, err = filepath.Abs(whole)
	}
	if err == nil {
		p.root, err = control.Root(whole)
	}
	if err == nil {
		p.inside, err = filepath.Rel(p.root, whole)
	}
	if err != nil || strings.HasPrefix(p.inside, "..") {
		p = place{}
	}
	known[dir] = p
	return p
}

// batch is files of one mount that were opened together: their connection, and the lender of their backing files.
type batch struct {
	r      *Reader
	root   string // of the mount
	client *control.Client
	files  []*batchFile // in the order asked for; nil for what is not read in this way

	next int // the file after the last one that was asked for; guarded by handles.turn

	mu      sync.Mutex // guards what follows
	objects map[uint64]*backing
	users   map[uint64]int // files that have bytes of an object and are not closed
	left    int            // files that are not closed
}

// batchFile is a source.
type batchFile struct {
	of         *batch
	path       string // in the mount
	length     int64
	generation uint64
	info       control.FileInfo
	list       []run
	closing    []*backing // that nobody else needs

	mu      sync.Mutex   // guards what follows
	instead *mountedFile // once its backing files were taken away: the file, opened in the mount
}

// openBatch opens those of names that list says, as far as a lookup is enough.
func (r *Reader) openBatch(ctx context.Context, root string, list []int, names, paths []string, files []*File) {
	client, err := control.DialReader(ctx, root, r.opt.Client, r.number)
	if err != nil {
		return // Open comes upon the same, and says it or does without
	}
	b := &batch{r: r, root: root, client: client, objects: map[uint64]*backing{}, users: map[uint64]int{}}
	asked := make([]string, len(list))
	for k, i := range list {
		asked[k] = paths[i]
	}
	var ahead []*backing
	for found, err := range client.Lookup(ctx, asked) {
		if err != nil {
			break // as above
		}
		f := b.file(found)
		b.files = append(b.files, f)
		if f == nil {
			continue
		}
		if len(ahead) < r.handles.limit {
			ahead = b.adopt(ctx, found, ahead)
			b.next = len(b.files)
		} else {
			b.decline(ctx, found)
		}
		files[list[len(b.files)-1]] = &File{r: r, name: names[list[len(b.files)-1]], source: f}
	}
	_ = r.handles.offer(ctx, ahead) // what there is no room for is opened again when it is needed
	if b.left == 0 {
		_ = client.Close() // nothing was redeemed that anybody uses
	}
}

// file makes a source of what was found; nil where there is more to it than a lookup tells.
func (b *batch) file(found *control.Found) *batchFile {
	if found.Err != nil || found.Flags&control.InfoMore != 0 {
		return nil
	}
	f := &batchFile{of: b, path: found.Path, length: found.Size, generation: found.Generation, info: found.FileInfo}
	end := int64(0)
	for _, e := range found.Extents {
		if e.Flags != 0 || e.Logical != end || e.Object == inlineObject {
			return nil
		}
		f.list = append(f.list, run{e.Logical, e.Length, e.Object, e.Offset, e.Stride, e.Count})
		end = e.End()
	}
	if end != f.length {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left++
	for _, object := range f.objects() {
		b.users[object]++
		if b.objects[object] == nil {
			b.objects[object] = &backing{id: b.r.ids.Add(1), name: fmt.Sprintf("%s (object %d)", found.Path, object), fd: -1, cached: found.Flags&control.InfoCached != 0, lender: b, object: object, at: int64(len(b.files))}
		}
	}
	return f
}

// objects gives each object of a file once.
func (f *batchFile) objects() (list []uint64) {
	for i := range f.list {
		if !slices.Contains(list, f.list[i].object) {
			list = append(list, f.list[i].object)
		}
	}
	return list
}

// adopt takes over the descriptors that came with a file. What came and is not needed goes back.
func (b *batch) adopt(ctx context.Context, found *control.Found, opened []*backing) []*backing {
	var strays []uint64
	b.mu.Lock()
	for _, e := range found.Extents {
		if e.Object == inlineObject {
			continue
		}
		from := found.Take(e.Object)
		switch to := b.objects[e.Object]; {
		case from == nil || from.File == nil:
		case to == nil || to.fd >= 0:
			_ = from.File.Close() // opened for reading: nothing is lost
			strays = append(strays, e.Object)
		case to.take(from) == nil:
			opened = append(opened, to)
		default: // it is asked for again when it is needed
			strays = append(strays, e.Object)
		}
	}
	b.mu.Unlock()
	giveBack(ctx, b.client, strays)
	return opened
}

// decline gives back the descriptors that came with a file.
func (b *batch) decline(ctx context.Context, found *control.Found) {
	var objects []uint64
	for _, e := range found.Extents {
		if from := found.Take(e.Object); from != nil && from.File != nil {
			_ = from.File.Close() // opened for reading: nothing is lost
			objects = append(objects, e.Object)
		}
	}
	giveBack(ctx, b.client, objects)
}

// mostAhead is how many files are opened with one that is needed, when they are read in their order.
const mostAhead = 128

// ask gives the files to look up for backing files that are needed.
func (b *batch) ask(files []*backing) (list []int) {
	for _, file := range files {
		if i := int(file.at); !slices.Contains(list, i) {
			list = append(list, i)
		}
	}
	slices.Sort(list)
	inOrder := list[0] == b.next
	b.next = list[len(list)-1] + 1
	for most := min(mostAhead, b.r.handles.share()); inOrder && b.next < len(b.files) && len(list) < most; b.next++ {
		if f := b.files[b.next]; f != nil && b.missing(f) {
			list = append(list, b.next)
		}
	}
	return list
}

// missing says whether a file that is not closed has a backing file that is not open.
func (b *batch) missing(f *batchFile) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range f.list {
		if at := b.objects[f.list[i].object]; at != nil && !b.r.handles.isOpen(at) {
			return true
		}
	}
	return false
}

// lend looks up the files that backing files belong to, by their places.
func (b *batch) lend(ctx context.Context, files []*backing) (opened []*backing, err error) {
	list := b.ask(files)
	paths := make([]string, len(list))
	for k, i := range list {
		paths[k] = b.files[i].path
	}
	failed := map[int]error{} // by place
	k := 0
	for found, err := range b.client.Lookup(ctx, paths) {
		if err != nil {
			return opened, err
		}
		f := b.files[list[k]]
		k++
		if found.Err == nil && (found.Size != f.length || found.Generation != f.generation) {
			found.Err = fmt.Errorf("look up %s: it was replaced: %w", f.path, control.ErrStale)
		}
		if found.Err != nil {
			failed[list[k-1]] = found.Err
			continue
		}
		opened = b.adopt(ctx, found, opened)
	}
	for _, file := range files {
		if file.fd >= 0 {
			continue
		}
		if err := failed[int(file.at)]; err != nil {
			return opened, err
		}
		return opened, fmt.Errorf("open %s: %w", file.name, errMoved) // opened in the mount it is had, or that says why not
	}
	return opened, nil
}

// open is as lender says: what comes after the files is opened with them.
func (b *batch) open(ctx context.Context, files []*backing) (ahead []*backing, err error) {
	opened, err := b.lend(ctx, files)
	ahead = slices.DeleteFunc(opened, func(o *backing) bool { return slices.Contains(files, o) })
	if err != nil {
		shut(ctx, ahead)
		return nil, err
	}
	return ahead, nil
}

// release is as of mountedFile.
func (b *batch) release(ctx context.Context, files []*backing) {
	giveBack(ctx, b.client, objectsOf(files))
}

// opened gives the file in the mount, where that was opened, and else nil.
func (f *batchFile) opened() *mountedFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.instead
}

// relocate opens the file in the mount, as any other, since more than a lookup is needed from now on.
func (f *batchFile) relocate(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.instead != nil {
		return f.instead.relocate(ctx)
	}
	m, err := f.of.r.openMounted(ctx, filepath.Join(f.of.root, f.path))
	if err != nil {
		return err
	}
	if m.length != f.length || m.info.Generation != f.generation {
		return errors.Join(fmt.Errorf("open %s: it was replaced: %w", f.path, control.ErrStale), m.close())
	}
	f.instead = m
	return nil
}

func (f *batchFile) runs(ctx context.Context, offset, n int64) ([]run, error) {
	if m := f.opened(); m != nil {
		return m.runs(ctx, offset, n)
	}
	return f.list, nil
}

func (f *batchFile) backing(r *run) *backing {
	if m := f.opened(); m != nil {
		return m.backing(r)
	}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	return f.of.objects[r.object]
}

func (f *batchFile) leave() (list []*backing) {
	if m := f.opened(); m != nil {
		list = m.leave()
	}
	b := f.of
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, object := range f.objects() {
		if b.users[object]--; b.users[object] == 0 {
			list = append(list, b.objects[object])
			f.closing = append(f.closing, b.objects[object])
			delete(b.objects, object)
		}
	}
	return list
}

func (f *batchFile) size() int64 { return f.length }

func (f *batchFile) daemon() *control.Client { return f.of.client }

func (f *batchFile) told() *control.FileInfo { return &f.info }

// close ends the connection with the last file.
func (f *batchFile) close() error {
	var err error
	if m := f.opened(); m != nil {
		err = m.close()
	}
	b := f.of
	b.mu.Lock()
	b.left--
	last := b.left == 0
	b.mu.Unlock()
	if last {
		return errors.Join(err, b.client.Close())
	}
	b.release(context.Background(), f.closing)
	return err
}
