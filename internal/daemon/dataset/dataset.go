// Package dataset opens the source of a mount: a directory, or a remote source with its cache. It decodes compressed
// shards.
package dataset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/decode"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/httporigin"
	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/cache/spread"
	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/internal/sys/trust"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/layout"
)

// Options say how a source is opened, and where the bytes of a remote one are kept.
type Options struct {
	CacheDir   string    // empty: nothing is kept
	CacheSize  size.Flag // bytes; 0 means the default of package store, here and below
	Segment    size.Flag // bytes
	MinFree    size.Flag // bytes of the disk that stay free
	Scrub      size.Rate // bytes per second that are compared with their checksums; 0 for none
	Decode     bool      // show zstd files decoded
	DecodeScan size.Flag // bytes of such a file that may be read to learn its size

	Strict  bool // pin files by the time of their last change as well
	MaxOpen int  // files that are open at once, such as [MaxOpenFiles]

	Connections int
	Patience    time.Duration // for the next MiB of a read
	Wait        time.Duration // for a remote source that is not there yet
	RefuseLocal bool          // never ask addresses of this machine and of clouds' metadata
	Allow       []string      // addresses that RefuseLocal allows
	MaxListing  size.Flag     // bytes that the names of a remote source may take
	Caches      []string      // URLs of servers that are asked before a remote source is

	dark func(error) // hears that the source gives nothing any more, nil for nobody

	Life *handover.Life // of the daemon: a listing that an earlier one made is taken, and none is made. nil: nobody holds the mount
}

// MaxOpenFiles is how many backing files may stay open: half of the process's limit, since pipes, the kernel's connection and the
// log need some, too.
func MaxOpenFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 128
	}
	return int(min(limit.Cur/2, 4096))
}

// Guard keeps the daemon away from this machine's own addresses; it is nil where the daemon may ask them.
func (c *Options) Guard() (*fetch.Guard, error) {
	switch {
	case c.RefuseLocal:
		g, err := fetch.NewGuard(c.Allow)
		if err != nil {
			return nil, cli.Mistakef("--allow-address: %w", err)
		}
		return g, nil
	case len(c.Allow) > 0:
		return nil, cli.Mistakef("--allow-address allows what --refuse-local refuses: give both, or neither")
	}
	return nil, nil
}

// remoteOrigin is a source that is not on this machine.
type remoteOrigin interface {
	store.Upstream
	spread.Upstream
	Stats() status.OriginTotals
}

// openRemote opens a remote source, behind the caches that it names or that stand before it.
func openRemote(source string, caches []string, opt fetch.Options) (remoteOrigin, error) {
	var up remoteOrigin
	switch scheme, _, _ := strings.Cut(source, "://"); scheme {
	case "s3":
		s, err := s3origin.Parse(source)
		if err != nil {
			return nil, cli.Mistake{Err: err}
		}
		if s.Caches != "" && len(caches) > 0 {
			return nil, cli.Mistakef("the source names caches, and so does --through: give one of them")
		} else if s.Caches != "" {
			caches = strings.Split(s.Caches, ",")
		}
		o, err := s3origin.Open(s, opt)
		if err != nil {
			return nil, err
		}
		o.Misfit = misfit
		up = o
	case "http", "https":
		o, err := httporigin.Open(source, opt)
		if err != nil {
			return nil, cli.Mistake{Err: err}
		}
		up = o
	default:
		return nil, cli.Mistakef("source %q: there are s3://, http:// and https://, and directories", source)
	}
	if len(caches) == 0 {
		return up, nil
	}
	o, err := spread.Open(up, caches, opt)
	if err != nil {
		return nil, cli.Mistake{Err: errors.Join(err, up.Close())}
	}
	return o, nil
}

// misfit compares a drained checkpoint with its manifest: see [s3origin.Bucket].
func misfit(manifest []byte, size func(name string) (int64, bool)) (empty []string, why string) {
	m, err := checkpoint.ParseManifest(manifest)
	if err != nil {
		return nil, err.Error()
	}
	return m.Dirs, m.Misfit(size)
}

// Dataset is an opened source, listed.
type Dataset struct {
	Name    string // for people
	Listing *cache.Listing
	Origin  func() status.OriginTotals // of a remote source; nil otherwise
	Cache   *store.Store               // that keeps its segments; nil for none
	serve   func(ctx context.Context)  // runs beside the mount, until ctx ends; nil for nothing
	Notes   []string                   // surprises for the user, one line each
	closers []func() error
	tracer  *trace.Tracer
	state   *state
}

// State is the dataset's state for the next daemon. It is nil where nobody holds the mount.
func (s *Dataset) State() handover.State { return s.state }

// state is a listing, as the origin gave it: pinned, and before anything of it was decoded.
type state struct {
	Path    string // of a directory; of objects of S3 a slash, and then the directory that their names are relative to
	Listing []byte
}

// Section implements [handover.State].
func (*state) Section() (string, uint32) { return "dataset", 1 }

// Save implements [handover.State].
func (s *state) Save() ([]byte, error) {
	b := append(append(append(make([]byte, 0, len(s.Path)+1+len(s.Listing)), s.Path...), 0), s.Listing...)
	s.Listing = nil // it is asked for once
	return b, nil
}

