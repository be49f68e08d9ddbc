// Package liar is a server of one dataset, as a bucket, a Hub or a web server, that tells lies about bytes and listings. The suites over such
// servers share it.
package liar

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Liar is a server of one dataset, as a bucket of S3 or of Google's, or as a web server, that tells lies until it is told to be honest.
type Liar struct {
	*httptest.Server
	Files  map[string][]byte
	s3, gs bool
	hub    func(w http.ResponseWriter, r *http.Request) bool // answers as a Hugging Face Hub before the bucket; nil where there is none
	Honest atomic.Bool
	read   func(x *Exchange) bool // tells a lie about a range of a file, or leaves it to the truth
	list   func(x *Exchange) bool // tells one about what there is: listings, an index, sizes
}

// Exchange is a request, and what the truth about it would be.
type Exchange struct {
	W        http.ResponseWriter
	R        *http.Request
	Name     string // of a file, "" for the bucket
	Data     []byte
	From, To int64 // of a range, its end beyond the last byte
	Tag      string
	version  string // the header that has it
}

// Bucket is the name of the bucket, or of the directory of a web server.
const Bucket = "bucket"

const date = "Thu, 01 Jan 2026 00:00:00 GMT"

// Maker makes a liar of files. It serves until the test ends, and tells lies by read and list, nil for the truth.
type Maker func(t testing.TB, files map[string][]byte, read, list func(x *Exchange) bool) *Liar

// Of is the maker of a kind: s3, gs, hf or http.
func Of(kind string) Maker {
	return map[string]Maker{"s3": S3, "gs": GS, "hf": Hub, "http": HTTP}[kind]
}

// S3 makes a bucket of S3.
func S3(t testing.TB, files map[string][]byte, read, list func(x *Exchange) bool) *Liar {
	return (&Liar{Files: maps.Clone(files), s3: true, read: read, list: list}).start(t)
}

// GS makes a bucket of Google's.
func GS(t testing.TB, files map[string][]byte, read, list func(x *Exchange) bool) *Liar {
	return (&Liar{Files: maps.Clone(files), gs: true, read: read, list: list}).start(t)
}

// HTTP makes a web server with an index of the files.
func HTTP(t testing.TB, files map[string][]byte, read, list func(x *Exchange) bool) *Liar {
	l := &Liar{Files: maps.Clone(files), read: read, list: list}
	l.Files["index.json"] = IndexOf(t, slices.Sorted(maps.Keys(files)))
	return l.start(t)
}

func (l *Liar) start(t testing.TB) *Liar {
	l.Server = httptest.NewUnstartedServer(l)
	l.Config.ErrorLog = log.New(io.Discard, "", 0) // of what was broken on purpose
	l.Start()
	t.Cleanup(func() { l.CloseClientConnections(); l.Close() })
	return l
}

// IndexOf is an index.json of files.
func IndexOf(t testing.TB, names []string) []byte {
	t.Helper()
	type chunk struct {
		Filename string `json:"filename"`
	}
	var chunks []chunk
	for _, name := range names {
		chunks = append(chunks, chunk{name})
	}
	index, err := json.Marshal(map[string]any{"chunks": chunks})
	blackbox.Must(t, err)
	return index
}

// Source is the address as a user gives it.
func (l *Liar) Source() string {
	if l.gs {
		return "gs://" + Bucket + "?anonymous=true&endpoint=" + url.QueryEscape(l.URL)
	}
	if l.hub != nil {
		return "hf://datasets/org/name?anonymous=true&endpoint=" + l.URL
	}
	if l.s3 {
		return "s3://" + Bucket + "?anonymous=true&endpoint=" + url.QueryEscape(l.URL)
	}
	return l.URL + "/" + Bucket + "/"
}

// ServeHTTP implements [http.Handler].
func (l *Liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.hub != nil && l.hub(w, r) {
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, l.root()), "/")
	x := &Exchange{W: w, R: r, Name: name, Data: l.Files[name], Tag: fmt.Sprintf(`"%x-%d"`, name, len(l.Files[name])), version: "ETag"}
	if l.gs {
		x.Tag, x.version = GSGeneration(name, len(x.Data)), "X-Goog-Generation"
	}
	from, to, ranged := blackbox.ParseRange(r.Header.Get("Range"))
	if ranged {
		x.From, x.To = from, to+1
	}
	tell := l.list
	if ranged && (l.s3 || l.gs || name != "index.json") {
		tell = l.read
	}
	if !l.Honest.Load() && tell != nil && tell(x) {
		return
	}
	switch {
	case l.s3 && name == "" && r.URL.Query().Has("location"):
		x.Text(http.StatusOK, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/">us-east-1</LocationConstraint>`)
	case l.s3 && name == "":
		l.page(x)
	case l.gs && name == "":
		l.gsPage(x)
	case x.Data == nil:
		http.NotFound(w, r)
	case r.Method == http.MethodHead:
		x.Head("Content-Length", strconv.Itoa(len(x.Data)))
	default:
		x.Answer(x.Data[x.From:min(x.To, int64(len(x.Data)))])
	}
}

