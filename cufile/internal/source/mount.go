package source

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
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// mountedFile is a file of an hbmfs mount: its extents by ioctl, the backing files by the control socket. They are
// asked for when they are needed, and given back when others need their place (see Descriptors).
type mountedFile struct {
	file    *os.File
	length  int64
	info    control.FileInfo
	inline  *Backing // the file itself, for bytes that exist only in the mount
	opener  *Opener
	mount   *mount
	notices *notices // nil where the daemon tells of no changes

	asking sync.Mutex  // held by the request that asks for all of many runs
	many   atomic.Bool // runs: more than fewRuns

	mu      sync.Mutex // guards the fields below
	all     known      // of all its bytes; not known while they are many and no request needed all
	place   *Map       // of all.runs, once it was asked for
	apart   int64      // ranges that were asked for one by one, of many runs
	objects map[uint64]*Backing
	lent    map[*Backing]*control.Client // files that the daemon was not told to be closed, by the connection that brought them
}

// InlineObject is the object of bytes that lie in no backing file (docs/reference/control-protocol.md).
const InlineObject = 0

// A regular view of any size has few runs. Up to fewRuns are asked for at once. Of a file with more only those of a request are, until one
// needs more than manyRuns. Then all are kept. Where they are more than mostPlaced, they are asked for range by range until that has taken
// as long as asking for all would have. mostRuns bounds their memory: 48 bytes each, or about 6 where they are more than mostPlaced.
const (
	fewRuns  = 1 << 12
	manyRuns = 1 << 6
	mostRuns = 1 << 26

	runsForARange = 64 // cost about as much to ask for as one range
)

// cached says whether a cache may remove the backing files.
func (m *mountedFile) cached() bool { return m.info.Flags&control.InfoCached != 0 }

// extents asks for the runs of [offset, offset+n). More than most are ErrTooLarge.
func (m *mountedFile) extents(ctx context.Context, offset, n, most int64) (all known, err error) {
	began, count, end := time.Now(), int64(0), offset
	for batch, err := range control.Batches(m.file, offset, n, false) {
		if err = m.explain(ctx, err); err != nil {
			return known{}, err
		}
		if count+batch.Total > most {
			return known{}, fmt.Errorf("open %s: %w: more than %d extents", m.file.Name(), ErrTooLarge, most)
		}
		for _, e := range batch.Extents {
			r, err := m.runOf(&e)
			if err == nil && e.Logical != end {
				err = fmt.Errorf("open %s: the mount names no place for the bytes at %d", m.file.Name(), end)
			}
			if err != nil {
				return known{}, err
			}
			all.add(&r)
			count, end = count+1, r.End()
		}
	}
	if end != offset+n {
		return known{}, fmt.Errorf("open %s: extents for %d of %d bytes", m.file.Name(), end-offset, n)
	}
	all.done(time.Since(began))
	return all, nil
}

func (m *mountedFile) runOf(e *control.Extent) (Run, error) {
	switch {
	case e.Flags&control.ExtentMount != 0:
		// Its offset is the place in the file; the extent's does not count.
		r := Run{e.Logical, e.Length * e.Count, InlineObject, e.Logical, 0, 1}
		if e.Flags&control.ExtentPending != 0 {
			r.Object = pendingObject
		}
		return r, nil
	case e.Flags != 0:
		return Run{}, fmt.Errorf("open %s: %w: the extent at %d has flags %#x that this reader does not know", m.file.Name(), ErrUnavailable, e.Logical, e.Flags)
	}
	return Run{e.Logical, e.Length, e.Object, e.Offset, e.Stride, e.Count}, nil
}

func (m *mountedFile) Size() int64 { return m.length }

