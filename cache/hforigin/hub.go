// Package hforigin reads models and datasets of the Hugging Face Hub, and of mirrors of it.
//
// A source is hf://ORG/NAME or hf://datasets/ORG/NAME, with options in its query: see [Parse]. Listing pins the commit that
// the revision names, and reads ask for this commit. So a branch that moves changes nothing under a mount.
//
// The version of a file says its content: sha256:HEX of a file in LFS or Xet storage, git:HEX, Git's hash of a blob, of all others.
// The Hub gives it with each file that is asked for, before it redirects to the storage that has the bytes.
//
// The token goes to the Hub and its mirrors alone, and not over plain http to other machines. An address of the storage is signed, and secret. It is kept in memory until the storage
// refuses it, and then the Hub is asked for another one.
//
// The calls are those of huggingface_hub: hf_api.py, file_download.py and utils/_http.py.
package hforigin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/layout"
)

// Repo is the files of a repository at one commit. It is safe for concurrent use.
type Repo struct {
	*fetch.Client // which asks by Get, and reads
	*hub

	local  *blobs
	source Source
	commit string // 40 hex digits; "" until List
	dir    string // that names are relative to, with a slash at its end, or ""
}

// hub is a server that speaks the Hub's protocol, and the storage behind it.
type hub struct {
	endpoint  *url.URL
	anonymous bool
	client    *http.Client
	busy      *atomic.Int64 // until when the Hub wants no requests, ns since 1970

	storage fetch.Addresses // of files
}

const mostRedirects = 10

// Open makes an origin. Nothing is asked of the Hub yet. HTTPS_PROXY and its relatives are honoured.
func Open(s Source, opt fetch.Options) *Repo {
	o := &Repo{source: s, local: newBlobs(s.local())}
	o.Client = fetch.New(o, opt)
	transport := o.Transport()
	o.hub = &hub{endpoint: s.Endpoint, anonymous: s.Anonymous || address.Exposed(s.Endpoint.String()), busy: new(atomic.Int64), client: &http.Client{
		Transport:     trace.Transport(opt.Guard.Transport(transport)),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	return o
}

// Through returns a getter of the same files that asks a mirror at endpoint, a URL. The token does not go to it over plain http.
func (o *Repo) Through(endpoint string) (fetch.Getter, error) {
	u, err := address.Server(endpoint)
	if err != nil {
		return nil, fmt.Errorf("cache: %w: %w", err, fs.ErrInvalid)
	}
	h := &hub{endpoint: u, anonymous: o.anonymous || address.Exposed(endpoint), client: o.client, busy: new(atomic.Int64)}
	if h.anonymous && !o.anonymous {
		if text, err := token(); err != nil || text != "" {
			return nil, fmt.Errorf("cache %q: the Hub's token would be readable on its way: use https://, or anonymous=true where the repository is public", endpoint)
		}
	}
	return &through{o, h}, nil
}

// through asks another server for an origin's files.
type through struct {
	*Repo
	hub *hub
}

// Get implements [fetch.Getter].
func (t *through) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	return t.get(ctx, t.hub, obj, off, n)
}

// String is the source as it was given, without the token and the commit: a file that is the same at another commit is cached once.
func (o *Repo) String() string { return o.source.at("") }

// Pinned is the source at the commit that was listed.
func (o *Repo) Pinned() string { return o.source.at(o.commit) }

// Close ends idle connections.
func (o *Repo) Close() error {
	o.local.close()
	o.client.CloseIdleConnections()
	return nil
}

// Dir is the commit that was listed, and the directory in it that names are relative to.
func (o *Repo) Dir() string { return o.commit + "/" + o.dir }

// SetDir has the origin, which was listed before by another process, go on with the commit and the directory of that one.
func (o *Repo) SetDir(dir string) error {
	commit, dir, ok := strings.Cut(dir, "/")
	if !ok || !isHex(commit, 40) {
		return fmt.Errorf("open %s: the last daemon has not told its commit", o)
	}
	o.commit, o.dir = commit, dir
	return nil
}

func isHex(text string, digits int) bool {
	return len(text) == digits && strings.Trim(text, "0123456789abcdef") == ""
}

// isHub tells whether an address is of the Hub itself, which may see the token.
func (h *hub) isHub(u *url.URL) bool {
	return u.Scheme == h.endpoint.Scheme && u.Host == h.endpoint.Host
}

// url is an address of the Hub. Each part of path is escaped.
func (h *hub) url(prefix, path string) *url.URL {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return h.endpoint.JoinPath(prefix, strings.Join(parts, "/"))
}

// do makes a request, with the token where the Hub itself is asked. Its errors leave the address out, which may be a secret.
func (h *hub) do(ctx context.Context, u *url.URL, byteRange string, trusted bool) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: the server names an address that is none", fs.ErrInvalid)
	}
	req.Header.Set("Accept-Encoding", "identity")
	if byteRange != "" {
		req.Header.Set("Range", byteRange)
	}
	if trusted {
		if wait := time.Until(time.Unix(0, h.busy.Load())); wait > 0 {
			return nil, fetch.Later{Err: errBusy, After: wait}
		}
		if !h.anonymous {
			token, err := token()
			if err != nil {
				return nil, err
			}
			if token != "" {
				req.Header.Set("Authorization", "Bearer "+token)
			}
		}
	}
	return fetch.Do(h.client, req)
}

