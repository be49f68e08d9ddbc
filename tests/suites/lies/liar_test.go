package lies_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// liar is a server of one dataset, as a bucket of S3 or of Google's, as a container of Azure, or as a web server, that tells lies until it is told to be honest.
type liar struct {
	*httptest.Server
	files  map[string][]byte
	s3, gs bool
	az     bool
	hub    func(w http.ResponseWriter, r *http.Request) bool // answers as a Hugging Face Hub before the bucket; nil where there is none
	honest atomic.Bool
	read   func(x *exchange) bool // tells a lie about a range of a file, or leaves it to the truth
	list   func(x *exchange) bool // tells one about what there is: listings, an index, sizes
}

// exchange is a request, and what the truth about it would be.
type exchange struct {
	w        http.ResponseWriter
	r        *http.Request
	name     string // of a file, "" for the bucket
	data     []byte
	from, to int64 // of a range, its end beyond the last byte
	tag      string
	version  string // the header that has it
}

const (
	liarBucket = "bucket"
	liarDate   = "Thu, 01 Jan 2026 00:00:00 GMT"
)

func newLiar(t testing.TB, inS3 bool, files map[string][]byte, read, list func(x *exchange) bool) *liar {
	l := &liar{files: maps.Clone(files), s3: inS3, read: read, list: list}
	if !inS3 {
		l.files["index.json"] = indexOf(t, slices.Sorted(maps.Keys(files)))
	}
	return l.start(t)
}

// newGSLiar is newLiar as a bucket of Google's.
func newGSLiar(t testing.TB, files map[string][]byte, read, list func(x *exchange) bool) *liar {
	return (&liar{files: maps.Clone(files), gs: true, read: read, list: list}).start(t)
}

// newAzureLiar is newLiar as a container of Azure.
func newAzureLiar(t testing.TB, files map[string][]byte, read, list func(x *exchange) bool) *liar {
	return (&liar{files: maps.Clone(files), az: true, read: read, list: list}).start(t)
}

func (l *liar) start(t testing.TB) *liar {
	l.Server = httptest.NewUnstartedServer(l)
	l.Config.ErrorLog = log.New(io.Discard, "", 0) // of what was broken on purpose
	l.Start()
	t.Cleanup(func() { l.CloseClientConnections(); l.Close() })
	return l
}

func indexOf(t testing.TB, names []string) []byte {
	t.Helper()
	type chunk struct {
		Filename string `json:"filename"`
	}
	var chunks []chunk
	for _, name := range names {
		chunks = append(chunks, chunk{name})
	}
	index, err := json.Marshal(map[string]any{"chunks": chunks})
	must(t, err)
	return index
}

func (l *liar) source() string {
	if l.gs {
		return "gs://" + liarBucket + "?anonymous=true&endpoint=" + url.QueryEscape(l.URL)
	}
	if l.az {
		return "az://account/" + liarBucket + "?anonymous=true&endpoint=" + url.QueryEscape(l.URL+"/account")
	}
	if l.hub != nil {
		return "hf://datasets/org/name?anonymous=true&endpoint=" + l.URL
	}
	if l.s3 {
		return "s3://" + liarBucket + "?anonymous=true&endpoint=" + url.QueryEscape(l.URL)
	}
	return l.URL + "/" + liarBucket + "/"
}

// ServeHTTP implements [http.Handler].
func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.hub != nil && l.hub(w, r) {
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, l.root()), "/")
	x := &exchange{w: w, r: r, name: name, data: l.files[name], tag: fmt.Sprintf(`"%x-%d"`, name, len(l.files[name])), version: "ETag"}
	if l.gs {
		x.tag, x.version = gsGeneration(name, len(x.data)), "X-Goog-Generation"
	}
	from, to, ranged := blackbox.ParseRange(r.Header.Get("Range"))
	if ranged {
		x.from, x.to = from, to+1
	}
	tell := l.list
	if ranged && (l.s3 || l.gs || l.az || name != "index.json") {
		tell = l.read
	}
	if !l.honest.Load() && tell != nil && tell(x) {
		return
	}
	switch {
	case l.s3 && name == "" && r.URL.Query().Has("location"):
		x.text(http.StatusOK, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/">us-east-1</LocationConstraint>`)
	case l.s3 && name == "":
		l.page(x)
	case l.gs && name == "":
		l.gsPage(x)
	case l.az && name == "":
		l.azurePage(x)
	case x.data == nil:
		http.NotFound(w, r)
	case r.Method == http.MethodHead:
		x.head("Content-Length", strconv.Itoa(len(x.data)))
	default:
		x.answer(x.data[x.from:min(x.to, int64(len(x.data)))])
	}
}

