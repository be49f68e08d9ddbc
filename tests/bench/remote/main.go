// Command remote measures the first read of a remote object through a mount, and later ones, beside the rates of network
// and disk without it.
//
//	go run ./tests/bench/remote --hbmfs bin/hbmfs [--rounds 5] [--latency 25ms] [--rate 90e6] [--rivals | --random | --clouds | --decode]
//
// The server is this program: it waits --latency before each answer, and gives each connection --rate at most. One
// round fetches the object by 8 parallel ranged GETs, reads it cold through a new mount with an empty cache, reads it
// again beside the cache's own file, and one of the two once more after the page cache was dropped.
//
// With --rivals and --random the server is versitygw, behind a proxy that waits and limits, and hbmfs reads it beside
// rclone and s3fs: one object in sequence, or samples of 10 GiB at random, the latter also with a plan.
//
// With --clouds the server answers as S3, Google Cloud Storage, Azure, a registry and a Hub do, and hbmfs reads it beside huggingface_hub and gcsfs.
//
// With --decode the source is a local directory of compressed shards, read through a mount that decodes them, beside
// the library that decodes.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "remote:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	var c config
	pflag.StringVar(&c.hbmfs, "hbmfs", "bin/hbmfs", "the built binary")
	pflag.Int64Var(&c.size, "size", 1<<30, "bytes of the object")
	rounds := pflag.Int("rounds", 5, "rounds")
	pflag.DurationVar(&c.latency, "latency", 25*time.Millisecond, "before each answer of the server")
	pflag.Float64Var(&c.rate, "rate", 90e6, "bytes per second of a connection, 0 for no limit")
	pflag.StringVar(&c.dir, "dir", "", "where the object, the cache and the mount are put (a directory on a real disk; default: the temporary one)")
	pflag.StringVar(&c.s3server, "s3server", ".cache/s3server", "the built tests/suites/origins/s3server")
	rivals := pflag.Bool("rivals", false, "compare with rclone and s3fs")
	random := pflag.Bool("random", false, "compare random reads with rclone's")
	rclonePath := pflag.String("rclone", "rclone", "the rclone to compare with")
	clouds := pflag.Bool("clouds", false, "compare s3://, gs://, az://, oci:// and hf:// with huggingface_hub and gcsfs")
	python := pflag.String("python", "python3", "with --clouds: the Python that has huggingface_hub and gcsfs")
	all := pflag.Bool("all", false, "with --random: also rclone with 16 streams of 4 MiB, which takes minutes a round")
	decode := pflag.Bool("decode", false, "compare compressed shards through the mount with the library that decodes them")
	shards := pflag.Int("shards", 16, "with --decode: shards of 64 MB")
	sum := pflag.String("hash", "xxh64", "with --decode: what the index has of each shard: xxh64 or sha1")
	pflag.Parse()
	if *random || *decode {
		c.size = 0
	}
	b, err := newBench(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	streams := []string{"--vfs-read-chunk-streams", "16", "--vfs-read-chunk-size", "4M"} // the settings of its documentation for S3
	switch {
	case *decode:
		return b.decode(ctx, *shards, *sum, *rounds)
	case *clouds:
		return b.clouds(ctx, *python, *rounds)
	case *random:
		list := []contender{
			hbmfs(c.hbmfs),
			rclone("rclone, chunks of 128 KiB", *rclonePath, "--vfs-read-chunk-size", "128k", "--vfs-read-chunk-size-limit", "128k", "--buffer-size", "0", "--vfs-read-wait", "0"),
		}
		if *all {
			list = append(list, rclone("rclone, 16 streams of 4 MiB", *rclonePath, streams...))
		}
		return b.randomly(ctx, list, *rounds)
	case *rivals:
		return b.sequential(ctx, []contender{
			hbmfs(c.hbmfs), rclone("rclone", *rclonePath, streams...), rclone("rclone, reads 128 MiB ahead", *rclonePath, append(streams, "--vfs-read-ahead", "128M")...), s3fs("s3fs"),
		}, *rounds)
	}
	return b.alone(ctx, *rounds)
}

func (b *bench) alone(ctx context.Context, rounds int) error {
	var all []round
	for i := range rounds {
		r, err := b.round(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "round %d: %+v\n", i+1, r)
		all = append(all, r)
	}
	report(all, b.config)
	return nil
}

// round has the rates of one round, bytes per second.
type round struct {
	GETs, Cold       float64
	Warm, WarmDirect float64
	Disk, DiskDirect float64
}

func report(all []round, c config) {
	of := func(of func(round) float64) float64 {
		var x []float64
		for _, r := range all {
			if v := of(r); v > 0 {
				x = append(x, v)
			}
		}
		return median(x)
	}
	fmt.Printf("%d bytes, latency %v, %.0f MB/s a connection, %d rounds, medians\n\n", c.size, c.latency, c.rate/1e6, len(all))
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "read\tMB/s\tbeside\tMB/s\tratio\t")
	for _, row := range []struct {
		name, beside string
		of, by       func(round) float64
	}{
		{"cold, through the mount", "8 parallel ranged GETs", func(r round) float64 { return r.Cold }, func(r round) float64 { return r.GETs }},
		{"again", "the cache's file, from the page cache", func(r round) float64 { return r.Warm }, func(r round) float64 { return r.WarmDirect }},
		{"page cache dropped", "the cache's file, from the disk", func(r round) float64 { return r.Disk }, func(r round) float64 { return r.DiskDirect }},
	} {
		x, by := of(row.of), of(row.by)
		fmt.Fprintf(t, "%s\t%.0f\t%s\t%.0f\t%.2f\t\n", row.name, x/1e6, row.beside, by/1e6, x/by)
	}
	_ = t.Flush()
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

func ends(x []float64) (low, high float64) { return slices.Min(x), slices.Max(x) }

// load is how busy the machine is: this program shares it.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