func (m *mountedFile) Runs(ctx context.Context, spans []Span) ([]Run, error) {
	first, last := around(spans)
	m.mu.Lock()
	all := m.all
	covered, mine := m.all.covers(first, last-first), time.Now().Add(askAgain)
	if !covered {
		m.all.again = mine // one asks; the others use the runs that there are
	}
	m.mu.Unlock()
	if covered {
		return all.of(spans), nil
	}
	if all, err := m.few(ctx); all != nil || err != nil {
		return all, err
	}
	all, err := m.extents(ctx, first, last-first, manyRuns)
	if errors.Is(err, ErrTooLarge) {
		if list, err := m.askApart(ctx, joined(spans)); !errors.Is(err, ErrTooLarge) {
			return list, err
		}
		all, err = m.askOnce(ctx, first, last-first, mine)
	}
	if err != nil {
		return nil, err
	}
	return all.of(spans), nil
}

// mayAskApart says whether asking for so many ranges, with those before, takes less time than asking for all runs, and these are so many
// that a program would wait for seconds. So the first batches of a file of many samples come at once, and no more than twice the time is
// spent in all.
func (m *mountedFile) mayAskApart(ranges int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.info.Runs <= mostPlaced || (m.apart+int64(ranges))*runsForARange > m.info.Runs {
		return false
	}
	m.apart += int64(ranges)
	return true
}

// askApart asks for the runs of ranges that are in order and apart, if it may. A range of more than manyRuns is ErrTooLarge, too.
func (m *mountedFile) askApart(ctx context.Context, ranges []Span) (list []Run, err error) {
	if !m.mayAskApart(len(ranges)) {
		return nil, ErrTooLarge
	}
	for i := range ranges {
		some, err := m.extents(ctx, ranges[i].Offset, ranges[i].N, manyRuns)
		if err != nil {
			return nil, err
		}
		list = append(list, some.of(ranges[i:i+1])...)
	}
	return list, nil
}

// askOnce asks for all of many runs, unless another request has done that meanwhile, or is about to: whoever asks has put the time mine
// into the runs.
func (m *mountedFile) askOnce(ctx context.Context, offset, n int64, mine time.Time) (known, error) {
	m.asking.Lock()
	defer m.asking.Unlock()
	m.mu.Lock()
	all := m.all
	m.mu.Unlock()
	if !all.again.Equal(mine) && all.covers(offset, n) {
		return all, nil
	}
	return m.ask(ctx, mostRuns)
}

// few asks for all runs, and gives nil where they are not few.
func (m *mountedFile) few(ctx context.Context) ([]Run, error) {
	if m.many.Load() {
		return nil, nil
	}
	all, err := m.ask(ctx, fewRuns)
	if !errors.Is(err, ErrTooLarge) {
		return all.runs, err
	}
	m.many.Store(true)
	return nil, nil
}

