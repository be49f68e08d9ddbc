package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
)

// span is a range of an object.
type span struct {
	object int
	off, n int64
}

// way is one way to read spans of the dataset. It calls s.check with all it read.
type way struct {
	name  string
	spans func(*soak) []span
	read  func(context.Context, *soak, []span) error
}

// fetchUnit is the least that a cache fetches, in bytes: the block of cache/store.
const fetchUnit = 32 << 10

func ways() []way {
	return []way{
		{"mount, 128 KiB at random", atRandom, throughMount},
		{"mount, mixed sizes at random", mixed, throughMount},
		{"mount, 128 KiB at random, planned", atRandom, planned},
		{"mount, in order", inOrder, throughMount},
		{"reader, 128 KiB at random", atRandom, pastMount},
		{"reader, mixed sizes at random", mixed, pastMount},
		{"reader, gather of 16 x 8 KiB", samples, gather},
		{"reader, 128 KiB at random, prefetched", atRandom, prefetched},
		{"reader, stream of 1 MiB in order", inOrder, stream},
	}
}

// amplify reads the dataset in each way, through new mounts with empty caches of a tenth of it and of twice as much, and
// says how many bytes the origin served for each that was read.
func amplify(ctx context.Context, c config) error {
	c.faults = 0
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "way\tcache/data\tread MB\tserved/read\tleast\twithout a cache\tasked by the kernel\trequests\t")
	for _, w := range ways() {
		for _, part := range []float64{0.1, 2} {
			c.budget = int64(part * float64(int64(c.objects)*c.objectSize))
			if err := w.measure(ctx, c, t, part); err != nil {
				return errors.Join(fmt.Errorf("%s: %w", w.name, err), t.Flush())
			}
		}
	}
	return t.Flush()
}

