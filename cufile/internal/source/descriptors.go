package source

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Descriptors bounds the backing files of mounts that a reader has open: a view can have more shards than a process may
// open files. A file that no request uses stays open until others need its place; the least recently used goes first.
//
// A mapping that is registered with CUDA outlives the descriptor it was made of, unless the file is a cache's. The
// cache may unlink a file that was given back, and the mapping would keep its place on the disk. A cuFile handle never
// does, so it is given back before the descriptor is closed.
type Descriptors struct {
	limit int                                     // backing files open at once
	letGo func(context.Context, []*Backing) error // makes the device let go of files, so that they can be closed
	turn  chan struct{}                           // held while files are opened and closed: only its holder waits for pins
	freed chan struct{}                           // holds a hint that some file is no longer pinned
	watch *Watch

	mu      sync.Mutex // guards the fields below, and pins and element of each backing
	order   *list.List // of *backing: those that are open, the most recently used first
	inUse   int        // how many of them are in use
	cached  int        // how many of them are a cache's
	waiting bool       // the holder of turn waits for room: nobody pins before it does

	shedding bool // a timer runs that sheds
}

// Lender opens backing files, and hears which of them have been closed.
type Lender interface {
	// Open opens files, and others (ahead) that may be used soon.
	Open(ctx context.Context, files []*Backing) (ahead []*Backing, err error)
	Release(ctx context.Context, files []*Backing)
}

// NewDescriptors bounds the open files by limit. letGo makes the device let go of files that are about to be closed.
func NewDescriptors(limit int, letGo func(context.Context, []*Backing) error) *Descriptors {
	h := &Descriptors{limit: limit, letGo: letGo, turn: make(chan struct{}, 1), freed: make(chan struct{}, 1), order: list.New()}
	h.watch = newWatch(h.refresh)
	return h
}

// refresh makes files the most recently used ones.
func (h *Descriptors) refresh(files []*Backing) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range files {
		if b.element != nil {
			h.order.MoveToFront(b.element)
			b.used = now
		}
	}
}

// Watch is that of all files which the Descriptors have open, and of others that their reader opens.
func (h *Descriptors) Watch() *Watch { return h.watch }

// mostShare bounds the files of one request: the mappings of so many are registered together. mostCached bounds the open files of
// caches that no request needs: they take room on the disk that other readers may want.
const (
	mostShare  = 1024
	mostCached = 1024
)

// Share is how many files one request may have in use at once. Two can then move at the same time.
func (h *Descriptors) Share() int {
	return max(1, min(h.limit/2, mostShare))
}

// lend makes the lender open files, and closes all of them where it does not open one.
func lend(ctx context.Context, files []*Backing) (ahead []*Backing, err error) {
	if len(files) == 0 {
		return nil, nil
	}
	if ahead, err = files[0].Lender.Open(ctx, files); err != nil {
		closeLent(ctx, files)
	}
	return ahead, err
}

// closeHalf closes half of the files that are not in use, for a daemon that lends no more. It says whether there were any.
func (h *Descriptors) closeHalf(ctx context.Context) bool {
	h.mu.Lock()
	half := (h.order.Len() - h.inUse + 1) / 2
	victims := h.evict(h.limit-h.order.Len()+half, false)
	h.mu.Unlock()
	return len(victims) > 0 && h.closeFiles(ctx, victims) == nil
}

// Pin opens files, at most a share and each once, all of one lender. They stay open until Unpin. The caller must hold nothing
// that another request needs before it can unpin.
func (h *Descriptors) Pin(ctx context.Context, files []*Backing) error {
	if h.pinOpen(files) {
		return nil
	}
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.turn }()
	victims, missing, err := h.reserve(ctx, files)
	if err != nil {
		return err
	}
	var ahead []*Backing
	if err = h.closeFiles(ctx, victims); err == nil {
		ahead, err = lend(ctx, missing)
		for errors.Is(err, ErrCrowded) && h.closeHalf(ctx) {
			ahead, err = lend(ctx, missing)
		}
	}
	h.mu.Lock()
	if err == nil {
		for _, b := range missing {
			h.add(b)
			b.pins = 1
			h.inUse++
		}
	}
	h.mu.Unlock()
	if err == nil {
		err = h.admit(ctx, ahead)
	}
	if err != nil {
		h.Unpin(files)
	}
	return err
}

