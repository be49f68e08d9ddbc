package checkpoints

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/checkpoint"
	"github.com/hbmfs/hbmfs/internal/container"
	"github.com/hbmfs/hbmfs/internal/status"
)

// draft is a checkpoint that is being written through the mount.
type draft struct {
	v     *Volume
	owner checkpoint.Owner
	home  container.ID     // it ends with that; "" for the mount
	watch *container.Watch // of that
	since time.Time
	book  *checkpoint.Draft
	dir   int // O_PATH, of its directory: it stays when that gets its name
	root  *node

	// gate is held by changes for reading. Whoever changes state holds it for writing.
	gate  sync.RWMutex
	state stage

	changed atomic.Int64 // the last change, ns
	done    atomic.Int64 // of sealing, bytes
	total   atomic.Int64
	sealed  atomic.Int64 // bytes, of a published one

	// The volume's mu guards the fields below.
	name  string // that it will be published under
	was   string // while it is renamed
	shown string // in the root
	lock  string // among the kept files
	why   string // it was not published
	nodes int    // in the books

	run sync.Mutex // guards the field below
	job *publishing
}

// stage is how far a draft is.
type stage uint8

const (
	open stage = iota
	sealing
	published
	dropped
)

// patience is how long publishing waits for files that the kernel is about to close.
const patience = 2 * time.Second

// change begins a change of the draft. end ends it.
func (d *draft) change() (end func(), err error) {
	if d == nil {
		return nil, unix.ESTALE
	}
	d.gate.RLock()
	switch d.state {
	case open:
		d.changed.Store(time.Now().UnixNano())
		return d.gate.RUnlock, nil
	case sealing:
		err = unix.EBUSY
	case published:
		err = unix.EROFS
	default:
		err = unix.ESTALE
	}
	d.gate.RUnlock()
	return nil, err
}

// enter moves the draft from one stage to another, once all changes are over.
func (d *draft) enter(from, to stage) error {
	d.gate.Lock()
	defer d.gate.Unlock()
	switch d.state {
	case from:
		d.state = to
		return nil
	case sealing:
		return unix.EBUSY
	case published:
		return unix.EROFS
	default:
		return unix.ESTALE
	}
}

// begin makes a draft that the root shows as shown.
func (v *Volume) begin(ctx context.Context, shown string, owner checkpoint.Owner, home container.ID) (*draft, error) {
	name := strings.TrimSuffix(shown, Suffix)
	v.mu.Lock()
	there := v.drafts[name]
	v.mu.Unlock()
	if there != nil || v.fast.Has(name) {
		return nil, unix.EEXIST
	}
	if !v.room.drafts.Reserve(owner.UID, 1) {
		return nil, fmt.Errorf("there are as many drafts as user %d may have: publish or remove some: %w", owner.UID, unix.EMFILE)
	}
	book, err := v.home.Begin(ctx, name, checkpoint.Part{Of: 1}, owner)
	if err != nil {
		v.room.drafts.Book(owner.UID, -1)
		return nil, err
	}
	d := &draft{v: v, name: name, shown: shown, owner: owner, home: home, watch: container.NewWatch(home), since: time.Now(), book: book, dir: -1}
	d.changed.Store(d.since.UnixNano())
	if err = d.attach(); err == nil {
		err = v.add(d)
	}
	if err != nil {
		d.detach()
		v.room.drafts.Book(owner.UID, -1)
		return nil, errors.Join(err, book.Drop())
	}
	d.await()
	return d, nil
}

// attach opens the draft's directory, and makes the node of it.
func (d *draft) attach() (err error) {
	base := checkpoint.DraftBase(d.name)
	if d.dir, err = unix.Openat(int(d.v.self.Fd()), base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		d.dir = -1
		return err
	}
	st, err := statx(d.dir, "")
	if err != nil {
		return err
	}
	d.root = &node{ino: st.Ino, draft: d, isDir: true, file: -1, generation: generation(st)}
	return nil
}

func (d *draft) detach() {
	if d.dir >= 0 {
		_ = unix.Close(d.dir) // opened to name it
	}
}

// add makes a draft known, and has the holder keep it before anybody hears of it.
func (v *Volume) add(d *draft) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.drafts[d.name] != nil {
		return unix.EEXIST
	}
	v.keepLock(d)
	v.drafts[d.name] = d
	if old := v.nodes[d.root.ino]; old != nil {
		d.root.lookups = old.lookups
	}
	v.put(d.root)
	v.keep()
	return nil
}

// lockPrefix begins the names of locks among the kept files.
const lockPrefix = "lock-of-draft-"

// isLock tells a lock's name.
func isLock(name string) bool { return strings.HasPrefix(name, lockPrefix) }

