package hforigin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/layout"
)

// Bounds of an answer about files. The Hub gives at most 1,000 files in a page.
const (
	mostPage = 8 << 20 // bytes
	mostName = 4096    // bytes
	mostIdle = 100     // pages without a file, in a row
)

// entry is a file or a directory in a page, as of the Hub's tree API.
type entry struct {
	Type string `json:"type"`
	OID  string `json:"oid"`
	Size int64  `json:"size"`
	Path string `json:"path"`
	LFS  *struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	} `json:"lfs"`
}

// api asks the Hub, reads JSON, and returns the query of the next page, "" for none.
func (o *Repo) api(ctx context.Context, u *url.URL, into any) (more string, err error) {
	for range mostRedirects { // a repository may have another name by now
		res, err := o.do(ctx, u, "", true)
		if err != nil {
			return "", err
		}
		if res.StatusCode/100 == 3 {
			if u, err = fetch.Next(res); err == nil && !o.isHub(u) {
				err = fmt.Errorf("%w: the Hub redirects a question about files to another server", fs.ErrInvalid)
			}
			if err != nil {
				return "", err
			}
			continue
		}
		defer func() { _ = res.Body.Close() }() // it is discarded before
		defer fetch.Discard(res)
		if res.StatusCode != http.StatusOK {
			return "", o.explain(o.source, res)
		}
		if err := fetch.Unencoded(res.Header); err != nil {
			return "", err
		}
		body := &pageReader{Reader: res.Body}
		if err := json.NewDecoder(body).Decode(into); err != nil {
			var syntax *json.SyntaxError
			var kind *json.UnmarshalTypeError
			if errors.As(err, &syntax) || errors.As(err, &kind) {
				return "", fmt.Errorf("%w: the server answers with other JSON than the Hub's: is the endpoint a Hub?", fs.ErrInvalid)
			}
			return "", err
		}
		found := regexp.MustCompile(`<([^<>]*)>\s*;\s*rel="?next"?`).FindStringSubmatch(res.Header.Get("Link"))
		if found == nil {
			return "", nil
		}
		link, err := url.Parse(found[1])
		if err != nil || link.RawQuery == "" {
			return "", fmt.Errorf("%w: the Hub names no next page in its Link", fs.ErrInvalid)
		}
		return link.RawQuery, nil // of a mirror, the rest of the address may lead to the Hub itself
	}
	return "", fmt.Errorf("%w: the Hub redirects more than %d times", fs.ErrInvalid, mostRedirects)
}

// pageReader bounds a page.
type pageReader struct {
	io.Reader
	read int64
}

// Read implements [io.Reader].
func (r *pageReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.read += int64(n); r.read > mostPage {
		return 0, fmt.Errorf("%w: a page of the Hub has more than %d bytes", fs.ErrInvalid, mostPage)
	}
	return n, err
}

// List pins the commit that the revision names, and lists its files below the source's path, which may also be one file.
func (o *Repo) List(ctx context.Context) (*cache.Listing, error) {
	objects, err := o.list(ctx)
	if err == nil {
		err = o.mayRead(ctx, objects[0])
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", o, err)
	}
	return cache.RemoteListing(objects), nil
}

// mayRead asks the Hub once for a file, and reads nothing of it. The Hub lists a gated repository to everybody, and bytes of it may lie in a
// cache that others filled.
func (o *Repo) mayRead(ctx context.Context, obj *layout.Object) error {
	return o.Retry(ctx, func(ctx context.Context, _ func()) error {
		res, err := o.do(ctx, o.file(o.hub, obj), "bytes=0-0", true)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }() // it is discarded before
		fetch.Discard(res)
		if res.StatusCode >= 400 && res.StatusCode != http.StatusRequestedRangeNotSatisfiable {
			return o.explain(o.source, res)
		}
		return nil
	})
}

