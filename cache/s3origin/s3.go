// Package s3origin reads datasets from servers that speak S3's protocol: AWS, MinIO, Ceph, R2, GCS.
//
// A source is s3://BUCKET/PREFIX, with options in its query: see [Parse]. Credentials come from where AWS's tools find
// them, and are refreshed when they expire.
//
// An object is pinned by the ETag that it was listed with. Each request carries it (If-Match), so that an object which
// was replaced meanwhile is an error and never other bytes.
package s3origin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/layout"
)

// Bucket is the objects of a bucket below a prefix. It is safe for concurrent use.
type Bucket struct {
	*fetch.Client // which asks by Get, and reads

	source    Source
	client    *minio.Client
	creds     *credentials.Credentials
	transport http.RoundTripper
	rotation  rotation

	// Misfit compares a drained checkpoint's manifest with the listing, of which size gives the bytes of its files. It names the mismatch, "" for
	// none. Such a checkpoint is left out. Empty directories are in the manifest alone. It is set before List; nil compares nothing.
	Misfit func(manifest []byte, size func(name string) (bytes int64, there bool)) (empty []string, why string)
}

// Open makes an origin. Nothing is asked of the server yet.
func Open(s Source, opt fetch.Options) (*Bucket, error) { return open(s, opt, 0) }

// open makes an origin whose connections have write buffers of so many bytes, 0 for the usual.
func open(s Source, opt fetch.Options, buffer int) (*Bucket, error) {
	transport, err := minio.DefaultTransport(s.Secure)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", s, err)
	}
	if err := s3utils.CheckValidBucketName(s.Bucket); err != nil {
		return nil, fmt.Errorf("open %s: a %s: %w", s, strings.ToLower(err.Error()), fs.ErrInvalid)
	}
	if len(s.Prefix) > fetch.MostName {
		return nil, fmt.Errorf("open %.100s...: the prefix has %d bytes, and keys have at most %d: %w", s, len(s.Prefix), fetch.MostName, fs.ErrInvalid)
	}
	o := &Bucket{source: s}
	o.Client = fetch.New(o, opt)
	transport.MaxIdleConnsPerHost = o.Connections()
	transport.MaxResponseHeaderBytes = 64 << 10
	transport.WriteBufferSize = buffer
	transport.DisableCompression = true // a range of an object is a range of its bytes as stored
	o.transport = strict{opt.Guard.Transport(transport)}
	if o.creds, err = s.credentials(o.transport); err != nil {
		return nil, fmt.Errorf("open %s: %w", s, err)
	}
	if o.client, err = o.connect(s); err != nil {
		return nil, err
	}
	return o, nil
}

// connect makes a client of the server that a source names.
func (o *Bucket) connect(s Source) (*minio.Client, error) {
	lookup := minio.BucketLookupAuto
	if s.PathStyle {
		lookup = minio.BucketLookupPath
	}
	// MaxRetries 1: the fetch client tries again, and knows how far an attempt came.
	client, err := minio.New(s.Endpoint, &minio.Options{
		Creds: o.creds, Secure: s.Secure, Region: s.Region, BucketLookup: lookup, Transport: trace.Transport(o.transport), MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", s, err)
	}
	return client, nil
}

// Through returns a getter of the same objects that asks the server at endpoint, a URL. It signs requests as the origin does.
func (o *Bucket) Through(endpoint string) (fetch.Getter, error) {
	s := o.source
	if err := s.setEndpoint(endpoint); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	client, err := o.connect(s)
	if err != nil {
		return nil, err
	}
	return &through{o, client}, nil
}

// through asks another server for an origin's objects.
type through struct {
	*Bucket
	client *minio.Client
}

// Get implements [fetch.Getter].
func (t *through) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	return t.get(ctx, t.client, obj, off, n)
}

// String is the source, without credentials.
func (o *Bucket) String() string { return o.source.String() }

// Close ends idle connections.
func (o *Bucket) Close() error {
	(&http.Client{Transport: o.transport}).CloseIdleConnections()
	return nil
}

// Get implements [fetch.Getter].
func (o *Bucket) Get(ctx context.Context, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	return o.get(ctx, o.client, obj, off, n)
}

