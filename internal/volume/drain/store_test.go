package drain

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// store is an S3 server in memory, which can fail and lie.
type store struct {
	*httptest.Server
	t testing.TB

	connections atomic.Int64 // that are open

	mu      sync.Mutex // guards the fields below
	objects map[string]*object
	uploads map[string]*multipart
	parts   map[string]int // how often each part, and each object in one request, was stored
	calls   []string
	ids     int

	noSums, noConditions bool
	// before is asked for each request, and may answer it itself, or give what is done instead of answering after it was carried out.
	before func(op, key string, w http.ResponseWriter, r *http.Request) (handled bool, after func(http.ResponseWriter))
}

type object struct {
	data      []byte
	etag, crc string
}

type multipart struct {
	key   string
	parts map[int]*object
}

// environment is that of all tests.
func environment() map[string]string {
	return map[string]string{
		"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "", "AWS_REGION": "us-east-1",
		"AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "", "NO_PROXY": "*", "AWS_WEB_IDENTITY_TOKEN_FILE": "",
	}
}

func newStore(t testing.TB) *store {
	s := &store{t: t, objects: map[string]*object{}, uploads: map[string]*multipart{}, parts: map[string]int{}}
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of connections that it cuts
	s.Config.ConnState = func(_ net.Conn, now http.ConnState) {
		switch now {
		case http.StateNew:
			s.connections.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.connections.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func (s *store) url(prefix string) string { return "s3://bucket/" + prefix + "?endpoint=" + s.URL }

// operation names a request.
func operation(r *http.Request) string {
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodPost && q.Has("uploads"):
		return "begin"
	case r.Method == http.MethodPost && q.Has("uploadId"):
		return "complete"
	case r.Method == http.MethodPut && q.Has("partNumber"):
		return "part"
	case r.Method == http.MethodPut:
		return "put"
	case r.Method == http.MethodDelete && q.Has("uploadId"):
		return "abort"
	case r.Method == http.MethodDelete:
		return "delete"
	case q.Has("list-type"):
		return "list"
	case q.Has("uploads"):
		return "uploads"
	case q.Has("uploadId"):
		return "parts"
	case r.Method == http.MethodHead:
		return "head"
	}
	return "get"
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/bucket"), "/")
	op := operation(r)
	s.mu.Lock()
	before := s.before
	s.calls = append(s.calls, op+" "+key)
	s.mu.Unlock()
	if before != nil {
		handled, after := before(op, key, w, r)
		if handled {
			return
		}
		if after != nil {
			s.serve(httptest.NewRecorder(), r, op, key)
			after(w)
			return
		}
	}
	s.serve(w, r, op, key)
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>as the test wants</Message></Error>", code)
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/xml")
	text, _ := xml.Marshal(v)
	_, _ = w.Write(text)
}

func crcOf(data []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))))
}

// take reads the body of a request, and compares it with the checksum that it has.
func (s *store) take(w http.ResponseWriter, r *http.Request) *object {
	data := make([]byte, max(r.ContentLength, 0)) // at once: what grows is copied, and the race detector looks at each copy
	if _, err := io.ReadFull(r.Body, data); err != nil || r.ContentLength < 0 {
		return nil
	}
	o := &object{data: data, etag: fmt.Sprintf("%x", md5.Sum(data))}
	if want := r.Header.Get("X-Amz-Checksum-Crc32c"); want != "" && !s.noSums {
		if o.crc = crcOf(data); want != o.crc {
			fail(w, http.StatusBadRequest, "BadDigest")
			return nil
		}
		w.Header().Set("X-Amz-Checksum-Crc32c", o.crc)
	}
	w.Header().Set("ETag", `"`+o.etag+`"`)
	return o
}