// root is where the files lie.
func (l *Liar) root() string {
	if l.gs {
		return "/storage/v1/b/" + Bucket + "/o"
	}
	return "/" + Bucket
}

// page lists a directory of the bucket.
func (l *Liar) page(x *Exchange) {
	prefix := x.R.URL.Query().Get("prefix")
	var text strings.Builder
	below := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(l.Files)) {
		rest, ok := strings.CutPrefix(name, prefix)
		if dir, _, deep := strings.Cut(rest, "/"); ok && deep {
			below[prefix+dir+"/"] = true
		} else if ok {
			text.WriteString(Entry(name, len(l.Files[name])))
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(below)) {
		text.WriteString("<CommonPrefixes><Prefix>" + dir + "</Prefix></CommonPrefixes>")
	}
	x.Text(http.StatusOK, ListOf(text.String(), ""))
}

// Entry is an object in a listing of S3.
func Entry(key string, size int) string {
	var escaped strings.Builder
	_ = xml.EscapeText(&escaped, []byte(key)) // a Builder takes all
	return fmt.Sprintf(`<Contents><Key>%s</Key><Size>%d</Size><ETag>"%x-%d"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>`,
		escaped.String(), size, key, size)
}

// ListOf makes a page of a listing, after which one follows where there is a token.
func ListOf(entries, token string) string {
	more := ""
	if token != "" {
		more = "<IsTruncated>true</IsTruncated><NextContinuationToken>" + token + "</NextContinuationToken>"
	}
	return `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">` + more + entries + `</ListBucketResult>`
}

// Head sends no body, with the headers that the truth has, and others.
func (x *Exchange) Head(others ...string) {
	x.Headers(others...)
	x.W.WriteHeader(http.StatusOK)
}

// Headers sets the headers that the truth has, and others.
func (x *Exchange) Headers(others ...string) {
	h := x.W.Header()
	h.Set(x.version, x.Tag)
	h.Set("Last-Modified", date)
	h.Set("Content-Type", "application/octet-stream")
	for i := 0; i < len(others); i += 2 {
		name := others[i]
		if name == "ETag" {
			name = x.version
		}
		if h.Del(name); others[i+1] != "" {
			h.Set(name, others[i+1])
		}
	}
}

// Truth is the range that was asked for, as a Content-Range says it.
func (x *Exchange) Truth() string {
	return fmt.Sprintf("bytes %d-%d/%d", x.From, x.To-1, len(x.Data))
}

// Answer sends a body as the range that was asked for, with other headers in place of the true ones, "" for none. Where it
// has another length than the true one, the lie is consistent with itself.
func (x *Exchange) Answer(body []byte, others ...string) {
	x.Headers(append([]string{"Content-Range", x.Truth(), "Content-Length", strconv.Itoa(len(body))}, others...)...)
	x.W.WriteHeader(http.StatusPartialContent)
	_, _ = x.W.Write(body) // they may have hung up
}

// Text sends an XML document, or another text as one.
func (x *Exchange) Text(status int, body string) {
	h := x.W.Header()
	h.Set("Content-Type", "application/xml")
	x.W.WriteHeader(status)
	_, _ = io.WriteString(x.W, body) // they may have hung up
}

// Right are the bytes that were asked for.
func (x *Exchange) Right() []byte { return x.Data[x.From:min(x.To, int64(len(x.Data)))] }

// Wire writes an answer as it goes over the wire, and hangs up. Each part is a string or a []byte.
func (x *Exchange) Wire(status string, parts ...any) {
	c, _, err := http.NewResponseController(x.W).Hijack()
	if err != nil {
		panic(err)
	}
	defer func() { _ = c.Close() }() // they may have hung up
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\n%s: %s\r\nLast-Modified: %s\r\n", status, x.version, x.Tag, date)
	for _, p := range parts {
		if text, ok := p.(string); ok {
			p = []byte(text)
		}
		if _, err := c.Write(p.([]byte)); err != nil {
			return
		}
	}
}

// Forever sends a text again and again, until they hang up or the test ends.
func (x *Exchange) Forever(text string, pause time.Duration) {
	for {
		if _, err := io.WriteString(x.W, text); err != nil {
			return
		}
		if pause == 0 {
			continue
		}
		if err := http.NewResponseController(x.W).Flush(); err != nil {
			return
		}
		select {
		case <-x.R.Context().Done():
			return
		case <-time.After(pause):
		}
	}
}

// errOtherBytes is what no lie may lead to.
var errOtherBytes = errors.New("other bytes than the file's")

// ReadThrough reads a file to its end or an error, and compares all that came.
func ReadThrough(path string, want []byte) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	got := make([]byte, len(want)+1)
	n, err := io.ReadFull(f, got)
	switch {
	case !bytes.Equal(got[:n], want[:min(n, len(want))]):
		return fmt.Errorf("%w: within %d", errOtherBytes, n)
	case n == len(want) && errors.Is(err, io.ErrUnexpectedEOF):
		return nil
	case n != len(want) && (err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)):
		return fmt.Errorf("%w: it ends after %d of %d", errOtherBytes, n, len(want))
	}
	return err
}
