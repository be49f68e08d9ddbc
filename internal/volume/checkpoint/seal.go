package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// SealOptions say how a draft of plain files is published.
type SealOptions struct {
	Patience time.Duration // how long a file may still be open for writing: the kernel closes some a moment after close(2)
	// Closed gives a [Writing] of a file that the kernel may open for writing yet, since it has the answer that allows it. nil: there is none.
	Closed   func() error
	Progress func(done, total int64) // bytes; may be called from several threads at once. nil: nobody asks
	// Sync syncs a file, given by its name and a descriptor, with a descriptor that was open before the file was written: others miss errors that
	// were reported before. It remembers a sync that has failed. nil: the descriptor is synced.
	Sync func(name string, f *os.File) error
	// Mapped tells whether a program could map a file for writing, which takes a descriptor for reading and writing. Pages of such a file are dropped
	// from memory before it is read: see pinned.go. nil: each file.
	Mapped func(f *os.File) bool
	// Room books memory for the manifest that is made, and tells whether there is some. A negative number gives it back. nil: there is enough.
	Room func(bytes int64) bool
}

func (o *SealOptions) sync(name string, f *os.File) error {
	if o.Sync == nil {
		return f.Sync()
	}
	return o.Sync(name, f)
}

// Writing names a file of a draft that somebody can still write: an [ErrOpen].
type Writing struct{ File string }

func (w *Writing) Error() string {
	return fmt.Sprintf("file %q is still open for writing, or mapped: close it, then publish again", w.File)
}
func (w *Writing) Unwrap() error { return ErrOpen }

// PublishAll publishes all files of the draft. Their writers said neither sizes nor sums. It takes a read lease of each first: the kernel
// refuses that while anybody can still write the file ([Writing]). The caller sees to it that nobody opens one for writing meanwhile. Then
// it reads all files for their sums, and publishes as [Draft.Publish] does.
func (d *Draft) PublishAll(ctx context.Context, opt SealOptions) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return fmt.Errorf("publish checkpoint %s: it was published or dropped before: %w", d.path, os.ErrClosed)
	}
	if err := d.publishAll(ctx, opt); err != nil {
		return fmt.Errorf("publish checkpoint %s: %w", d.path, err)
	}
	d.end()
	return nil
}

func (d *Draft) publishAll(ctx context.Context, opt SealOptions) error {
	booked := int64(0)
	book := func(bytes int64) bool {
		if bytes <= booked || opt.Room == nil {
			return true
		}
		if !opt.Room(bytes - booked) {
			return false
		}
		booked = bytes
		return true
	}
	defer func() {
		if booked > 0 {
			opt.Room(-booked)
		}
	}()
	files, err := d.files(book)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(opt.Patience)
	if opt.Closed != nil {
		if err := whenClosed(ctx, deadline, opt.Closed); err != nil {
			return err
		}
	}
	for i := range files {
		if err := whenClosed(ctx, deadline, func() error {
			f, err := d.leased(files[i].Name)
			if err != nil {
				return err
			}
			return f.Close() // and the lease with it
		}); err != nil {
			return err
		}
	}
	// Sizes are final now.
	if files, err = d.files(book); err != nil {
		return err
	}
	dirs, err := d.compare(files, true)
	if err != nil {
		return err
	}
	for i := range files {
		files[i].Sums = make([]uint32, chunks(files[i].Size))
	}
	group, working := errgroup.WithContext(ctx)
	group.Go(func() error { return d.sync(working, files, dirs, opt.sync) })
	group.Go(func() error { return d.sum(working, files, &opt) })
	if err := group.Wait(); err != nil {
		return err
	}
	m := &Manifest{Name: d.name, Part: d.part, Created: time.Now().UTC().Truncate(time.Millisecond), Files: files, Dirs: EmptyDirs(dirs, files)}
	text, err := m.marshal()
	if err != nil {
		return err
	}
	if _, err := d.compare(files, true); err != nil { // somebody works past the volume
		return err
	}
	return d.finish(text)
}

var errTooMuch = fmt.Errorf("too much is being published at once: try again when that is done: %w", unix.EAGAIN)

// files lists the draft's files. It refuses impossible files before anything is read or allocated for them. book has memory booked for a manifest
// of so many bytes, and tells whether there is room.
func (d *Draft) files(book func(bytes int64) bool) (files []File, err error) {
	manifest := int64(0)
	err = walk(d.dir, ".", 0, func(name string, info fs.FileInfo) error {
		switch {
		case name == ManifestName:
		case info.IsDir(): // it may be empty, and then has a name in the manifest
			if manifest += int64(len(name)); !book(manifest) {
				return errTooMuch
			}
		case !info.Mode().IsRegular():
			return failf(ErrInvalid, "%q is no regular file, and a checkpoint has no others: remove it", name)
		case len(files) == mostFiles:
			return failf(ErrInvalid, "there are more than %d files", mostFiles)
		case info.Size() > mostSize:
			return failf(ErrInvalid, "file %q has %d bytes, and a manifest has room for the sums of %d: cut it, or write smaller files", name, info.Size(), mostSize)
		default:
			manifest += int64(len(name)) + sumsInText*chunks(info.Size())
			if manifest > mostManifest {
				return failf(ErrInvalid, "the manifest would have more than %d bytes, for names and for sums of each %d bytes of all files: publish it in parts", mostManifest, Chunk)
			}
			if !book(manifest) {
				return errTooMuch
			}
			files = append(files, File{Name: name, Size: info.Size()})
		}
		return nil
	})
	return files, err
}