func (o *Bucket) get(ctx context.Context, client *minio.Client, obj *layout.Object, off, n int64) (*fetch.Answer, error) {
	var opt minio.GetObjectOptions
	if err := errors.Join(opt.SetRange(off, off+n-1), opt.SetMatchETag(obj.Version)); err != nil {
		return nil, err
	}
	core := minio.Core{Client: client}
	var res *http.Response
	body, info, _, err := core.GetObject(withAnswer(ctx, &res), o.source.Bucket, o.key(obj.Name), opt)
	if err != nil {
		if err = o.explain(err); errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", err, cache.ErrChanged)
		}
		if res != nil {
			err = fetch.RetryAfter(res.Header, err)
		}
		return nil, err
	}
	o.rotation.worked(o.creds)
	res.Body = body
	return &fetch.Answer{Response: res, Version: strings.Trim(info.ETag, `"`)}, nil
}

// Dir is the directory that names are relative to, empty or with a slash at its end. Listing finds it, where the source may be
// one object.
func (o *Bucket) Dir() string { return o.source.dir }

// SetDir has the origin, which was listed before by another process, go on with the directory of that one.
func (o *Bucket) SetDir(dir string) error { o.source.dir = dir; return nil }

func (o *Bucket) key(name string) string { return o.source.dir + name }

// explain gives an error its class: final or worth another attempt.
func (o *Bucket) explain(err error) error {
	var sts credentials.ErrorResponse
	if errors.As(err, &sts) {
		return o.explainRole(sts)
	}
	r := minio.ToErrorResponse(err)
	switch {
	case r.Code == "ExpiredToken", r.Code == "ExpiredTokenException", r.Code == "TokenRefreshRequired", o.rotation.unexplained(r):
		o.creds.Expire() // the next attempt asks where they come from
		return fmt.Errorf("the credentials have expired (%s)", said(r))
	case r.Code == "RequestTimeTooSkewed": // until the clock is set
		return fmt.Errorf("this machine's clock and the server's differ, so that signatures do not count: set it right (timedatectl): %s", said(r))
	case isDenied(r) && o.rotation.renew(o.creds),
		(r.Code == "InvalidAccessKeyId" || r.Code == "XAdminUserNotFound" || r.Code == "SignatureDoesNotMatch") && o.rotation.done.Load():
		return fmt.Errorf("the credentials were replaced (%s)", said(r)) // or will be: these have worked
	case isDenied(r) && o.lacksCredentials():
		return fmt.Errorf("%w by the server (%s): no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE", fs.ErrPermission, said(r))
	case isDenied(r):
		return fmt.Errorf("%w by the server (%s): check the credentials, and their right to s3:GetObject and s3:ListBucket", fs.ErrPermission, said(r))
	case r.Code == "NoSuchBucket":
		return fmt.Errorf("there is no bucket %q: %w", o.source.Bucket, fs.ErrNotExist)
	case r.StatusCode == http.StatusNotFound:
		return fmt.Errorf("it is gone: %w", fs.ErrNotExist)
	case r.StatusCode == http.StatusPreconditionFailed:
		return fmt.Errorf("it was replaced: %w", cache.ErrChanged)
	case r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("it became shorter: %w", cache.ErrChanged)
	case r.Code == "TemporaryRedirect", r.Code == "RequestTimeout": // by their statuses, these would last
		return fmt.Errorf("the server answers %s", said(r))
	case r.Code == "NotImplemented", fetch.Lasting(r.StatusCode):
		return fmt.Errorf("%w: the server answers %s: check bucket, endpoint and region", fs.ErrInvalid, said(r))
	case r.Code != "":
		return fmt.Errorf("the server answers %s", said(r))
	}
	return err
}

// said is a server's text of an error, as far as a terminal and a log can bear it.
func said(r minio.ErrorResponse) string {
	text := fetch.Said(fmt.Sprintf("%.60s: %s", r.Code, r.Message))
	if code := fmt.Sprintf("%d", r.StatusCode); r.StatusCode > 0 && !strings.HasPrefix(text, code) {
		text = code + " " + text
	}
	return text
}

// explainRole is explain for the answers of AWS's token service.
func (o *Bucket) explainRole(err credentials.ErrorResponse) error {
	switch code := err.STSError.Code; {
	case code == "AccessDenied", code == "InvalidIdentityToken", code == "ValidationError", code == "ExpiredTokenException" && !o.rotation.done.Load():
		return fmt.Errorf("%w: the role %s cannot be taken with the token (%s: %w): check its trust policy", fs.ErrPermission, os.Getenv("AWS_ROLE_ARN"), code, err)
	default: // it is busy, or a new token is on its way
		return fmt.Errorf("the role %s cannot be taken now: %w", os.Getenv("AWS_ROLE_ARN"), err)
	}
}

