package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/container"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// mountedDraft is a checkpoint that is being written through the mount.
type mountedDraft struct {
	v     *Volume
	owner checkpoint.Owner
	home  container.ID     // it ends with that; "" for the mount
	watch *container.Watch // of that
	since time.Time
	book  *checkpoint.Draft
	root  *node

	// gate is held by changes for reading. A change of state holds it for writing.
	gate  sync.RWMutex
	state stage

	// names is held for reading while a path is followed to a node. It is held for writing while a name changes, on the disk and in the
	// books.
	names sync.RWMutex

	changed atomic.Int64 // the last change, ns
	done    atomic.Int64 // of sealing, bytes
	total   atomic.Int64
	sealed  atomic.Int64 // bytes, of a published one
	told    atomic.Int64 // when the kernel was last told of its name, ns

	// The volume's mu guards the fields below.
	dir     *opened // its directory, also once that has its name; nil when nobody knows it any more
	name    string  // that it will be published under
	was     string  // while it is renamed
	shown   string  // in the root
	lock    string  // among the kept files
	why     string  // it was not published
	nodes   int     // in the books
	word    word
	writers map[writer]bool   // processes that wrote to it, and live; the empty one may write for ever
	threads map[uint32]writer // of those
	lost    map[uint64]loss   // files that the disk has lost bytes of, by inode number

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

// change begins a change of the draft. end ends it.
func (d *mountedDraft) change() (end func(), err error) {
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
func (d *mountedDraft) enter(from, to stage) error {
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

func (d *mountedDraft) isPublished() bool {
	d.gate.RLock()
	defer d.gate.RUnlock()
	return d.state == published
}

// begin makes a draft that the root shows as shown.
func (v *Volume) begin(ctx context.Context, shown string, owner checkpoint.Owner, home container.ID) (*mountedDraft, error) {
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
	d := &mountedDraft{v: v, name: name, shown: shown, owner: owner, home: home, watch: container.NewWatch(home), since: time.Now(), book: book}
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
	v.opt.Life.Settle(ctx)
	return d, nil
}

// attach opens the draft's directory, and makes the node of it.
func (d *mountedDraft) attach() error {
	base := checkpoint.DraftBase(d.name)
	fd, err := unix.Openat(int(d.v.self.Fd()), base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d.dir = &opened{v: d.v, fd: fd, users: 1}
	st, err := statx(fd, "")
	if err != nil {
		return err
	}
	d.root = &node{ino: st.Ino, draft: d, isDir: true, file: -1, generation: generation(st)}
	return nil
}

// detach lets the draft's directory go. The caller has mu, or nobody else knows the draft.
func (d *mountedDraft) detach() {
	if d.dir != nil {
		d.dir.leave()
		d.dir = nil
	}
}

// add makes a draft known, and has the holder keep it before anybody hears of it.
func (v *Volume) add(d *mountedDraft) error {
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

// over takes a draft out of the books.
func (v *Volume) over(d *mountedDraft) {
	defer v.unwatchAll(d)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.drafts[d.name] == d {
		delete(v.drafts, d.name)
		v.room.drafts.Book(d.owner.UID, -1)
	}
	for _, n := range v.nodes {
		if n.draft != d {
			continue
		}
		v.room.count(n, -1) // the kernel forgets it when it likes
		n.counts = false
		if n.lookups >= known/2 { // nobody knows how often the kernel was told of it
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

// publish publishes the draft under a name. After an error it is as before.
func (d *mountedDraft) publish(ctx context.Context, name string) (err error) {
	v, asked := d.v, time.Now()
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
	if err := d.book.PublishAll(ctx, checkpoint.SealOptions{Patience: pause.Patience, Sync: d.syncFile, Mapped: d.mapped, Room: d.mayMake, Closed: d.closed, Progress: func(done, total int64) {
		d.total.Store(total)
		d.sealed.Store(total)
		d.done.Store(done)
	}}); err != nil {
		return err
	}
	v.over(d)
	d.settle(asked)
	v.tell(name)
	return nil
}

// closed names a file of the draft that a program has open for writing. The kernel opens a file itself only once the program takes the daemon's
// answer, which is late where CPUs are busy. So no lease shows that until then.
func (d *mountedDraft) closed() error {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	for _, n := range d.v.pens {
		if n.draft == d && !n.gone {
			return &checkpoint.Writing{File: n.pathLocked()}
		}
	}
	return nil
}

// shownAs is the draft's name in the root, which a rename may change.
func (d *mountedDraft) shownAs() string {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	return d.shown
}

// mayMake books memory for a manifest, and tells whether the draft's user may have it. A negative number gives it back.
func (d *mountedDraft) mayMake(bytes int64) bool {
	if bytes < 0 {
		d.v.room.seals.Book(d.owner.UID, bytes)
		return true
	}
	return d.v.room.seals.Reserve(d.owner.UID, bytes)
}

// settle waits until the kernel asks again for the name that the draft had: from then on it is the checkpoint's. The kernel counts from when it
// takes the answer, which is late where CPUs are busy. A caller that asks to publish has taken its own.
func (d *mountedDraft) settle(asked time.Time) {
	told := time.Unix(0, d.told.Load())
	if told.Before(asked) && told.Add(answerTaken).After(asked) {
		told = asked
	}
	time.Sleep(time.Until(told.Add(draftForgotten)))
}

// rename gives the draft another name to be published under, and in the root.
func (d *mountedDraft) rename(ctx context.Context, name, shown string) error {
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
	v.keep() // the next daemon after a kill tries both
	v.mu.Unlock()
	v.opt.Life.Settle(ctx)
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

// setMode sets the mode that the draft will have as a checkpoint.
func (d *mountedDraft) setMode(ctx context.Context, mode uint32) {
	v := d.v
	v.mu.Lock()
	d.owner.Mode = modeOf(mode)
	d.book.SetMode(d.owner.Mode)
	v.keep()
	v.mu.Unlock()
	v.opt.Life.Settle(ctx)
}

// drop removes an empty draft.
func (d *mountedDraft) drop() error {
	if err := d.enter(open, dropped); err != nil {
		return err
	}
	top, err := d.top()
	if err != nil {
		return errors.Join(err, d.enter(dropped, open))
	}
	defer top.end()
	fd, err := beneath(top.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
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

// publishing is the work that hbmfs publish has begun.
type publishing struct {
	cancel context.CancelFunc
	over   chan struct{}
	err    error // once over is closed
}

// command answers the ioctl of hbmfs publish.
func (d *mountedDraft) command(verb control.DraftVerb) (r control.DraftReply) {
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
			job.err = d.publishAlone(ctx, name)
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
	if d.isPublished() {
		r.State, r.Errno, r.Text, r.Total = control.DraftPublished, 0, "", d.sealed.Load()
	}
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
