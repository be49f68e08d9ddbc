package s3origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// The kinds of errors of a [Writer] that [fs]'s do not name. An error that is none of these, and none of fs.ErrPermission,
// fs.ErrInvalid, fs.ErrNotExist and fs.ErrExist, is worth another attempt.
var (
	ErrNoUpload = errors.New("the multipart upload is gone") // it was ended, by a rule of the bucket for instance
	ErrParts    = errors.New("the server does not take the parts")
	ErrFull     = errors.New("the store is full")
)

// Writer makes single requests that change a bucket below a prefix. Each is made once: the caller tries again. Names are relative to
// the prefix. It is safe for concurrent use.
type Writer struct{ o *Bucket }

// Stored is an object, or a part of an upload, as the server knows it.
type Stored struct {
	Name   string // of an object
	Number int    // of a part, from 1
	Size   int64
	ETag   string
	CRC32C string // as S3 writes it: base64, and of an object of n parts their sums' sum and "-n". Empty where the server does not say
}

// writeBuffer is the number of bytes that are handed to a connection at once.
const writeBuffer = 256 << 10

// OpenWriter makes a writer. Nothing is asked of the server yet.
func OpenWriter(s Source, opt fetch.Options) (*Writer, error) {
	o, err := open(s, opt, writeBuffer)
	if err != nil {
		return nil, err
	}
	return &Writer{o}, nil
}

// String is the destination, without credentials.
func (w *Writer) String() string { return w.o.String() }

// Close ends idle connections.
func (w *Writer) Close() error { return w.o.Close() }

func (w *Writer) core() minio.Core { return minio.Core{Client: w.o.client} }

func (w *Writer) key(name string) (string, error) {
	key := w.o.key(name)
	if len(key) > fetch.MostName {
		return "", fmt.Errorf("%w: the key of %.100q would have %d bytes, and S3's have at most %d", fs.ErrInvalid, name, len(key), fetch.MostName)
	}
	return key, nil
}

// Put stores an object in one request. crc32c, of body, is for the server to compare; empty for none. onlyNew: an object that has the
// name stays, and the error is fs.ErrExist.
func (w *Writer) Put(ctx context.Context, name string, body io.Reader, size int64, crc32c string, onlyNew bool) (Stored, error) {
	key, err := w.key(name)
	if err != nil {
		return Stored{}, err
	}
	opt := options(onlyNew)
	if crc32c != "" {
		opt.UserMetadata = map[string]string{"x-amz-checksum-crc32c": crc32c}
	}
	info, err := w.core().PutObject(ctx, w.o.source.Bucket, key, body, size, "", "", opt)
	if err != nil {
		return Stored{}, w.explain(err)
	}
	w.o.rotation.worked(w.o.creds)
	return Stored{Name: name, Size: size, ETag: info.ETag, CRC32C: info.ChecksumCRC32C}, nil
}

func options(onlyNew bool) (opt minio.PutObjectOptions) {
	opt.DisableContentSha256 = true // bodies have a CRC-32C, which costs less
	if onlyNew {
		opt.SetMatchETagExcept("*")
	}
	return opt
}

// Begin begins a multipart upload, and gives its id. summed: each part comes with a CRC-32C.
func (w *Writer) Begin(ctx context.Context, name string, summed bool) (id string, err error) {
	key, err := w.key(name)
	if err != nil {
		return "", err
	}
	opt := options(false)
	if summed {
		opt.UserMetadata = map[string]string{"x-amz-checksum-algorithm": "CRC32C"}
	}
	if id, err = w.core().NewMultipartUpload(ctx, w.o.source.Bucket, key, opt); err != nil {
		return "", w.explain(err)
	}
	if id == "" || len(id) > fetch.MostName {
		return "", fmt.Errorf("%w: it gives an upload of %q an id of %d bytes", fetch.ErrLie, name, len(id))
	}
	return id, nil
}

