// Package gsorigin reads datasets from Google Cloud Storage, by its JSON API.
//
// A source is gs://BUCKET/PREFIX, with options in its query: see [Parse]. Credentials are Google's application default
// credentials: a file of a service account, a user or a workload identity, or else the machine's metadata server. Where there
// are none, requests carry none, as public buckets allow.
//
// An object is pinned by the generation that it was listed with. Each request carries it, so that an object which was
// replaced meanwhile is an error and never other bytes. The version of an object also has the CRC-32C of all its bytes, by
// which they are verified.
package gsorigin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/tokens"
	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/layout"
)

// Bucket is the objects of a bucket below a prefix. It is safe for concurrent use.
type Bucket struct {
	*fetch.Client // which asks by Get, and reads
	tokens.Transports

	source Source
	client *http.Client
	tokens *tokens.Keeper
}

// Open makes an origin. Nothing is asked of the server yet.
func Open(s Source, opt fetch.Options) (*Bucket, error) {
	if err := checkBucket(s.Bucket); err != nil {
		return nil, fmt.Errorf("open %s: %w: %w", s, fs.ErrInvalid, err)
	}
	if len(s.Prefix) > fetch.MostName {
		return nil, fmt.Errorf("open %.100s...: the prefix has %d bytes, and names have at most %d: %w", s, len(s.Prefix), fetch.MostName, fs.ErrInvalid)
	}
	o := &Bucket{source: s}
	o.Client = fetch.New(o, opt)
	o.Transports = tokens.Guarded(o.Transport(), opt.Guard)
	o.client = o.Transports.Client()
	o.tokens = tokens.Keep(nil)
	if !s.Anonymous && !address.Exposed(s.Endpoint) {
		o.tokens = tokens.Keep((&asker{client: o.Servers, direct: o.Machine}).fresh)
		if _, err := findFile(); err != nil {
			return nil, fmt.Errorf("open %s: %w", s, err)
		}
	}
	return o, nil
}

// checkBucket refuses names that no bucket has.
func checkBucket(name string) error {
	if len(name) < 3 || len(name) > 222 {
		return fmt.Errorf("the bucket's name %.100q has %d characters, and such names have 3 to 222", name, len(name))
	}
	if i := strings.IndexFunc(name, func(c rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.", c) }); i >= 0 {
		return fmt.Errorf("the bucket's name %q has %q: such names have a to z, digits, and . - _", name, name[i:i+1])
	}
	return nil
}

// String is the source, without credentials.
func (o *Bucket) String() string { return o.source.String() }

// Get implements [fetch.Getter].
func (o *Bucket) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	return o.get(ctx, o.source.Endpoint, obj, off, n)
}

// through asks another server for an origin's objects.
type through struct {
	*Bucket
	endpoint string
}

// Get implements [fetch.Getter].
func (t *through) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	return t.get(ctx, t.endpoint, obj, off, n)
}

func (o *Bucket) get(ctx context.Context, endpoint string, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	v, err := parseVersion(obj.Version)
	if err != nil {
		return nil, err
	}
	encoding := "identity"
	if v.gzip { // the server would decompress it otherwise
		encoding = "gzip"
	}
	res, err := o.do(ctx, endpoint, o.source.dir+obj.Name, url.Values{"alt": {"media"}, "ifGenerationMatch": {v.generation}},
		"Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1), "Accept-Encoding", encoding)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoBucket) {
			err = fmt.Errorf("%w: %w", err, cache.ErrChanged)
		}
		return nil, err
	}
	res.Version = v.of(res.Header, obj.Version)
	return res, nil
}

// errNoBucket says that the bucket is not there.
var errNoBucket = fmt.Errorf("there is no such bucket: %w", fs.ErrNotExist)

