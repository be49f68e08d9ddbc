// Package ociorigin reads models and datasets of OCI registries, and of mirrors of them.
//
// A source is oci://REGISTRY/REPO:TAG or @DIGEST, with options in its query: see [Parse]. Listing pins the digest that the tag
// names, and compares the manifest with it. Reads ask for blobs by their digests. So a tag that moves changes nothing under a mount.
//
// A layer that is a file is shown with its title. Of a layer that is a tar the members are shown: a member is a range of the
// blob. A layer that is compressed cannot be read in parts, and is left out or refused with the reason.
//
// The login goes to the registry, and to the server of tokens that it names. An address of the storage that it redirects to is
// signed, and secret. It is kept in memory until the storage refuses it, and then the registry is asked for another one.
package ociorigin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/layout"
)

// Artifact is the files of an artifact or image. It is safe for concurrent use.
type Artifact struct {
	*fetch.Client // which asks by Get, and reads

	source   Source
	digest   string // sha256:HEX that the reference names; "" until List
	client   *http.Client
	guarded  http.RoundTripper
	registry *registry
}

// Open makes an origin. Nothing is asked of the registry yet. HTTPS_PROXY and its relatives are honoured.
func Open(s Source, opt fetch.Options) *Artifact {
	o := &Artifact{source: s}
	o.Client = fetch.New(o, opt)
	transport := o.Transport()
	o.guarded = opt.Guard.Transport(transport)
	o.client = &http.Client{
		Transport:     trace.Transport(o.guarded),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	o.registry = o.at(s.server)
	return o
}

// at is the repository at a server.
func (o *Artifact) at(s server) *registry {
	repo := o.source.Reference.Context()
	return &registry{
		server: s, repo: repo, mirror: s.registry != repo.Registry, client: o.client,
		login: newLogin(s, repo, o.source.Anonymous, o.guarded),
	}
}

// Through returns a getter of the same blobs that asks a mirror at endpoint, a URL.
func (o *Artifact) Through(endpoint string) (fetch.Getter, error) {
	s, err := parseServer(endpoint)
	if err != nil {
		return nil, fmt.Errorf("cache: %w: %w", err, fs.ErrInvalid)
	}
	return &through{o, o.at(s)}, nil
}

// through asks another server for an origin's blobs.
type through struct {
	*Artifact
	registry *registry
}

// Get implements [fetch.Getter].
func (t *through) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	return get(ctx, t.registry, obj, off, n)
}

// String is the repository, without the login and the tag: a blob that two tags have is cached once.
func (o *Artifact) String() string { return "oci://" + o.source.text + o.source.options }

// Pinned is the source at the digest that was listed.
func (o *Artifact) Pinned() string { return o.source.at(o.digest) }

// Close ends idle connections.
func (o *Artifact) Close() error {
	o.client.CloseIdleConnections()
	return nil
}

// Dir is the digest that was listed.
func (o *Artifact) Dir() string { return o.digest }

// SetDir has the origin, which was listed before by another process, go on with the digest of that one. Objects know their blobs.
func (o *Artifact) SetDir(digest string) error {
	if _, err := v1.NewHash(digest); err != nil {
		return fmt.Errorf("open %s: the last daemon has not told its digest", o)
	}
	o.digest = digest
	return nil
}

// part is a file of an artifact: bytes of a blob.
type part struct {
	digest    string // sha256:HEX
	off, size int64  // of the file
	blob      int64  // bytes of the blob
}

const memberVersion = "member:"

// version is the version of the file. That of a whole blob is its digest, by which its bytes are verified.
func (p part) version() string {
	if p.off == 0 && p.size == p.blob {
		return p.digest
	}
	return fmt.Sprintf("%s%s %d/%d", memberVersion, p.digest, p.off, p.blob)
}

// partOf reads a version.
func partOf(obj *layout.Object) (part, error) {
	text, member := strings.CutPrefix(obj.Version, memberVersion)
	digest, place, placed := strings.Cut(text, " ")
	p := part{digest: digest, size: obj.Size, blob: obj.Size}
	_, err := v1.NewHash(digest)
	if member && placed && err == nil {
		off, blob, _ := strings.Cut(place, "/")
		var more error
		p.off, err = strconv.ParseInt(off, 10, 64)
		p.blob, more = strconv.ParseInt(blob, 10, 64)
		err = errors.Join(err, more)
	}
	if err != nil || member != placed || p.off < 0 || p.size < 0 || p.off > p.blob-p.size {
		return p, fmt.Errorf("%w: %q is no version of a file in a registry", fs.ErrInvalid, obj.Version)
	}
	return p, nil
}

// Get implements [fetch.Getter].
func (o *Artifact) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	return get(ctx, o.registry, obj, off, n)
}

func get(ctx context.Context, r *registry, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	p, err := partOf(obj)
	if err != nil {
		return nil, err
	}
	at := p.off + off
	res, err := r.blob(ctx, p.digest, fmt.Sprintf("bytes=%d-%d", at, at+n-1))
	if err != nil {
		return nil, err
	}
	if obj.Version == p.digest {
		return &fetch.Answer{Response: res, Version: obj.Version}, nil
	}
	// The client compares the answer with the member. So compare it with the blob here, and have it speak of the member.
	answer := &fetch.Answer{Response: res, Version: p.digest}
	if err := answer.Check(&layout.Object{Name: obj.Name, Size: p.blob, Version: p.digest}, at, n); err != nil {
		_ = res.Body.Close() // it is another range
		return nil, err
	}
	answer.Version, answer.StatusCode = obj.Version, http.StatusPartialContent
	answer.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", off, off+n-1, obj.Size))
	return answer, nil
}
