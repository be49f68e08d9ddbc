// Package origins opens the origin that an address names. The schemes are those of package address.
package origins

import (
	"slices"
	"strings"

	"github.com/hbmfs/hbmfs/cache/azorigin"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/gsorigin"
	"github.com/hbmfs/hbmfs/cache/hforigin"
	"github.com/hbmfs/hbmfs/cache/httporigin"
	"github.com/hbmfs/hbmfs/cache/ociorigin"
	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/cache/spread"
	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// Origin is a source that is not on this machine.
type Origin interface {
	store.Upstream
	spread.Upstream
	Stats() status.OriginTotals
}

// Placed is an origin whose List finds out where its objects lie. The next daemon of a mount goes on there, and does not list again.
type Placed interface {
	Dir() string
	SetDir(dir string) error
}

// Pinned is an origin whose List chooses one of several states of the source, such as a commit. It names the source with it.
type Pinned interface{ Pinned() string }

// Options say how an origin is asked.
type Options struct {
	fetch.Options
	Misfit func(manifest []byte, size func(name string) (bytes int64, there bool)) (empty []string, why string) // see [s3origin.Bucket]
}

// openers are the schemes' ways to open an address. caches are the URLs that the address itself names to be asked before the origin.
func openers() map[string]func(source string, opt Options) (o Origin, caches []string, err error) {
	return map[string]func(string, Options) (Origin, []string, error){"s3": openS3, "gs": openGS, "az": openAzure, "hf": openHub, "oci": openOCI, "http": openHTTP}
}

// Open opens the origin that an address names. A mistake in the address is a [cli.Mistake].
func Open(source string, opt Options) (o Origin, caches []string, err error) {
	scheme := address.Of(source)
	if scheme.Names == nil {
		return nil, nil, cli.Mistakef("source %q: there are %s, and directories", source, address.Known())
	}
	return openers()[scheme.Names[0]](source, opt)
}

// Local returns the directory of this machine that an address means under the settings of its scheme, "" where it means no directory.
func Local(source string) (dir string, err error) {
	if !slices.Contains(address.Of(source).Names, "hf") || !hforigin.Offline() {
		return "", nil
	}
	s, err := hforigin.Parse(source)
	if err != nil {
		return "", cli.Mistake{Err: err}
	}
	return s.Cached()
}

func openS3(source string, opt Options) (Origin, []string, error) {
	s, err := s3origin.Parse(source)
	if err != nil {
		return nil, nil, cli.Mistake{Err: err}
	}
	o, err := s3origin.Open(s, opt.Options)
	if err != nil {
		return nil, nil, err
	}
	o.Misfit = opt.Misfit
	if s.Caches == "" {
		return o, nil, nil
	}
	return o, strings.Split(s.Caches, ","), nil
}

func openGS(source string, opt Options) (Origin, []string, error) {
	s, err := gsorigin.Parse(source)
	if err != nil {
		return nil, nil, cli.Mistake{Err: err}
	}
	o, err := gsorigin.Open(s, opt.Options)
	if err != nil {
		return nil, nil, err
	}
	return o, nil, nil
}

func openAzure(source string, opt Options) (Origin, []string, error) {
	s, err := azorigin.Parse(source)
	if err != nil {
		return nil, nil, cli.Mistake{Err: err}
	}
	o, err := azorigin.Open(s, opt.Options)
	if err != nil {
		return nil, nil, err
	}
	return o, nil, nil
}

func openHub(source string, opt Options) (Origin, []string, error) {
	s, err := hforigin.Parse(source)
	if err != nil {
		return nil, nil, cli.Mistake{Err: err}
	}
	return hforigin.Open(s, opt.Options), nil, nil
}

func openOCI(source string, opt Options) (Origin, []string, error) {
	s, err := ociorigin.Parse(source)
	if err != nil {
		return nil, nil, cli.Mistake{Err: err}
	}
	return ociorigin.Open(s, opt.Options), nil, nil
}

func openHTTP(source string, opt Options) (Origin, []string, error) {
	o, err := httporigin.Open(source, opt.Options)
	if err != nil {
		return nil, nil, cli.Mistake{Err: err}
	}
	return o, nil, nil
}