// PutPart stores part number of an upload, from 1.
func (w *Writer) PutPart(ctx context.Context, name, id string, number int, body io.Reader, size int64, crc32c string) (Stored, error) {
	opt := minio.PutObjectPartOptions{DisableContentSha256: true}
	if crc32c != "" {
		opt.CustomHeader = http.Header{"X-Amz-Checksum-Crc32c": []string{crc32c}}
	}
	p, err := w.core().PutObjectPart(ctx, w.o.source.Bucket, w.o.key(name), id, number, body, size, opt)
	if err != nil {
		return Stored{}, w.explain(err)
	}
	return Stored{Number: number, Size: size, ETag: p.ETag, CRC32C: p.ChecksumCRC32C}, nil
}

// mostParts is S3's.
const mostParts = 10_000

// Parts gives the parts that an upload has.
func (w *Writer) Parts(ctx context.Context, name, id string) (all []Stored, err error) {
	for after := 0; ; {
		r, err := w.core().ListObjectParts(ctx, w.o.source.Bucket, w.o.key(name), id, after, 1000)
		if err != nil {
			return nil, w.explain(err)
		}
		for _, p := range r.ObjectParts {
			if p.PartNumber <= after || p.PartNumber > mostParts {
				return nil, fmt.Errorf("%w: the server lists part %d after part %d", fs.ErrInvalid, p.PartNumber, after)
			}
			after = p.PartNumber
			all = append(all, Stored{Number: p.PartNumber, Size: p.Size, ETag: strings.Trim(p.ETag, `"`), CRC32C: p.ChecksumCRC32C})
		}
		if !r.IsTruncated || len(r.ObjectParts) == 0 {
			return all, nil
		}
	}
}

// Complete makes the object of an upload's parts.
func (w *Writer) Complete(ctx context.Context, name, id string, parts []Stored, onlyNew bool) (Stored, error) {
	list, size := make([]minio.CompletePart, len(parts)), int64(0)
	for i, p := range parts {
		list[i] = minio.CompletePart{PartNumber: p.Number, ETag: p.ETag, ChecksumCRC32C: p.CRC32C}
		size += p.Size
	}
	info, err := w.core().CompleteMultipartUpload(ctx, w.o.source.Bucket, w.o.key(name), id, list, options(onlyNew))
	if err != nil {
		return Stored{}, w.explain(err)
	}
	return Stored{Name: name, Size: size, ETag: strings.Trim(info.ETag, `"`), CRC32C: info.ChecksumCRC32C}, nil
}