// keepLock has the holder keep a draft's lock.
func (v *Volume) keepLock(d *draft) {
	if v.opt.Life == nil {
		return
	}
	f, err := d.book.Lock()
	if err != nil {
		v.unkept(err)
		return
	}
	defer func() { _ = f.Close() }() // the life has its own
	if d.lock != "" {
		v.opt.Life.Drop(d.lock)
	}
	v.lastKept++
	d.lock = fmt.Sprintf("%s%d-%d", lockPrefix, os.Getpid(), v.lastKept)
	if err := v.opt.Life.Keep(d.lock, f); err != nil {
		v.unkept(err)
	}
}

// unkept says that the holder has not heard of a change. Where it is gone, the next one is given all there is.
func (v *Volume) unkept(err error) {
	v.opt.Log.Warn("the holder of the mount does not keep the drafts as they are now", "error", err)
}

// over takes a draft out of the books.
func (v *Volume) over(d *draft) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.drafts[d.name] == d {
		delete(v.drafts, d.name)
		v.room.drafts.Book(d.owner.UID, -1)
	}
	for _, n := range v.nodes {
		if n.draft == d && n.lookups >= known/2 { // nobody knows how often the kernel was told of it
			n.lookups = 0
			v.mayGo(n)
		}
	}
	v.mayGo(d.root)
	if d.lock != "" {
		v.opt.Life.Drop(d.lock)
	}
	v.keep()
}

func (d *draft) kept() keptDraft {
	return keptDraft{
		Name: d.name, Was: d.was, Shown: d.shown, UID: d.owner.UID, GID: d.owner.GID, Mode: uint32(d.owner.Mode), Since: d.since, Lock: d.lock, Home: d.home,
	}
}

// adopt takes a draft of an earlier daemon. One that is not there any more was published or dropped just before that ended.
func (v *Volume) adopt(k keptDraft) {
	owner := checkpoint.Owner{UID: k.UID, GID: k.GID, Mode: iofs.FileMode(k.Mode)}
	for _, name := range []string{k.Name, k.Was} {
		if name == "" {
			continue
		}
		book, err := v.home.Adopt(name, checkpoint.Part{Of: 1}, owner, v.opt.Life.Took(k.Lock))
		if err != nil {
			v.opt.Log.Info("a draft is over", "name", name, "reason", err)
			continue
		}
		d := &draft{v: v, name: name, shown: k.Shown, owner: owner, home: k.Home, watch: container.NewWatch(k.Home), since: k.Since, book: book, dir: -1, lock: k.Lock}
		d.changed.Store(time.Now().UnixNano())
		if err = d.attach(); err == nil {
			v.drafts[name] = d
			v.room.drafts.Book(owner.UID, 1)
			v.put(d.root)
			err = d.find(d.root, d.dir, "")
		}
		if err != nil {
			v.opt.Log.Error("a draft is not wholly found again", "draft", d.shown, "error", err)
		}
		d.await()
		return
	}
	v.opt.Life.Drop(k.Lock)
}

// known is the count of lookups of a node that an earlier daemon may have told the kernel of: it is kept as long as its draft.
const known = 1 << 40

// find makes nodes of all that is in a draft.
func (d *draft) find(in *node, dir int, at string) error {
	in.lookups = known
	fd, err := beneath(dir, path.Join(".", at), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), at)
	names, err := f.Readdirnames(-1)
	defer func() { _ = f.Close() }() // opened for reading
	for _, name := range names {
		st, err := statx(fd, name)
		if err != nil || !ordinary(st) {
			continue
		}
		n := &node{ino: st.Ino, draft: d, parent: in, name: name, isDir: st.Mode&unix.S_IFMT == unix.S_IFDIR, file: -1, generation: generation(st), lookups: known}
		d.v.put(n)
		if n.isDir {
			if err := d.find(n, dir, path.Join(at, name)); err != nil {
				return err
			}
		}
	}
	return err
}

func (d *draft) status() status.Draft {
	s := status.Draft{
		Name: d.shown, UID: d.owner.UID, Since: d.since, Idle: time.Since(time.Unix(0, d.changed.Load())).Seconds(), Done: d.done.Load(), Total: d.total.Load(), Refused: d.why,
	}
	s.Sealing = s.Total > 0 && s.Done < s.Total
	for _, n := range d.v.nodes {
		if n.draft == d && !n.isDir {
			s.Open += n.opens
		}
	}
	return s
}

