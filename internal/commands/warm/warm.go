// Package warm brings files onto this machine before they are read: those of a mount's cache, and local ones into the page
// cache. A [Warmer] asks the mount for missing segments, has them fetched, and looks whether they stayed.
package warm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

const (
	warmAtOnce  = 4                // units
	warmUnit    = 256 << 20        // bytes, as a cache keeps them together
	warmRead    = 1 << 20          // bytes of a read
	warmPatient = time.Second      // for the daemon to say that bytes have come
	warmSettle  = 10 * time.Second // in which the cache publishes a part of the bytes that have arrived
)

// Warmer brings files onto this machine.
type Warmer struct {
	rate   int64 // bytes per second, 0 for no limit
	files  []string
	moved  func(n int64) // hears of bytes as they are looked at or come
	shards shards        // of the mount that was looked at last

	mu     sync.Mutex // guards the fields below, and calls of moved
	done   Summary
	began  time.Time // of the bytes that the rate counts
	paced  int64     // bytes
	cached []string  // files that are to be in the cache in the end
}

// New makes a warmer of files with so many bytes in all. rate is bytes per second, 0 for no limit.
func New(files []string, total, rate int64, moved func(n int64)) *Warmer {
	return &Warmer{rate: rate, files: files, moved: moved, done: Summary{Files: len(files), Bytes: total}}
}

// unit is consecutive bytes of a file that are not on this machine.
type unit struct {
	path      string
	offset, n int64
}

// Summary is how far it has come.
func (w *Warmer) Summary() Summary {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done
}

// count adds n bytes to one of the sums of done.
func (w *Warmer) count(sum *int64, n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*sum += n
	w.moved(n)
}

