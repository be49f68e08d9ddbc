package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/decode"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/httporigin"
	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/size"
	"github.com/hbmfs/hbmfs/internal/trace"
	"github.com/hbmfs/hbmfs/internal/trust"
)

// cacheFlags say where the bytes of a remote source are kept.
type cacheFlags struct {
	dir         string
	size        size.Flag
	segment     size.Flag
	minFree     size.Flag
	scrub       size.Flag
	connections int
	patience    time.Duration
	guarded     bool
	allow       []string // addresses
	wait        time.Duration
	listing     size.Flag
	decode      bool
	strict      bool
	decodeScan  size.Flag
}

func (c *cacheFlags) add(f *pflag.FlagSet) {
	f.StringVar(&c.dir, "cache-dir", "", "directory on a local disk (ext4, XFS, btrfs) that keeps what a remote source gave, and what compressed shards decode to; several mounts may share it")
	f.Var(&c.size, "cache-size", "bytes that the cache may take, as in 2TiB (default: 80% of the disk)")
	f.Var(&c.segment, "cache-segment", "bytes that are kept and evicted together; an object that fits is read by the kernel itself once it is whole (default 1GiB, or 256MiB for a cache below 64GiB)")
	f.Var(&c.minFree, "cache-min-free", "bytes of the disk that stay free (default: 5% of it)")
	f.Var(&c.scrub, "cache-scrub", "bytes per second at which the cache is compared with its checksums in the background (default: not)")
	f.BoolVar(&c.decode, "decode", false, "show zstd files, NAME.zst, as NAME with what they decode to, where their size can be learned; the log says of the others why not. Needs --cache-dir")
	f.Var(&c.decodeScan, "decode-scan", "bytes of a zstd file that may be read to learn what it decodes to, if it has several frames or does not say; that is remembered (default 64MiB)")
	f.BoolVar(&c.strict, "strict", false, "files of a directory are also pinned by the time of their last change (ctime): a rewrite whose modification time was put back is seen, and chmod, rename and new links are changes")
	f.IntVar(&c.connections, "connections", 16, "requests to a remote source at once")
	f.BoolVar(&c.guarded, "refuse-local", false, "never ask loopback, link-local and cloud metadata addresses for a remote source, whatever its name resolves to or its server redirects to; for sources that others name")
	f.StringArrayVar(&c.allow, "allow-address", nil, "address, or prefix such as 127.0.0.0/8, that --refuse-local lets a source be asked at; may be given again")
	f.DurationVar(&c.patience, "patience", 2*time.Minute, "how long a remote source may take for the next MiB of a read, or for a smaller one, before it fails with EIO")
	f.DurationVar(&c.wait, "wait", 0, "how long the mount waits for a remote source that is not there yet: a refused connection, an unknown name, a certificate that is not trusted (default: it fails at once; from /etc/fstab: "+fstabWait+")")
	f.Var(&c.listing, "max-listing", "memory that the names of a remote source may take (default 1GiB)")
}

// guard keeps the daemon away from this machine's own addresses; it is nil where the daemon may ask them.
func (c *cacheFlags) guard() (*fetch.Guard, error) {
	switch {
	case c.guarded:
		g, err := fetch.NewGuard(c.allow)
		if err != nil {
			return nil, usageError{fmt.Errorf("--allow-address: %w", err)}
		}
		return g, nil
	case len(c.allow) > 0:
		return nil, usageError{errors.New("--allow-address allows what --refuse-local refuses: give both, or neither")}
	}
	return nil, nil
}

// remoteOrigin is a source that is not on this machine.
type remoteOrigin interface {
	store.Upstream
	List(ctx context.Context) (*cache.Listing, error)
	Stats() fetch.Stats
	String() string
	Close() error
}

// isRemote reports whether a source is an address and not a path.
func isRemote(source string) bool {
	scheme, _, found := strings.Cut(source, "://")
	return found && scheme != "" && !strings.ContainsAny(scheme, "/.")
}

func openRemote(source string, opt fetch.Options) (remoteOrigin, error) {
	switch scheme, _, _ := strings.Cut(source, "://"); scheme {
	case "s3":
		s, err := s3origin.Parse(source)
		if err != nil {
			return nil, usageError{err}
		}
		return s3origin.Open(s, opt)
	case "http", "https":
		o, err := httporigin.Open(source, opt)
		if err != nil {
			return nil, usageError{err}
		}
		return o, nil
	default:
		return nil, usageError{fmt.Errorf("source %q: there are s3://, http:// and https://, and directories", source)}
	}
}

// source is an opened source, listed.
type source struct {
	name    string // for people
	listing *cache.Listing
	remote  fs.Remote
	serve   func(ctx context.Context) // what runs beside the mount, until ctx ends; nil for nothing
	notes   []string                  // what is not as it might be meant, one line each
	closers []func() error
	tracer  *trace.Tracer
}

func (s *source) Close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	return errors.Join(errs...)
}

// beside runs what a source needs beside its mount, until the function that it returns is called.
func (s *source) beside(ctx context.Context) (stop func()) {
	if s.serve == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.serve(ctx)
	}()
	return func() { cancel(); <-over }
}