// whenClosed waits until closed finds no file that somebody can write.
func whenClosed(ctx context.Context, deadline time.Time, closed func() error) error {
	const again = 5 * time.Millisecond // a driver closes its descriptor a moment after its user did
	for {
		err := closed()
		if !errors.Is(err, ErrOpen) || time.Now().After(deadline) {
			return err
		}
		if err := pause.For(ctx, again); err != nil {
			return err
		}
	}
}

// leased opens a file with a read lease.
func (d *Draft) leased(name string) (*os.File, error) {
	f, _, err := openRegularAs(d.dir, name, os.O_RDONLY|unix.O_NONBLOCK) // else it would wait until a lease of another ends
	if errors.Is(err, unix.EAGAIN) {
		return nil, &Writing{name}
	}
	if err != nil {
		return nil, err
	}
	take := func() error {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
		return err
	}
	if err = take(); errors.Is(err, unix.EACCES) && d.owner != nil { // root without CAP_LEASE: the owner may
		err = asuser.Do(asuser.User{UID: d.owner.UID, GID: d.owner.GID}, take)
	}
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.EAGAIN):
		err = &Writing{name}
	default:
		err = fmt.Errorf("take a read lease of %s: %w", filepath.Join(d.Dir(), name), err)
	}
	_ = f.Close() // opened for reading
	return nil, err
}

// sum computes the sums of files, each under its lease.
func (d *Draft) sum(ctx context.Context, files []File, opt *SealOptions) error {
	total, done, progress := int64(0), atomic.Int64{}, opt.Progress
	for i := range files {
		total += files[i].Size
	}
	read := func(n int64) {
		if sum := done.Add(n); progress != nil {
			progress(sum, total)
		}
	}
	read(0)
	jobs := make(chan job)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(jobs)
		for i := range files {
			if err := d.divide(ctx, &files[i], opt, jobs, read); err != nil {
				return err
			}
		}
		return nil
	})
	for range min(8, runtime.NumCPU()) {
		group.Go(func() error {
			buf := make([]byte, verifySlice)
			for j := range jobs {
				if err := d.sumChunks(ctx, j, buf, read); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// divide gives out the chunks of a file, and sums those in holes.
func (d *Draft) divide(ctx context.Context, file *File, opt *SealOptions, jobs chan<- job, read func(int64)) error {
	f, err := d.leased(file.Name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading
	if opt.Mapped == nil || opt.Mapped(f) {
		if err := unpinned(ctx, f, file.Name, func() error { return opt.sync(file.Name, f) }, opt.Patience); err != nil {
			return err
		}
	}
	return divide(ctx, f, file, jobs, func(chunk int64, sum uint32) {
		file.Sums[chunk] = sum
		read(min(Chunk, file.Size-chunk*Chunk))
	})
}

// sumChunks computes the sums of some chunks of a file.
func (d *Draft) sumChunks(ctx context.Context, j job, buf []byte, read func(int64)) error {
	f, err := d.leased(j.file.Name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading
	for chunk := j.first; chunk < j.end; chunk++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := chunk * Chunk
		n := min(Chunk, j.file.Size-at)
		if j.file.Sums[chunk], err = sumOf(f, at, n, buf); err != nil {
			return fmt.Errorf("read %q: %w", j.file.Name, err)
		}
		read(n)
	}
	if held, err := unix.FcntlInt(f.Fd(), unix.F_GETLEASE, 0); err != nil || held != unix.F_RDLCK { // somebody opens it past the volume
		return errors.Join(&Writing{j.file.Name}, err)
	}
	return nil
}

// SetMode sets the mode that the checkpoint will have.
func (d *Draft) SetMode(mode fs.FileMode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mode = d.mode&fs.ModeSetgid | mode&fs.ModePerm
}

// Name is the name that the draft will be published under.
func (d *Draft) Name() string { return d.name }

// Lock opens the draft's lock again, which is held as long as any descriptor of it is open.
func (d *Draft) Lock() (*os.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return nil, os.ErrClosed
	}
	fd, err := unix.FcntlInt(d.lock.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), d.lock.base), nil
}

// Rename gives a draft another name, under which it will be published. [ErrExists], [ErrBusy]: as of [Begin].
func (d *Draft) Rename(ctx context.Context, name string) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return os.ErrClosed
	}
	if err := checkName(name); err != nil {
		return err
	}
	as := &Draft{path: filepath.Join(filepath.Dir(d.path), name), name: name, parent: d.parent, of: d.of}
	if as.lock, err = take(ctx, d.parent, name, d.of); err != nil {
		return err
	}
	if err = as.refuseExisting(); err == nil {
		for _, ending := range []string{draftEnding, oldEnding} {
			if err == nil {
				_, err = removeHidden(ctx, d.parent, hidden(name, ending), d.of)
			}
		}
	}
	if err == nil {
		err = rename(d.parent, d.base(), as.base())
	}
	if err != nil {
		as.lock.release()
		return fmt.Errorf("rename the draft of %s: %w", d.path, err)
	}
	d.lock.release()
	d.path, d.name, d.lock = as.path, as.name, as.lock
	return nil
}