// Adopt implements [handover.State].
func (s *state) Adopt(section []byte) error {
	path, listing, ok := bytes.Cut(section, []byte{0})
	if s.Path, s.Listing = string(path), listing; !ok {
		return errors.New("it has no listing")
	}
	return nil
}

// keptSource is the name of the directory among the files that a holder keeps: its path may lead elsewhere by now, or to the mount.
const keptSource = "source"

// openDir opens and lists a directory, or takes the listing of an earlier daemon.
func (s *Dataset) openDir(ctx context.Context, from string, c *Options) error {
	var dir *cache.Dir
	var err error
	if c.Life.Adopts() {
		f := c.Life.Took(keptSource)
		if f == nil {
			return fmt.Errorf("%w: the holder has not its source", handover.ErrRefused)
		}
		defer func() { _ = f.Close() }() // the origin has its own
		dir, err = cache.OpenDirAt(f, s.state.Path, c.MaxOpen)
	} else {
		dir, err = cache.OpenDir(from, c.MaxOpen)
	}
	if err != nil {
		return err
	}
	s.Name, s.closers = dir.Path(), append(s.closers, dir.Close)
	if c.Strict {
		dir.PinChangeTime()
	}
	err = s.list(c, dir, func() (*cache.Listing, error) { return dir.List(ctx) })
	if err != nil || c.Life == nil || c.Life.Adopts() {
		return err
	}
	s.state.Path = dir.Path()
	f, err := dir.File()
	if err == nil {
		err = errors.Join(c.Life.Keep(keptSource, f), f.Close())
	}
	return err
}

// entrySize is about the size of a file's entry in a saved listing.
const entrySize = 80

// list lists an origin, or takes the listing of an earlier daemon.
func (s *Dataset) list(c *Options, origin layout.Origin, list func() (*cache.Listing, error)) (err error) {
	up := any(origin)
	if caches, ok := origin.(*spread.Spread); ok {
		up = caches.Upstream()
	}
	s3, _ := up.(*s3origin.Bucket)
	if c.Life.Adopts() {
		if dir, ok := strings.CutPrefix(s.state.Path, "/"); ok && s3 != nil {
			s3.SetDir(dir)
		}
		s.Listing, err = cache.LoadListing(s.state.Listing, origin)
		return err
	}
	s.Listing, err = list()
	if err == nil && c.Life != nil {
		s.state = &state{Listing: s.Listing.Save(make([]byte, 0, entrySize*len(s.Listing.Objects)))}
		if s3 != nil {
			s.state.Path = "/" + s3.Dir()
		}
	}
	return err
}

func (s *Dataset) Close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	return errors.Join(errs...)
}

// Serve runs a source's work beside its mount, until ctx ends.
func (s *Dataset) Serve(ctx context.Context) {
	if s.serve != nil {
		s.serve(ctx)
	}
}

// idle names flags that do nothing for a source.
func (c *Options) idle(from string) (notes []string) {
	for _, f := range []struct {
		flag  string
		given bool
	}{{"--cache-size", c.CacheSize > 0}, {"--cache-segment", c.Segment > 0}, {"--cache-min-free", c.MinFree > 0}, {"--cache-scrub", c.Scrub > 0}} {
		if f.given && c.CacheDir == "" {
			notes = append(notes, f.flag+" has no effect without --cache-dir")
		}
	}
	if len(c.Caches) > 0 && !cli.IsRemote(from) {
		notes = append(notes, "--through has no effect: "+from+" is a directory, and is asked itself")
	}
	return notes
}

