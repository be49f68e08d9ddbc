package httporigin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
)

const (
	maxPage  = 64 << 20 // bytes of a page
	maxDepth = 32       // of directories: links on a server may go in circles
)

// errNoListing says that a server shows something else where a directory is.
var errNoListing = errors.New("its page for the directory is not a listing in JSON, as nginx writes it with autoindex_format json")

// entries are the names on a page of a directory: of files, and names of directories with a slash at their end.
type entries []string

// listByPages lists the files that the server's own pages name, in all directories below.
func (o *Site) listByPages(ctx context.Context) (*cache.Listing, error) {
	w := pages{origin: o, all: o.NewListing()}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(o.Connections())
	w.group = g
	g.Go(func() error { return w.dir(inner, "", 0) })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	d := &directory{from: "the server's listing"}
	found, failed, err := o.ask(ctx, w.files)
	if err != nil {
		return nil, err
	}
	d.objects = found
	if err := d.misses(failed); err != nil {
		return nil, err
	}
	return d.listing(), nil
}

// pages walks the pages of a server.
type pages struct {
	origin *Site
	group  *errgroup.Group
	all    *fetch.Listing

	mu    sync.Mutex // guards the fields below
	files []string
}

// dir reads the page of a directory, and those below by the group's other members where one is free.
func (w *pages) dir(ctx context.Context, dir string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: the directories of the server are more than %d deep: %.200q", fs.ErrInvalid, maxDepth, dir)
	}
	names, err := w.origin.page(ctx, dir, func(name string) error { return w.all.Add(dir+name, "") })
	if err != nil {
		if depth > 0 {
			err = fmt.Errorf("%.200q: %w", dir, err)
		}
		return err
	}
	for _, name := range names {
		path := dir + name
		below := strings.HasSuffix(name, "/")
		switch {
		case !below:
			w.mu.Lock()
			w.files = append(w.files, path)
			w.mu.Unlock()
		case w.group.TryGo(func() error { return w.dir(ctx, path, depth+1) }):
		default:
			if err := w.dir(ctx, path, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// page asks for the page of a directory, whose name is empty or ends with a slash. add is told of each member.
func (o *Site) page(ctx context.Context, dir string, add func(name string) error) (names entries, err error) {
	err = o.Retry(ctx, func(ctx context.Context, alive func()) error {
		req, err := o.request(ctx, http.MethodGet, dir)
		if err != nil {
			return err
		}
		res, err := fetch.Do(o.client, req)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }() // it was read
		if res.StatusCode != http.StatusOK {
			return explain(res)
		}
		if err := fetch.Unencoded(res.Header); err != nil {
			return err
		}
		alive()
		text, err := io.ReadAll(io.LimitReader(res.Body, maxPage+1))
		if err != nil {
			return err
		}
		if len(text) > maxPage {
			return fmt.Errorf("%w: the server's listing has more than %d bytes", fs.ErrInvalid, maxPage)
		}
		names, err = entriesOf(text, add)
		return err
	})
	return names, err
}

// entriesOf reads a listing as nginx writes it with autoindex_format json. It tells add of each member, and has one at a time in memory.
func entriesOf(text []byte, add func(name string) error) (names entries, err error) {
	noListing := fmt.Errorf("%w: %w", fs.ErrInvalid, errNoListing)
	d := json.NewDecoder(bytes.NewReader(text))
	if begin, err := d.Token(); err != nil || begin != json.Delim('[') {
		return nil, noListing
	}
	for d.More() {
		var e struct{ Name, Type string }
		if d.Decode(&e) != nil {
			return nil, noListing
		}
		if err := add(e.Name); err != nil {
			return nil, err
		}
		name := e.Name
		switch e.Type {
		case "directory":
			name += "/"
		case "file":
		default: // a socket, say
			continue
		}
		if !isEntry(name) {
			return nil, fmt.Errorf("%w: the listing names %.100q, which is no entry of a directory", fs.ErrInvalid, name)
		}
		names = append(names, name)
	}
	if _, err := d.Token(); err != nil { // the list's end
		return nil, noListing
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, noListing
	}
	return names, nil
}

// isEntry tells whether a name can be one of a file, or with a slash at its end of a directory.
func isEntry(name string) bool {
	name = strings.TrimSuffix(name, "/")
	return fs.ValidPath(name) && name != "." && !strings.Contains(name, "/") && !slices.Contains([]byte(name), 0)
}
