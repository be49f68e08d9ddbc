package gsorigin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/layout"
)

// Bounds of one page of a listing. Google gives at most 1,000 names of up to fetch.MostName bytes.
const (
	pageNames = 1000
	mostPage  = 16 << 20      // bytes: servers for tests tell all of each object
	mostItems = 2 * pageNames // objects, and as many directories, where a server counts them apart
)

// item is an object of a listing.
type item struct {
	Name       string    `json:"name"`
	Size       string    `json:"size"`
	Generation string    `json:"generation"`
	CRC32C     string    `json:"crc32c"`
	Encoding   string    `json:"contentEncoding"`
	Updated    time.Time `json:"updated"`
}

const itemFields = "name,size,generation,crc32c,contentEncoding,updated"

// page is a page of a listing.
type page struct {
	Kind     string          `json:"kind"`
	Next     string          `json:"nextPageToken"`
	Items    bounded[item]   `json:"items"`
	Prefixes bounded[string] `json:"prefixes"`
}

// bounded is a list that is never longer than a page may be: a few bytes of JSON become hundreds in memory.
type bounded[T any] []T

// UnmarshalJSON implements [json.Unmarshaler].
func (b *bounded[T]) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return fmt.Errorf("%w: the server's listing has %.20q where a list belongs", fs.ErrInvalid, text)
	}
	for d.More() {
		var one T
		if err := d.Decode(&one); err != nil {
			return err
		}
		if len(*b) == mostItems {
			return fmt.Errorf("%w: a page of the server's listing has more than the %d names that were asked for", fs.ErrInvalid, pageNames)
		}
		*b = append(*b, one)
	}
	return nil
}

// List lists the objects below the prefix, the directories side by side. The prefix may also name one object.
func (o *Bucket) List(ctx context.Context) (*cache.Listing, error) {
	w := walk{o, o.NewListing()}
	return fetch.List(ctx, o, o.source.Prefix, o.source.dir, o.one, w.dir)
}

// one looks for an object whose name is the whole prefix.
func (o *Bucket) one(ctx context.Context, name string) (obj *layout.Object, err error) {
	err = o.Retry(ctx, func(ctx context.Context, _ func()) error {
		var it item
		if err := o.ask(ctx, name, url.Values{"fields": {itemFields}}, &it); err != nil {
			return err
		}
		if it.Name != name {
			return fmt.Errorf("%w: the server answers for %.100q, and was asked for %.100q", fs.ErrInvalid, it.Name, name)
		}
		o.source.dir = name[:strings.LastIndexByte(name, '/')+1]
		obj, err = o.object(&it)
		return err
	})
	return obj, err
}

type walk struct {
	origin  *Bucket
	listing *fetch.Listing
}

// dir lists one directory: its objects and the directories in it.
func (w *walk) dir(ctx context.Context, prefix string) ([]*layout.Object, []string, error) {
	return w.origin.Directory(ctx, func(ctx context.Context, token string) ([]*layout.Object, []string, string, error) {
		p, err := w.page(ctx, prefix, token)
		if err != nil {
			return nil, nil, "", err
		}
		objects, err := w.take(prefix, p)
		return objects, p.Prefixes, p.Next, err
	})
}

// page asks for one page.
func (w *walk) page(ctx context.Context, prefix, token string) (*page, error) {
	query := url.Values{"delimiter": {"/"}, "maxResults": {strconv.Itoa(pageNames)}, "fields": {"kind,nextPageToken,prefixes,items(" + itemFields + ")"}}
	if prefix != "" {
		query.Set("prefix", prefix)
	}
	if token != "" {
		query.Set("pageToken", token)
	}
	p := &page{}
	if err := w.origin.ask(ctx, "", query, p); err != nil {
		return nil, err
	}
	if p.Kind != "storage#objects" {
		return nil, fmt.Errorf("%w: the server answers with %.40q where a listing was asked for: is this address a server of Google Cloud Storage?", fs.ErrInvalid, p.Kind)
	}
	return p, nil
}

// ask asks for a document of JSON.
func (o *Bucket) ask(ctx context.Context, name string, query url.Values, to any) error {
	res, err := o.do(ctx, o.source.Endpoint, name, query, "Accept-Encoding", "identity")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // it is read
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: it answers %.80q", fetch.ErrLie, res.Status)
	}
	if err := fetch.Unencoded(res.Header); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, mostPage+1))
	if err != nil {
		return err
	}
	if len(text) > mostPage {
		return fmt.Errorf("%w: a page of the server's listing has more than %d bytes, which no %d names have", fs.ErrInvalid, mostPage, pageNames)
	}
	if err := json.Unmarshal(text, to); err != nil {
		if errors.Is(err, fs.ErrInvalid) {
			return err
		}
		return fmt.Errorf("the server's listing cannot be read: %w", err)
	}
	return nil
}

// take checks a page.
func (w *walk) take(prefix string, p *page) (objects []*layout.Object, err error) {
	for i := range p.Items {
		it := &p.Items[i]
		obj, err := w.origin.object(it)
		if err == nil {
			err = w.listing.AddBelow(prefix, it.Name, obj.Version)
		}
		if err != nil {
			return nil, err
		}
		if !strings.HasSuffix(it.Name, "/") || obj.Size > 0 { // else it is the marker that some tools make of a directory
			objects = append(objects, obj)
		}
	}
	return objects, w.listing.AddDirectories(prefix, p.Prefixes)
}

// object makes an object of an item of a listing. One without a version or with a size that cannot be becomes a problem of the listing.
func (o *Bucket) object(it *item) (*layout.Object, error) {
	size, err := strconv.ParseInt(it.Size, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: the server lists %.100q with the size %.40q", fs.ErrInvalid, it.Name, it.Size)
	}
	v := version{generation: it.Generation, crc32c: hexOf(it.CRC32C), gzip: strings.EqualFold(it.Encoding, "gzip")}
	text := ""
	if v.generation != "" {
		if text = v.String(); strings.Trim(v.generation, "0123456789") != "" {
			return nil, fmt.Errorf("%w: the server lists %.100q with the generation %.40q", fs.ErrInvalid, it.Name, it.Generation)
		}
	}
	return &layout.Object{Name: strings.TrimPrefix(it.Name, o.source.dir), Size: size, ModTime: it.Updated, Version: text, Origin: o}, nil
}