// Open opens and lists a directory, or a remote source and its cache. note hears why that takes long, and the log later.
// A mistake in from or c is a [cli.Mistake].
func Open(ctx context.Context, from string, c *Options, log *slog.Logger, note func(string), tracer *trace.Tracer) (s *Dataset, err error) {
	s = &Dataset{tracer: tracer}
	if c.Life.Adopts() {
		s.state = &state{}
		if err := c.Life.Load(s.state); err != nil {
			return s, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if c.Decode && c.CacheDir == "" {
		return s, cli.Mistakef("--decode needs --cache-dir: decoded files are kept there")
	}
	s.Notes = append(s.Notes, c.idle(from)...)
	if !cli.IsRemote(from) {
		if err := s.openDir(ctx, from, c); err != nil || c.CacheDir == "" {
			return s, err
		}
		return s, s.keepDecoded(ctx, c, log)
	}
	if c.Strict {
		return s, cli.Mistakef("--strict is for directories: objects of %s are pinned by their ETag", from)
	}
	opt, err := c.requests(log, note, tracer)
	if err != nil {
		return s, err
	}
	origin, err := openRemote(from, c.Caches, opt)
	if err != nil {
		return s, err
	}
	s.Name, s.closers, s.Origin = origin.String(), append(s.closers, origin.Close), origin.Stats
	if c.CacheDir == "" {
		s.Notes = append(s.Notes, "there is no --cache-dir: every read goes over the network, each time again")
	}
	err = s.list(c, origin, func() (*cache.Listing, error) { return origin.List(ctx) })
	if caches, ok := origin.(*spread.Spread); ok {
		s.Notes = append(s.Notes, caches.Notes()...)
	}
	if err != nil || c.CacheDir == "" {
		return s, err
	}
	return s, s.keep(ctx, origin, c, log)
}

// UntilDark returns a context for work that needs all of a remote source, such as recognizing its formats. The context ends when the
// source gives nothing any more. Each of its objects has a patience of its own, and there may be very many. why turns the error of such
// work into the reason. It is called before the source is opened.
func (c *Options) UntilDark(ctx context.Context) (working context.Context, why func(error) error) {
	working, c.dark = context.WithCancelCause(ctx)
	return working, func(err error) error {
		if cause := context.Cause(working); err != nil && errors.Is(cause, fetch.ErrUnreachable) {
			return cause
		}
		return err
	}
}

// requests is how a remote source is asked.
func (c *Options) requests(log *slog.Logger, note func(string), tracer *trace.Tracer) (opt fetch.Options, err error) {
	switch {
	case c.Connections < 1:
		return opt, cli.Mistakef("--connections %d: at least one is needed", c.Connections)
	case c.Patience <= 0:
		return opt, cli.Mistakef("--patience %v: want a time such as 2m", c.Patience)
	case c.Wait < 0:
		return opt, cli.Mistakef("--wait %v: want a time such as 2m", c.Wait)
	}
	guard, err := c.Guard()
	return fetch.Options{
		Connections: c.Connections, Patience: c.Patience, Wait: c.Wait, Dark: c.dark, Listing: int64(c.MaxListing), Trace: tracer, Guard: guard,
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

// keep has a remote source read through a cache, its compressed shards decoded. The indexes of compressed shards are
// kept, too, and fetched once. The shards come past the cache, which keeps them decoded.
func (s *Dataset) keep(ctx context.Context, origin remoteOrigin, c *Options, log *slog.Logger) error {
	kept, err := s.openStore(c, log)
	if err != nil {
		return err
	}
	kept.Add(s.Name, origin, &cache.Listing{Objects: decode.Indexes(s.Listing)})
	decoded, err := s.decode(ctx, c, log)
	if err != nil {
		return err
	}
	kept.Add(s.Name, origin, s.Listing)
	s.addDecoded(kept, decoded, log)
	return nil
}

// decode replaces compressed files in the listing.
func (s *Dataset) decode(ctx context.Context, c *Options, log *slog.Logger) (*decode.Decoded, error) {
	decoded, err := decode.Wrap(ctx, s.Listing)
	if err != nil || !c.Decode {
		return decoded, err
	}
	dir, err := trust.Dir(c.CacheDir)
	if err == nil {
		dir, err = trust.Below(dir, "sizes")
	}
	if err != nil {
		return decoded, fmt.Errorf("open the cache %s: %w", c.CacheDir, err)
	}
	began, of := time.Now(), sha256.Sum256([]byte(s.Name))
	learned, err := decoded.AddFiles(ctx, s.Listing, decode.FileOptions{
		Scan: int64(c.DecodeScan), Sizes: filepath.Join(dir, hex.EncodeToString(of[:16])+".json"),
	})
	if err == nil && learned.Files > 0 {
		log.Info("files were looked through to learn their decoded sizes", "files", learned.Files, "bytes", learned.Bytes, "took", time.Since(began))
	}
	return decoded, err
}

// keepDecoded has the compressed shards of a directory decoded into a cache. All else is read where it lies.
func (s *Dataset) keepDecoded(ctx context.Context, c *Options, log *slog.Logger) error {
	decoded, err := s.decode(ctx, c, log)
	if err != nil {
		return err
	}
	if len(decoded.Objects()) == 0 {
		s.Notes = append(s.Notes, "--cache-dir is not used: nothing here is compressed in a way that is decoded, and all is read where it lies")
		return nil
	}
	kept, err := s.openStore(c, log)
	if err != nil {
		return err
	}
	s.addDecoded(kept, decoded, log)
	return nil
}

// addDecoded has decoded objects read through a cache, and their sizes remembered beside it.
func (s *Dataset) addDecoded(kept *store.Store, decoded *decode.Decoded, log *slog.Logger) {
	if err := decoded.SaveSizes(); err != nil {
		log.Warn("the decoded sizes of files are forgotten at the end of the mount", "error", err)
	}
	kept.Add(s.Name, decoded, &cache.Listing{Objects: decoded.Objects()})
}

// openStore opens the cache directory.
func (s *Dataset) openStore(c *Options, log *slog.Logger) (*store.Store, error) {
	kept, err := store.Open(c.CacheDir, store.Options{
		Size: int64(c.CacheSize), Segment: int64(c.Segment), MinFree: int64(c.MinFree), MaxOpen: c.MaxOpen, Log: log, Trace: s.tracer,
	})
	if err != nil {
		return nil, err
	}
	s.closers, s.Cache = append(s.closers, kept.Close), kept
	if c.Scrub > 0 {
		s.serve = func(ctx context.Context) { kept.Scrub(ctx, int64(c.Scrub)) }
	}
	return kept, nil
}
