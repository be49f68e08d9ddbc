package drafts

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// clientDraft is a checkpoint that clients write.
type clientDraft struct {
	key
	server *Server
	user   asuser.User
	name   string
	part   checkpoint.Part
	umask  uint32
	began  time.Time
	writer *process // nil where the kernel does not tell it
	books  *books   // nil where nobody holds the mount

	mu       sync.Mutex // guards the fields below; held while the draft is made, sealed or published
	made     *checkpoint.Draft
	files    []*file
	byName   map[string]int
	over     bool
	complete bool // published
}

// file is one of a draft.
type file struct {
	checkpoint.Making
	sums    []uint32
	known   int64 // sums that are known, from the first on
	asked   bool  // a SEAL of it came in an earlier life
	sealed  bool
	unnamed bool // it counts for that share
}

// sumsOf is how many sums a file has.
func sumsOf(size int64) int64 {
	n := size / control.SumChunk
	if size%control.SumChunk != 0 {
		n++
	}
	return n
}

// process is one that writes.
type process struct {
	pidfd *os.File
	pid   int
}

// begin makes the draft on the disk. mu is held.
func (d *clientDraft) begin(ctx context.Context) error {
	s := d.server
	if err := s.mayCreate(d.user); err != nil {
		return err
	}
	owner := checkpoint.Owner{UID: d.user.UID, GID: d.user.GID, Mode: os.FileMode(0o777 &^ d.umask)}
	made, err := s.opt.Home.Begin(ctx, d.name, d.part, owner)
	if err == nil {
		if err = made.Past(nil); err != nil {
			_ = made.Drop() // it is empty
		}
	}
	if err != nil {
		return err
	}
	if d.made = made; s.opt.Life != nil {
		if d.books, err = d.keep(); err != nil {
			return fmt.Errorf("keep the draft for the next daemon: %w", err)
		}
	}
	return nil
}

// errOver refuses requests after the end.
func (d *clientDraft) errOver() error {
	return refuse(unix.ENOENT, "the draft of %q is over: it was published, or dropped, or its first writer has ended", d.name)
}

// add makes files, and gives the number of the first and the writers' descriptors. Files that an earlier request has made are
// given again.
func (d *clientDraft) add(wanted []control.NewFile) (first uint32, pens []*os.File, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return 0, nil, d.errOver()
	}
	first = uint32(len(d.files))
	again := false
	if len(wanted) > 0 {
		var at int
		if at, again = d.byName[wanted[0].Name]; again {
			first = uint32(at)
		}
	}
	defer func() {
		if err != nil {
			closeAll(pens)
			pens = nil
		}
	}()
	for i := range wanted {
		pen, err := d.addOne(&wanted[i], int(first)+i, again)
		if err != nil {
			return 0, pens, err
		}
		pens = append(pens, pen)
	}
	return first, pens, nil
}

// addOne makes the file of a number, or opens it again. mu is held.
func (d *clientDraft) addOne(w *control.NewFile, number int, again bool) (*os.File, error) {
	if at, ok := d.byName[w.Name]; ok {
		f := d.files[at]
		if !again || at != number || f.Size != w.Size || f.sealed {
			return nil, refuse(unix.EEXIST, "file %q is in the draft of %q already: give each file a name of its own", w.Name, d.name)
		}
		return d.penOf(f)
	}
	if number != len(d.files) {
		return nil, refuse(unix.EINVAL, "file %q is new, and comes behind one that is not: ask for those that were asked for before, or for new ones", w.Name)
	}
	s, uid := d.server, d.user.UID
	if !s.files.Reserve(uid, 1) {
		return nil, refuse(unix.EAGAIN, "user %d has too many files in drafts (%d), or others need the rest of %d: publish some first", uid, s.files.Of(uid), s.files.Limit())
	}
	if !s.chunks.Reserve(uid, sumsOf(w.Size)) {
		s.files.Book(uid, -1)
		return nil, refuse(unix.EAGAIN, "file %q of %d bytes is more than user %d may have in drafts: write smaller ones, or publish some first", w.Name, w.Size, uid)
	}
	f := &file{unnamed: s.unnamed.Reserve(uid, 1)}
	var made *checkpoint.Making
	err := asuser.Do(d.user, func() (err error) {
		made, err = d.made.Make(w.Name, w.Size, !f.unnamed)
		return err
	})
	if err == nil {
		f.Making = *made
		if f.unnamed && f.Read == nil { // the filesystem has none
			s.unnamed.Book(uid, -1)
			f.unnamed = false
		}
		if err = d.books.added(number, f); err != nil {
			closeAll([]*os.File{f.Pen, f.Read})
		}
	}
	if err != nil {
		s.files.Book(uid, -1)
		s.chunks.Book(uid, -sumsOf(w.Size))
		if f.unnamed {
			s.unnamed.Book(uid, -1)
		}
		return nil, err
	}
	d.byName[w.Name] = number
	d.files = append(d.files, f)
	pen := f.Pen
	f.Pen = nil // its writer's alone
	return pen, nil
}

