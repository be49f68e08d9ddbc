package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/internal/size"
)

// cacheCommand has the fields of all commands below hbmfs cache. Mounts may use the directory meanwhile.
type cacheCommand struct {
	dir            string
	asJSON         bool
	stdout, stderr io.Writer
}

func newCacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "Look into the cache of remote datasets, verify it, and free its space",
		Long: `Look into a directory that hbmfs mount --cache-dir keeps remote datasets in, without a mount. Mounts may use it at the
same time: they fetch removed bytes again, and a reader that has them open reads on.

A cache has segments: parts of objects of at most --cache-segment bytes, each with checksums of every MiB.`,
	}
	addCommands(cmd, newCacheListCommand(), newCacheStatsCommand(), newCacheVerifyCommand(), newCacheRemoveCommand())
	return cmd
}

// bind gives a command below hbmfs cache its argument, its flag and its work.
func (c *cacheCommand) bind(cmd *cobra.Command, run func(context.Context, *store.Store) error) *cobra.Command {
	cmd.Args = exactArgs(1)
	cmd.Flags().BoolVar(&c.asJSON, "json", false, "print the result as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.dir, c.stdout, c.stderr = args[0], cmd.OutOrStdout(), cmd.ErrOrStderr()
		return onMounts(cmd, args, func(ctx context.Context) error {
			s, err := c.open()
			if err != nil {
				return err
			}
			return errors.Join(run(ctx, s), s.Close())
		})
	}
	return cmd
}

// open opens a cache that is there: opening alone would make one.
func (c *cacheCommand) open() (*store.Store, error) {
	info, err := os.Stat(filepath.Join(c.dir, "segments"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: only the user who made a cache, and root, may look into it", err)
	}
	if err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s is no cache directory, it has no folder segments: name the directory that hbmfs mount has as --cache-dir", c.dir)
	}
	return store.Open(c.dir, store.Options{})
}

func (c *cacheCommand) printJSON(value any) error {
	return writeJSON(c.stdout, value)
}

// segments lists the segments of a cache, ordered by source, object and place.
func segments(ctx context.Context, s *store.Store) ([]store.Segment, error) {
	all := []store.Segment{}
	err := s.Segments(ctx, false, func(g store.Segment) error {
		all = append(all, g)
		return nil
	})
	slices.SortFunc(all, func(a, b store.Segment) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Offset, b.Offset))
	})
	return all, err
}

func newCacheListCommand() *cobra.Command {
	c := &cacheCommand{}
	return c.bind(&cobra.Command{
		Use:   "ls DIR",
		Short: "List the objects that a cache has bytes of",
		Long: `List the objects that the cache DIR has bytes of, and how many of each. An object that was replaced at its source has
a line for each version. --json lists the segments.`,
		Example: "  hbmfs cache ls /nvme/hbmfs\n  hbmfs cache ls --json /nvme/hbmfs | jq '.segments[].object'",
	}, func(ctx context.Context, s *store.Store) error {
		all, err := segments(ctx, s)
		if err != nil {
			return err
		}
		if c.asJSON {
			return c.printJSON(struct {
				Directory string          `json:"directory"`
				Segments  []store.Segment `json:"segments"`
			}{c.dir, all})
		}
		return c.printObjects(all)
	})
}

// printObjects sums segments up by object. They are ordered.
func (c *cacheCommand) printObjects(all []store.Segment) error {
	t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "SOURCE\tOBJECT\tSEGMENTS\tCACHED\tSIZE\t\n")
	for len(all) > 0 {
		first, n, bytes := all[0], 0, int64(0)
		for n < len(all) && all[n].Source == first.Source && all[n].Object == first.Object && all[n].Version == first.Version {
			bytes += all[n].Bytes
			n++
		}
		all = all[n:]
		if first.Damage != "" {
			fmt.Fprintf(t, "?\t(damaged: hbmfs cache verify --remove)\t%d\t%s\t?\t\n", n, size.Decimal(bytes))
			continue
		}
		part := 100.0
		if first.Size > 0 {
			part = 100 * float64(bytes) / float64(first.Size)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%.0f%%\n", first.Source, first.Object, n, size.Decimal(bytes), size.Decimal(first.Size), part)
	}
	return t.Flush()
}

