// Package httporigin reads datasets from web servers that serve ranges: nginx, object stores behind signed or public
// addresses, artifact servers.
//
// A source is one file, or a directory, with a slash at its end. A directory has an index, such as the manifest of hbmfs pack
// or the index.json of MosaicML or LitData, or its server lists it in pages of its own. Each file is asked for its size and
// version (HEAD) when the source is listed.
//
// A file is pinned by its ETag, or by its date and size where the server gives none. Every request carries the condition,
// and every answer is compared.
package httporigin

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/layout"
)

// Site is the files below one address. It is safe for concurrent use.
type Site struct {
	*fetch.Client // which asks by Get, and reads

	base   *url.URL // of a directory: its path ends with a slash
	only   string   // the one file that is listed, "" for those of the index
	client *http.Client
	ranges *atomic.Bool // the server has said that it serves ranges
}

// Open makes an origin of http://HOST/DIRECTORY/ or http://HOST/FILE. Nothing is asked of the server yet. HTTP_PROXY
// and its relatives are honoured.
func Open(source string, opt fetch.Options) (*Site, error) {
	shown := address.Shown(source)
	u, err := url.Parse(source)
	if err != nil { // whose text may have a secret in it
		return nil, fmt.Errorf("source %q: it cannot be read: want http://HOST/PATH or https://HOST/PATH", shown)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("source %q: want http://HOST/PATH or https://HOST/PATH", shown)
	}
	if u.User != nil {
		return nil, fmt.Errorf("source %q: credentials do not belong in a source, where everybody sees them", shown)
	}
	if strings.Contains(source, "#") { // no server hears of the rest
		return nil, fmt.Errorf("source %q: write the # as %%23", shown)
	}
	o := &Site{base: u, ranges: new(atomic.Bool)}
	if i := strings.LastIndexByte(u.Path, '/'); i >= 0 && !strings.HasSuffix(u.Path, "/") {
		o.only, u.Path = u.Path[i+1:], u.Path[:i+1]
		u.RawPath = ""
	}
	o.Client = fetch.New(o, opt)
	transport := o.Transport()
	o.client = &http.Client{Transport: trace.Transport(opt.Guard.Transport(transport)), CheckRedirect: follow}
	return o, nil
}

// Through returns a getter of the same files that asks the server at endpoint, a URL whose path stands before the source's.
func (o *Site) Through(endpoint string) (fetch.Getter, error) {
	u, err := address.Server(endpoint)
	if err != nil {
		return nil, fmt.Errorf("cache: %w: %w", err, fs.ErrInvalid)
	}
	t, base := *o, *o.base
	base.Scheme, base.Host = u.Scheme, u.Host
	base.Path, base.RawPath = u.Path+base.Path, ""
	t.base = &base
	return &t, nil
}

// follow lets a request go where a server redirects it, ten times. Go takes credentials out of a request to another host;
// the Referer is left, and has the query that may sign the source's address.
func follow(req *http.Request, via []*http.Request) error {
	if len(via) > 10 {
		return fmt.Errorf("%w: the server redirects more than ten times", fs.ErrInvalid)
	}
	if req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return fmt.Errorf("%w: the server redirects to an address of %.20q", fs.ErrInvalid, req.URL.Scheme)
	}
	if req.URL.Path == via[len(via)-1].URL.Path+"/" {
		return fmt.Errorf("%w: it is a directory of the server", fs.ErrInvalid)
	}
	req.Header.Del("Referer")
	return nil
}

// String is the source as it was given, without its query, which may be a secret.
func (o *Site) String() string {
	u := *o.base
	u.Path += o.only
	u.RawQuery = ""
	return u.String()
}

// Close ends idle connections.
func (o *Site) Close() error {
	o.client.CloseIdleConnections()
	return nil
}

// Get implements [fetch.Getter].
func (o *Site) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	req, err := o.request(ctx, http.MethodGet, obj.Name)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	if strings.HasPrefix(obj.Version, `"`) { // a strong ETag, which If-Match may be asked with
		req.Header.Set("If-Match", obj.Version)
	}
	res, err := fetch.Do(o.client, req)
	if err != nil {
		return nil, err
	}
	switch res.StatusCode {
	case http.StatusOK, http.StatusPartialContent:
		return &fetch.Answer{Response: res, Version: version(res.Header)}, nil
	case http.StatusNotFound, http.StatusGone:
		err = fmt.Errorf("it is gone (%s): %w", status(res), cache.ErrChanged)
	default:
		err = explain(res)
	}
	_ = res.Body.Close() // it is not the requested range
	return nil, err
}

// version is the pin of a file.
func version(h http.Header) string {
	if tag := h.Get("ETag"); tag != "" {
		return tag
	}
	return h.Get("Last-Modified")
}

// status names an answer's status by its meaning, and not as the server likes to call it.
func status(res *http.Response) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", res.StatusCode, http.StatusText(res.StatusCode)))
}

// explain gives an answer its class: final or worth another attempt.
func explain(res *http.Response) error {
	switch res.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return fmt.Errorf("%w by the server (%s)", fs.ErrPermission, status(res))
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("the server answers %s: %w", status(res), fs.ErrNotExist)
	case http.StatusPreconditionFailed:
		return fmt.Errorf("it was replaced: %w", cache.ErrChanged)
	case http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("it became shorter: %w", cache.ErrChanged)
	}
	if fetch.Lasting(res.StatusCode) {
		return fmt.Errorf("%w: the server answers %s", fs.ErrInvalid, status(res))
	}
	return fetch.RetryAfter(res.Header, fmt.Errorf("the server answers %s", status(res)))
}

// request makes a request for a file below the base, or for a directory, whose name ends with a slash. A name may contain
// characters that have a meaning in an address.
func (o *Site) request(ctx context.Context, method, name string) (*http.Request, error) {
	dir, isDir := strings.CutSuffix(name, "/")
	parts := strings.Split(url.PathEscape(dir), "%2F")
	if isDir {
		parts[len(parts)-1] += "/"
	}
	u := o.base.JoinPath(parts...)
	if name == "" {
		u = o.base
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	return req, nil
}

// stat asks for a file's size and version.
func (o *Site) stat(ctx context.Context, name string) (obj *layout.Object, err error) {
	err = o.Retry(ctx, func(ctx context.Context, _ func()) error {
		req, err := o.request(ctx, http.MethodHead, name)
		if err != nil {
			return err
		}
		res, err := fetch.Do(o.client, req)
		if err != nil {
			return err
		}
		_ = res.Body.Close() // a HEAD has none
		if res.Header.Get("Accept-Ranges") == "bytes" {
			o.ranges.Store(true)
		}
		if res.StatusCode != http.StatusOK {
			return explain(res)
		}
		if err := fetch.Unencoded(res.Header); err != nil {
			return err
		}
		if res.ContentLength < 0 {
			return fmt.Errorf("%w: the server does not say its size", fs.ErrInvalid)
		}
		obj = &layout.Object{Name: name, Size: res.ContentLength, Version: version(res.Header), Origin: o}
		if len(obj.Version) > fetch.MostVersion {
			return fmt.Errorf("%w: the server gives a version of %d bytes", fs.ErrInvalid, len(obj.Version))
		}
		if obj.Version == "" {
			return fmt.Errorf("%w: the server gives neither ETag nor Last-Modified, so a change could not be seen", fs.ErrInvalid)
		}
		if t, err := http.ParseTime(res.Header.Get("Last-Modified")); err == nil {
			obj.ModTime = t
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	return obj, nil
}
