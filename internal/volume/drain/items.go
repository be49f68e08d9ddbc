package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// The states of a checkpoint.
const (
	Draft    = "draft"    // it is being written
	Local    = "local"    // it is published, and waits
	Draining = "draining" // it is on its way
	Remote   = "remote"   // it is complete at the destination
	Failed   = "failed"   // the status says why; it is tried again later, unless the checkpoint itself is damaged
)

// item is a published checkpoint. The drain's mu guards all but done.
type item struct {
	name        string
	print       print // none where nobody can tell whether it is a checkpoint
	part        checkpoint.Part
	files       int
	size        int64
	seen        time.Time
	state, why  string
	final       bool // it is not tried again
	due         time.Time
	wait        time.Duration
	again       int
	recorded    bool // of one in parts: the others know of this part
	cancel      context.CancelCauseFunc
	done        atomic.Int64 // bytes that are there
	removeAfter time.Time    // a removal that failed is tried again then
}

// print tells whether a checkpoint is still the same.
type print struct {
	dir, manifest uint64 // inodes
	size          int64
	changed       syscall.Timespec // compared for equality only
}

// look looks at the directory.
func (d *Drain) look() error {
	root, err := os.OpenRoot(d.dir)
	if err != nil {
		return d.blind(err)
	}
	defer func() { _ = root.Close() }() // opened for reading
	dir, err := root.Open(".")
	if err != nil {
		return d.blind(err)
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close() // opened for reading
	if err != nil { // an unlisted checkpoint is not gone
		return d.blind(err)
	}
	there, drafts := map[string]bool{}, []string{}
	for _, name := range names {
		if draft, ok := strings.CutSuffix(name, ".hbmfs.tmp"); ok && strings.HasPrefix(draft, ".") {
			drafts = append(drafts, draft[1:])
		}
		if checkpoint.CheckName(name) != nil || name == "lost+found" { // which root alone may read
			continue
		}
		switch p, ok, err := printOf(root, name); {
		case err != nil: // an unreadable checkpoint is not gone
			there[name] = true
			d.unsure(name, err)
		case ok:
			there[name] = true
			d.see(name, p)
		}
	}
	slices.SortFunc(drafts, checkpoint.Natural)
	journals, _ := d.state.names()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unseen, d.drafts = nil, drafts
	for name, it := range d.items {
		if !there[name] {
			d.drop(it)
		}
	}
	for _, name := range journals {
		if !there[name] && d.items[name] == nil {
			d.lost[name] = true
		}
	}
	return nil
}

// blind notes why the directory cannot be looked at.
func (d *Drain) blind(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unseen == nil || d.unseen.Error() != err.Error() {
		d.log.Warn("the drain waits", "error", err)
	}
	if d.unseen == nil {
		d.unseenSince = time.Now()
	}
	d.unseen = err
	return err
}

// drop forgets a checkpoint that is gone here, or replaced. mu is held.
func (d *Drain) drop(it *item) {
	if it.cancel != nil {
		it.cancel(ErrLost) // and it is dropped when its sending has ended
		return
	}
	delete(d.items, it.name)
	if it.print != (print{}) {
		d.lost[it.name] = true
	}
}

// printOf gives the print of a checkpoint. ok is false where the name is of none, and err says why nobody can tell.
func printOf(root *os.Root, name string) (p print, ok bool, err error) {
	dir, err := root.Lstat(name)
	if err == nil && !dir.IsDir() {
		return p, false, nil
	}
	var manifest fs.FileInfo
	if err == nil {
		manifest, err = root.Lstat(name + "/" + checkpoint.ManifestName)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return p, false, nil
	}
	if err != nil {
		return p, false, err
	}
	a, ok := dir.Sys().(*syscall.Stat_t)
	b, also := manifest.Sys().(*syscall.Stat_t)
	if !ok || !also {
		return p, false, errors.ErrUnsupported
	}
	return print{a.Ino, b.Ino, b.Size, b.Mtim}, true, nil
}

// unsure takes note of a name of which nobody can tell whether it is a checkpoint. A known checkpoint stays as it is.
func (d *Drain) unsure(name string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.items[name] != nil {
		return
	}
	why := fmt.Sprintf("it may be a checkpoint, and cannot be looked at: %v", err)
	d.items[name] = &item{name: name, part: checkpoint.Part{Of: 1}, state: Failed, why: why, final: true, seen: time.Now()}
	d.log.Error("a checkpoint is not remote", "checkpoint", name, "error", why)
}

// see takes note of a checkpoint.
func (d *Drain) see(name string, p print) {
	d.mu.Lock()
	known := d.items[name]
	if known != nil && known.print != p {
		d.drop(known)
		known = d.items[name]
	}
	d.mu.Unlock()
	if known != nil {
		return
	}
	it := &item{name: name, print: p, state: Local, seen: time.Now(), part: checkpoint.Part{Of: 1}}
	c, err := checkpoint.Open(filepath.Join(d.dir, name))
	switch {
	case errors.Is(err, checkpoint.ErrDamaged):
		it.state, it.why, it.final = Failed, err.Error(), true
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, checkpoint.ErrNone): // it was removed meanwhile
		return
	case err != nil:
		it.why = err.Error() // sending it will say it again
	default:
		it.part, it.files, it.size = c.Manifest.Part, len(c.Manifest.Files), c.Manifest.Size()
		if d.wasRemote(c, name) {
			it.state = Remote
			it.done.Store(it.size)
		}
		_ = c.Close() // opened for reading
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.items[name] = it
	delete(d.lost, name) // its journal is looked at when it is sent
}

// wasRemote tells whether an earlier life has made a checkpoint remote.
func (d *Drain) wasRemote(c *checkpoint.Checkpoint, name string) bool {
	text, err := c.ManifestText()
	if err != nil {
		return false
	}
	j, err := d.state.journal(name)
	if err != nil {
		return false
	}
	defer j.close()
	return j.head == head{Manifest: digest(text), Destination: d.bucket.String(), Volume: d.state.volume} && j.remote() != nil
}

// forgetLost removes objects of checkpoints that never became complete at the destination, and are gone here.
func (d *Drain) forgetLost(ctx context.Context) {
	d.mu.Lock()
	var names []string
	if !time.Now().Before(d.lostDue) {
		names = slices.Sorted(maps.Keys(d.lost))
	}
	d.mu.Unlock()
	for _, name := range names {
		if ctx.Err() != nil {
			return
		}
		j, err := d.state.journal(name)
		if err == nil {
			if j.head.Destination == d.bucket.String() && j.head.Volume == d.state.volume && j.remote() == nil {
				err = d.discard(ctx, j)
			}
			if err == nil {
				err = j.remove()
			}
			j.close()
		}
		if err != nil {
			d.log.Warn("objects of a checkpoint that is gone stay at the destination", "checkpoint", name, "error", err)
			d.mu.Lock()
			d.lostDue = time.Now().Add(d.opt.failedMost)
			d.mu.Unlock()
			return
		}
		d.mu.Lock()
		delete(d.lost, name)
		d.mu.Unlock()
	}
}

// discard removes the objects and uploads of a checkpoint that did not become remote.
func (d *Drain) discard(ctx context.Context, j *journal) error {
	found, err := d.findMark(ctx)
	if err != nil {
		return err
	}
	if found == nil || !found.Parts && found.Volume != d.state.volume {
		return nil // the place is another's by now
	}
	err = d.try(ctx, func(ctx context.Context, _ func()) error {
		_, err := d.bucket.Stat(ctx, j.name+"/"+checkpoint.ManifestName)
		return err
	})
	if err == nil {
		return nil // it is complete there: a kill came before the journal's last line
	}
	if !s3origin.IsAbsent(err) {
		return err
	}
	if found.Parts {
		if err := d.forgetPart(ctx, j.name); err != nil {
			return err
		}
	}
	for name, b := range j.open {
		ids := []string{b.ID}
		if b.ID == "" { // nobody heard the answer
			err := d.try(ctx, func(ctx context.Context, _ func()) (err error) {
				ids, err = d.bucket.Uploads(ctx, name)
				return err
			})
			if err != nil && !lasting(err) {
				return err
			}
		}
		for _, id := range ids {
			d.abort(ctx, name, id)
		}
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(j.done)), maps.Keys(j.open)) // a begun request may have been carried out
	for _, name := range names {
		if err := d.try(ctx, func(ctx context.Context, _ func()) error { return d.bucket.Delete(ctx, name) }); err != nil {
			return err
		}
	}
	return nil
}

