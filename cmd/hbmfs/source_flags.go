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
	f.StringVar(&c.CacheDir, "cache-dir", "", "directory on a local disk (ext4, XFS, btrfs) that keeps bytes of remote sources, and decoded shards; several mounts may share it")
	f.Var(&c.CacheSize, "cache-size", "bytes that the cache may take, as in 2TiB (default: 80% of the disk)")
	f.Var(&c.Segment, "cache-segment", "bytes that are kept and evicted together; an object that fits is read by the kernel itself once it is whole (default 1GiB, or 256MiB for a cache below 64GiB)")
	f.Var(&c.MinFree, "cache-min-free", "bytes of the disk that stay free (default: 5% of it)")
	f.Var(&c.Scrub, "cache-scrub", "bytes per second at which the cache is compared with its checksums in the background (default: not)")
	f.BoolVar(&c.Decode, "decode", false, "show zstd files, NAME.zst, decoded as NAME, where their size can be learned; the others stay as they are stored, and the log says why. Needs --cache-dir")
	f.Var(&c.DecodeScan, "decode-scan", "bytes of a zstd file that may be read to learn its decoded size, if it has several frames or does not say; the size is remembered (default 64MiB)")
	f.BoolVar(&c.Strict, "strict", false, "files of a directory are also pinned by the time of their last change (ctime): a rewrite whose modification time was put back is seen, and chmod, rename and new links are changes")
	f.BoolVar(&c.RefuseLocal, "refuse-local", false, "never ask loopback, link-local and cloud metadata addresses for a remote source, whatever its name resolves to or its server redirects to; for sources that others name")
	f.StringArrayVar(&c.Allow, "allow-address", nil, "`address`, or prefix such as 127.0.0.0/8, that --refuse-local lets a source be asked at; may be given again")
	f.DurationVar(&c.Wait, "wait", 0, "how long the mount waits for a remote source that is not there yet: a refused connection, an unknown name, a certificate that is not trusted (default: it fails at once; from /etc/fstab: "+fstabWait+")")
	addRequestFlags(f, c)
	manpage.Advanced(f, "cache-segment", "cache-min-free", "cache-scrub", "decode-scan", "strict", "refuse-local", "allow-address", "wait", "connections", "patience", "through", "max-listing")
}

// addRequestFlags adds the flags of requests to a remote source.
func addRequestFlags(f *pflag.FlagSet, c *dataset.Options) {
	f.IntVar(&c.Connections, "connections", 16, "requests to a remote source at once")
	f.DurationVar(&c.Patience, "patience", fetch.Patience, "how long a remote source may take for the next MiB of a read, or for a smaller one, before it fails with EIO")
	f.StringSliceVar(&c.Caches, "through", nil, "caches that are asked before a remote source, as http://HOST:PORT,http://HOST:PORT: each holds its share")
	f.Var(&c.MaxListing, "max-listing", "memory that the names of a remote source may take (default 1GiB)")
}

// openSource opens and lists a source that no mount shows, to be looked at.
func openSource(ctx context.Context, source string, c *dataset.Options, stderr io.Writer) (*dataset.Dataset, error) {
	c.MaxOpen = dataset.MaxOpenFiles()
	note := func(text string) { fmt.Fprintln(stderr, "hbmfs:", text) }
	return dataset.Open(ctx, source, c, slog.New(slog.DiscardHandler), note, nil)
}