// do asks for an object, or for the listing where name is empty. An answer has status 200 or 206.
func (o *Bucket) do(ctx context.Context, endpoint, name string, query url.Values, headers ...string) (*fetch.Answer, error) {
	address := endpoint + "/storage/v1/b/" + o.source.Bucket + "/o"
	if name != "" {
		address += "/" + url.PathEscape(name)
	}
	if o.source.Project != "" {
		query.Set("userProject", o.source.Project)
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"?"+query.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fs.ErrInvalid, err)
	}
	k, err := o.tokens.Get(ctx)
	if err != nil {
		return nil, err
	}
	if k.Text != "" {
		q.Header.Set("Authorization", "Bearer "+k.Text)
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	res, err := fetch.Do(o.client, q)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK || res.StatusCode == http.StatusPartialContent {
		o.tokens.Taken(k)
		return &fetch.Answer{Response: res}, nil
	}
	defer func() { _ = res.Body.Close() }() // it is not what was asked for
	return nil, o.explain(k, res)
}

// said is the server's text of an error, as far as a terminal and a log can bear it.
func said(res *http.Response, secret string) (text, reason string) {
	body := fetch.Body(res)
	var e struct {
		Error struct {
			Message string `json:"message"`
			Errors  []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	text = string(body)
	if json.Unmarshal(body, &e) == nil && e.Error.Message != "" {
		text = e.Error.Message
	}
	if len(e.Error.Errors) > 0 {
		reason = e.Error.Errors[0].Reason
	}
	text = fetch.Said(text, secret)
	status := fmt.Sprintf("%d %s", res.StatusCode, http.StatusText(res.StatusCode))
	if text == "" || strings.EqualFold(text, http.StatusText(res.StatusCode)) {
		return status, reason
	}
	return status + ": " + text, reason
}

// explain gives an answer its class: final or worth another attempt.
func (o *Bucket) explain(k *tokens.Token, res *http.Response) error {
	text, reason := said(res, k.Text)
	switch code := res.StatusCode; {
	case code == http.StatusUnauthorized && o.tokens.Refused(k):
		return fmt.Errorf("the credentials have ended or were replaced (%s)", text)
	case code == http.StatusUnauthorized, code == http.StatusForbidden && reason != "rateLimitExceeded" && reason != "userRateLimitExceeded":
		return fmt.Errorf("%w by the server (%s): %s", fs.ErrPermission, text, permissions(k))
	case code == http.StatusNotFound && strings.Contains(text, "bucket does not exist"):
		return fmt.Errorf("bucket %q (%s): %w", o.source.Bucket, text, errNoBucket)
	case code == http.StatusNotFound, code == http.StatusGone:
		return fmt.Errorf("it is gone (%s): %w", text, fs.ErrNotExist)
	case code == http.StatusPreconditionFailed:
		return fmt.Errorf("it was replaced: %w", cache.ErrChanged)
	case code == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("it became shorter: %w", cache.ErrChanged)
	case code == http.StatusBadRequest && strings.Contains(text, "requester pays"):
		return fmt.Errorf("%w: %s: name a project of yours in the source, ?user_project=PROJECT", fs.ErrPermission, text)
	case code/100 == 3:
		return fmt.Errorf("%w: the server sends its clients elsewhere (%s), and credentials are for it alone: check the endpoint", fs.ErrInvalid, text)
	case code != http.StatusForbidden && fetch.Lasting(code):
		return fmt.Errorf("%w: the server answers %s: check bucket and endpoint", fs.ErrInvalid, text)
	}
	return fetch.RetryAfter(res.Header, fmt.Errorf("the server answers %s", text))
}

// permissions says what helps a request that was refused.
func permissions(k *tokens.Token) string {
	const wants = "roles/storage.objectViewer (storage.objects.get and storage.objects.list)"
	if k.Text != "" {
		return fmt.Sprintf("give the identity of %s the role %s on the bucket", k.From, wants)
	}
	return k.None + ": run gcloud auth application-default login, or name a file of credentials by " + variable + "; the identity needs " + wants
}
