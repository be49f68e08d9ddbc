package source

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/control"
)

// OpenMany opens those of names for which a lookup is enough. It gives nil for all others, which [Opener.Open] is for.
func (o *Opener) OpenMany(ctx context.Context, names []string) []File {
	files := make([]File, len(names))
	inMount := map[string][]int{} // by the mount's root
	paths := make([]string, len(names))
	dirs := map[string]mountPath{}
	for i, name := range names {
		if p := placeOf(filepath.Dir(name), dirs); p.root != "" {
			paths[i] = filepath.Join(p.inside, filepath.Base(name))
			inMount[p.root] = append(inMount[p.root], i)
		}
	}
	for root, list := range inMount {
		o.openBatch(ctx, root, list, paths, files)
	}
	return files
}

// mountPath is where a directory lies in a mount; zero for one that is in none.
type mountPath struct{ root, inside string }

// placeOf asks about directories alone, and about each once: asking about each file would cost the round trips that a lookup saves.
func placeOf(dir string, known map[string]mountPath) mountPath {
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
		p = mountPath{}
	}
	known[dir] = p
	return p
}

// batch is files of one mount that were opened together. It has their connection, and lends their backing files.
type batch struct {
	opener  *Opener
	root    string // of the mount
	client  *control.Client
	files   []*batchFile // in the order asked for; nil for files that are not read in this way
	mount   *mount       // nil where the daemon tells of no changes
	notices *notices     // likewise

	next int // the file after the last one that was asked for; guarded by Descriptors.turn

	mu      sync.Mutex // guards the fields below
	objects map[uint64]*Backing
	users   map[uint64]int // files that have bytes of an object and are not closed
	open    int            // files that are not closed
}

// batchFile is a file of a batch.
type batchFile struct {
	of         *batch
	path       string // in the mount
	length     int64
	generation uint64
	info       control.FileInfo
	list       []Run
	closing    []*Backing // backing files that no other file needs

	opening sync.Mutex                  // held by the request that opens it
	instead atomic.Pointer[mountedFile] // once a cache has removed its backing files: the file, opened in the mount
}

// openBatch opens those of paths that list says, as far as a lookup is enough.
func (o *Opener) openBatch(ctx context.Context, root string, list []int, paths []string, files []File) {
	client, err := control.DialReader(ctx, root, o.client, o.number)
	if err != nil {
		return // Open comes upon the same, and says it or does without
	}
	b := &batch{opener: o, root: root, client: client, objects: map[uint64]*Backing{}, users: map[uint64]int{}}
	asked := make([]string, len(list))
	for k, i := range list {
		asked[k] = paths[i]
	}
	var ahead []*Backing
	most, asks := o.descriptors.Share(), !client.TellsChanges()
	for found, err := range client.Lookup(ctx, asked) {
		if err != nil {
			break // as above
		}
		if !asks && found.Err == nil && found.Flags&control.InfoCached == 0 {
			asks = true
			b.listen(ctx)
		}
		f := b.file(found)
		b.files = append(b.files, f)
		if f == nil {
			continue
		}
		room := len(ahead) < most
		if ahead, err = b.adopt(ctx, found, ahead, room); err != nil {
			most = 0
		}
		if room {
			b.next = len(b.files)
		}
		files[list[len(b.files)-1]] = f
	}
	_ = o.descriptors.offer(ctx, ahead) // a file without room is opened again when it is needed
	if b.open == 0 {
		_ = errors.Join(b.mount.release(), client.Close()) // no file of it is used
	}
}

// listen asks the daemon for its notices of changes.
func (b *batch) listen(ctx context.Context) {
	m, err := b.opener.mount(ctx, b.root, b.client.Epoch())
	if err != nil {
		return
	}
	if b.notices = m.listen(ctx, b.root); b.notices == nil {
		_ = m.release() // nothing was asked
		return
	}
	b.mount = m
}

