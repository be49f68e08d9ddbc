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
	list := []entrant{{"8 parallel ranged GETs", func(ctx context.Context) (m measured, err error) {
		m.rate, err = b.gets(ctx, url)
		return m, err
	}}}
	for _, c := range rivals {
		list = append(list, entrant{c.name, func(ctx context.Context) (m measured, err error) {
			return m, c.with(ctx, b.work, way.url, func(r *running) (err error) {
				if m.rate, err = b.read(filepath.Join(r.point, "object.bin")); err == nil {
					m.cpu, err = r.cpu()
				}
				return err
			})
		}})
	}
	return b.alternate(ctx, name, list, 1, rounds)
}

// entrant reads the object once, from where it lies to the end.
type entrant struct {
	name string
	run  func(ctx context.Context) (measured, error)
}

// measured is the rate of an entrant, bytes per second, and what its process took.
type measured struct {
	rate   float64
	cpu    time.Duration
	memory int64 // bytes, 0 where it is not known
}

// alternate has each entrant once in each round, in an order that changes, and compares them with one of them.
func (b *bench) alternate(ctx context.Context, name string, list []entrant, base, rounds int) error {
	rates, work, memory := make([][]float64, len(list)), make([][]float64, len(list)), make([][]float64, len(list))
	for round := range rounds {
		for i := range list {
			at := (i + round) % len(list)
			m, err := list[at].run(ctx)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "round %d: %s: %s: %.0f MB/s, %v of CPU, load %s\n", round+1, name, list[at].name, m.rate/1e6, m.cpu, load())
			rates[at], work[at] = append(rates[at], m.rate), append(work[at], m.cpu.Seconds()/float64(b.size)*1e9)
			memory[at] = append(memory[at], float64(m.memory))
		}
	}
	fmt.Printf("\nCold, %d bytes in sequence, %s, %d rounds, medians; load %s\n\n", b.size, name, rounds, load())
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "reader\tMB/s\tbeside "+list[base].name+"\tlowest\thighest\tCPU s/GB\tmemory MB\t")
	for i, e := range list {
		low, high := ends(rates[i])
		fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.0f\t%.0f\t%.2f\t%.1f\t\n", e.name, median(rates[i])/1e6, median(rates[i])/median(rates[base]), low/1e6, high/1e6,
			median(work[i]), median(memory[i])/1e6)
	}
	return t.Flush()
}