// publish publishes the draft under a name. After an error it is what it was.
func (d *draft) publish(ctx context.Context, name string) (err error) {
	v := d.v
	if err := d.enter(open, sealing); err != nil {
		return err
	}
	before := d.name
	defer func() {
		to := published
		if err != nil {
			err = errors.Join(err, d.rename(context.WithoutCancel(ctx), before, d.shown))
			to = open
		}
		d.done.Store(0)
		d.total.Store(0)
		_ = d.enter(sealing, to) // nobody else leaves this stage
		if err != nil {
			v.unpublished(d, err)
		}
	}()
	if err := d.rename(ctx, name, d.shown); err != nil {
		return err
	}
	if err := d.book.PublishAll(ctx, checkpoint.SealOptions{Patience: patience, Progress: func(done, total int64) {
		d.total.Store(total)
		d.sealed.Store(total)
		d.done.Store(done)
	}}); err != nil {
		return err
	}
	v.over(d)
	v.tell(name)
	return nil
}

// unpublished notes why a draft was not published. Everybody reads the status: it names a file only where everybody may list the checkpoint.
func (v *Volume) unpublished(d *draft, err error) {
	why := err.Error()
	if d.owner.Mode&0o005 != 0o005 {
		v.opt.Log.Warn("a draft was not published", "draft", d.shown, "error", err)
		why = unix.Errno(errnoOf(err)).Error() + ": hbmfs publish says more"
		if errors.Is(err, checkpoint.ErrOpen) {
			why = "a file is still open for writing, or mapped: hbmfs publish says which"
		}
	}
	v.mu.Lock()
	d.why = why
	v.mu.Unlock()
	v.refuse("%s was not published: %s", d.shown, why)
}

// rename gives the draft another name to be published under, and in the root.
func (d *draft) rename(ctx context.Context, name, shown string) error {
	v := d.v
	v.mu.Lock()
	if v.drafts[name] != nil && v.drafts[name] != d {
		v.mu.Unlock()
		return unix.EEXIST
	}
	was := d.name
	if name == was {
		d.shown = shown
		v.keep()
		v.mu.Unlock()
		return nil
	}
	d.name, d.was = name, was
	v.drafts[name] = d
	delete(v.drafts, was)
	v.keep() // whoever comes after a kill tries both
	v.mu.Unlock()
	err := d.book.Rename(ctx, name)
	v.mu.Lock()
	defer v.mu.Unlock()
	d.was = ""
	if err != nil {
		d.name = was
		v.drafts[was] = d
		delete(v.drafts, name)
		v.keep()
		return err
	}
	d.shown = shown
	v.keepLock(d)
	v.keep()
	return nil
}

// drop removes an empty draft.
func (d *draft) drop() error {
	if err := d.enter(open, dropped); err != nil {
		return err
	}
	fd, err := beneath(d.dir, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return errors.Join(err, d.enter(dropped, open))
	}
	f := os.NewFile(uintptr(fd), d.shown)
	names, err := f.Readdirnames(-1)
	_ = f.Close() // opened for reading
	for _, name := range names {
		if err == nil && name != checkpoint.ManifestName { // that is of an attempt to publish
			err = unix.ENOTEMPTY
		}
	}
	if err == nil {
		err = d.book.Drop()
	}
	if err != nil {
		_ = d.enter(dropped, open) // nobody else leaves this stage
		return err
	}
	d.v.over(d)
	return nil
}

// publishing is what hbmfs publish has begun.
type publishing struct {
	cancel context.CancelFunc
	over   chan struct{}
	err    error // once over is closed
}

// command answers the ioctl of hbmfs publish.
func (d *draft) command(verb control.DraftVerb) (r control.DraftReply) {
	d.run.Lock()
	defer d.run.Unlock()
	switch {
	case verb == control.DraftStart && (d.job == nil || d.job.ended()):
		ctx, cancel := context.WithCancel(context.Background())
		job := &publishing{cancel: cancel, over: make(chan struct{})}
		d.job = job
		go func() { // ends with the publishing
			defer close(job.over)
			defer cancel()
			d.v.mu.Lock()
			name := d.name
			d.v.mu.Unlock()
			job.err = d.publish(ctx, name)
		}()
	case verb == control.DraftCancel && d.job != nil:
		d.job.cancel()
	}
	r.Done, r.Total = d.done.Load(), d.total.Load()
	switch {
	case d.job == nil:
		r.State = control.DraftOpen
	case !d.job.ended():
		r.State = control.DraftSealing
	case d.job.err == nil:
		r.State = control.DraftPublished
	default:
		r.State, r.Errno, r.Text = control.DraftFailed, errnoOf(d.job.err), d.job.err.Error()
	}
	d.gate.RLock()
	if d.state == published {
		r.State, r.Errno, r.Text, r.Total = control.DraftPublished, 0, "", d.sealed.Load()
	}
	d.gate.RUnlock()
	return r
}

func (j *publishing) ended() bool {
	select {
	case <-j.over:
		return true
	default:
		return false
	}
}