// penOf opens a file again whose descriptor was lost with an answer.
func (d *clientDraft) penOf(f *file) (pen *os.File, err error) {
	err = asuser.Do(d.user, func() (err error) {
		pen, err = d.made.Again(&f.Making)
		return err
	})
	return pen, err
}

// seal notes sums of a file. With the last of them it gets its name.
func (d *clientDraft) seal(m *control.Seal) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return d.errOver()
	}
	if int64(m.File) >= int64(len(d.files)) {
		return refuse(unix.EINVAL, "the draft of %q has no file %d", d.name, m.File)
	}
	f := d.files[m.File]
	most := sumsOf(f.Size)
	end := int64(m.First) + int64(len(m.Sums))
	switch {
	case end > most:
		return refuse(unix.EINVAL, "file %q has %d chunks, and sums come for %d", f.Name, most, end)
	case int64(m.First) > f.known:
		return refuse(unix.EINVAL, "the sums of file %q come out of order: chunk %d, and %d is next", f.Name, m.First, f.known)
	case end <= f.known && !slices.Equal(f.sums[m.First:end], m.Sums), end > f.known && !slices.Equal(f.sums[m.First:f.known], m.Sums[:f.known-int64(m.First)]):
		return refuse(unix.EINVAL, "file %q was sealed with other sums before", f.Name)
	case f.sealed, end < f.known: // nothing new: the last part alone has it named
		return nil
	}
	if err := d.books.sealing(m); err != nil {
		return err
	}
	f.sums, f.known = append(f.sums[:m.First], m.Sums...), end
	if f.known < most {
		return nil
	}
	if err := asuser.Do(d.user, func() error { return d.made.Link(&f.Making, f.sums) }); err != nil {
		return err
	}
	if err := d.books.sealed(int(m.File)); err != nil {
		return err
	}
	f.sealed = true
	d.named(int(m.File), f)
	return nil
}

// named gives back the share of a file without a name. mu is held.
func (d *clientDraft) named(number int, f *file) {
	if f.unnamed {
		f.unnamed = false
		d.server.unnamed.Book(d.user.UID, -1)
		d.books.named(number)
	}
}

// publish makes the draft the checkpoint.
func (d *clientDraft) publish(ctx context.Context, m *control.PublishDraft) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.complete:
		return nil
	case d.over:
		return d.errOver()
	}
	files := make([]checkpoint.File, len(d.files))
	size := int64(0)
	for i, f := range d.files {
		if !f.sealed {
			return refuse(unix.EINVAL, "file %q of %q is not sealed: seal all files, then publish", f.Name, d.name)
		}
		files[i] = checkpoint.File{Name: f.Name, Size: f.Size, Sums: f.sums}
		size += f.Size
	}
	if int(m.Files) != len(files) || m.Bytes != size {
		return refuse(unix.EINVAL, "the draft of %q has %d files of %d bytes, and %d of %d are to be published: a writer's files are missing, or too many", d.name, len(files), size, m.Files, m.Bytes)
	}
	if err := d.made.Publish(ctx, files); err != nil {
		return err
	}
	d.complete = true
	d.finish()
	if told := d.server.opt.Published; told != nil {
		told(d.name)
	}
	return nil
}

// drop removes the draft, and tells whether there was one.
func (d *clientDraft) drop() (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return false, nil
	}
	err := d.made.Drop()
	d.finish()
	return true, err
}

// finish gives everything back. mu is held.
func (d *clientDraft) finish() {
	d.over = true
	uid := d.user.UID
	for _, f := range d.files {
		if f.Read != nil {
			_ = f.Read.Close() // nothing was written through it
		}
		if f.unnamed {
			d.server.unnamed.Book(uid, -1)
		}
		d.server.chunks.Book(uid, -sumsOf(f.Size))
	}
	d.server.files.Book(uid, -int64(len(d.files)))
	d.books.end(len(d.files))
	d.files, d.byName = nil, nil
	if d.writer != nil {
		_ = d.writer.pidfd.Close() // it was only asked
	}
	d.server.remove(d, d.complete)
}

func (d *clientDraft) info() Info {
	i := Info{Name: d.name, UID: d.user.UID, Began: d.began}
	if d.writer != nil {
		i.PID = d.writer.pid
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		i.Files++
		i.Bytes += f.Size
		if f.sealed {
			i.Sealed++
		}
	}
	return i
}

// watch drops the draft when its writer ends.
func (d *clientDraft) watch() {
	if d.writer == nil {
		return
	}
	raw, err := d.writer.pidfd.SyscallConn()
	if err != nil {
		return // it is over
	}
	d.server.ended.Go(func() { // ends with the process, or the draft
		if raw.Read(func(fd uintptr) bool {
			poll := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, _ := unix.Poll(poll[:], 0) // it does not wait
			return n > 0
		}) == nil {
			d.server.end(d, "process "+strconv.Itoa(d.writer.pid)+", which began it, has ended")
		}
	})
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // nothing was written
		}
	}
}
