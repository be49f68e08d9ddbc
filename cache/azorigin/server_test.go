package azorigin

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// service answers for one container as Azure's API is documented. before may answer in its place.
type service struct {
	*httptest.Server
	before func(w http.ResponseWriter, r *http.Request) (answered bool)
	page   int // entries of a page

	mu      sync.Mutex
	objects map[string]stored
	count   int64
}

type stored struct {
	data             []byte
	etag             string
	encoding         string
	folder, resource bool // marked as a directory by metadata, or by a hierarchical namespace
}

func newService(t testing.TB) *service {
	s := &service{objects: map[string]stored{}, page: 3}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *service) put(name string, o stored) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	o.etag = fmt.Sprintf("0x8D%013X", s.count)
	s.objects[name] = o
}

func (s *service) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, name)
}

// refuse answers with an error as Azure writes it.
func refuse(w http.ResponseWriter, status int, code, message string, more ...string) {
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("X-Ms-Error-Code", code)
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "\ufeff<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>%s</Code><Message>%s\nRequestId:1f\nTime:2026-01-01T00:00:00Z</Message>%s</Error>",
		code, message, strings.Join(more, "")) // they may have hung up
}

// ServeHTTP implements [http.Handler].
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.before != nil && s.before(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), "/account/container")
	name, err := url.PathUnescape(strings.TrimPrefix(path, "/"))
	if !ok || err != nil {
		refuse(w, http.StatusNotFound, "ContainerNotFound", "The specified container does not exist.")
		return
	}
	if path == "" {
		s.list(w, r)
		return
	}
	o, ok := s.objects[name]
	switch want := r.Header.Get("If-Match"); {
	case !ok:
		refuse(w, http.StatusNotFound, "BlobNotFound", "The specified blob does not exist.")
	case want != "" && want != `"`+o.etag+`"`:
		refuse(w, http.StatusPreconditionFailed, "ConditionNotMet", "The condition specified using HTTP conditional header(s) is not met.")
	default:
		o.send(w, r)
	}
}

func sumOf(data []byte) string {
	sum := md5.Sum(data)
	return base64.StdEncoding.EncodeToString(sum[:])
}

func (o stored) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("ETag", `"`+o.etag+`"`)
	h.Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
	h.Set("Content-Type", "application/octet-stream")
	if o.encoding != "" {
		h.Set("Content-Encoding", o.encoding)
	}
	if o.folder {
		h.Set("X-Ms-Meta-Hdi_isfolder", "true")
	}
	if o.resource {
		h.Set("X-Ms-Resource-Type", "directory")
	}
	if r.Method == http.MethodHead {
		h.Set("Content-MD5", sumOf(o.data))
		h.Set("Content-Length", strconv.Itoa(len(o.data)))
		return
	}
	h.Set("X-Ms-Blob-Content-Md5", sumOf(o.data))
	from, to, _ := blackbox.ParseRange(r.Header.Get("Range"))
	if from >= int64(len(o.data)) {
		refuse(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange", "The range specified is invalid for the current size of the resource.")
		return
	}
	part := o.data[from:min(to+1, int64(len(o.data)))]
	h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, from+int64(len(part))-1, len(o.data)))
	h.Set("Content-Length", strconv.Itoa(len(part)))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write(part) // they may have hung up
}

func nameOf(name string) string {
	if strings.ContainsAny(name, "\x01\uffff") {
		return `<Name Encoded="true">` + url.PathEscape(name) + "</Name>"
	}
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(name)) // a Builder takes all
	return "<Name>" + b.String() + "</Name>"
}

func (o stored) entry(name string) string {
	more, metadata := "", "<Metadata />"
	if o.encoding != "" {
		more = "<Content-Encoding>" + o.encoding + "</Content-Encoding>"
	}
	if o.resource {
		more += "<ResourceType>directory</ResourceType>"
	}
	if o.folder {
		metadata = "<Metadata><other>1</other><Hdi_isfolder>true</Hdi_isfolder></Metadata>"
	}
	return fmt.Sprintf("<Blob>%s<Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Etag>%s</Etag><Content-Length>%d</Content-Length>"+
		"<Content-MD5>%s</Content-MD5><BlobType>BlockBlob</BlobType>%s</Properties>%s<OrMetadata /></Blob>", nameOf(name), o.etag, len(o.data), sumOf(o.data), more, metadata)
}

// list gives a page of a directory. Its marker is the last name of the page before.
func (s *service) list(w http.ResponseWriter, r *http.Request) {
	prefix, after := r.FormValue("prefix"), r.FormValue("marker")
	var entries []string
	last, next := "", ""
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		rest, ok := strings.CutPrefix(name, prefix)
		entry := name
		dir, _, deep := strings.Cut(rest, "/")
		if deep {
			entry = prefix + dir + "/"
		}
		if !ok || entry <= after || entry == last {
			continue
		}
		if len(entries) == s.page {
			next = url.QueryEscape(last)
			break
		}
		if last = entry; !deep {
			entries = append(entries, s.objects[name].entry(name))
		} else {
			entries = append(entries, "<BlobPrefix>"+nameOf(entry)+"</BlobPrefix>")
		}
	}
	next, _ = url.QueryUnescape(next) // it is escaped above
	var marker strings.Builder
	_ = xml.EscapeText(&marker, []byte(next)) // a Builder takes all
	w.Header().Set("Content-Type", "application/xml")
	_, _ = fmt.Fprintf(w, `%s<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="x" ContainerName="container"><Prefix>p</Prefix><Blobs>%s</Blobs><NextMarker>%s</NextMarker></EnumerationResults>`,
		"\ufeff", strings.Join(entries, ""), marker.String()) // they may have hung up
}

// noEnvironment takes all credentials out of the environment.
func noEnvironment(t testing.TB) {
	set := t.(interface{ Setenv(string, string) }).Setenv
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "AZURE_") || strings.HasPrefix(name, "IDENTITY_") || strings.HasPrefix(name, "MSI_") {
			set(name, "") // and it is set again when the test ends
			_ = os.Unsetenv(name)
		}
	}
	set("HOME", t.TempDir())
	set("PATH", "") // neither az nor pwsh
}

// openAt opens az://account/container at a server.
func openAt(t testing.TB, endpoint, options string, opt fetch.Options) *Container {
	t.Helper()
	return openPath(t, endpoint, "", options, opt)
}

func openPath(t testing.TB, endpoint, path, options string, opt fetch.Options) *Container {
	t.Helper()
	s, err := Parse("az://account/container/" + path + "?endpoint=" + url.QueryEscape(endpoint+"/account") + options)
	if err != nil {
		t.Fatal(err)
	}
	if opt.Patience == 0 {
		opt.Patience = time.Minute
	}
	o, err := Open(s, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

func TestContract(t *testing.T) {
	noEnvironment(t)
	origintest.Run(t, func(t *testing.T) origintest.Fixture {
		s := newService(t)
		return origintest.Fixture{
			Open:   func(t testing.TB) origintest.Subject { return openAt(t, s.URL, "&anonymous=true", fetch.Options{}) },
			Put:    func(_ testing.TB, name string, data []byte) { s.put(name, stored{data: data}) },
			Remove: func(_ testing.TB, name string) { s.remove(name) },
			Names:  []string{"a b", "100%", "ü", "a/+", "q?x=1&y", "dir#1/x", "..x", "z/..x/y", "a%2Fb", "a&b<c", "x\uffffy", "100%41"},
		}
	})
}