// offer keeps files open that were opened ahead, as far as there is room. Where ctx ends before, they are closed.
func (h *Descriptors) offer(ctx context.Context, files []*Backing) error {
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		closeLent(ctx, files)
		return ctx.Err()
	}
	defer func() { <-h.turn }()
	return h.admit(ctx, files)
}

// admit puts open files in the place of files that are not in use, and closes those without room. The caller has the turn.
func (h *Descriptors) admit(ctx context.Context, files []*Backing) error {
	if len(files) == 0 {
		return nil
	}
	h.mu.Lock()
	var admitted, over []*Backing
	for _, b := range files {
		if b.dropped || len(admitted) == h.limit-h.inUse {
			over = append(over, b)
		} else {
			admitted = append(admitted, b)
		}
	}
	victims := h.evict(len(admitted), files[0].Cached)
	for _, b := range admitted {
		h.add(b)
	}
	h.mu.Unlock()
	closeLent(ctx, over)
	return h.closeFiles(ctx, victims)
}

// Pinned runs f while files are open, see Pin.
func (h *Descriptors) Pinned(ctx context.Context, files []*Backing, f func() error) error {
	if err := h.Pin(ctx, files); err != nil {
		return err
	}
	defer h.Unpin(files)
	return f()
}

// isOpen says whether a file is open, at this moment.
func (h *Descriptors) isOpen(b *Backing) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return b.element != nil
}

// pinOpen is Pin, if all of the files are open.
func (h *Descriptors) pinOpen(files []*Backing) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting {
		return len(files) == 0
	}
	if slices.ContainsFunc(files, func(b *Backing) bool { return b.element == nil }) {
		return false
	}
	h.pinAll(files)
	return true
}

// pinAll needs mu. It passes over files that are not open.
func (h *Descriptors) pinAll(files []*Backing) {
	for _, b := range files {
		if b.element == nil {
			continue
		}
		if b.pins == 0 {
			h.inUse++
		}
		b.pins++
		h.order.MoveToFront(b.element)
	}
}

// reserve waits until there is room for files, and pins those that are open. It takes files out of the order that must be
// closed for the others.
func (h *Descriptors) reserve(ctx context.Context, files []*Backing) (victims, missing []*Backing, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		others := h.inUse
		for _, b := range files {
			if b.pins > 0 {
				others--
			}
		}
		if others+len(files) <= h.limit {
			break
		}
		h.waiting = true
		h.mu.Unlock()
		select {
		case <-h.freed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		h.mu.Lock()
		h.waiting = false
		if err != nil {
			return nil, nil, err
		}
	}
	for _, b := range files {
		if b.element == nil {
			missing = append(missing, b)
		}
	}
	h.pinAll(files)
	victims = h.evict(len(missing), len(missing) > 0 && missing[0].Cached)
	return victims, missing, nil
}

// evict takes the files out that were used the longest ago, so that there is room for n more as far as possible: of a cache, if cached
// is set. The caller holds mu.
func (h *Descriptors) evict(n int, cached bool) (victims []*Backing) {
	for e := h.order.Back(); e != nil; {
		full, crowded := h.order.Len()+n > h.limit, cached && h.cached+n > mostCached
		if !full && !crowded {
			break
		}
		b := e.Value.(*Backing)
		e = e.Prev()
		if b.pins == 0 && (full || b.Cached) {
			h.remove(b)
			victims = append(victims, b)
		}
	}
	return victims
}

// add puts an open file into the order, as the one that was used last. The caller holds mu.
func (h *Descriptors) add(b *Backing) {
	b.element = h.order.PushFront(b)
	if b.Cached {
		b.used = time.Now()
		h.cached++
		h.shedLater()
	}
	h.watch.opened(b)
}

// remove takes a file out of the order. The caller holds mu.
func (h *Descriptors) remove(b *Backing) {
	h.order.Remove(b.element)
	b.element = nil
	if b.Cached {
		h.cached--
	}
}

// Unpin ends the use of files.
func (h *Descriptors) Unpin(files []*Backing) {
	now := time.Now()
	h.mu.Lock()
	for _, b := range files {
		if b.pins == 0 { // it was not opened, or its File was closed
			continue
		}
		if b.pins--; b.pins == 0 {
			h.inUse--
			b.used = now
		}
	}
	h.mu.Unlock()
	select {
	case h.freed <- struct{}{}:
	default:
	}
}