func (w way) measure(ctx context.Context, c config, to io.Writer, part float64) (err error) {
	s, err := newSoak(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	spans := w.spans(s)
	before := s.origin.bytes.Load()
	if err := w.read(ctx, s, spans); err != nil {
		return err
	}
	if len(s.failed) > 0 { // the readers have ended
		return errors.New(s.failed[0])
	}
	one, err := s.settled()
	if err != nil {
		return err
	}
	var read, each int64
	blocks := map[span]bool{}
	for _, g := range spans {
		read += g.n
		for b := g.off / fetchUnit; b*fetchUnit < g.off+g.n; b++ {
			blocks[span{g.object, b, 0}] = true
			each += fetchUnit
		}
	}
	per := func(n int64) float64 { return float64(n) / float64(read) }
	_, err = fmt.Fprintf(to, "%s\t%g\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t\n", w.name, part, float64(read)/1e6, per(s.origin.bytes.Load()-before),
		per(int64(len(blocks))*fetchUnit), per(each), per(one.kernel), one.origin.Requests)
	return err
}

// settled waits until the origin is asked for nothing any more.
func (s *soak) settled() (one sample, err error) {
	for quiet, last := 0, int64(-1); quiet < 5; {
		if one, err = s.sample(); err != nil {
			return one, err
		}
		if quiet++; one.origin.Bytes != last {
			quiet, last = 0, one.origin.Bytes
		}
		time.Sleep(50 * time.Millisecond) // how often it is looked
	}
	return one, nil
}

// fixed is a source of random numbers that is the same in each run.
func fixed() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// twiceTheData gives spans that add up to twice the dataset.
func twiceTheData(s *soak, next func(*rand.Rand) span) (list []span) {
	r := fixed()
	for left := 2 * int64(s.objects) * s.objectSize; left > 0; {
		g := next(r)
		list, left = append(list, g), left-g.n
	}
	return list
}

func atRandom(s *soak) []span {
	const n = 128 << 10
	return twiceTheData(s, func(r *rand.Rand) span { return span{r.IntN(s.objects), r.Int64N(s.objectSize - n), n} })
}

func mixed(s *soak) []span { return twiceTheData(s, s.random) }

// samples has a quarter of the bytes: each of its spans needs at least four times its size.
func samples(s *soak) []span {
	const n = 8 << 10
	list := twiceTheData(s, func(r *rand.Rand) span { return span{r.IntN(s.objects), n * r.Int64N(s.objectSize/n), n} })
	return list[:len(list)/8]
}

func inOrder(s *soak) (list []span) {
	const n = 1 << 20
	for range 2 {
		for object := range s.objects {
			for off := int64(0); off < s.objectSize; off += n {
				list = append(list, span{object, off, min(n, s.objectSize-off)})
			}
		}
	}
	return list
}

// throughMount reads the spans by as many readers as there are; those in order by one.
func throughMount(ctx context.Context, s *soak, spans []span) error {
	return s.byFiles(ctx, spans, func(*os.File, span) error { return nil })
}

func (s *soak) byFiles(ctx context.Context, spans []span, before func(*os.File, span) error) error {
	files := make([]*os.File, s.objects)
	for i := range files {
		f, err := os.Open(filepath.Join(s.point, objectName(i)))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // opened for reading: nothing is lost
		files[i] = f
	}
	readers := s.readers
	if isInOrder(spans) {
		readers = 1
	}
	return each(ctx, readers, len(spans), func(i int) error {
		g := spans[i]
		if err := before(files[g.object], g); err != nil {
			return err
		}
		p := make([]byte, g.n)
		if _, err := files[g.object].ReadAt(p, g.off); err != nil {
			return err
		}
		s.check(g.object, p, g.off)
		return nil
	})
}

func isInOrder(spans []span) bool { return spans[0].off == 0 && spans[1].off == spans[0].n }

// each calls do with 0 to n-1, in this order, from as many goroutines.
func each(ctx context.Context, goroutines, n int, do func(i int) error) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range goroutines {
		g.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := errors.Join(ctx.Err(), do(i)); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// planned announces the reads of each file, up to 256 spans ahead.
func planned(ctx context.Context, s *soak, spans []span) error {
	const lead = 256
	open := func(i int) (*os.File, error) { return os.Open(filepath.Join(s.point, objectName(i))) }
	plans := make([]*os.File, s.objects)
	for i := range plans {
		f, err := open(i)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // opened for reading: nothing is lost
		plans[i] = f
	}
	var said atomic.Int64
	say := func() error {
		i := said.Add(1) - 1
		if i >= int64(len(spans)) {
			return nil
		}
		g := spans[i]
		return control.Prefetch(plans[g.object], control.Range{Offset: g.off, Length: g.n})
	}
	for range lead {
		if err := say(); err != nil {
			return err
		}
	}
	return s.byFiles(ctx, spans, func(*os.File, span) error { return say() })
}

// byReaders reads past the mount, each reader with files of its own.
func (s *soak) byReaders(ctx context.Context, do func(context.Context, int, []*cufile.File) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range s.holders {
		g.Go(func() (err error) {
			r, err := cufile.New(ctx, cufile.Options{Device: cufile.HostDevice, Arena: 64 << 20, Threads: 2})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			files := make([]*cufile.File, s.objects)
			for k := range files {
				f, err := r.Open(ctx, filepath.Join(s.point, objectName(k)))
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				files[k] = f
			}
			return do(ctx, i, files)
		})
	}
	return g.Wait()
}

func pastMount(ctx context.Context, s *soak, spans []span) error {
	return s.byReaders(ctx, func(ctx context.Context, i int, files []*cufile.File) error {
		for ; i < len(spans); i += s.holders {
			g := spans[i]
			v, err := files[g.object].Read(ctx, g.off, g.n)
			if err != nil {
				return err
			}
			s.check(g.object, v.Bytes(), g.off)
			v.Release()
		}
		return nil
	})
}

// prefetched announces its reads 64 spans ahead.
func prefetched(ctx context.Context, s *soak, spans []span) error {
	const lead = 64
	return s.byReaders(ctx, func(ctx context.Context, i int, files []*cufile.File) error {
		say := func(i int) error {
			if i >= len(spans) {
				return nil
			}
			return files[spans[i].object].Prefetch(ctx, []cufile.Span{{Offset: spans[i].off, Length: spans[i].n}})
		}
		for k := range lead {
			if err := say(i + k*s.holders); err != nil {
				return err
			}
		}
		for ; i < len(spans); i += s.holders {
			g := spans[i]
			v, err := files[g.object].Read(ctx, g.off, g.n)
			if err = errors.Join(err, say(i+lead*s.holders)); err != nil {
				return err
			}
			s.check(g.object, v.Bytes(), g.off)
			v.Release()
		}
		return nil
	})
}

func gather(ctx context.Context, s *soak, spans []span) error {
	const rows = 16
	of := make([][]int64, s.objects)
	for _, g := range spans {
		of[g.object] = append(of[g.object], g.off)
	}
	return s.byReaders(ctx, func(ctx context.Context, i int, files []*cufile.File) error {
		for object := i; object < s.objects; object += s.holders {
			for offsets := of[object]; len(offsets) > 0; offsets = offsets[min(rows, len(offsets)):] {
				part := offsets[:min(rows, len(offsets))]
				n := spans[0].n
				v, err := files[object].Gather(ctx, part, n)
				if err != nil {
					return err
				}
				for k, off := range part {
					s.check(object, v.Bytes()[int64(k)*n:][:n], off)
				}
				v.Release()
			}
		}
		return nil
	})
}

func stream(ctx context.Context, s *soak, spans []span) error {
	of := make([][]cufile.Span, s.objects)
	for _, g := range spans {
		of[g.object] = append(of[g.object], cufile.Span{Offset: g.off, Length: g.n})
	}
	return s.byReaders(ctx, func(ctx context.Context, i int, files []*cufile.File) error {
		for object := i; object < s.objects; object += s.holders {
			plan := files[object].Stream(ctx, of[object], 4)
			for _, g := range of[object] {
				v, err := plan.Next(ctx)
				if err != nil {
					plan.Close()
					return err
				}
				s.check(object, v.Bytes(), g.Offset)
				v.Release()
			}
			plan.Close()
		}
		return nil
	})
}