// root is where the files lie.
func (l *liar) root() string {
	if l.gs {
		return "/storage/v1/b/" + liarBucket + "/o"
	}
	if l.az {
		return "/account/" + liarBucket
	}
	return "/" + liarBucket
}

// page lists a directory of the bucket.
func (l *liar) page(x *exchange) {
	prefix := x.r.URL.Query().Get("prefix")
	var text strings.Builder
	below := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(l.files)) {
		rest, ok := strings.CutPrefix(name, prefix)
		if dir, _, deep := strings.Cut(rest, "/"); ok && deep {
			below[prefix+dir+"/"] = true
		} else if ok {
			text.WriteString(entry(name, len(l.files[name])))
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(below)) {
		text.WriteString("<CommonPrefixes><Prefix>" + dir + "</Prefix></CommonPrefixes>")
	}
	x.text(http.StatusOK, listOf(text.String(), ""))
}

func entry(key string, size int) string {
	var escaped strings.Builder
	_ = xml.EscapeText(&escaped, []byte(key)) // a Builder takes all
	return fmt.Sprintf(`<Contents><Key>%s</Key><Size>%d</Size><ETag>"%x-%d"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>`,
		escaped.String(), size, key, size)
}

// listOf makes a page of a listing, after which one follows where there is a token.
func listOf(entries, token string) string {
	more := ""
	if token != "" {
		more = "<IsTruncated>true</IsTruncated><NextContinuationToken>" + token + "</NextContinuationToken>"
	}
	return `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">` + more + entries + `</ListBucketResult>`
}

// head sends no body, with the headers that the truth has, and others.
func (x *exchange) head(others ...string) {
	x.headers(others...)
	x.w.WriteHeader(http.StatusOK)
}

func (x *exchange) headers(others ...string) {
	h := x.w.Header()
	h.Set(x.version, x.tag)
	h.Set("Last-Modified", liarDate)
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

// truth is the range that was asked for, as a Content-Range says it.
func (x *exchange) truth() string {
	return fmt.Sprintf("bytes %d-%d/%d", x.from, x.to-1, len(x.data))
}

// answer sends a body as the range that was asked for, with other headers in place of the true ones, "" for none. Where it
// has another length than the true one, the lie is consistent with itself.
func (x *exchange) answer(body []byte, others ...string) {
	x.headers(append([]string{"Content-Range", x.truth(), "Content-Length", strconv.Itoa(len(body))}, others...)...)
	x.w.WriteHeader(http.StatusPartialContent)
	_, _ = x.w.Write(body) // they may have hung up
}

func (x *exchange) text(status int, body string) {
	h := x.w.Header()
	h.Set("Content-Type", "application/xml")
	x.w.WriteHeader(status)
	_, _ = io.WriteString(x.w, body) // they may have hung up
}

// right are the bytes that were asked for.
func (x *exchange) right() []byte { return x.data[x.from:min(x.to, int64(len(x.data)))] }

// wire writes an answer as it goes over the wire, and hangs up. Each part is a string or a []byte.
func (x *exchange) wire(status string, parts ...any) {
	c, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(err)
	}
	defer func() { _ = c.Close() }() // they may have hung up
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\n%s: %s\r\nLast-Modified: %s\r\n", status, x.version, x.tag, liarDate)
	for _, p := range parts {
		if text, ok := p.(string); ok {
			p = []byte(text)
		}
		if _, err := c.Write(p.([]byte)); err != nil {
			return
		}
	}
}

// forever sends a text again and again, until they hang up or the test ends.
func (x *exchange) forever(text string, pause time.Duration) {
	for {
		if _, err := io.WriteString(x.w, text); err != nil {
			return
		}
		if pause == 0 {
			continue
		}
		if err := http.NewResponseController(x.w).Flush(); err != nil {
			return
		}
		select {
		case <-x.r.Context().Done():
			return
		case <-time.After(pause):
		}
	}
}