// cacheSource sums up the segments of one source.
type cacheSource struct {
	Source   string `json:"source"`
	Objects  int    `json:"objects"`
	Segments int    `json:"segments"`
	Bytes    int64  `json:"bytes"`
}

// cacheTotals is the output of hbmfs cache stats.
type cacheTotals struct {
	Directory string        `json:"directory"`
	Segments  int           `json:"segments"`
	Bytes     int64         `json:"bytes"`
	Damaged   int           `json:"damaged"` // segments whose header is; verify looks at all bytes
	Oldest    *time.Time    `json:"oldest,omitempty"`
	Newest    *time.Time    `json:"newest,omitempty"`
	DiskSize  int64         `json:"disk_size"`
	DiskFree  int64         `json:"disk_free"`
	Sources   []cacheSource `json:"sources"`
}

func newCacheStatsCommand() *cobra.Command {
	c := &cacheCommand{}
	return c.bind(&cobra.Command{
		Use:   "stats DIR",
		Short: "Say how much a cache has of which source",
		Long: `Say how much the cache DIR has of which source, and how full its disk is. A mount's hits and evictions
are in its .hbmfs/status.`,
		Example: "  hbmfs cache stats /nvme/hbmfs",
	}, func(ctx context.Context, s *store.Store) error {
		all, err := segments(ctx, s)
		if err != nil {
			return err
		}
		totals, err := totalsOf(c.dir, all)
		if err != nil {
			return err
		}
		if c.asJSON {
			return c.printJSON(totals)
		}
		return totals.print(c.stdout)
	})
}

// totalsOf sums ordered segments up.
func totalsOf(dir string, all []store.Segment) (*cacheTotals, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("ask for the free space of %s: %w", dir, err)
	}
	totals := &cacheTotals{Directory: dir, Segments: len(all), DiskSize: int64(st.Blocks) * st.Bsize, DiskFree: int64(st.Bavail) * st.Bsize, Sources: []cacheSource{}}
	object := ""
	for i := range all {
		g := &all[i]
		totals.Bytes += g.Bytes
		if totals.Oldest == nil || g.Written.Before(*totals.Oldest) {
			totals.Oldest = &g.Written
		}
		if totals.Newest == nil || g.Written.After(*totals.Newest) {
			totals.Newest = &g.Written
		}
		if g.Damage != "" {
			totals.Damaged++
			continue
		}
		k := len(totals.Sources) - 1
		if k < 0 || totals.Sources[k].Source != g.Source {
			totals.Sources = append(totals.Sources, cacheSource{Source: g.Source})
			k, object = k+1, ""
		}
		from := &totals.Sources[k]
		if from.Segments == 0 || g.Object != object {
			from.Objects++
			object = g.Object
		}
		from.Segments++
		from.Bytes += g.Bytes
	}
	return totals, nil
}

func (t *cacheTotals) print(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s in %s segments; the disk has %s, %s free\n", t.Directory, size.Decimal(t.Bytes), size.Grouped(int64(t.Segments)), size.Decimal(t.DiskSize), size.Decimal(t.DiskFree))
	if t.Oldest != nil {
		fmt.Fprintf(w, "written from %s to %s\n", t.Oldest.Format(time.DateTime), t.Newest.Format(time.DateTime))
	}
	if t.Damaged > 0 {
		fmt.Fprintf(w, "%d segments are damaged: hbmfs cache verify --remove %s\n", t.Damaged, t.Directory)
	}
	if len(t.Sources) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "SOURCE\tOBJECTS\tSEGMENTS\tCACHED\n")
	for _, s := range t.Sources {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Source, size.Grouped(int64(s.Objects)), size.Grouped(int64(s.Segments)), size.Decimal(s.Bytes))
	}
	return table.Flush()
}