// closeFiles closes files that were taken out of the order. Where the device does not let go of one, all stay open, but
// for those whose File was closed meanwhile.
func (h *Descriptors) closeFiles(ctx context.Context, files []*Backing) error {
	if len(files) == 0 {
		return nil
	}
	for _, b := range files {
		_ = h.watch.closing(b) // each request of the file gives the error
	}
	if err := h.letGo(ctx, files); err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, b := range files {
			if b.dropped {
				_ = b.Close() // as drop does
			} else {
				h.add(b)
				h.order.MoveToBack(b.element)
			}
		}
		return err
	}
	closeLent(ctx, files)
	return nil
}

// closeLent closes files that the device has let go of, and tells their lenders.
func closeLent(ctx context.Context, files []*Backing) {
	closed := map[Lender][]*Backing{}
	for _, b := range files {
		if b.FD >= 0 {
			_ = b.Close() // opened for reading: nothing is lost
			closed[b.Lender] = append(closed[b.Lender], b)
		}
	}
	for l, list := range closed {
		l.Release(ctx, list)
	}
}

// selectable is how many descriptors select(2) knows. They are left to the program, as far as its limit allows.
const selectable = 1024

// hardlyAny is how many files each reader may have open while others have all that readers may.
const hardlyAny = 64

// own makes a descriptor that came the reader's. Its number says how many the process has. Readers leave half of the process's limit to
// its other files. Those with few files may take a quarter more, and those with hardly any take all. Otherwise it is closed: ErrCrowded.
// before counts the files of the same request that are open already, and not yet in the order.
func (h *Descriptors) own(from *os.File, before int) (fd int, err error) {
	fd, err = unix.FcntlInt(from.Fd(), unix.F_DUPFD_CLOEXEC, selectable)
	if err != nil {
		fd, err = unix.FcntlInt(from.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err = errors.Join(err, from.Close()); err != nil {
		return -1, err
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur < 4*selectable {
		return fd, nil
	}
	h.mu.Lock()
	open := h.order.Len() + before
	h.mu.Unlock()
	most := limit.Cur / 2
	switch {
	case open < hardlyAny:
		most = limit.Cur
	case open < mostShare:
		most += limit.Cur / 4
	}
	if uint64(fd) >= most {
		return -1, errors.Join(fmt.Errorf("%w: this process has %d of %d descriptors (RLIMIT_NOFILE)", ErrCrowded, fd, limit.Cur), unix.Close(fd))
	}
	return fd, nil
}

// Drop closes those of a File that is closed, and says which have changed. The end of its connection says so to the daemon. Drop waits for the last look
// at each, which may hang on a disk or a server. Other requests go on meanwhile.
func (h *Descriptors) Drop(files []*Backing) error {
	var open []*Backing
	h.mu.Lock()
	for _, b := range files {
		b.dropped = true
		if b.element == nil {
			continue
		}
		if b.pins > 0 { // by a call that never came back
			b.pins = 0
			h.inUse--
		}
		h.remove(b)
		open = append(open, b)
	}
	h.mu.Unlock()
	var errs []error
	for _, b := range files {
		errs = append(errs, h.watch.closing(b))
	}
	for _, b := range open {
		_ = b.Close() // as above
	}
	return errors.Join(errs...)
}

// Group is pieces whose backing files can be open at once.
type Group struct {
	Pieces []Piece
	Files  []*Backing // those that are lent, each once
}

// Split makes groups of pieces that lie in at most share lent files. Where one group is not enough, each file is in
// one group only. Pieces are sorted by their files, in the order of the files' places.
func Split(pieces []Piece, share int) (groups []Group) {
	files := slices.DeleteFunc(FilesOf(pieces), func(b *Backing) bool { return b.Lender == nil })
	if len(files) <= share {
		return []Group{{pieces, files}}
	}
	slices.SortStableFunc(pieces, func(a, b Piece) int {
		return cmp.Or(cmp.Compare(a.File.at, b.File.at), cmp.Compare(a.File.ID, b.File.ID))
	})
	first, last := 0, (*Backing)(nil)
	files = nil
	for i := range pieces {
		b := pieces[i].File
		if b.Lender != nil && b != last {
			if len(files) == share {
				groups = append(groups, Group{pieces[first:i], files})
				first, files = i, nil
			}
			files = append(files, b)
		}
		last = b
	}
	return append(groups, Group{pieces[first:], files})
}
