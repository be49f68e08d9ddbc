package fetch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// listers is how many directories are listed at once.
const listers = 32

// List lists the objects of a store below a prefix in the directory root, or the one object that the prefix names: one gives it, nil where the name is a
// directory's, or an error if there is none, or none that may be seen.
func List(ctx context.Context, store fmt.Stringer, prefix, root string, one func(ctx context.Context, name string) (*layout.Object, error),
	list func(ctx context.Context, dir string) (objects []*layout.Object, below []string, err error)) (*cache.Listing, error) {
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		obj, err := one(ctx, prefix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) { // of those the listing will say more
			return nil, fmt.Errorf("list %s: %w", store, err)
		}
		if err == nil && obj != nil {
			return cache.RemoteListing([]*layout.Object{obj}), nil
		}
	}
	objects, err := Walk(ctx, root, list)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", store, err)
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("list %s: no object is there: %w", store, fs.ErrNotExist)
	}
	return cache.RemoteListing(objects), nil
}

// Walk lists a directory of a store that lists by prefix, and the directories below it side by side. list gives the objects
// of one directory, and the directories in it by the names that it takes.
func Walk(ctx context.Context, root string, list func(ctx context.Context, dir string) (objects []*layout.Object, below []string, err error)) ([]*layout.Object, error) {
	w := walk{list: list, found: make(chan []*layout.Object)}
	g, walking := errgroup.WithContext(ctx)
	g.SetLimit(listers)
	done := make(chan error, 1)
	g.Go(func() error { return w.dir(walking, g, root) })
	go func() { // ends with the walk
		done <- g.Wait()
		close(w.found)
	}()
	var objects []*layout.Object
	for page := range w.found {
		objects = append(objects, page...)
	}
	return objects, <-done
}

type walk struct {
	list  func(ctx context.Context, dir string) ([]*layout.Object, []string, error)
	found chan []*layout.Object
}

// dir lists one directory, and those below it by the group's other members where one is free.
func (w *walk) dir(ctx context.Context, g *errgroup.Group, dir string) error {
	objects, below, err := w.list(ctx, dir)
	if err != nil {
		return err
	}
	w.found <- objects
	for _, dir := range below {
		if g.TryGo(func() error { return w.dir(ctx, g, dir) }) {
			continue
		}
		if err := w.dir(ctx, g, dir); err != nil {
			return err
		}
	}
	return nil
}

// mostEmpty bounds the pages without an entry, in a row.
const mostEmpty = 1000

// Pages is one run through the pages of a listing, each of which names the next by a token. A listing that comes to where it
// was, or brings nothing, would never end.
type Pages struct {
	seen  map[[sha256.Size]byte]bool // tokens
	found bool                       // the last page had an entry
	empty int                        // pages in a row that had none
}

// NewPages begins a run.
func NewPages() *Pages { return &Pages{seen: map[[sha256.Size]byte]bool{}, found: true} }

// Found notes an entry of the page that was asked for last.
func (p *Pages) Found() { p.found = true }

// Ask notes a request for a page by its token, and refuses one that leads nowhere.
func (p *Pages) Ask(token string) error {
	sum := sha256.Sum256([]byte(token))
	if p.seen[sum] {
		return fmt.Errorf("%w: the server's listing goes in a circle: it gives the same continuation token again", fs.ErrInvalid)
	}
	p.seen[sum] = true
	if p.empty++; p.found {
		p.empty = 0
	}
	if p.found = false; p.empty > mostEmpty {
		return fmt.Errorf("%w: the server's listing does not advance: %d pages in a row have no key", fs.ErrInvalid, mostEmpty)
	}
	return nil
}

// Directory gets the pages of a directory's listing, each of which names the next one by a token. An attempt goes on where the last one broke off.
func (c *Client) Directory(ctx context.Context, page func(ctx context.Context, token string) (objects []*layout.Object, below []string, next string, err error)) (
	objects []*layout.Object, below []string, err error) {
	run, token, more := NewPages(), "", true
	err = c.Retry(ctx, func(ctx context.Context, alive func()) error {
		for more {
			found, dirs, next, err := page(ctx, token)
			if err != nil {
				return err
			}
			if err := run.Ask(token); err != nil {
				return err
			}
			if len(found)+len(dirs) > 0 {
				run.Found()
			}
			alive()
			objects, below = append(objects, found...), append(below, dirs...)
			token, more = next, next != ""
		}
		return nil
	})
	return objects, below, err
}
