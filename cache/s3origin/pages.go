package s3origin

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"github.com/minio/minio-go/v7"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// Bounds of one page of a listing. S3 gives at most 1,000 keys of up to fetch.MostName bytes, escaped or not.
const (
	pageKeys     = 1000
	mostPage     = 4 << 20      // bytes
	mostEntries  = 2 * pageKeys // keys and directories, where a server counts them apart
	mostElements = 40 * pageKeys
)

type pagesKey struct{}

// withPages has requests under a context belong to one run through the listing of a directory. minio-go asks for the pages and
// parses them; the transport shows them to [fetch.Pages] as they pass.
func withPages(ctx context.Context) context.Context {
	return context.WithValue(ctx, pagesKey{}, fetch.NewPages())
}

// page is the body of one page. It counts the memory that a parser would need, before the parser runs: an element of
// a few bytes becomes hundreds in memory.
type page struct {
	io.ReadCloser
	pages             *fetch.Pages
	read              int64
	start             []byte // of the text, until its first element is known
	elements, entries int
	begun, named      bool   // behind a <, and in the name of an element
	tag               []byte // of it, as far as it is read, without its name space
}

// Read implements [io.Reader].
func (b *page) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.read += int64(n); b.read > mostPage {
		return 0, fmt.Errorf("%w: a page of the server's listing has more than %d bytes, which no %d keys have", fs.ErrInvalid, mostPage, pageKeys)
	}
	if b.elements == 0 {
		b.start = append(b.start, p[:n]...)
	}
	for _, c := range p[:n] {
		if err := b.see(c); err != nil {
			return 0, err
		}
	}
	return n, err
}

// failure is the error that the server sends with status 200: it began to answer before it knew.
func (b *page) failure() error {
	rest, err := io.ReadAll(io.LimitReader(b.ReadCloser, mostBody))
	if err != nil {
		return err
	}
	said := minio.ErrorResponse{StatusCode: http.StatusOK}
	if err := xml.Unmarshal(append(b.start, rest...), &said); err != nil {
		return fmt.Errorf("the server answers with an error that cannot be read: %w", err)
	}
	return said
}

// see follows the text far enough to know the elements that begin in it. Outside of tags XML has no <.
func (b *page) see(c byte) error {
	begun := b.begun
	b.begun = c == '<'
	switch {
	case b.begun:
		b.named, b.tag = false, b.tag[:0]
	case begun && (c == '/' || c == '?' || c == '!'): // an end, or no element
	case begun || b.named:
		if b.named = bytes.IndexByte([]byte(" \t\r\n/>"), c) < 0; !b.named {
			return b.element()
		}
		if c == ':' {
			b.tag = b.tag[:0]
		} else if len(b.tag) < 32 {
			b.tag = append(b.tag, c)
		}
	}
	return nil
}

// element counts the element whose name was read.
func (b *page) element() error {
	if b.elements++; b.elements == 1 && string(b.tag) == "Error" {
		return b.failure()
	} else if b.elements == 1 && string(b.tag) != "ListBucketResult" {
		return fmt.Errorf("%w: the server answers with %.40q where a listing was asked for: is this address an S3 server's?", fs.ErrInvalid, b.tag)
	}
	if entry := string(b.tag); entry == "Contents" || entry == "CommonPrefixes" {
		b.entries++
		b.pages.Found()
	}
	if b.entries > mostEntries || b.elements > mostElements {
		return fmt.Errorf("%w: a page of the server's listing has more than the %d keys that were asked for", fs.ErrInvalid, pageKeys)
	}
	return nil
}
