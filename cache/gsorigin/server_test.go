package gsorigin

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
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

// bucketServer answers for one bucket as the JSON API is documented. before may answer in its place.
type bucketServer struct {
	*httptest.Server
	before func(w http.ResponseWriter, r *http.Request) (answered bool)
	page   int // entries of a page

	mu      sync.Mutex
	objects map[string]stored
	count   int64
}

type stored struct {
	data       []byte
	generation int64
	encoding   string
}

func newServer(t testing.TB) *bucketServer {
	s := &bucketServer{objects: map[string]stored{}, count: 1_700_000_000_000_000, page: 3}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *bucketServer) put(name string, data []byte, encoding string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	s.objects[name] = stored{data, s.count, encoding}
}

func (s *bucketServer) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, name)
}

func sumOf(data []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))))
}

// refuse answers with an error as Google writes it.
func refuse(w http.ResponseWriter, status int, reason, message string) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{ // they may have hung up
		"code": status, "message": message, "errors": []any{map[string]any{"message": message, "domain": "global", "reason": reason}},
	}})
}

// ServeHTTP implements [http.Handler].
func (s *bucketServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.before != nil && s.before(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), "/storage/v1/b/bucket/o")
	name, err := url.PathUnescape(strings.TrimPrefix(path, "/"))
	if !ok || err != nil {
		refuse(w, http.StatusNotFound, "notFound", "The specified bucket does not exist.")
		return
	}
	if path == "" {
		s.list(w, r)
		return
	}
	o, ok := s.objects[name]
	switch want := r.FormValue("ifGenerationMatch"); {
	case !ok:
		refuse(w, http.StatusNotFound, "notFound", "No such object: bucket/"+name)
	case r.FormValue("alt") != "media":
		_ = json.NewEncoder(w).Encode(o.item(name)) // they may have hung up
	case want != "" && want != strconv.FormatInt(o.generation, 10):
		refuse(w, http.StatusPreconditionFailed, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
	case o.encoding == "gzip" && !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip"):
		_, _ = w.Write([]byte("decompressed")) // as Google does, which ignores the range
	default:
		o.send(w, r)
	}
}

func (o stored) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Goog-Generation", strconv.FormatInt(o.generation, 10))
	h.Add("X-Goog-Hash", "crc32c="+sumOf(o.data))
	h.Add("X-Goog-Hash", "md5=AAAA")
	h.Set("Content-Type", "application/octet-stream")
	if o.encoding != "" {
		h.Set("Content-Encoding", o.encoding)
	}
	from, to, _ := blackbox.ParseRange(r.Header.Get("Range"))
	if from >= int64(len(o.data)) {
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return
	}
	part := o.data[from:min(to+1, int64(len(o.data)))]
	h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, from+int64(len(part))-1, len(o.data)))
	h.Set("Content-Length", strconv.Itoa(len(part)))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write(part) // they may have hung up
}

func (o stored) item(name string) map[string]any {
	it := map[string]any{
		"kind": "storage#object", "name": name, "size": strconv.Itoa(len(o.data)), "generation": strconv.FormatInt(o.generation, 10), "crc32c": sumOf(o.data),
		"updated": time.Unix(o.generation/1_000_000, 0).UTC().Format(time.RFC3339Nano),
	}
	if o.encoding != "" {
		it["contentEncoding"] = o.encoding
	}
	return it
}

// list gives a page of a directory. Its token is the last name of the page before.
func (s *bucketServer) list(w http.ResponseWriter, r *http.Request) {
	prefix, after := r.FormValue("prefix"), r.FormValue("pageToken")
	answer := map[string]any{"kind": "storage#objects"}
	var items, prefixes []any
	last := ""
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		rest, ok := strings.CutPrefix(name, prefix)
		entry := name
		if dir, _, deep := strings.Cut(rest, "/"); deep {
			entry = prefix + dir + "/"
		}
		if !ok || entry <= after || entry == last {
			continue
		}
		if len(items)+len(prefixes) == s.page {
			answer["nextPageToken"] = last
			break
		}
		if last = entry; entry == name {
			items = append(items, s.objects[name].item(name))
		} else {
			prefixes = append(prefixes, entry)
		}
	}
	if items != nil {
		answer["items"] = items
	}
	if prefixes != nil {
		answer["prefixes"] = prefixes
	}
	_ = json.NewEncoder(w).Encode(answer) // they may have hung up
}

// noEnvironment takes all credentials out of the environment.
func noEnvironment(t testing.TB) {
	for _, name := range []string{variable, "CLOUDSDK_CONFIG", emulator} {
		t.(interface{ Setenv(string, string) }).Setenv(name, "")
	}
	t.(interface{ Setenv(string, string) }).Setenv("HOME", t.TempDir())
	t.(interface{ Setenv(string, string) }).Setenv(metadataVariable, "127.0.0.1:1") // no server listens there
}

// openAt opens gs://bucket at a server.
func openAt(t testing.TB, endpoint, options string, opt fetch.Options) *Bucket {
	t.Helper()
	s, err := Parse("gs://bucket?endpoint=" + url.QueryEscape(endpoint) + options)
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
		s := newServer(t)
		return origintest.Fixture{
			Open:   func(t testing.TB) origintest.Subject { return openAt(t, s.URL, "&anonymous=true", fetch.Options{}) },
			Put:    func(_ testing.TB, name string, data []byte) { s.put(name, data, "") },
			Remove: func(_ testing.TB, name string) { s.remove(name) },
			Names:  []string{"a b", "100%", "ü", "a/+", "q?x=1&y", "dir#1/x", "..x", "z/..x/y"},
		}
	})
}