// openSource opens and lists a directory, or a remote source and its cache. Whoever waits for that is told by note why it
// takes long, and the log later.
func openSource(ctx context.Context, from string, c *cacheFlags, log *slog.Logger, note func(string), tracer *trace.Tracer) (s *source, err error) {
	s = &source{tracer: tracer}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if c.decode && c.dir == "" {
		return s, usageError{errors.New("--decode needs --cache-dir: what files decode to is kept there")}
	}
	if !isRemote(from) {
		dir, err := cache.OpenDir(from, maxOpenFiles())
		if err != nil {
			return s, err
		}
		s.name, s.closers = dir.Path(), append(s.closers, dir.Close)
		if c.strict {
			dir.PinChangeTime()
		}
		if s.listing, err = dir.List(ctx); err != nil || c.dir == "" {
			return s, err
		}
		return s, s.keepDecoded(ctx, c, log)
	}
	if c.strict {
		return s, usageError{fmt.Errorf("--strict is for directories: objects of %s are pinned by their ETag", from)}
	}
	opt, err := c.requests(log, note, tracer)
	if err != nil {
		return s, err
	}
	origin, err := openRemote(from, opt)
	if err != nil {
		return s, err
	}
	s.name, s.closers, s.remote.Origin = origin.String(), append(s.closers, origin.Close), origin.Stats
	if c.dir == "" {
		s.notes = append(s.notes, "there is no --cache-dir: every read goes over the network, each time again")
	}
	if s.listing, err = origin.List(ctx); err != nil || c.dir == "" {
		return s, err
	}
	return s, s.keep(ctx, origin, c, log)
}

// requests is how a remote source is asked.
func (c *cacheFlags) requests(log *slog.Logger, note func(string), tracer *trace.Tracer) (opt fetch.Options, err error) {
	switch {
	case c.connections < 1:
		return opt, usageError{fmt.Errorf("--connections %d: at least one is needed", c.connections)}
	case c.patience <= 0:
		return opt, usageError{fmt.Errorf("--patience %v: want a time such as 2m", c.patience)}
	case c.wait < 0:
		return opt, usageError{fmt.Errorf("--wait %v: want a time such as 2m", c.wait)}
	}
	guard, err := c.guard()
	return fetch.Options{
		Connections: c.connections, Patience: c.patience, Wait: c.wait, Listing: int64(c.listing), Trace: tracer, Guard: guard,
		Retrying: func(err error) {
			doing := "trying again"
			if errors.Is(err, fetch.ErrSilent) {
				doing = "waiting"
			}
			log.Warn(doing+", because the source gives nothing", "error", err)
			note(fmt.Sprintf("%s, because %v", doing, err))
		},
	}, err
}

// keep has a remote source read through a cache, its compressed shards decoded. The indexes that say what is compressed
// are kept, too, and fetched once; what they name comes past the cache, which keeps what it decodes to.
func (s *source) keep(ctx context.Context, origin remoteOrigin, c *cacheFlags, log *slog.Logger) error {
	kept, err := s.openStore(c, log)
	if err != nil {
		return err
	}
	kept.Add(s.name, origin, &cache.Listing{Objects: decode.Indexes(s.listing)})
	decoded, err := s.decode(ctx, c, log)
	if err != nil {
		return err
	}
	kept.Add(s.name, origin, s.listing)
	s.addDecoded(kept, decoded, log)
	return nil
}

// decode replaces what is compressed in the listing.
func (s *source) decode(ctx context.Context, c *cacheFlags, log *slog.Logger) (*decode.Origin, error) {
	decoded, err := decode.Wrap(ctx, s.listing)
	if err != nil || !c.decode {
		return decoded, err
	}
	dir, err := trust.Dir(c.dir)
	if err == nil {
		dir, err = trust.Below(dir, "sizes")
	}
	if err != nil {
		return decoded, fmt.Errorf("open the cache %s: %w", c.dir, err)
	}
	began, of := time.Now(), sha256.Sum256([]byte(s.name))
	learned, err := decoded.AddFiles(ctx, s.listing, decode.FileOptions{
		Scan: int64(c.decodeScan), Sizes: filepath.Join(dir, hex.EncodeToString(of[:16])+".json"),
	})
	if err == nil && learned.Files > 0 {
		log.Info("files were looked through to learn what they decode to", "files", learned.Files, "bytes", learned.Bytes, "took", time.Since(began))
	}
	return decoded, err
}

// keepDecoded has the compressed shards of a directory decoded into a cache. All else is read where it lies.
func (s *source) keepDecoded(ctx context.Context, c *cacheFlags, log *slog.Logger) error {
	decoded, err := s.decode(ctx, c, log)
	if err != nil {
		return err
	}
	if len(decoded.Objects()) == 0 {
		s.notes = append(s.notes, "--cache-dir is not used: nothing here is compressed in a way that is decoded, and all is read where it lies")
		return nil
	}
	kept, err := s.openStore(c, log)
	if err != nil {
		return err
	}
	s.addDecoded(kept, decoded, log)
	return nil
}

// addDecoded has decoded objects read through a cache, and what was learned of them remembered beside it.
func (s *source) addDecoded(kept *store.Store, decoded *decode.Origin, log *slog.Logger) {
	if err := decoded.SaveSizes(); err != nil {
		log.Warn("what was learned of compressed files is lost at the end of the mount", "error", err)
	}
	kept.Add(s.name, decoded, &cache.Listing{Objects: decoded.Objects()})
}

// openStore opens the cache directory.
func (s *source) openStore(c *cacheFlags, log *slog.Logger) (*store.Store, error) {
	kept, err := store.Open(c.dir, store.Options{
		Size: int64(c.size), Segment: int64(c.segment), MinFree: int64(c.minFree), MaxOpen: maxOpenFiles(), Log: log, Trace: s.tracer,
	})
	if err != nil {
		return nil, err
	}
	s.closers, s.remote.Cache = append(s.closers, kept.Close), kept
	if c.scrub > 0 {
		s.serve = func(ctx context.Context) { kept.Scrub(ctx, int64(c.scrub)) }
	}
	return kept, nil
}