// evict removes checkpoints that are remote, beyond the newest Keep.
func (d *Drain) evict(ctx context.Context) {
	if d.opt.Keep == 0 {
		return
	}
	d.mu.Lock()
	all := make([]*item, 0, len(d.items))
	for _, it := range d.items {
		if it.print != (print{}) {
			all = append(all, it)
		}
	}
	slices.SortFunc(all, func(a, b *item) int { return checkpoint.Natural(b.name, a.name) })
	var old []*item
	for _, it := range all[min(d.opt.Keep, len(all)):] {
		if it.state == Remote && it.cancel == nil && !time.Now().Before(it.removeAfter) {
			old = append(old, it)
		}
	}
	d.mu.Unlock()
	for _, it := range old {
		if ctx.Err() != nil {
			return
		}
		err := d.stillThere(ctx, it, d.opt.Remove)
		d.suspect(it, err)
		d.mu.Lock()
		if err != nil {
			if it.state == Remote { // otherwise it is mended first
				it.removeAfter = time.Now().Add(d.opt.failedMost)
			}
			d.log.Warn("a checkpoint beyond --keep stays", "checkpoint", it.name, "error", err)
		} else {
			d.counts.removed.Add(1)
			if d.items[it.name] == it {
				d.drop(it) // its journal goes, and no object
			}
			d.log.Info("a checkpoint that is remote was removed here", "checkpoint", it.name)
		}
		d.mu.Unlock()
	}
}