// file makes a File of a lookup's answer; nil where a lookup does not tell all.
func (b *batch) file(found *control.Found) *batchFile {
	if found.Err != nil || found.Flags&control.InfoMore != 0 {
		return nil
	}
	f := &batchFile{of: b, path: found.Path, length: found.Size, generation: found.Generation, info: found.FileInfo}
	end := int64(0)
	for _, e := range found.Extents {
		if e.Flags != 0 || e.Logical != end || e.Object == InlineObject {
			return nil
		}
		f.list = append(f.list, Run{e.Logical, e.Length, e.Object, e.Offset, e.Stride, e.Count})
		end = e.End()
	}
	if end != f.length {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open++
	for _, object := range f.objects() {
		b.users[object]++
		if b.objects[object] == nil {
			name := fmt.Sprintf("%s (object %d)", found.Path, object)
			b.objects[object] = Lent(b, b.opener.ids.Add(1), name, object, int64(len(b.files)), found.Flags&control.InfoCached != 0)
			b.notices.add(b.objects[object])
		}
	}
	return f
}

// objects gives each object of a file once.
func (f *batchFile) objects() (list []uint64) {
	for i := range f.list {
		if !slices.Contains(list, f.list[i].Object) {
			list = append(list, f.list[i].Object)
		}
	}
	return list
}

// adopt keeps the descriptors that came with a file, and gives back those that are not needed, or for which there is no room.
func (b *batch) adopt(ctx context.Context, found *control.Found, opened []*Backing, room bool) (_ []*Backing, err error) {
	var strays []uint64
	b.mu.Lock()
	for _, e := range found.Extents {
		if e.Object == InlineObject {
			continue
		}
		from := found.Take(e.Object)
		switch to := b.objects[e.Object]; {
		case from == nil || from.File == nil:
		case !room || to == nil || to.FD >= 0:
			_ = from.File.Close() // opened for reading: nothing is lost
			strays = append(strays, e.Object)
		default: // where it fails it is asked for again when it is needed
			if failed := to.redeem(from, b.opener.descriptors, len(opened)); failed != nil {
				strays, err = append(strays, e.Object), failed
			} else {
				opened = append(opened, to)
			}
		}
	}
	b.mu.Unlock()
	giveBack(ctx, b.client, strays)
	return opened, err
}

// mostAhead is how many files are opened with one that is needed, when they are read in their order.
const mostAhead = 128

// ask gives the files to look up for backing files that are needed.
func (b *batch) ask(files []*Backing) (list []int) {
	for _, file := range files {
		if i := int(file.at); !slices.Contains(list, i) {
			list = append(list, i)
		}
	}
	slices.Sort(list)
	inOrder := list[0] == b.next
	b.next = list[len(list)-1] + 1
	for most := min(mostAhead, b.opener.descriptors.Share()); inOrder && b.next < len(b.files) && len(list) < most; b.next++ {
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
		if at := b.objects[f.list[i].Object]; at != nil && !b.opener.descriptors.isOpen(at) {
			return true
		}
	}
	return false
}

// lend looks up the files that backing files belong to, by their places.
func (b *batch) lend(ctx context.Context, files []*Backing) (opened []*Backing, err error) {
	list := b.ask(files)
	paths := make([]string, len(list))
	for k, i := range list {
		paths[k] = b.files[i].path
	}
	failed := map[int]error{} // by place
	k := 0
	full := ErrMoved // opened in the mount it is had, or that says why not
	for found, err := range b.client.Lookup(ctx, paths) {
		err = crowded(err)
		if errors.Is(err, ErrCrowded) || err != nil && b.client.Gone() { // opened in the mount they are had, where another daemon goes on with it
			err = fmt.Errorf("open %s: %w: %w", files[0].Name, ErrMoved, err)
		}
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
		if opened, err = b.adopt(ctx, found, opened, true); errors.Is(err, ErrCrowded) {
			full = fmt.Errorf("%w: %w", ErrMoved, err)
		}
	}
	for _, file := range files {
		if file.FD >= 0 {
			continue
		}
		if err := failed[int(file.at)]; err != nil {
			return opened, err
		}
		return opened, fmt.Errorf("open %s: %w", file.Name, full)
	}
	return opened, nil
}

// Open implements [Lender]. It opens the files that come next in the batch, too.
func (b *batch) Open(ctx context.Context, files []*Backing) (ahead []*Backing, err error) {
	opened, err := b.lend(ctx, files)
	ahead = slices.DeleteFunc(opened, func(o *Backing) bool { return slices.Contains(files, o) })
	if err != nil {
		closeLent(ctx, ahead)
		return nil, err
	}
	return ahead, nil
}

// Release implements [Lender].
func (b *batch) Release(ctx context.Context, files []*Backing) {
	giveBack(ctx, b.client, objectsOf(files))
}

// Relocate opens the file in the mount, as any other, since more than a lookup is needed from now on.
func (f *batchFile) Relocate(ctx context.Context) error {
	f.opening.Lock()
	defer f.opening.Unlock()
	if m := f.instead.Load(); m != nil {
		return m.Relocate(ctx)
	}
	m, err := f.of.opener.openMounted(ctx, filepath.Join(f.of.root, f.path))
	if err != nil {
		return err
	}
	if m.length != f.length || m.info.Generation != f.generation {
		return errors.Join(fmt.Errorf("open %s: it was replaced: %w", f.path, control.ErrStale), m.Close())
	}
	f.instead.Store(m)
	return nil
}

func (f *batchFile) Runs(ctx context.Context, spans []Span) ([]Run, error) {
	if m := f.instead.Load(); m != nil {
		return m.Runs(ctx, spans)
	}
	return f.list, nil
}

func (f *batchFile) Backing(r *Run) *Backing {
	if m := f.instead.Load(); m != nil {
		return m.Backing(r)
	}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	return f.of.objects[r.Object]
}

func (f *batchFile) Backings() (list []*Backing) {
	if m := f.instead.Load(); m != nil {
		list = m.Backings()
	}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	for _, object := range f.objects() {
		if b := f.of.objects[object]; b != nil {
			list = append(list, b)
		}
	}
	return list
}

func (f *batchFile) Unshare() (list []*Backing) {
	if m := f.instead.Load(); m != nil {
		list = m.Unshare()
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

func (f *batchFile) Size() int64 { return f.length }

func (f *batchFile) Daemon() *control.Client { return f.of.client }

func (f *batchFile) Told() *control.FileInfo { return &f.info }

// Close ends the connection with the last file.
func (f *batchFile) Close() error {
	var err error
	if m := f.instead.Load(); m != nil {
		err = m.Close()
	}
	b := f.of
	b.mu.Lock()
	b.open--
	last := b.open == 0
	b.mu.Unlock()
	b.notices.remove(f.closing)
	if last {
		return errors.Join(err, b.mount.release(), b.client.Close())
	}
	b.Release(context.Background(), f.closing)
	return err
}
