package cufile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// mountedFile is a file of an hbmfs mount: its extents by ioctl, the backing files by the control socket. They are
// asked for when they are needed, and given back when others need their place (see handles).
type mountedFile struct {
	file   *os.File
	client *control.Client
	length int64
	info   control.FileInfo
	inline *backing // the file itself, for bytes that exist only in the mount
	ids    *atomic.Uint64

	mu      sync.Mutex // guards what follows
	all     []run      // nil while nobody needed them and they are many
	objects map[uint64]*backing
}

// inlineObject is the object of bytes that lie in no backing file (docs/control-protocol.md).
const inlineObject = 0

// A regular view has few runs, whatever its size. Up to fewRuns are asked for at once. Of a file with more only those
// of a request are, until one needs more than that itself: then they are kept. mostRuns bounds their memory, 56 bytes
// each.
const (
	fewRuns  = 1 << 12
	mostRuns = 1 << 22
)

// openMounted opens a file of a mount. What is in no mount gives control.ErrNotHBMFS.
func (r *Reader) openMounted(ctx context.Context, name string) (_ *mountedFile, err error) {
	fd, err := openFile(name)
	if err != nil {
		return nil, err
	}
	m := &mountedFile{file: os.NewFile(uintptr(fd), name), ids: &r.ids, objects: map[uint64]*backing{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	info, err := control.Info(m.file)
	if err != nil {
		return nil, err
	}
	m.length, m.info = info.Size, info
	if m.client, err = control.DialReader(ctx, name, r.opt.Client, r.number); err != nil {
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
	if info.Runs > fewRuns {
		return m, nil
	}
	m.all, err = m.extents(ctx, 0, m.length, fewRuns)
	return m, err
}

// extents asks for the runs of [offset, offset+n). More than most are ErrTooLarge.
func (m *mountedFile) extents(ctx context.Context, offset, n, most int64) ([]run, error) {
	list, end := []run{}, offset
	for batch, err := range control.Batches(m.file, offset, n, false) {
		if err = m.explain(ctx, err); err != nil {
			return nil, err
		}
		if int64(len(list))+batch.Total > most {
			return nil, fmt.Errorf("open %s: %w: more than %d extents", m.file.Name(), ErrTooLarge, most)
		}
		for _, e := range batch.Extents {
			r := run{e.Logical, e.Length, e.Object, e.Offset, e.Stride, e.Count}
			switch {
			case e.Logical != end:
				return nil, fmt.Errorf("open %s: the mount names no place for the bytes at %d", m.file.Name(), end)
			case e.Flags&control.ExtentMount != 0:
				// Its offset is the place in the file, whatever the extent says.
				r = run{e.Logical, e.Length * e.Count, inlineObject, e.Logical, 0, 1}
			case e.Flags != 0:
				return nil, fmt.Errorf("open %s: %w: the extent at %d has flags %#x that this reader does not know", m.file.Name(), ErrUnavailable, e.Logical, e.Flags)
			}
			list, end = append(list, r), r.end()
		}
	}
	if end != offset+n {
		return nil, fmt.Errorf("open %s: extents for %d of %d bytes", m.file.Name(), end-offset, n)
	}
	return list, nil
}

func (m *mountedFile) size() int64 { return m.length }

func (m *mountedFile) runs(ctx context.Context, offset, n int64) ([]run, error) {
	m.mu.Lock()
	all := m.all
	m.mu.Unlock()
	if all != nil {
		return all, nil
	}
	few, err := m.extents(ctx, offset, n, fewRuns)
	if !errors.Is(err, ErrTooLarge) {
		return few, err
	}
	if all, err = m.extents(ctx, 0, m.length, mostRuns); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = all
	return all, nil
}

func (m *mountedFile) backing(r *run) *backing {
	if r.object == inlineObject {
		return m.inline
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.objects[r.object]
	if b == nil {
		b = &backing{id: m.ids.Add(1), name: fmt.Sprintf("%s (object %d)", m.file.Name(), r.object), fd: -1, lender: m, object: r.object, at: r.logical}
		m.objects[r.object] = b
	}
	return b
}

func (m *mountedFile) leave() []*backing {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.objects))
}

// open redeems files. One ticket is for at most 64 objects that lie next to each other and lives for seconds, so each
// answer is redeemed before the next; it goes on from there while that brings any, and else where the next one lies.
func (m *mountedFile) open(ctx context.Context, files []*backing) (ahead []*backing, err error) {
	slices.SortFunc(files, func(a, b *backing) int { return cmp.Compare(a.at, b.at) })
	for len(files) > 0 {
		before, first := len(files), files[0].at
		for batch, err := range control.Batches(m.file, first, files[len(files)-1].at+1-first, true) {
			if err = m.explain(ctx, err); err != nil {
				return nil, err
			}
			named := batch.Objects()
			here := slices.DeleteFunc(slices.Clone(files), func(b *backing) bool { return !slices.Contains(named, b.object) })
			if len(here) == 0 {
				break
			}
			if err := m.redeem(ctx, batch.Ticket, here); err != nil {
				return nil, err
			}
			files = slices.DeleteFunc(slices.Clone(files), func(b *backing) bool { return slices.Contains(here, b) })
			if len(files) == 0 {
				break
			}
		}
		if len(files) == before {
			return nil, fmt.Errorf("open %s: the mount no longer names it at %d", files[0].name, first)
		}
	}
	return nil, nil
}

// explain makes the error of a question say what it means.
func (m *mountedFile) explain(ctx context.Context, err error) error {
	if errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) {
		return fmt.Errorf("open backing files of %s: the daemon has gone, it was unmounted or restarted: %w", m.file.Name(), control.ErrStale)
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

func (m *mountedFile) redeem(ctx context.Context, ticket control.Ticket, files []*backing) error {
	objects := make([]uint64, len(files))
	for i, b := range files {
		objects[i] = b.object
	}
	got, err := m.client.Redeem(ctx, ticket, objects)
	if err != nil {
		return fmt.Errorf("open %s: %w", files[0].name, err)
	}
	errs := make([]error, len(got))
	for i := range got {
		errs[i] = files[i].take(&got[i])
	}
	return firstError(errs)
}

// take takes over a redeemed file.
func (b *backing) take(from *control.Backing) error {
	if from.Err != nil {
		return fmt.Errorf("open %s: %w", b.name, from.Err)
	}
	if from.File == nil {
		return fmt.Errorf("open %s: the daemon gave no file", b.name)
	}
	fd, err := unix.FcntlInt(from.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err = errors.Join(err, from.File.Close()); err != nil {
		return fmt.Errorf("open %s: take over its descriptor: %w", b.name, err)
	}
	return b.adopt(fd)
}

// release says which objects were closed. A daemon that has gone needs not know, and whoever asks for more will hear
// of it.
func (m *mountedFile) release(ctx context.Context, objects []uint64) {
	giveBack(ctx, m.client, objects)
}

func giveBack(ctx context.Context, client *control.Client, objects []uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	const most = 4096 // fit into a frame
	for part := range slices.Chunk(objects, most) {
		_ = client.Release(ctx, part...)
	}
}

func (m *mountedFile) daemon() *control.Client { return m.client }

func (m *mountedFile) told() *control.FileInfo { return &m.info }

func (m *mountedFile) close() error {
	var errs []error
	if m.inline != nil {
		errs = append(errs, m.inline.close())
	}
	if m.client != nil {
		errs = append(errs, m.client.Close())
	}
	return errors.Join(append(errs, m.file.Close())...)
}
