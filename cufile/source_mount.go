package cufile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// mountedFile is a file of an hbmfs mount: its extents by ioctl, the backing files by the control socket. What it
// leases lasts until close, as long as the client's connection.
type mountedFile struct {
	file   *os.File
	client *control.Client
	length int64
	all    []run
	inline *backing // the file itself, for bytes that exist only in the mount

	mu     sync.Mutex
	leased map[uint64]*backing // by object; guarded by mu
}

// inlineObject is the object of bytes that lie in no backing file (docs/control-protocol.md).
const inlineObject = 0

// mostRuns bounds the memory for one file's extents, 56 bytes each: a regular view has few, whatever its size.
const mostRuns = 1 << 22

// openMounted opens a file of a mount. What is in no mount gives control.ErrNotHBMFS.
func (r *Reader) openMounted(ctx context.Context, name string) (_ *mountedFile, err error) {
	fd, err := openFile(name)
	if err != nil {
		return nil, err
	}
	m := &mountedFile{file: os.NewFile(uintptr(fd), name), leased: map[uint64]*backing{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	info, err := control.Info(m.file)
	if err != nil {
		return nil, err
	}
	m.length = info.Size
	if m.client, err = control.Dial(ctx, name, "hbmfs reader"); err != nil {
		return nil, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s again: %w", name, err)
	}
	if m.inline, err = newBacking(own, name, r.ids.Add(1)); err != nil {
		return nil, err
	}
	m.inline.inline = true
	return m, m.lease(ctx, r)
}

// lease asks for all extents and redeems their objects, an answer at a time, since a ticket lives for seconds.
func (m *mountedFile) lease(ctx context.Context, r *Reader) error {
	for batch, err := range control.Batches(m.file, 0, math.MaxInt64, true) {
		if err != nil {
			return err
		}
		if len(m.all)+len(batch.Extents) > mostRuns {
			return fmt.Errorf("open %s: %w: more than %d extents", m.file.Name(), ErrTooLarge, mostRuns)
		}
		for _, e := range batch.Extents {
			object := e.Object
			if e.Flags&control.ExtentMount != 0 {
				// Its offset is the place in the file, whatever the extent says.
				m.all = append(m.all, run{e.Logical, e.Length * e.Count, inlineObject, e.Logical, 0, 1})
				continue
			}
			if e.Flags != 0 {
				return fmt.Errorf("open %s: %w: the extent at %d has flags %#x that this reader does not know", m.file.Name(), ErrUnavailable, e.Logical, e.Flags)
			}
			m.all = append(m.all, run{e.Logical, e.Length, object, e.Offset, e.Stride, e.Count})
		}
		if err := m.redeem(ctx, r, &batch); err != nil {
			return err
		}
	}
	end := int64(0)
	for i := range m.all {
		if m.all[i].logical != end {
			return fmt.Errorf("open %s: the mount names no place for the bytes at %d", m.file.Name(), end)
		}
		end = m.all[i].end()
	}
	if end != m.length {
		return fmt.Errorf("open %s: extents for %d of %d bytes", m.file.Name(), end, m.length)
	}
	return nil
}

// redeem opens those objects of an answer that are not open yet.
func (m *mountedFile) redeem(ctx context.Context, r *Reader, batch *control.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var missing []uint64
	for _, object := range batch.Objects() {
		if m.leased[object] == nil {
			missing = append(missing, object)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	files, err := m.client.Redeem(ctx, batch.Ticket, missing)
	if err != nil {
		return err
	}
	var errs []error
	for i := range files {
		errs = append(errs, m.adopt(r, &files[i]))
	}
	return errors.Join(errs...)
}

// adopt takes over a redeemed file.
func (m *mountedFile) adopt(r *Reader, b *control.Backing) error {
	if b.Err != nil {
		return b.Err
	}
	if b.File == nil {
		return fmt.Errorf("open %s: the daemon gave no file for object %d", m.file.Name(), b.Object)
	}
	fd, err := unix.FcntlInt(b.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err = errors.Join(err, b.File.Close()); err != nil {
		return fmt.Errorf("take over the backing file of %s: %w", m.file.Name(), err)
	}
	own, err := newBacking(fd, fmt.Sprintf("%s (object %d)", m.file.Name(), b.Object), r.ids.Add(1))
	if err != nil {
		return err
	}
	m.leased[b.Object] = own
	return nil
}

func (m *mountedFile) size() int64 { return m.length }

func (m *mountedFile) runs(context.Context, int64, int64) ([]run, error) { return m.all, nil }

func (m *mountedFile) backing(_ context.Context, object uint64) (*backing, error) {
	if object == inlineObject {
		return m.inline, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.leased[object]; b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("cufile: internal error: object %d of %s was not redeemed", object, m.file.Name())
}

func (m *mountedFile) opened() []*backing {
	m.mu.Lock()
	defer m.mu.Unlock()
	var files []*backing
	for _, b := range m.leased {
		files = append(files, b)
	}
	return files
}

// report tells the daemon what was moved, for its status.
func (m *mountedFile) report(ctx context.Context, moved Moved, reads int64) error {
	var list []control.Moved
	for _, p := range []struct {
		path  control.Path
		bytes int64
	}{
		{control.PathDirect, moved.Direct}, {control.PathMapped, moved.Mapped}, {control.PathStaged, moved.Staged},
		{control.PathCompat, moved.Compat}, {control.PathHost, moved.Host},
	} {
		if p.bytes > 0 {
			list = append(list, control.Moved{Path: p.path, Bytes: p.bytes, Reads: reads})
		}
	}
	if len(list) == 0 {
		return nil
	}
	return m.client.ReportStats(ctx, list...)
}

func (m *mountedFile) close() error {
	var errs []error
	for _, b := range m.opened() {
		errs = append(errs, b.close())
	}
	if m.inline != nil {
		errs = append(errs, m.inline.close())
	}
	if m.client != nil {
		errs = append(errs, m.client.Close())
	}
	return errors.Join(append(errs, m.file.Close())...)
}