var errBusy = errors.New("the Hub wants fewer requests (429)")

// explain gives an answer of the Hub its class: final or worth another attempt.
func (h *hub) explain(s Source, res *http.Response) error {
	code := res.Header.Get("X-Error-Code")
	token, sent := strings.CutPrefix(res.Request.Header.Get("Authorization"), "Bearer ")
	access := "its token has no access to it"
	switch {
	case !sent && h.anonymous && !s.Anonymous:
		access = "no token is sent over http://, where others could read it"
	case !sent && h.anonymous:
		access = "it is asked without a token"
	case !sent:
		access = "there is no token: set HF_TOKEN, or run hf auth login"
	}
	page := h.endpoint.JoinPath(s.repository())
	status := res.StatusCode
	said := fmt.Sprintf("%d %s", status, http.StatusText(status))
	if text := res.Header.Get("X-Error-Message"); text != "" {
		said += ": " + fetch.Said(text, token)
	}
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		err := errBusy
		if status == http.StatusServiceUnavailable {
			err = fmt.Errorf("the Hub answers %s", said)
		}
		err = fetch.RetryAfter(res.Header, err)
		if later := (fetch.Later{}); errors.As(err, &later) {
			h.busy.Store(time.Now().Add(later.After).UnixNano())
		}
		return err
	case code == "GatedRepo":
		return fmt.Errorf("%w: %s is gated, and %s. Ask for access at %s (%s)", fs.ErrPermission, s.repository(), access, page, said)
	case code == "RevisionNotFound":
		return fmt.Errorf("%s has no revision %q: %w", s.repository(), s.Revision, fs.ErrNotExist)
	case code == "EntryNotFound":
		return fmt.Errorf("%s has no %q at this revision: %w", s.repository(), s.Path, fs.ErrNotExist)
	case code == "RepoNotFound" && sent || status == http.StatusNotFound || status == http.StatusGone:
		return fmt.Errorf("the Hub has no %s, or its token has no access to it: %w (%s)", s.repository(), fs.ErrNotExist, said)
	case status == http.StatusUnauthorized && sent && code == "":
		return fmt.Errorf("%w: the Hub refuses the token: get another one (%s)", fs.ErrPermission, said)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Errorf("%w: %s is not there, or it is private or gated, and %s. See %s (%s)", fs.ErrPermission, s.repository(), access, page, said)
	case fetch.Lasting(status):
		return fmt.Errorf("%w: the Hub answers %s", fs.ErrInvalid, said)
	}
	return fmt.Errorf("the Hub answers %s", said)
}

// Get implements [fetch.Getter].
func (o *Repo) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	if answer := o.local.get(obj, off, n); answer != nil {
		return answer, nil
	}
	return o.get(ctx, o.hub, obj, off, n)
}

