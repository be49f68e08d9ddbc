package azorigin

import (
	"bytes"
	"context"
	"encoding/xml"
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

// Bounds of one page of a listing. An object has a name of up to fetch.MostName characters and 8 KiB of metadata.
const (
	pageNames = 1000
	mostPage  = 10 << 20 // bytes
	mostToken = 1 << 20  // bytes
	mostDepth = 16       // elements in each other: each takes memory
)

// text is a name of a listing, which is percent-encoded where XML cannot have it.
type text struct {
	Encoded bool   `xml:"Encoded,attr"`
	Text    string `xml:",chardata"`
}

func (t text) name() (string, error) {
	if !t.Encoded {
		return t.Text, nil
	}
	name, err := url.PathUnescape(t.Text)
	if err != nil {
		return "", fmt.Errorf("%w: the server lists %.100q, which is not as it encodes names", fs.ErrInvalid, t.Text)
	}
	return name, nil
}

// blob is an object of a listing, or a directory.
type blob struct {
	Name       text       `xml:"Name"`
	Properties properties `xml:"Properties"`
	Metadata   metadata   `xml:"Metadata"`
}

type properties struct {
	Etag     string `xml:"Etag"`
	Size     string `xml:"Content-Length"`
	MD5      string `xml:"Content-MD5"`
	Encoding string `xml:"Content-Encoding"`
	Modified string `xml:"Last-Modified"`
	Resource string `xml:"ResourceType"` // directory, where the account has a hierarchical namespace
}

// metadata knows whether an object stands for a directory, as Hadoop's clients and those of a hierarchical namespace mark it.
type metadata struct{ folder bool }

// UnmarshalXML implements [xml.Unmarshaler].
func (m *metadata) UnmarshalXML(d *xml.Decoder, _ xml.StartElement) error {
	for {
		t, err := d.Token()
		if err != nil {
			return err
		}
		switch t := t.(type) {
		case xml.EndElement:
			return nil
		case xml.StartElement:
			var value string
			if err := d.DecodeElement(&value, &t); err != nil {
				return err
			}
			m.folder = m.folder || strings.EqualFold(t.Name.Local, folderMark) && strings.EqualFold(strings.TrimSpace(value), "true")
		}
	}
}

const folderMark = "hdi_isfolder"

// page is a page of a listing.
type page struct {
	blobs    []blob
	prefixes []string
	next     string
}

// List lists the objects below the prefix, the directories side by side. The prefix may also name one object.
func (o *Container) List(ctx context.Context) (*cache.Listing, error) {
	w := walk{o, o.NewListing()}
	return fetch.List(ctx, o, o.source.Prefix, o.source.dir, o.one, w.dir)
}

// one looks for an object whose name is the whole prefix, nil if it is a directory.
func (o *Container) one(ctx context.Context, name string) (obj *layout.Object, err error) {
	err = o.Retry(ctx, func(ctx context.Context, _ func()) error {
		res, err := o.do(ctx, question{endpoint: o.source.Endpoint, method: http.MethodHead, name: name})
		if err != nil {
			return err
		}
		_ = res.Body.Close() // there is none
		h := res.Header
		if strings.EqualFold(h.Get("X-Ms-Meta-"+folderMark), "true") || h.Get("X-Ms-Resource-Type") == "directory" {
			return nil
		}
		b := blob{Name: text{Text: name}, Properties: properties{
			Etag: h.Get("ETag"), Size: h.Get("Content-Length"), MD5: h.Get("Content-MD5"), Encoding: h.Get("Content-Encoding"), Modified: h.Get("Last-Modified"),
		}}
		o.source.dir = name[:strings.LastIndexByte(name, '/')+1]
		obj, err = o.object(&b, name)
		return err
	})
	return obj, err
}

type walk struct {
	origin  *Container
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
		return objects, p.prefixes, p.next, err
	})
}

// page asks for one page.
func (w *walk) page(ctx context.Context, prefix, token string) (*page, error) {
	query := url.Values{"restype": {"container"}, "comp": {"list"}, "delimiter": {"/"}, "include": {"metadata"}, "maxresults": {strconv.Itoa(pageNames)}}
	if prefix != "" {
		query.Set("prefix", prefix)
	}
	if token != "" {
		query.Set("marker", token)
	}
	res, err := w.origin.do(ctx, question{endpoint: w.origin.source.Endpoint, query: query})
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }() // it is read
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: it answers %.80q", fetch.ErrLie, res.Status)
	}
	if err := fetch.Unencoded(res.Header); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, mostPage+1)) // first: a server may send faster than XML is parsed
	if err != nil {
		return nil, err
	}
	if len(body) > mostPage {
		return nil, fmt.Errorf("%w: a page of the server's listing has more than %d bytes, which no %d names have", fs.ErrInvalid, mostPage, pageNames)
	}
	p, err := readPage(xml.NewTokenDecoder(newBounded(body)))
	if err != nil && !errors.Is(err, fs.ErrInvalid) {
		err = fmt.Errorf("the server's listing cannot be read: %w", err)
	}
	return p, err
}

