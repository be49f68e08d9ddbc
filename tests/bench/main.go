// Command bench measures a built hbmfs against reading the same bytes without it, and its scale.
//
//	make bench                                     # everything, and writes its part of docs/benchmarks.md
//	.cache/bench --hbmfs bin/hbmfs --loopback .cache/loopback --only throughput --json result.json
//
// It is a black box: it knows the command line and the mount, nothing behind them. Every throughput case runs
// the two sides in turn (A B A B ...) on one machine and compares each run with the one beside it, so that a
// slow drift of the machine touches both. The page cache is warm unless a case says otherwise.
//
// It needs 3 GiB of free memory and 4 GiB of free disk, and a way to mount FUSE.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// config holds the flags.
type config struct {
	hbmfs, loopback string
	dir             string
	only            string
	mountFlags      string
	rounds          int
	shardMiB        int
	shards          int
	jsonFile, docs  string
	check           bool
}

func parseFlags(args []string) (config, error) {
	var c config
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&c.hbmfs, "hbmfs", "bin/hbmfs", "the `program` to measure")
	flags.StringVar(&c.loopback, "loopback", ".cache/loopback", "the built tests/bench/loopback `program`")
	flags.StringVar(&c.dir, "dir", os.TempDir(), "`directory` on a local filesystem for the datasets")
	flags.StringVar(&c.only, "only", "", "run only `case`: throughput, scale or pieces")
	flags.StringVar(&c.mountFlags, "mount-flags", "", "`flags` for every hbmfs mount, such as \"--read-ahead 1048576\"")
	flags.IntVar(&c.rounds, "rounds", 11, "runs of each side of a throughput case")
	flags.IntVar(&c.shardMiB, "shard-mib", 512, "size of each of the two shards that throughput reads, in MiB")
	flags.IntVar(&c.shards, "shards", 100_000, "number of shards in the scale case")
	flags.StringVar(&c.jsonFile, "json", "", "write the results as JSON to `file`")
	flags.StringVar(&c.docs, "docs", "", "write benchmarks.svg, and the part of benchmarks.md about the mount, to `directory`")
	flags.BoolVar(&c.check, "check", false, "fail when a target is missed")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if c.rounds < 1 || c.shardMiB < 1 || c.shards < 1 {
		return c, errors.New("--rounds, --shard-mib and --shards must be at least 1")
	}
	if !slices.Contains([]string{"", "throughput", "scale", "pieces"}, c.only) {
		return c, fmt.Errorf("--only %s: want throughput, scale or pieces", c.only)
	}
	return c, nil
}

// run measures the cases of args and writes the report. Figures from before a failure are still printed.
func run(ctx context.Context, args []string) (err error) {
	c, err := parseFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	binary, err := blackbox.NewBinary(c.hbmfs)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(c.dir, "hbmfs-bench-")
	if err != nil {
		return fmt.Errorf("make a work directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	r := report{Machine: describeMachine(work), Hbmfs: version(ctx, binary), MountFlags: c.mountFlags}
	b := &bench{config: c, binary: binary, work: work, report: &r}
	err = b.runCases(ctx)
	r.print(os.Stdout)
	if err != nil {
		return err
	}
	if err := r.save(c.jsonFile, c.docs); err != nil {
		return err
	}
	if missed := r.missed(); len(missed) > 0 && c.check {
		return fmt.Errorf("targets missed: %s", strings.Join(missed, "; "))
	}
	return nil
}

// version asks the binary; a benchmark without a version is worth little.
func version(ctx context.Context, binary blackbox.Binary) string {
	out, err := binary.Output(ctx, "--version")
	if err != nil {
		return "unknown version"
	}
	return strings.TrimSpace(string(out))
}

// bench is one run of the program, with the data that all cases share.
type bench struct {
	config
	binary blackbox.Binary
	work   string // emptied and removed at the end
	report *report
}

func (b *bench) runCases(ctx context.Context) error {
	cases := []struct {
		name string
		run  func(context.Context) error
	}{
		{"throughput", b.throughput},
		{"scale", b.scale},
		{"pieces", b.pieces},
	}
	for _, c := range cases {
		if b.only != "" && b.only != c.name {
			continue
		}
		if err := c.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// mount mounts a dataset with the flags that are being measured.
func (b *bench) mount(ctx context.Context, source, dir string) (*blackbox.Mount, error) {
	return b.binary.Mount(ctx, source, dir, strings.Fields(b.mountFlags)...)
}

// makeDirs makes directories below the work directory and returns their paths.
func (b *bench) makeDirs(names ...string) ([]string, error) {
	paths := make([]string, 0, len(names))
	for _, name := range names {
		path := filepath.Join(b.work, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, fmt.Errorf("make %s: %w", name, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// progress names the running case on standard error.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