// get asks the storage, by its address where it is known, or else the Hub, which redirects to it.
func (o *Repo) get(ctx context.Context, h *hub, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	span := fmt.Sprintf("bytes=%d-%d", off, off+n-1)
	if at := h.storage.Get(obj.Version); at != nil {
		res, err := h.do(ctx, at, span, false)
		if err != nil {
			return nil, err
		}
		if !fetch.Expired(res) {
			return answer(res, obj.Version)
		}
		fetch.Discard(res) // the address has expired
		h.storage.Keep(obj.Version, nil)
	}
	res, version, err := o.resolve(ctx, h, obj, span)
	if err != nil {
		return nil, err
	}
	return answer(res, version)
}

// answer judges the answer that should have the bytes.
func answer(res *http.Response, version string) (*fetch.Answer, error) {
	err := fmt.Errorf("the server answers %d %s", res.StatusCode, http.StatusText(res.StatusCode))
	switch status := res.StatusCode; {
	case status == http.StatusOK || status == http.StatusPartialContent:
		return &fetch.Answer{Response: res, Version: version}, nil
	case status == http.StatusRequestedRangeNotSatisfiable:
		err = fmt.Errorf("it became shorter: %w", cache.ErrChanged)
	case fetch.Expired(res): // an address that was just signed
	case fetch.Lasting(status):
		err = fmt.Errorf("%w: %w", fs.ErrInvalid, err)
	}
	_ = res.Body.Close() // it is not what was asked for
	return nil, fetch.RetryAfter(res.Header, err)
}

// file is the Hub's address of a file at the commit.
func (o *Repo) file(h *hub, obj *layout.Object) *url.URL {
	return h.url(o.source.repository()+"/resolve/"+o.commit, o.dir+obj.Name)
}

// resolve asks the Hub for a file, and follows it to its storage. The version is what the Hub says of it.
func (o *Repo) resolve(ctx context.Context, h *hub, obj *layout.Object, span string) (res *http.Response, version string, err error) {
	u := o.file(h, obj)
	trusted := true
	for range mostRedirects {
		if res, err = h.do(ctx, u, span, trusted); err != nil {
			return nil, "", err
		}
		redirected := fetch.Redirected(res)
		switch {
		case trusted && res.StatusCode/100 != 2 && !redirected:
			fetch.Discard(res)
			if res.StatusCode == http.StatusRequestedRangeNotSatisfiable {
				return nil, "", fmt.Errorf("it became shorter: %w", cache.ErrChanged)
			}
			err = h.explain(o.source, res)
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w: %w", err, cache.ErrChanged)
			}
			return nil, "", err
		case trusted:
			if version, err = o.versionOf(res, version); err != nil {
				_ = res.Body.Close() // of another file
				return nil, "", err
			}
		}
		if !redirected {
			if !trusted && res.StatusCode/100 == 2 {
				h.storage.Keep(obj.Version, u)
			}
			return res, version, nil
		}
		if u, err = fetch.Next(res); err != nil {
			return nil, "", err
		}
		if trusted = trusted && h.isHub(u); !trusted && version == "" {
			return nil, "", fmt.Errorf("%w: the Hub redirects to another server, and does not say to which version (X-Linked-Etag)", fs.ErrInvalid)
		}
	}
	return nil, "", fmt.Errorf("%w: the server redirects more than %d times", fs.ErrInvalid, mostRedirects)
}

// versionOf is the version in an answer of the Hub, or the one that an answer before it had.
func (o *Repo) versionOf(res *http.Response, before string) (string, error) {
	if commit := res.Header.Get("X-Repo-Commit"); commit != "" && commit != o.commit {
		return "", fmt.Errorf("%w: it was asked for commit %s and answers for %.40q", fetch.ErrLie, o.commit, commit)
	}
	tag := res.Header.Get("X-Linked-Etag")
	if tag == "" && before != "" {
		return before, nil
	}
	if tag == "" {
		tag = res.Header.Get("ETag")
	}
	return versionOfHash(strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)), nil
}

// versionOfHash is the version of a file with a hash: SHA-256 in hex of LFS, or what Git has.
func versionOfHash(hash string) string {
	switch {
	case isHex(hash, 64):
		return layout.SHA256Version + hash
	case isHex(hash, 40):
		return layout.GitVersion + hash
	}
	return hash
}
