package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/daemon/dataset"
	"github.com/hbmfs/hbmfs/internal/text/manpage"
)

// addSourceFlags adds the flags of a source.
func addSourceFlags(f *pflag.FlagSet, c *dataset.Options) {
	f.StringVar(&c.CacheDir, "cache-dir", "", "`directory` on a local disk (ext4, XFS, btrfs) for bytes of remote sources, and decoded shards; mounts may share it")
	f.Var(&c.CacheSize, "cache-size", "bytes that the cache may take, such as 2TiB (default: 80% of the disk)")
	f.Var(&c.Segment, "cache-segment", "bytes that are kept and evicted together; the kernel reads smaller objects itself (default: 1GiB, or 256MiB in a cache below 64GiB)")
	f.Var(&c.MinFree, "cache-min-free", "bytes of the disk to leave free (default: 5% of it)")
	f.Var(&c.Scrub, "cache-scrub", "bytes per second at which the daemon verifies the cache in the background (default: never)")
	f.BoolVar(&c.Decode, "decode", false, "show zstd files, NAME.zst, decoded as NAME; the log names those whose size cannot be learned; needs --cache-dir")
	f.Var(&c.DecodeScan, "decode-scan", "bytes of a zstd file that may be read to learn its decoded size (default: 64MiB)")
	f.BoolVar(&c.Strict, "strict", false, "compare ctime, too: it shows rewrites with an old modification time, but chmod, rename and links count as changes")
	f.BoolVar(&c.RefuseLocal, "refuse-local", false, "for sources that others name: never ask loopback, link-local and cloud metadata addresses, also after a redirect")
	f.StringArrayVar(&c.Allow, "allow-address", nil, "`address`, or prefix such as 127.0.0.0/8, that --refuse-local allows; may be given again")
	f.DurationVar(&c.Wait, "wait", 0, "how long to wait for a remote source that cannot be reached yet (default: no wait; from /etc/fstab: "+fstabWait+")")
	addRequestFlags(f, c)
	manpage.Advanced(f, "cache-segment", "cache-min-free", "cache-scrub", "decode-scan", "strict", "refuse-local", "allow-address", "wait", "connections", "patience", "through", "max-listing")
}

// addRequestFlags adds the flags of requests to a remote source.
func addRequestFlags(f *pflag.FlagSet, c *dataset.Options) {
	f.IntVar(&c.Connections, "connections", 16, "requests to a remote source at once")
	f.DurationVar(&c.Patience, "patience", fetch.Patience, "how long a remote source may take for the next MiB before a read fails with EIO")
	f.StringSliceVar(&c.Caches, "through", nil, "`caches` to ask before a remote source, as http://HOST:PORT,http://HOST:PORT; each holds its share")
	f.Var(&c.MaxListing, "max-listing", "memory for the names of a remote source (default: 1GiB)")
}

// openSource opens and lists a source that no mount shows, to be looked at.
func openSource(ctx context.Context, source string, c *dataset.Options, stderr io.Writer) (*dataset.Dataset, error) {
	c.MaxOpen = dataset.MaxOpenFiles()
	note := func(text string) { fmt.Fprintln(stderr, "hbmfs:", text) }
	return dataset.Open(ctx, source, c, slog.New(slog.DiscardHandler), note, nil)
}