// ask asks for all runs, and remembers them.
func (m *mountedFile) ask(ctx context.Context, most int64) (known, error) {
	all, err := m.extents(ctx, 0, m.length, most)
	if err != nil {
		return known{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all, m.place = all, nil
	return all, nil
}

// Map implements [Placed].
func (m *mountedFile) Map() *Map {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.all.runs); m.place == nil && n > 0 && n <= mostPlaced {
		m.place = newMap(m.all.runs, m.backing)
	}
	return m.place
}

func (m *mountedFile) Relocate(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all, m.place = known{}, nil
	return nil
}

func (m *mountedFile) Backing(r *Run) *Backing {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.backing(r)
}

// backing needs mu.
func (m *mountedFile) backing(r *Run) *Backing {
	if r.Object == InlineObject || r.Object == pendingObject {
		return m.inline
	}
	b := m.objects[r.Object]
	if b == nil {
		b = Lent(m, m.opener.ids.Add(1), fmt.Sprintf("%s (object %d)", m.file.Name(), r.Object), r.Object, r.Logical, m.cached())
		m.notices.add(b)
		m.objects[r.Object] = b
	}
	return b
}

func (m *mountedFile) Unshare() []*Backing { return m.Backings() }

func (m *mountedFile) Backings() []*Backing {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := maps.Clone(m.lent)
	for _, b := range m.objects {
		all[b] = nil
	}
	return slices.Collect(maps.Keys(all))
}

// reconnect makes another connection where the daemon has gone and another goes on with the mount. It keeps the numbers of objects, and
// redeemed tickets stay good. It reports whether a question may be asked again.
func (m *mountedFile) reconnect(ctx context.Context) bool {
	if !m.mount.client().Gone() {
		return true
	}
	info, err := control.Info(m.file) // waits for the next daemon
	if err != nil || info.Epoch != m.info.Epoch || info.Generation != m.info.Generation {
		return false
	}
	_, err = m.mount.connect(ctx, m.file.Name())
	return err == nil
}

// Open implements [Lender]. It asks again where a daemon goes while it answers, and where others have closed its connection.
func (m *mountedFile) Open(ctx context.Context, files []*Backing) (ahead []*Backing, err error) {
	for range restarts {
		if err = m.open(ctx, files); !errors.Is(err, control.ErrStale) && !errors.Is(err, os.ErrClosed) || !m.reconnect(ctx) {
			break
		}
		files = slices.DeleteFunc(slices.Clone(files), func(b *Backing) bool { return b.FD >= 0 })
	}
	return nil, err
}

// open redeems files. One ticket is for at most 64 objects that lie next to each other and lives for seconds, so each
// answer is redeemed before the next. A question ends where the next file is too far away for its answer.
func (m *mountedFile) open(ctx context.Context, files []*Backing) error {
	slices.SortFunc(files, func(a, b *Backing) int { return cmp.Compare(a.at, b.at) })
	near := control.MaxObjects * (m.length/max(m.info.Runs, 1) + 1)
	for before := 0; before < len(files); {
		first, last := files[before].at, before
		for last+1 < len(files) && files[last+1].at-first < near {
			last++
		}
		start := before
		for batch, err := range control.Batches(m.file, first, files[last].at+1-first, true) {
			if err = m.explain(ctx, err); err != nil {
				return err
			}
			named, end := batch.Objects(), before
			for end < len(files) && slices.Contains(named, files[end].Object) {
				end++
			}
			if end == before {
				break
			}
			if err := m.redeem(ctx, batch.Ticket, files[before:end], before); err != nil {
				return err
			}
			before = end
		}
		switch {
		case before > start:
		case m.cached():
			return fmt.Errorf("open %s: %w", files[before].Name, ErrMoved)
		default:
			return fmt.Errorf("open %s: the mount no longer names it at %d", files[before].Name, first)
		}
	}
	return nil
}

// explain says of an error of the daemon's that the daemon has gone.
func (m *mountedFile) explain(ctx context.Context, err error) error {
	if errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) {
		return fmt.Errorf("open backing files of %s: the daemon has gone, it was unmounted or restarted: %w", m.file.Name(), control.ErrStale)
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// redeem makes files of a ticket the reader's. before counts the files that the same request has opened already.
func (m *mountedFile) redeem(ctx context.Context, ticket control.Ticket, files []*Backing, before int) error {
	client := m.mount.client()
	got, err := client.Redeem(ctx, ticket, objectsOf(files))
	if m.cached() && (errors.Is(err, unix.ESTALE) || errors.Is(err, unix.EAGAIN)) { // the ticket is old, or there are too many leases
		return fmt.Errorf("open %s: %w: %w", files[0].Name, ErrMoved, err)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", files[0].Name, crowded(err))
	}
	var refused []uint64 // that came, while no more descriptors may be open
	m.mu.Lock()
	for i := range got {
		came, failed := got[i].File != nil, files[i].redeem(&got[i], m.opener.descriptors, before+i)
		if failed == nil {
			m.lent[files[i]] = client
		} else if came {
			refused = append(refused, files[i].Object)
		}
		err = cmp.Or(err, failed)
	}
	m.mu.Unlock()
	if len(refused) > 0 {
		m.mount.giveBack(ctx, client, refused)
	}
	return err
}

// crowded names a daemon's refusal to lend more, and that this process may have no more open.
func crowded(err error) error {
	switch {
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("%w: the daemon lends as many as it may: %w", ErrCrowded, err)
	case errors.Is(err, control.ErrTooManyFiles), errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w: %w", ErrCrowded, err)
	}
	return err
}

// redeem makes a redeemed descriptor the file's own, if there is room for it.
func (b *Backing) redeem(from *control.Backing, h *Descriptors, before int) error {
	if from.Err != nil && b.Cached { // for any error: the mount reads on without its cache
		return fmt.Errorf("open %s: %w: %w", b.Name, ErrMoved, from.Err)
	}
	if from.Err != nil {
		return fmt.Errorf("open %s: %w", b.Name, from.Err)
	}
	if from.File == nil {
		return fmt.Errorf("open %s: the daemon gave no file", b.Name)
	}
	fd, err := h.own(from.File, before)
	if err != nil {
		return fmt.Errorf("open %s: take over its descriptor: %w", b.Name, crowded(err))
	}
	if err := b.Adopt(fd); err != nil {
		return err
	}
	shared.share(b)
	return nil
}

// Release tells the daemon which files were closed. One that has gone needs not know, and the next question finds that out.
// A closed file of a cache may go, so it is forgotten here: it comes back as another object.
func (m *mountedFile) Release(ctx context.Context, files []*Backing) {
	client := m.mount.client()
	m.mu.Lock()
	var done []uint64 // each once: another file may have the same object by the same connection
	for _, b := range files {
		if m.lent[b] == client {
			done = append(done, b.Object)
		}
		delete(m.lent, b)
		if b.Cached && m.objects[b.Object] == b {
			delete(m.objects, b.Object)
			m.place = nil
		}
	}
	m.mu.Unlock()
	m.mount.giveBack(ctx, client, done)
}

func objectsOf(files []*Backing) []uint64 {
	objects := make([]uint64, len(files))
	for i, b := range files {
		objects[i] = b.Object
	}
	return objects
}

// answerTime bounds a question to the daemon whose answer no read waits for.
const answerTime = 250 * time.Millisecond

// giveBack returns those that the daemon was not told of: it did not listen, or has gone.
func giveBack(ctx context.Context, client *control.Client, objects []uint64) (left []uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	const most = 4096 // fit into a frame
	for some := range slices.Chunk(objects, most) {
		if client.Release(ctx, some...) != nil {
			left = append(left, some...)
		}
	}
	return left
}

// Prefetch tells the mount. Of a cache's file it leaves out the ranges that the kernel has pages of.
func (m *mountedFile) Prefetch(ctx context.Context, soon []Span) error {
	var ranges []control.Range
	for _, s := range soon {
		switch {
		case s.N > 0 && m.cached():
			ranges = appendMissing(ranges, m.inline, s.Offset, s.N)
		case s.N > 0:
			ranges = append(ranges, control.Range{Offset: s.Offset, Length: s.N})
		}
	}
	for some := range slices.Chunk(ranges, control.MaxRanges) {
		err := control.Prefetch(m.file, some...)
		if errors.Is(err, unix.EAGAIN) {
			return nil // it was advice
		}
		if err = m.explain(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

func (m *mountedFile) Daemon() *control.Client { return m.mount.client() }

func (m *mountedFile) Told() *control.FileInfo { return &m.info }

func (m *mountedFile) Close() error {
	var errs []error
	if m.inline != nil {
		errs = append(errs, m.inline.Close())
	}
	if m.mount != nil {
		all := m.Unshare()
		m.Release(context.Background(), all) // files that are closed, now that no request reads them
		m.notices.remove(all)
		errs = append(errs, m.mount.release())
	}
	return errors.Join(append(errs, m.file.Close())...)
}