// Abort ends an upload, and has the server forget its parts. One that is gone is no error.
func (w *Writer) Abort(ctx context.Context, name, id string) error {
	err := w.core().AbortMultipartUpload(ctx, w.o.source.Bucket, w.o.key(name), id)
	if err = w.explain(err); errors.Is(err, ErrNoUpload) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Uploads gives the ids of unfinished uploads of one object, the first hundred.
func (w *Writer) Uploads(ctx context.Context, name string) (ids []string, err error) {
	key := w.o.key(name)
	r, err := w.core().ListMultipartUploads(ctx, w.o.source.Bucket, key, "", "", "", 100)
	if err != nil {
		return nil, w.explain(err)
	}
	for _, u := range r.Uploads {
		if u.Key == key {
			ids = append(ids, u.UploadID)
		}
	}
	return ids, nil
}

// List gives the objects whose names begin with prefix. With delimited it gives those up to the next slash, and the names of the
// directories there, which end in one. alive is called for each.
func (w *Writer) List(ctx context.Context, prefix string, delimited bool, alive func()) (objects []Stored, dirs []string, err error) {
	listing, owner, full := w.o.NewListing(), false, w.o.key(prefix)
	opt := minio.ListObjectsOptions{Prefix: full, Recursive: !delimited, MaxKeys: pageKeys, FetchOwner: &owner}
	for info := range w.o.client.ListObjectsIter(withPages(ctx), w.o.source.Bucket, opt) {
		if info.Err != nil {
			return nil, nil, w.explain(info.Err)
		}
		if len(info.Key) > fetch.MostName || !strings.HasPrefix(info.Key, full) {
			return nil, nil, fmt.Errorf("%w: the server lists %.100q, and was asked for keys that begin with %.100q", fs.ErrInvalid, info.Key, full)
		}
		if err := listing.Add(info.Key, info.ETag); err != nil {
			return nil, nil, err
		}
		alive()
		name := strings.TrimPrefix(info.Key, w.o.source.dir)
		switch {
		case delimited && strings.HasSuffix(name, "/") && info.Key != full:
			dirs = append(dirs, name)
		case !strings.HasSuffix(name, "/"): // the others are markers that some tools make of directories
			objects = append(objects, Stored{Name: name, Size: info.Size, ETag: strings.Trim(info.ETag, `"`)})
		}
	}
	return objects, dirs, ctx.Err()
}

// Stat asks for one object.
func (w *Writer) Stat(ctx context.Context, name string) (Stored, error) {
	info, err := w.o.client.StatObject(ctx, w.o.source.Bucket, w.o.key(name), minio.StatObjectOptions{Checksum: true})
	if err != nil {
		return Stored{}, w.explain(err)
	}
	return Stored{Name: name, Size: info.Size, ETag: strings.Trim(info.ETag, `"`), CRC32C: info.ChecksumCRC32C}, nil
}

// Get gives a small object, of at most so many bytes.
func (w *Writer) Get(ctx context.Context, name string, most int64) ([]byte, error) {
	body, _, _, err := w.core().GetObject(withWhole(ctx, most+1), w.o.source.Bucket, w.o.key(name), minio.GetObjectOptions{})
	if err != nil {
		return nil, w.explain(err)
	}
	defer func() { _ = body.Close() }() // it was read
	var text bytes.Buffer
	n, err := io.Copy(&text, io.LimitReader(body, most+1))
	if err != nil {
		return nil, w.explain(err)
	}
	if n > most {
		return nil, fmt.Errorf("%w: object %q has more than %d bytes", fs.ErrInvalid, name, most)
	}
	return text.Bytes(), nil
}

// Delete removes an object. One that is gone is no error.
func (w *Writer) Delete(ctx context.Context, name string) error {
	err := w.explain(w.o.client.RemoveObject(ctx, w.o.source.Bucket, w.o.key(name), minio.RemoveObjectOptions{}))
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoBucket) {
		return nil
	}
	return err
}

// errNoBucket is an [fs.ErrNotExist].
var errNoBucket = fmt.Errorf("there is no such bucket: %w", fs.ErrNotExist)

// explain is the origin's explain for requests that change something.
func (w *Writer) explain(err error) error {
	if err == nil {
		return nil
	}
	r := minio.ToErrorResponse(err)
	switch {
	case r.Code == "NoSuchUpload":
		return fmt.Errorf("%w (%s)", ErrNoUpload, said(r))
	case r.Code == "NoSuchBucket":
		return fmt.Errorf("bucket %q: %w: make it, or name another", w.o.source.Bucket, errNoBucket)
	case r.Code == "InvalidPart", r.Code == "InvalidPartOrder", r.Code == "EntityTooSmall":
		return fmt.Errorf("%w (%s)", ErrParts, said(r))
	case r.StatusCode == http.StatusPreconditionFailed:
		return fmt.Errorf("an object of this name is there: %w", fs.ErrExist)
	case r.StatusCode == http.StatusNotImplemented, r.Code == "NotImplemented":
		return fmt.Errorf("the server does not know the request (%s): %w", said(r), errors.ErrUnsupported)
	case r.Code == "BadDigest", r.Code == "IncompleteBody", r.Code == "XAmzContentChecksumMismatch", r.Code == "RequestTimeout": // the bytes were lost on the way
		return fmt.Errorf("the server answers %s", said(r))
	case r.StatusCode == http.StatusInsufficientStorage, strings.Contains(r.Code, "Quota"), r.Code == "XMinioStorageFull":
		return fmt.Errorf("%w (%s): make room there", ErrFull, said(r))
	}
	text := w.o.explain(err)
	if errors.Is(text, fs.ErrPermission) && isDenied(r) {
		return fmt.Errorf("%w by the server (%s): check the credentials, and their right to s3:PutObject, s3:GetObject, s3:ListBucket and s3:AbortMultipartUpload", fs.ErrPermission, said(r))
	}
	return text
}
