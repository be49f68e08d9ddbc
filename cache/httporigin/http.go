// Package httporigin reads datasets from web servers that serve ranges: nginx, object stores behind signed or public
// addresses, artifact servers.
//
// A web server lists nothing, so a source is one file, or a directory (with a slash at its end) that has an index: the
// manifest of hbmfs pack, or the index.json of MosaicML or LitData. Each file is asked for its size and version (HEAD)
// when the source is listed.
//
// A file is pinned by its ETag, or by its date and size where the server gives none: every request carries the
// condition, and every answer is compared.
package httporigin

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/trace"
)

// Origin is the files below one address. It is safe for concurrent use.
type Origin struct {
	*fetch.Client // which asks by Get, and reads

	base   *url.URL // of a directory: its path ends with a slash
	only   string   // the one file that is listed, "" for those of the index
	client *http.Client
}

// Open makes an origin of http://HOST/DIRECTORY/ or http://HOST/FILE. Nothing is asked of the server yet. HTTP_PROXY
// and its relatives are honoured.
func Open(source string, opt fetch.Options) (*Origin, error) {
	u, err := url.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("source %q: %w", source, err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("source %q: want http://HOST/PATH or https://HOST/PATH", source)
	}
	if u.User != nil {
		return nil, fmt.Errorf("source %s: credentials do not belong in a source, where everybody sees them", u.Redacted())
	}
	if strings.Contains(source, "#") { // no server is told what follows
		return nil, fmt.Errorf("source %s: write the # as %%23", u.Redacted())
	}
	o := &Origin{base: u}
	if i := strings.LastIndexByte(u.Path, '/'); i >= 0 && !strings.HasSuffix(u.Path, "/") {
		o.only, u.Path = u.Path[i+1:], u.Path[:i+1]
		u.RawPath = ""
	}
	o.Client = fetch.New(o, opt)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // a range of a file is a range of its bytes as stored
	transport.MaxIdleConnsPerHost = o.Connections()
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP1(true) // HTTP/2 would put all ranges on one connection
	o.client = &http.Client{Transport: trace.Transport(opt.Guard.Transport(transport)), CheckRedirect: follow}
	return o, nil
}

// follow lets a request go where a server redirects it, ten times. Go takes credentials out of a request to another host;
// the Referer is left, and has the query that may sign the source's address.
func follow(req *http.Request, via []*http.Request) error {
	if len(via) > 10 {
		return fmt.Errorf("%w: the server redirects more than ten times", fs.ErrInvalid)
	}
	req.Header.Del("Referer")
	return nil
}

// String is the source as it was given, with what its query says in secret left out.
func (o *Origin) String() string {
	u := *o.base
	u.Path += o.only
	u.RawQuery = ""
	return u.String()
}

// Close ends idle connections.
func (o *Origin) Close() error {
	o.client.CloseIdleConnections()
	return nil
}

// Get implements [fetch.Getter].
func (o *Origin) Get(ctx context.Context, obj *layout.Object, off, n int64) (io.ReadCloser, error) {
	req, err := o.request(ctx, http.MethodGet, obj.Name)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	if strings.HasPrefix(obj.Version, `"`) { // a strong ETag, which If-Match may be asked with
		req.Header.Set("If-Match", obj.Version)
	}
	res, err := o.client.Do(req)
	if err != nil {
		return nil, err
	}
	if err := check(res, obj, off, n); err != nil {
		_ = res.Body.Close() // it is not what was asked for
		return nil, err
	}
	return res.Body, nil
}

// check compares an answer with what was asked for.
func check(res *http.Response, obj *layout.Object, off, n int64) error {
	switch {
	case res.StatusCode == http.StatusOK && off == 0 && n == obj.Size && res.ContentLength == n: // some servers answer so for a whole file
	case res.StatusCode == http.StatusOK:
		return fmt.Errorf("%w: the server does not serve ranges (it answers 200 for bytes %d to %d): copy the dataset to one that does", fs.ErrInvalid, off, off+n)
	case res.StatusCode == http.StatusNotFound, res.StatusCode == http.StatusGone:
		return fmt.Errorf("it is gone (%s): %w", res.Status, cache.ErrChanged)
	case res.StatusCode != http.StatusPartialContent:
		return explain(res)
	case res.Header.Get("Content-Range") != fmt.Sprintf("bytes %d-%d/%d", off, off+n-1, obj.Size):
		if strings.HasSuffix(res.Header.Get("Content-Range"), fmt.Sprintf("/%d", obj.Size)) {
			return fmt.Errorf("the server answers for bytes %d to %d with %q", off, off+n, res.Header.Get("Content-Range"))
		}
		return fmt.Errorf("its size has changed: %w", cache.ErrChanged)
	}
	if got := version(res.Header); got != obj.Version {
		return fmt.Errorf("it is version %s, listed as %s: %w", got, obj.Version, cache.ErrChanged)
	}
	return nil
}

// version is what a file is pinned by.
func version(h http.Header) string {
	if tag := h.Get("ETag"); tag != "" {
		return tag
	}
	return h.Get("Last-Modified")
}

// explain gives an answer its class: final or worth another attempt.
func explain(res *http.Response) error {
	switch res.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w by the server (%s)", fs.ErrPermission, res.Status)
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("the server answers %s: %w", res.Status, fs.ErrNotExist)
	case http.StatusPreconditionFailed:
		return fmt.Errorf("it was replaced: %w", cache.ErrChanged)
	case http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("it became shorter: %w", cache.ErrChanged)
	}
	return fmt.Errorf("the server answers %s", res.Status)
}

// request makes a request for a file below the base. Its name may hold what an address gives a meaning to.
func (o *Origin) request(ctx context.Context, method, name string) (*http.Request, error) {
	u := o.base.JoinPath(strings.Split(url.PathEscape(name), "%2F")...)
	if name == "" {
		u = o.base
	}
	return http.NewRequestWithContext(ctx, method, u.String(), nil)
}

// stat asks for a file's size and version.
func (o *Origin) stat(ctx context.Context, name string) (obj *layout.Object, err error) {
	err = o.Retry(ctx, func(ctx context.Context, _ func()) error {
		req, err := o.request(ctx, http.MethodHead, name)
		if err != nil {
			return err
		}
		res, err := o.client.Do(req)
		if err != nil {
			return err
		}
		_ = res.Body.Close() // a HEAD has none
		if res.StatusCode != http.StatusOK {
			return explain(res)
		}
		if res.ContentLength < 0 {
			return fmt.Errorf("%w: the server does not say its size", fs.ErrInvalid)
		}
		obj = &layout.Object{Name: name, Size: res.ContentLength, Version: version(res.Header), Origin: o}
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
