// Command soak reads a remote dataset through a mount for a long time, under faults and with a cache of a tenth of it,
// and compares every byte.
//
//	go run ./tests/bench/soak --hbmfs bin/hbmfs [--time 30m] [--report FILE]
//	go run ./tests/bench/soak --hbmfs bin/hbmfs --amplification --objects 16 [--forget]
//
// The origin is this program: one request in a hundred fails, by an error, a reset, a short body, other bytes' range, or
// a stall. Readers read random ranges through the mount; others hold files open as GPU readers do, with the segments
// that they were given leased. It ends with exit code 1 if a byte was wrong, a read failed, or memory, descriptors or
// the disk's space grew.
//
// With --amplification it counts the origin's bytes for each byte that is read. It reads in several ways, by caches of a
// tenth of the dataset and of twice as much.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/pflag"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1)
	}
}

type config struct {
	hbmfs, dir, report string
	time               time.Duration
	objects            int
	objectSize         int64
	readers, holders   int
	faults             float64
	budget             int64 // of the cache, bytes
	forget             bool
}

func run(ctx context.Context) (err error) {
	var c config
	pflag.StringVar(&c.hbmfs, "hbmfs", "bin/hbmfs", "the built binary")
	pflag.StringVar(&c.dir, "dir", "", "where the cache and the mount are put (default: the temporary directory)")
	pflag.StringVar(&c.report, "report", "", "file that the report is written to, as Markdown")
	pflag.DurationVar(&c.time, "time", 30*time.Minute, "how long")
	pflag.IntVar(&c.objects, "objects", 64, "objects of the dataset")
	pflag.Int64Var(&c.objectSize, "object-size", 16<<20, "bytes of an object")
	pflag.IntVar(&c.readers, "readers", 6, "readers of random ranges through the mount")
	pflag.IntVar(&c.holders, "holders", 4, "readers past the mount, which hold leases")
	pflag.Float64Var(&c.faults, "faults", 0.01, "part of the origin's answers that fail")
	amplification := pflag.Bool("amplification", false, "count what is fetched for each byte that is read, instead")
	pflag.BoolVar(&c.forget, "forget", false, "with --amplification: have the kernel forget what was read, as if memory were small")
	pflag.Parse()
	if *amplification {
		return amplify(ctx, c)
	}
	c.budget = int64(c.objects) * c.objectSize / 10
	s, err := newSoak(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r := s.run(ctx)
	text := r.markdown(c)
	fmt.Print(text)
	if c.report != "" {
		if err := os.WriteFile(c.report, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return r.verdict()
}
