package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// sequential compares first reads of one object through mounts, and its parallel GETs, on two ways to the server: the
// one that is far away, and plain loopback. The order changes from round to round.
func (b *bench) sequential(ctx context.Context, rivals []contender, rounds int) (err error) {
	s, err := b.bucket(filepath.Join(b.work, "object.bin"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	far, err := newProxy(s.socket, b.latency, b.rate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, far.close()) }()
	plain, err := newProxy(s.socket, 0, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.close()) }()
	for _, way := range []struct {
		name string
		*proxy
	}{{fmt.Sprintf("latency %v, %.0f MB/s a connection", b.latency, b.rate/1e6), far}, {"plain loopback", plain}} {
		if err := b.ways(ctx, way.name, way.proxy, rivals, rounds); err != nil {
			return err
		}
	}
	return nil
}

// bucket starts the S3 server and moves a file into its bucket.
func (b *bench) bucket(files ...string) (*s3Server, error) {
	s, err := startS3(b.s3server, filepath.Join(b.work, "s3"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		if err := os.Rename(name, filepath.Join(s.root, filepath.Base(name))); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

func (b *bench) ways(ctx context.Context, name string, way *proxy, rivals []contender, rounds int) error {
	url, err := way.presigned(ctx, "object.bin")
	if err != nil {
		return err
	}
	names, rates, work := []string{"8 parallel ranged GETs"}, make([][]float64, len(rivals)+1), make([][]float64, len(rivals)+1)
	for _, c := range rivals {
		names = append(names, c.name)
	}
	for round := range rounds {
		for i := range names {
			at := (i + round) % len(names)
			var rate float64
			var cpu time.Duration
			if at == 0 {
				rate, err = b.gets(ctx, url)
			} else {
				err = rivals[at-1].with(ctx, b.work, way.url, func(r *running) (err error) {
					if rate, err = b.read(filepath.Join(r.point, "object.bin")); err == nil {
						cpu, err = r.cpu()
					}
					return err
				})
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "round %d: %s: %s: %.0f MB/s, %v of CPU\n", round+1, name, names[at], rate/1e6, cpu)
			rates[at], work[at] = append(rates[at], rate), append(work[at], cpu.Seconds()/float64(b.size)*1e9)
		}
	}
	fmt.Printf("\nCold, %d bytes in sequence, %s, %d rounds, medians; load %s\n\n", b.size, name, rounds, load())
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "reader\tMB/s\tbeside hbmfs\tlowest\thighest\tCPU s/GB\t")
	base := median(rates[1])
	for i, name := range names {
		low, high := ends(rates[i])
		fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.0f\t%.0f\t%.2f\t\n", name, median(rates[i])/1e6, median(rates[i])/base, low/1e6, high/1e6, median(work[i]))
	}
	return t.Flush()
}
