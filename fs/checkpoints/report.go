package checkpoints

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

type info struct {
	id uint64
	is status.Published
}

// tell says that a checkpoint is there.
func (v *Volume) tell(name string) {
	v.opt.Log.Info("published", "checkpoint", name)
	if v.opt.Published != nil {
		v.opt.Published(name)
	}
}

// Notes are surprises for the user, one line each.
func (v *Volume) Notes() (notes []string) {
	if n := len(v.removed); n > 0 {
		notes = append(notes, fmt.Sprintf("%d drafts and other leftovers of writers that are gone were removed, %s for one", n, v.removed[0]))
	}
	if n := len(v.foreign); n > 0 {
		notes = append(notes, fmt.Sprintf("%d names in %s are no checkpoints of hbmfs's, and are not shown: %s", n, v.home.Path(), strings.Join(v.foreign[:min(n, 5)], ", ")))
	}
	if v.inner != nil && v.inner.Passthrough() != "" {
		notes = append(notes, "drafts are written through the daemon, slower than the disk: "+v.inner.Passthrough())
	}
	return notes
}

// refusedMax is how many refusals the status tells.
const refusedMax = 10

// loggedMax is how many refusals of a minute are logged: users choose the names in them.
const loggedMax = 60

// refuse notes why something was refused, for the status and the log.
func (v *Volume) refuse(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := slices.Index(v.refused, text); i >= 0 {
		v.refused = slices.Delete(v.refused, i, i+1)
	} else if now := time.Now().Unix() / 60; v.minute != now || v.logged < loggedMax {
		if v.minute != now {
			v.minute, v.logged = now, 0
		}
		v.logged++
		v.opt.Log.Warn("refused", "reason", text)
	}
	v.refused = append(v.refused, text)
	if len(v.refused) > refusedMax {
		v.refused = v.refused[1:]
	}
}

// Status implements [fs.Top].
func (v *Volume) Status() *status.Checkpoints {
	s := &status.Checkpoints{Directory: v.home.Path(), Drafts: []status.DraftState{}, Published: v.published(), Refused: []string{}}
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(v.self.Fd()), &disk); err == nil {
		s.Free = int64(disk.Bavail) * disk.Frsize
	}
	if v.opt.Drain != nil {
		s.Drain = v.opt.Drain()
	}
	past := v.fast.Drafts() // this waits for drafts that are being sealed or published
	v.mu.Lock()
	defer v.mu.Unlock()
	s.Refused = append(s.Refused, v.refused...)
	for _, d := range v.drafts {
		s.Drafts = append(s.Drafts, d.status())
	}
	for _, d := range past {
		s.Drafts = append(s.Drafts, status.DraftState{Name: d.Name, UID: d.UID, PID: d.PID, Since: d.Began, Open: d.Files - d.Sealed, Total: d.Bytes, Past: true})
	}
	slices.SortFunc(s.Drafts, func(a, b status.DraftState) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// published tells of all checkpoints. A manifest is read once.
func (v *Volume) published() []status.Published {
	names, _, err := v.home.Names()
	all := make([]status.Published, 0, len(names))
	if err != nil {
		return all
	}
	slices.SortFunc(names, checkpoint.Natural)
	is := make(map[string]info, len(names))
	for _, name := range names {
		id, err := v.Published(name)
		if err != nil || id == 0 {
			continue
		}
		v.mu.Lock()
		p, known := v.infos[name]
		v.mu.Unlock()
		if !known || p.id != id {
			p = info{id, status.Published{Name: name, State: "damaged"}}
			if c, err := v.home.Open(name); err != nil {
				p.is.Why = err.Error()
			} else {
				p.is = status.Published{Name: name, State: "local", Files: len(c.Manifest.Files), Size: c.Manifest.Size(), Created: c.Manifest.Created}
				_ = c.Close() // opened for reading
			}
		}
		is[name] = p
		if v.opt.State != nil && p.is.State == "local" {
			p.is.State, p.is.Why = v.opt.State(name)
		}
		all = append(all, p.is)
	}
	v.mu.Lock()
	v.infos = is
	v.mu.Unlock()
	return all
}

func (d *mountedDraft) status() status.DraftState {
	s := status.DraftState{
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

// unpublished notes why a draft was not published. Everybody reads the status: it names a file only where everybody may list the checkpoint.
func (v *Volume) unpublished(d *mountedDraft, err error) {
	v.mu.Lock()
	why, shown, hidden := err.Error(), d.shown, d.owner.Mode&0o005 != 0o005
	v.mu.Unlock()
	if hidden {
		v.opt.Log.Warn("a draft was not published", "draft", shown, "error", err)
		why = unix.Errno(errnoOf(err)).Error() + ": hbmfs publish says more"
		if errors.Is(err, checkpoint.ErrOpen) {
			why = "a file is still open for writing, or mapped: hbmfs publish says which"
		}
	}
	v.mu.Lock()
	d.why = why
	v.mu.Unlock()
	v.refuse("%s was not published: %s", shown, why)
}