// lacksCredentials tells whether requests are not signed, though the source does not ask for that.
func (o *Bucket) lacksCredentials() bool {
	now, err := o.creds.GetWithContext(nil)
	return err == nil && now.AccessKeyID == "" && !o.source.Anonymous
}

// isDenied tells whether an answer refuses the credentials.
func isDenied(r minio.ErrorResponse) bool {
	return r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized ||
		r.Code == "InvalidToken" || r.Code == "XAdminUserNotFound" // which AWS answers with 400, and versitygw with 404
}

// List lists the objects below the prefix, the directories side by side. The prefix may also name one object.
func (o *Bucket) List(ctx context.Context) (*cache.Listing, error) {
	if p := o.source.Prefix; p != "" && !strings.HasSuffix(p, "/") {
		obj, err := o.one(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", o, err)
		}
		if obj != nil {
			return cache.RemoteListing([]*layout.Object{obj}), nil
		}
	}
	w := walk{o, o.NewListing()}
	objects, err := fetch.Walk(ctx, o.source.dir, w.page)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", o, err)
	}
	listed := len(objects)
	objects, empty, problems, err := o.whole(ctx, objects)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", o, err)
	}
	if len(objects) == 0 && listed > 0 {
		return nil, fmt.Errorf("list %s: checkpoints are drained there, and none is complete yet: %w", o, fs.ErrNotExist)
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("list %s: no object is there: %w", o, fs.ErrNotExist)
	}
	l := cache.RemoteListing(objects, empty...)
	l.Problems = append(l.Problems, problems...)
	return l, nil
}

// one looks for an object whose key is the whole prefix, nil if there is none, or none that may be seen.
func (o *Bucket) one(ctx context.Context, key string) (obj *layout.Object, err error) {
	err = o.Retry(ctx, func(ctx context.Context, _ func()) error {
		info, err := o.client.StatObject(ctx, o.source.Bucket, key, minio.StatObjectOptions{})
		if err != nil {
			return o.explain(err)
		}
		if info.Size < 0 {
			return fmt.Errorf("%w: the server does not say its size", fs.ErrInvalid)
		}
		o.source.dir = key[:strings.LastIndexByte(key, '/')+1]
		obj = o.object(info)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // the listing will say
		return nil, nil
	}
	return obj, err
}

type walk struct {
	origin  *Bucket
	listing *fetch.Listing
}

// page lists one directory: its objects and the directories in it. An attempt goes on where the last one broke off.
func (w *walk) page(ctx context.Context, prefix string) (objects []*layout.Object, below []string, err error) {
	o, last, owner := w.origin, "", false
	err = o.Retry(ctx, func(ctx context.Context, alive func()) error {
		after := last
		opt := minio.ListObjectsOptions{Prefix: prefix, StartAfter: after, MaxKeys: pageKeys, FetchOwner: &owner}
		for info := range o.client.ListObjectsIter(withPages(ctx), o.source.Bucket, opt) {
			if info.Err != nil {
				return o.explain(info.Err)
			}
			if after != "" && info.Key <= after { // it came by an earlier attempt
				continue
			}
			if err := w.listing.AddBelow(prefix, info.Key, info.ETag); err != nil {
				return err
			}
			alive()
			last = max(last, info.Key) // pages come whole, and in the order of keys
			switch {
			case info.Key == prefix && info.Size > 0: // the listing says that no file can have its name
				objects = append(objects, o.object(info))
			case info.Key == prefix: // the marker that some tools make of a directory
			case path.Base(info.Key) == runState && strings.HasSuffix(info.Key, "/"): // nobody's files
			case strings.HasSuffix(info.Key, "/"):
				below = append(below, info.Key)
			default:
				objects = append(objects, o.object(info))
			}
		}
		if ctx.Err() == nil {
			o.rotation.worked(o.creds)
		}
		return ctx.Err()
	})
	return objects, below, err
}

func (o *Bucket) object(info minio.ObjectInfo) *layout.Object {
	return &layout.Object{
		Name: strings.TrimPrefix(info.Key, o.source.dir), Size: info.Size, ModTime: info.LastModified,
		Version: strings.Trim(info.ETag, `"`), Origin: o,
	}
}