func (s *store) serve(w http.ResponseWriter, r *http.Request, op, key string) {
	q := r.URL.Query()
	switch op {
	case "put", "part":
		o := s.take(w, r)
		if o == nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if op == "put" {
			s.put(w, r, key, o)
			return
		}
		u := s.uploads[q.Get("uploadId")]
		if u == nil {
			w.Header().Del("ETag")
			fail(w, http.StatusNotFound, "NoSuchUpload")
			return
		}
		n, _ := strconv.Atoi(q.Get("partNumber"))
		u.parts[n] = o
		s.parts[fmt.Sprintf("%s %d", key, n)]++
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch op {
	case "begin":
		s.ids++
		id := fmt.Sprintf("upload-%d", s.ids)
		s.uploads[id] = &multipart{key: key, parts: map[int]*object{}}
		reply(w, struct {
			XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
			UploadId string
		}{UploadId: id})
	case "complete":
		s.complete(w, r, key, q.Get("uploadId"))
	case "abort":
		delete(s.uploads, q.Get("uploadId"))
		w.WriteHeader(http.StatusNoContent)
	case "delete":
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case "list":
		s.list(w, q)
	case "uploads":
		s.listUploads(w, q.Get("prefix"))
	case "parts":
		s.listParts(w, q.Get("uploadId"))
	case "head", "get":
		o := s.objects[key]
		if o == nil {
			fail(w, http.StatusNotFound, "NoSuchKey")
			return
		}
		w.Header().Set("ETag", `"`+o.etag+`"`)
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Length", strconv.Itoa(len(o.data)))
		if o.crc != "" {
			w.Header().Set("X-Amz-Checksum-Crc32c", o.crc)
		}
		if op == "get" {
			_, _ = w.Write(o.data)
		}
	}
}

func (s *store) refuses(w http.ResponseWriter, r *http.Request, key string) bool {
	if r.Header.Get("If-None-Match") == "" {
		return false
	}
	w.Header().Del("ETag")
	switch {
	case s.noConditions:
		fail(w, http.StatusNotImplemented, "NotImplemented")
	case s.objects[key] != nil:
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
	default:
		return false
	}
	return true
}

func (s *store) put(w http.ResponseWriter, r *http.Request, key string, o *object) {
	if s.refuses(w, r, key) {
		return
	}
	if etag := w.Header().Get("ETag"); etag == "" {
		w.Header().Set("ETag", `"`+o.etag+`"`)
	}
	s.objects[key] = o
	s.parts[key]++
}

func (s *store) complete(w http.ResponseWriter, r *http.Request, key, id string) {
	u := s.uploads[id]
	if u == nil {
		fail(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	if s.refuses(w, r, key) {
		return
	}
	var asked struct {
		Part []struct {
			PartNumber           int
			ETag, ChecksumCRC32C string
		}
	}
	if xml.NewDecoder(r.Body).Decode(&asked) != nil {
		fail(w, http.StatusBadRequest, "MalformedXML")
		return
	}
	o, tags, crcs := &object{}, []byte{}, []byte{}
	size := 0
	for _, part := range u.parts {
		size += len(part.data)
	}
	o.data = make([]byte, 0, size)
	for _, p := range asked.Part {
		part := u.parts[p.PartNumber]
		if part == nil || part.etag != strings.Trim(p.ETag, `"`) || part.crc != p.ChecksumCRC32C {
			fail(w, http.StatusBadRequest, "InvalidPart")
			return
		}
		o.data = append(o.data, part.data...)
		sum, _ := hex.DecodeString(part.etag) // which take made
		tags = append(tags, sum...)
		crcs = binary.BigEndian.AppendUint32(crcs, crc32.Checksum(part.data, crc32.MakeTable(crc32.Castagnoli)))
	}
	o.etag = fmt.Sprintf("%x-%d", md5.Sum(tags), len(asked.Part))
	if !s.noSums {
		o.crc = fmt.Sprintf("%s-%d", crcOf(crcs), len(asked.Part))
	}
	s.objects[key] = o
	delete(s.uploads, id)
	reply(w, struct {
		XMLName                           xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key, ETag, ChecksumCRC32C string
	}{Bucket: "bucket", Key: key, ETag: `"` + o.etag + `"`, ChecksumCRC32C: o.crc})
}

func (s *store) list(w http.ResponseWriter, q url.Values) {
	prefix, delimiter := q.Get("prefix"), q.Get("delimiter")
	var page struct {
		XMLName      xml.Name `xml:"ListBucketResult"`
		EncodingType string
		IsTruncated  bool
		Contents     []struct {
			Key, ETag, LastModified string
			Size                    int
		}
		CommonPrefixes []struct{ Prefix string }
	}
	page.EncodingType = "url"
	dirs := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		if i := strings.Index(rest, "/"); delimiter != "" && i >= 0 {
			dirs[prefix+rest[:i+1]] = true
			continue
		}
		page.Contents = append(page.Contents, struct {
			Key, ETag, LastModified string
			Size                    int
		}{url.QueryEscape(key), `"` + s.objects[key].etag + `"`, time.Now().UTC().Format(time.RFC3339), len(s.objects[key].data)})
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		page.CommonPrefixes = append(page.CommonPrefixes, struct{ Prefix string }{url.QueryEscape(dir)})
	}
	reply(w, page)
}

func (s *store) listUploads(w http.ResponseWriter, prefix string) {
	var page struct {
		XMLName xml.Name `xml:"ListMultipartUploadsResult"`
		Upload  []struct {
			Key      string
			UploadId string
		}
	}
	for id, u := range s.uploads {
		if strings.HasPrefix(u.key, prefix) {
			page.Upload = append(page.Upload, struct {
				Key      string
				UploadId string
			}{u.key, id})
		}
	}
	reply(w, page)
}

func (s *store) listParts(w http.ResponseWriter, id string) {
	u := s.uploads[id]
	if u == nil {
		fail(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	var page struct {
		XMLName xml.Name `xml:"ListPartsResult"`
		Part    []struct {
			PartNumber, Size     int
			ETag, ChecksumCRC32C string
		}
	}
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		p := u.parts[n]
		page.Part = append(page.Part, struct {
			PartNumber, Size     int
			ETag, ChecksumCRC32C string
		}{n, len(p.data), `"` + p.etag + `"`, p.crc})
	}
	reply(w, page)
}

// set changes the server while nothing is carried out.
func (s *store) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// keys are the names of all objects.
func (s *store) keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// mostStored is how often the part that was stored most often was.
func (s *store) mostStored() (name string, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for what, n := range s.parts {
		if n > times && !strings.Contains(what, StateName) {
			name, times = what, n
		}
	}
	return name, times
}