// State says how a checkpoint stands, and why.
func (d *Drain) State(name string) (state, why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if it := d.items[name]; it != nil {
		return it.state, it.why
	}
	return Local, "" // it is looked at soon
}

// Status says how far everything is.
func (d *Drain) Status() *status.Drain {
	s := &status.Drain{
		Directory: d.dir, Destination: d.bucket.String(), Bound: max(0, d.pace.rate()), Checkpoints: []status.DrainEntry{},
		Sent: d.counts.sent.Load(), Found: d.counts.skipped.Load(), Requests: d.counts.requests.Load(), Retries: d.counts.retries.Load(), Removed: d.counts.removed.Load(), Mended: d.counts.mended.Load(),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.unseen != nil:
		s.Trouble, s.TroubleFor = d.unseen.Error(), time.Since(d.unseenSince).Seconds()
	case d.trouble != nil:
		s.Trouble, s.TroubleFor = d.trouble.Error(), time.Since(d.since).Seconds()
	}
	for _, name := range d.drafts {
		s.States.Draft++
		s.Checkpoints = append(s.Checkpoints, status.DrainEntry{Name: name, State: Draft, Parts: 1})
	}
	for _, it := range d.items {
		e := status.DrainEntry{Name: it.name, State: it.state, Why: it.why, Part: it.part.Index, Parts: it.part.Of, Files: it.files, Bytes: it.size, Done: min(it.done.Load(), it.size)}
		if it.state == Draining && d.trouble != nil {
			e.Why = "the destination does not answer as it should, and is asked again: " + d.trouble.Error()
		}
		switch it.state {
		case Local:
			s.States.Local++
		case Draining:
			s.States.Draining++
		case Remote:
			s.States.Remote++
		case Failed:
			s.States.Failed++
		}
		if it.state != Remote {
			s.Pending += it.size - e.Done
			s.PendingFor = max(s.PendingFor, time.Since(it.seen).Seconds())
		}
		s.Checkpoints = append(s.Checkpoints, e)
	}
	slices.SortFunc(s.Checkpoints, func(a, b status.DrainEntry) int { return checkpoint.Natural(a.Name, b.Name) })
	return s
}

const statusName = "status"

// save keeps the status beside the journals, for others to read. Where it cannot, nobody waits for it.
func (d *Drain) save() {
	if text, err := json.Marshal(d.Status()); err == nil {
		_ = d.state.write(statusName, append(text, '\n'), false) // a sync would have training's writes wait
	}
}