// Run looks through the files, has workers fetch missing segments, and sees in the end whether they stayed.
func (w *Warmer) Run(ctx context.Context) error {
	units := make(chan unit)
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(units)
		defer w.shards.close()
		for _, path := range w.files {
			if err := w.look(inner, path, units); err != nil {
				return fmt.Errorf("warm %s: %w", path, err)
			}
		}
		return nil
	})
	for range warmAtOnce {
		group.Go(func() error {
			for u := range units {
				if err := w.fetch(inner, u); err != nil {
					return fmt.Errorf("warm %s: %w", u.path, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return w.settle(ctx)
}

// look finds the missing parts of a file.
func (w *Warmer) look(ctx context.Context, path string, units chan<- unit) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	info, err := control.Info(f)
	if err != nil {
		return err
	}
	if info.Flags&control.InfoCached != 0 {
		w.mu.Lock()
		w.cached = append(w.cached, path)
		w.mu.Unlock()
	}
	missing := gathering{next: unit{path: path}, to: units}
	mixed := info.Flags&control.InfoCached != 0 && info.Runs > 1 // perhaps: of shards that lie here, and of some that the cache brings
	for batch, err := range control.Batches(f, 0, info.Size, mixed) {
		if err != nil {
			return err
		}
		if mixed {
			w.shards.learn(ctx, path, &batch)
		}
		for _, e := range batch.Extents {
			n := e.Length * e.Count
			switch {
			case e.Flags&control.ExtentPending != 0:
				if err := missing.add(ctx, e.Logical, n); err != nil {
					return err
				}
			case e.Flags&control.ExtentMount != 0:
				w.count(&w.done.InMount, n)
			case info.Flags&control.InfoCached != 0 && (!mixed || !w.shards.local(e.Object)):
				w.count(&w.done.Local, n)
			default:
				if err := w.advise(ctx, f, e.Logical, n); err != nil {
					return err
				}
			}
		}
	}
	return missing.send(ctx)
}

// gathering makes units of consecutive missing bytes.
type gathering struct {
	next unit
	to   chan<- unit
}

func (g *gathering) add(ctx context.Context, offset, n int64) error {
	if g.next.offset+g.next.n != offset || g.next.n+n > warmUnit {
		if err := g.send(ctx); err != nil {
			return err
		}
		g.next.offset, g.next.n = offset, 0
	}
	g.next.n += n
	return nil
}

func (g *gathering) send(ctx context.Context) error {
	if g.next.n == 0 {
		return nil
	}
	select {
	case g.to <- g.next:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// advise has the kernel read local files ahead.
func (w *Warmer) advise(ctx context.Context, f *os.File, offset, n int64) error {
	const step = 64 << 20
	for end := offset + n; offset < end; offset += step {
		part := min(step, end-offset)
		if err := w.pace(ctx, part); err != nil {
			return err
		}
		for {
			err := control.Prefetch(f, control.Range{Offset: offset, Length: part})
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EAGAIN) {
				return err
			}
			if err := pause.For(ctx, pause.Look); err != nil { // the daemon has much to do: it says so at once
				return err
			}
		}
		w.count(&w.done.Advised, part)
	}
	return nil
}

// fetch brings a unit. The daemon is asked to, which costs no copy. Bytes that are not there soon are read through the
// mount. That waits as long as it takes, joins fetches under way, keeps to the rate, and returns errors.
func (w *Warmer) fetch(ctx context.Context, u unit) error {
	f, err := os.Open(u.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	if w.rate == 0 && control.Prefetch(f, control.Range{Offset: u.offset, Length: u.n}) == nil {
		for end := time.Now().Add(warmPatient); time.Now().Before(end); {
			left, err := pendingBytes(f, u.offset, u.n)
			if err != nil {
				return err
			}
			if left == 0 {
				w.count(&w.done.Fetched, u.n)
				return nil
			}
			if err := pause.For(ctx, pause.Look); err != nil {
				return err
			}
		}
	}
	return w.read(ctx, u)
}

// read reads a unit past the page cache, which would be a second place for the same bytes.
func (w *Warmer) read(ctx context.Context, u unit) error {
	f, err := os.OpenFile(u.path, os.O_RDONLY|unix.O_DIRECT, 0)
	if errors.Is(err, unix.EINVAL) {
		f, err = os.Open(u.path)
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()                                                                            // opened for reading: nothing is lost
	buf, err := unix.Mmap(-1, 0, warmRead, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // aligned
	if err != nil {
		return fmt.Errorf("allocate memory: %w", err)
	}
	defer func() { _ = unix.Munmap(buf) }() // it was only for this
	for at := u.offset; at < u.offset+u.n; {
		part := buf[:min(warmRead, u.offset+u.n-at)]
		if err := w.pace(ctx, int64(len(part))); err != nil {
			return err
		}
		n, err := f.ReadAt(part, at)
		if errors.Is(err, unix.EINVAL) {
			// A file that was published meanwhile is another one, to which O_DIRECT reads of odd lengths go
			// now.
			if err := clearDirect(f); err != nil {
				return err
			}
			n, err = f.ReadAt(part, at)
		}
		if n < len(part) {
			return fmt.Errorf("read at %d: %w", at, err)
		}
		at += int64(n)
		w.count(&w.done.Fetched, int64(n))
	}
	return nil
}

// clearDirect has reads of an open file go through the page cache.
func clearDirect(f *os.File) error {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags&^unix.O_DIRECT)
	}
	return err
}

// pace waits until n bytes more are within the rate.
func (w *Warmer) pace(ctx context.Context, n int64) error {
	if w.rate == 0 {
		return ctx.Err()
	}
	w.mu.Lock()
	if w.began.IsZero() {
		w.began = time.Now()
	}
	w.paced += n
	due := w.began.Add(time.Duration(float64(w.paced) / float64(w.rate) * float64(time.Second)))
	w.mu.Unlock()
	return pause.For(ctx, time.Until(due))
}

// settle sums up the bytes that are not in the cache. Bytes that have just arrived are checked and synced
// before they are.
func (w *Warmer) settle(ctx context.Context) error {
	w.mu.Lock()
	files := w.cached
	w.mu.Unlock()
	end := time.Now().Add(warmSettle)
	for before := int64(-1); ; {
		final := quiet(files)
		left, total := []string{}, int64(0)
		for _, path := range files {
			n, err := pendingOf(path)
			if err != nil {
				return fmt.Errorf("warm %s: %w", path, err)
			}
			if n > 0 {
				left, total = append(left, path), total+n
			}
		}
		w.mu.Lock()
		w.done.Left = total
		w.mu.Unlock()
		if total != before {
			before, end = total, time.Now().Add(warmSettle)
		}
		if total == 0 || final || time.Now().After(end) {
			return nil
		}
		files = left
		if err := pause.For(ctx, pause.Look); err != nil {
			return err
		}
	}
}

// quiet says whether the caches of files have nothing under way, as far as their mounts tell.
func quiet(files []string) bool {
	roots := map[string]bool{}
	for _, path := range files {
		root, err := control.Root(path)
		if err != nil {
			return false
		}
		roots[root] = true
	}
	for root := range roots {
		var status struct {
			Cache struct{ Filling int }
		}
		text, err := os.ReadFile(filepath.Join(root, ".hbmfs", "status"))
		if err != nil || json.Unmarshal(text, &status) != nil || status.Cache.Filling > 0 {
			return false
		}
	}
	return true
}

func pendingOf(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return pendingBytes(f, 0, info.Size())
}

// pendingBytes gives the bytes of [offset, offset+n) that are not on this machine.
func pendingBytes(f *os.File, offset, n int64) (left int64, err error) {
	for batch, err := range control.Batches(f, offset, n, false) {
		if err != nil {
			return 0, err
		}
		for _, e := range batch.Extents {
			if e.Flags&control.ExtentPending != 0 {
				left += e.Length * e.Count
			}
		}
	}
	return left, nil
}

// Summary has the bytes that were warmed, and is the JSON that --json prints.
type Summary struct {
	Files   int     `json:"files"`
	Bytes   int64   `json:"bytes"`
	Local   int64   `json:"local"`
	Fetched int64   `json:"fetched"`
	Left    int64   `json:"left"`
	Advised int64   `json:"advised"`
	InMount int64   `json:"in_mount"`
	Seconds float64 `json:"seconds"`
}

// FilesBelow gives the regular files at and below paths, and their bytes.
func FilesBelow(ctx context.Context, paths []string) (files []string, total int64, err error) {
	for _, path := range paths {
		whole, err := filepath.EvalSymlinks(path)
		if err != nil {
			return nil, 0, err
		}
		err = filepath.WalkDir(whole, func(name string, entry fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			info, err := entry.Info()
			if errors.Is(err, os.ErrNotExist) && name != whole { // a view that turned out to be absent
				return nil
			}
			if err == nil {
				files, total = append(files, name), total+info.Size()
			}
			return err
		})
		if err != nil {
			return nil, 0, err
		}
	}
	return files, total, nil
}