func (o *Repo) list(ctx context.Context) ([]*layout.Object, error) {
	var info struct {
		SHA string `json:"sha"`
	}
	about := func(what, at string) *url.URL { return o.url("api/"+o.source.Kind+"/"+o.source.Name+"/"+what, at) }
	revision := url.PathEscape(o.source.Revision)
	if err := o.ask(ctx, o.endpoint.JoinPath("api", o.source.Kind, o.source.Name, "revision", revision), &info); err != nil {
		return nil, err
	}
	if !isHex(info.SHA, 40) {
		return nil, fmt.Errorf("%w: the server names no commit of revision %q: is the endpoint a Hub?", fs.ErrInvalid, o.source.Revision)
	}
	o.commit = info.SHA
	var commits []struct {
		ID   string    `json:"id"`
		Date time.Time `json:"date"`
	}
	u := about("commits", o.commit)
	u.RawQuery = "limit=1"
	if err := o.ask(ctx, u, &commits); err != nil {
		return nil, err
	}
	var date time.Time
	if len(commits) > 0 && commits[0].ID == o.commit {
		date = commits[0].Date
	}
	o.dir = ""
	tree := about("tree/"+o.commit, o.source.Path)
	if o.source.Path != "" {
		o.dir = o.source.Path + "/"
	}
	objects, err := o.tree(ctx, tree, true, date)
	if o.source.Path == "" || !errors.Is(err, fs.ErrNotExist) && (err != nil || len(objects) > 0) {
		return objects, cmp.Or(err, nothing(objects))
	}
	// It may be one file.
	name, missing := path.Base(o.source.Path), err
	if o.dir = path.Dir(o.source.Path) + "/"; o.dir == "./" {
		o.dir = ""
	}
	all, err := o.tree(ctx, about("tree/"+o.commit, strings.TrimSuffix(o.dir, "/")), false, date)
	if err != nil {
		return nil, cmp.Or(missing, err)
	}
	for _, obj := range all {
		if obj.Name == name {
			return []*layout.Object{obj}, nil
		}
	}
	return nil, cmp.Or(missing, nothing(nil))
}

// nothing is an error where nothing was listed.
func nothing(objects []*layout.Object) error {
	if len(objects) > 0 {
		return nil
	}
	return fmt.Errorf("no file is there: %w", fs.ErrNotExist)
}

// ask asks the Hub for what fits into one page.
func (o *Repo) ask(ctx context.Context, u *url.URL, into any) error {
	return o.Retry(ctx, func(ctx context.Context, _ func()) error {
		_, err := o.api(ctx, u, into)
		return err
	})
}

// tree lists a directory of the commit, page by page.
func (o *Repo) tree(ctx context.Context, u *url.URL, recursive bool, date time.Time) (objects []*layout.Object, err error) {
	u.RawQuery = fmt.Sprintf("recursive=%v&expand=false", recursive)
	all, seen, idle := o.NewListing(), map[string]bool{}, 0
	for more := u.RawQuery; more != ""; {
		if seen[more] {
			return nil, fmt.Errorf("%w: the Hub's listing goes in a circle: it names the same page again", fs.ErrInvalid)
		}
		seen[more] = true
		if err := all.Add(more, ""); err != nil {
			return nil, err
		}
		u.RawQuery = more
		var page []entry
		err := o.Retry(ctx, func(ctx context.Context, _ func()) (err error) {
			page = nil
			more, err = o.api(ctx, u, &page)
			return err
		})
		if err != nil {
			return nil, err
		}
		if idle++; len(page) > 0 {
			idle = 0
		}
		if idle > mostIdle {
			return nil, fmt.Errorf("%w: the Hub's listing does not advance: %d pages in a row are empty", fs.ErrInvalid, idle)
		}
		for _, e := range page {
			obj, err := o.object(e, date)
			if err != nil {
				return nil, err
			}
			if obj == nil {
				continue
			}
			if err := all.Add(obj.Name, obj.Version); err != nil {
				return nil, err
			}
			objects = append(objects, obj)
		}
	}
	return objects, nil
}

// object makes an object of an entry, nil for a directory. Names that no tree of files can have are judged with the listing.
func (o *Repo) object(e entry, date time.Time) (*layout.Object, error) {
	if len(e.Path) > mostName {
		return nil, fmt.Errorf("%w: the Hub lists a name of %d bytes, and names have at most %d", fs.ErrInvalid, len(e.Path), mostName)
	}
	name, below := strings.CutPrefix(e.Path, o.dir)
	if !below {
		return nil, fmt.Errorf("%w: the Hub lists %.100q, and was asked for files below %.100q", fs.ErrInvalid, e.Path, o.dir)
	}
	if e.Type != "file" {
		return nil, nil
	}
	hash, size := e.OID, e.Size
	if e.LFS != nil {
		hash, size = e.LFS.OID, e.LFS.Size
	}
	if !isHex(hash, 40) && !isHex(hash, 64) {
		return nil, fmt.Errorf("%w: the Hub lists %.100q without its hash", fs.ErrInvalid, e.Path)
	}
	return &layout.Object{Name: name, Size: size, Version: versionOfHash(hash), ModTime: date, Origin: o}, nil
}
