package ociorigin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/tokens"
)

// registry is a server that has the repository, and the storage behind it.
type registry struct {
	server  server
	repo    name.Repository
	mirror  bool // it is asked in place of the registry that the source names
	client  *http.Client
	login   *login
	storage fetch.Addresses // of blobs
}

const mostRedirects = 10

// url is an address below the repository.
func (r *registry) url(path string) *url.URL {
	u := &url.URL{Scheme: r.server.scheme, Host: r.server.registry.RegistryStr(), Path: "/v2/" + r.repo.RepositoryStr() + "/" + path}
	if r.mirror { // as containerd asks mirrors that stand for many
		u.RawQuery = url.Values{"ns": {r.repo.RegistryStr()}}.Encode()
	}
	return u
}

// trusts tells whether an address is of the registry, which may see the login.
func (r *registry) trusts(u *url.URL) bool {
	return u.Scheme == r.server.scheme && u.Host == r.server.registry.RegistryStr()
}

// do makes a request without a login.
func (r *registry) do(ctx context.Context, u *url.URL, header http.Header) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: the server names an address that is none", fs.ErrInvalid)
	}
	q.Header = header.Clone()
	q.Header.Set("Accept-Encoding", "identity")
	return fetch.Do(r.client, q)
}

// ask makes a request of the registry itself. A login or a token that it does not take is got anew, once.
func (r *registry) ask(ctx context.Context, u *url.URL, header http.Header) (*http.Response, error) {
	for again := false; ; again = true {
		k, err := r.login.Get(ctx)
		if err != nil {
			return nil, err
		}
		with := header.Clone()
		if k.Text != "" {
			with.Set("Authorization", k.Kind+" "+k.Text)
		}
		res, err := r.do(ctx, u, with)
		if err != nil {
			return nil, err
		}
		switch status := res.StatusCode; {
		case status == http.StatusUnauthorized || status == http.StatusForbidden:
			if better := r.login.Refused(k); again {
				defer fetch.Discard(res)
				return nil, r.refused(k, res, better)
			}
			fetch.Discard(res)
		case status/100 == 2, fetch.Redirected(res):
			r.login.Taken(k)
			return res, nil
		default:
			defer fetch.Discard(res)
			return nil, r.explain(k, res)
		}
	}
}

// follow asks the registry, and follows it to its storage, which sees no login. at is the storage's address, nil where the registry answers itself.
func (r *registry) follow(ctx context.Context, path string, header http.Header) (res *http.Response, at *url.URL, err error) {
	u, trusted := r.url(path), true
	for range mostRedirects {
		if trusted {
			res, err = r.ask(ctx, u, header)
		} else {
			res, err = r.do(ctx, u, header)
		}
		if err != nil {
			return nil, nil, err
		}
		if !fetch.Redirected(res) {
			if trusted {
				u = nil
			}
			return res, u, nil
		}
		if u, err = fetch.Next(res); err != nil {
			return nil, nil, err
		}
		trusted = trusted && r.trusts(u)
	}
	return nil, nil, fmt.Errorf("%w: the server redirects more than %d times", fs.ErrInvalid, mostRedirects)
}

// blob asks for a range of a blob: the storage, by its address where it is known, or else the registry, which redirects to it.
func (r *registry) blob(ctx context.Context, digest, span string) (*http.Response, error) {
	header := http.Header{"Range": {span}}
	if at := r.storage.Get(digest); at != nil {
		res, err := r.do(ctx, at, header)
		if err != nil {
			return nil, err
		}
		if !fetch.Expired(res) {
			return res, answered(res)
		}
		fetch.Discard(res)
		r.storage.Keep(digest, nil)
	}
	res, at, err := r.follow(ctx, "blobs/"+digest, header)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", err, cache.ErrChanged)
	}
	if err != nil {
		return nil, err
	}
	if res.StatusCode/100 == 2 {
		if said := res.Header.Get("Docker-Content-Digest"); at == nil && said != "" && said != digest {
			_ = res.Body.Close() // of another blob
			return nil, fmt.Errorf("%w: it was asked for the blob %s and answers for %.80q", fetch.ErrLie, digest, said)
		}
		r.storage.Keep(digest, at)
	}
	return res, answered(res)
}

// answered judges the answer of a storage, and ends one that has no bytes.
func answered(res *http.Response) error {
	status := res.StatusCode
	if status == http.StatusOK || status == http.StatusPartialContent {
		return nil
	}
	fetch.Discard(res)
	err := fmt.Errorf("the server answers %d %s", status, http.StatusText(status))
	switch {
	case status == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("it became shorter: %w", cache.ErrChanged)
	case fetch.Expired(res): // an address that was just signed
	case fetch.Lasting(status):
		return fmt.Errorf("%w: %w", fs.ErrInvalid, err)
	}
	return fetch.RetryAfter(res.Header, err)
}

// said is the registry's text of an error.
func said(k *tokens.Token, res *http.Response) string {
	if of, ok := errors.AsType[*transport.Error](transport.CheckError(res)); ok {
		return told(of, k.Text)
	}
	return fmt.Sprintf("%d %s", res.StatusCode, http.StatusText(res.StatusCode))
}

// refused is the error of a login that the registry does not take. One that has worked is worth another attempt: a server has hiccups, and
// somebody may log in again.
func (r *registry) refused(k *tokens.Token, res *http.Response, again bool) error {
	if again {
		return fetch.RetryAfter(res.Header, fmt.Errorf("the registry does not take the login any more (%s): %s", said(k, res), r.login.remedy(k)))
	}
	return fmt.Errorf("%w by the registry (%s): %s", fs.ErrPermission, said(k, res), r.login.remedy(k))
}

// explain gives another answer of the registry its class: final or worth another attempt.
func (r *registry) explain(k *tokens.Token, res *http.Response) error {
	said := said(k, res)
	switch status := res.StatusCode; {
	case status == http.StatusNotFound, status == http.StatusGone:
		return fmt.Errorf("%s does not have it, or shows it only to others (%s): %w", r.server.registry, said, fs.ErrNotExist)
	case status == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("it became shorter: %w", cache.ErrChanged)
	case fetch.Lasting(status):
		return fmt.Errorf("%w: the registry answers %s", fs.ErrInvalid, said)
	}
	return fetch.RetryAfter(res.Header, fmt.Errorf("the registry answers %s", said))
}

// read reads a document of at most so many bytes.
func read(res *http.Response, most int64) ([]byte, error) {
	if res.StatusCode != http.StatusOK {
		if err := answered(res); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: it answers %.80q", fetch.ErrLie, res.Status)
	}
	if err := fetch.Unencoded(res.Header); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("%w: the manifest has more than %d bytes, more than any registry takes", fs.ErrInvalid, most)
	}
	return text, nil
}
