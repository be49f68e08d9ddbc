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
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// The dataset of random reads is 40 objects without a byte on the disk, 10 GiB in all.
const (
	objects    = 40
	objectSize = 256 << 20
	sampleSize = 8 << 10
	samples    = 1000 // of a run
	loaders    = 8    // that read at once, as a loader's workers do
	step       = 32   // samples of a training step
	stepTime   = 100 * time.Millisecond
	planAhead  = 512             // samples: so far goes a plan beyond the reads
	planLead   = 2 * time.Second // between the plan and the first step
)

type sample struct {
	object int
	offset int64
}

func randomSamples(seed uint64) []sample {
	r := rand.New(rand.NewPCG(seed, 8))
	list := make([]sample, samples)
	for i := range list {
		list[i] = sample{r.IntN(objects), sampleSize * r.Int64N(objectSize/sampleSize)}
	}
	return list
}

func objectName(i int) string { return fmt.Sprintf("shard-%02d.bin", i) }

// outcome is the result of one run of random reads.
type outcome struct {
	took    time.Duration // to the last sample
	fetched float64       // bytes that the server sent, since the mount, for each byte that was read
	waits   []time.Duration
}

// randomly compares random reads through mounts, with a plan and without.
func (b *bench) randomly(ctx context.Context, rivals []contender, rounds int) (err error) {
	s, err := b.bucket()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for i := range objects {
		name := filepath.Join(s.root, objectName(i))
		if err := errors.Join(os.WriteFile(name, nil, 0o644), os.Truncate(name, objectSize)); err != nil {
			return err
		}
	}
	way, err := newProxy(s.socket, b.latency, b.rate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, way.close()) }()
	names, all := []string{"hbmfs, with a plan, in steps"}, make([][]outcome, len(rivals)+1)
	for _, c := range rivals {
		names = append(names, c.name)
	}
	for round := range rounds {
		for i := range names {
			at := (i + round) % len(names)
			c, read := rivals[max(0, at-1)], freely
			if at == 0 {
				read = planned
			}
			o, err := b.oneRandom(ctx, c, way, uint64(round), read)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "round %d: %s: %v, %.0f fetched/used, %.3f local\n", round+1, names[at], o.took, o.fetched, local(o.waits, b.latency/5))
			all[at] = append(all[at], o)
		}
	}
	b.reportRandom(names, all)
	return nil
}

func (b *bench) reportRandom(names []string, all [][]outcome) {
	fmt.Printf("\n%d reads of 8 KiB at random of %d objects of 256 MiB, latency %v, %.0f MB/s a connection, %d rounds, medians; load %s\n\n",
		samples, objects, b.latency, b.rate/1e6, len(all[0]), load())
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "reader\ts to the last sample\tfetched/used\twithin %v\twithin %v\t\n", b.latency/5, b.latency)
	for i, name := range names {
		var took, fetched, soon, near []float64
		for _, o := range all[i] {
			took, fetched = append(took, o.took.Seconds()), append(fetched, o.fetched)
			soon, near = append(soon, local(o.waits, b.latency/5)), append(near, local(o.waits, b.latency))
		}
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.3f\t%.3f\t\n", name, median(took), median(fetched), median(soon), median(near))
	}
	_ = t.Flush()
}

// local gives the share of reads that took less than limit. Bytes of the server take its latency at least.
func local(waits []time.Duration, limit time.Duration) float64 {
	n := 0
	for _, w := range waits {
		if w < limit {
			n++
		}
	}
	return float64(n) / float64(len(waits))
}

func (b *bench) oneRandom(ctx context.Context, c contender, way *proxy, seed uint64, read func(context.Context, []*os.File, []sample, []time.Duration) error) (o outcome, err error) {
	list, before := randomSamples(seed), way.sent.Load()
	o.waits = make([]time.Duration, len(list))
	err = c.with(ctx, b.work, way.url, func(r *running) (err error) {
		files := make([]*os.File, objects)
		for i := range files {
			if files[i], err = os.Open(filepath.Join(r.point, objectName(i))); err != nil {
				return err
			}
			defer func() { _ = files[i].Close() }() // opened for reading: nothing is lost
		}
		began := time.Now()
		if err := read(ctx, files, list, o.waits); err != nil {
			return err
		}
		o.took = time.Since(began)
		o.fetched = float64(way.sent.Load()-before) / (samples * sampleSize)
		return nil
	})
	return o, err
}

// freely reads samples as fast as they come.
func freely(ctx context.Context, files []*os.File, list []sample, waits []time.Duration) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range loaders {
		g.Go(func() error {
			buf := make([]byte, sampleSize)
			for i := int(next.Add(1)) - 1; i < len(list); i = int(next.Add(1)) - 1 {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				began := time.Now()
				if _, err := files[list[i].object].ReadAt(buf, list[i].offset); err != nil && !errors.Is(err, io.EOF) {
					return err
				}
				waits[i] = time.Since(began)
			}
			return nil
		})
	}
	return g.Wait()
}

// planned reads samples in steps that take their time, after the mount was told of them.
func planned(ctx context.Context, files []*os.File, list []sample, waits []time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var read atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return plan(ctx, files, list, &read) })
	g.Go(func() error {
		tick := time.NewTicker(stepTime)
		defer tick.Stop()
		time.Sleep(planLead)
		for at := 0; at < len(list); at = int(read.Load()) {
			end := min(at+step, len(list))
			if err := freely(ctx, files, list[at:end], waits[at:end]); err != nil {
				return err
			}
			read.Store(int64(end))
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return g.Wait()
}

// plan tells the mount of samples in the order of their reading, a bounded number ahead of the read data.
func plan(ctx context.Context, files []*os.File, list []sample, read *atomic.Int64) error {
	for i := 0; i < len(list); {
		err := error(unix.EAGAIN)
		if int64(i) < read.Load()+planAhead {
			err = control.Prefetch(files[list[i].object], control.Range{Offset: list[i].offset, Length: sampleSize})
		}
		switch {
		case err == nil:
			i++
		case !errors.Is(err, unix.EAGAIN):
			return err
		default:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	return nil
}