// bounded refuses documents that are deeper than a listing, or have longer elements: either takes much more memory than its text.
type bounded struct {
	*xml.Decoder
	token *io.LimitedReader
	depth int
}

func newBounded(body []byte) *bounded {
	r := &io.LimitedReader{R: bytes.NewReader(body)}
	return &bounded{xml.NewDecoder(r), r, 0}
}

// Token implements [xml.TokenReader].
func (s *bounded) Token() (xml.Token, error) {
	s.token.N = mostToken
	t, err := s.RawToken()
	if err != nil && s.token.N == 0 {
		return nil, fmt.Errorf("%w: an element of the server's listing has more than %d bytes", fs.ErrInvalid, mostToken)
	}
	switch t.(type) {
	case xml.StartElement:
		s.depth++
	case xml.EndElement:
		s.depth--
	}
	if s.depth > mostDepth {
		return nil, fmt.Errorf("%w: the server's listing has elements in each other deeper than any listing", fs.ErrInvalid)
	}
	return t, err
}

// readPage reads a page.
func readPage(d *xml.Decoder) (*page, error) {
	p, path := &page{}, []string(nil)
	for {
		t, err := d.Token()
		if err != nil {
			if errors.Is(err, io.EOF) { // an end in the middle is a syntax error, unless nothing has come
				err = errors.New("it ends early")
			}
			return nil, err
		}
		switch t := t.(type) {
		case xml.EndElement:
			if path = path[:len(path)-1]; len(path) == 0 {
				return p, nil
			}
		case xml.StartElement:
			if len(path) == 0 && t.Name.Local != "EnumerationResults" {
				return nil, fmt.Errorf("%w: the server answers with %.40q where a listing was asked for: is this address a server of Azure Blob Storage?", fs.ErrInvalid, t.Name.Local)
			}
			if len(path) == 1 && t.Name.Local == "Blobs" || len(path) == 0 {
				path = append(path, t.Name.Local)
				continue
			}
			if err := p.element(d, t, len(path) == 2); err != nil {
				return nil, err
			}
		}
	}
}

// element reads an element of the page, or of its list.
func (p *page) element(d *xml.Decoder, t xml.StartElement, inList bool) error {
	switch {
	case !inList && t.Name.Local == "NextMarker":
		return d.DecodeElement(&p.next, &t)
	case !inList || t.Name.Local != "Blob" && t.Name.Local != "BlobPrefix":
		return d.Skip()
	case len(p.blobs)+len(p.prefixes) == pageNames:
		return fmt.Errorf("%w: a page of the server's listing has more than the %d names that were asked for", fs.ErrInvalid, pageNames)
	}
	var b blob
	if err := d.DecodeElement(&b, &t); err != nil {
		return err
	}
	if t.Name.Local == "Blob" {
		p.blobs = append(p.blobs, b)
		return nil
	}
	name, err := b.Name.name()
	p.prefixes = append(p.prefixes, name)
	return err
}

// take checks a page.
func (w *walk) take(prefix string, p *page) (objects []*layout.Object, err error) {
	for i := range p.blobs {
		b := &p.blobs[i]
		name, err := b.Name.name()
		if err != nil {
			return nil, err
		}
		obj, err := w.origin.object(b, name)
		if err == nil {
			err = w.listing.AddBelow(prefix, name, obj.Version)
		}
		if err != nil {
			return nil, err
		}
		if isDir := b.Metadata.folder || b.Properties.Resource == "directory" || strings.HasSuffix(name, "/"); !isDir || obj.Size > 0 {
			objects = append(objects, obj)
		}
	}
	return objects, w.listing.AddDirectories(prefix, p.prefixes)
}

// object makes an object of a blob of a listing. One without a version or with a size that cannot be becomes a problem of the listing.
func (o *Container) object(b *blob, name string) (*layout.Object, error) {
	p := &b.Properties
	size, err := strconv.ParseInt(p.Size, 10, 64)
	if err != nil && b.Metadata.folder || p.Resource == "directory" {
		size, err = 0, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the server lists %.100q with the size %.40q", fs.ErrInvalid, name, p.Size)
	}
	version := ""
	if v := versionOf(p.Etag, p.MD5, p.Encoding); v.etag != "" {
		version = v.String()
	}
	modified, err := time.Parse(time.RFC1123, p.Modified)
	if err != nil {
		modified = time.Time{} // the date of an object is no part of its version
	}
	return &layout.Object{Name: strings.TrimPrefix(name, o.source.dir), Size: size, ModTime: modified, Version: version, Origin: o}, nil
}
