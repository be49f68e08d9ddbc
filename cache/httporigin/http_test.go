package httporigin

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// site is a web server over a directory, as nginx is: it gives ETags, and serves ranges.
type site struct {
	root string
	*httptest.Server
}

func newSite(t *testing.T) *site {
	s := &site{root: t.TempDir()}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := filepath.Join(s.root, filepath.FromSlash(r.URL.Path))
		f, err := os.Open(name)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		defer func() { _ = f.Close() }() // opened for reading: nothing is lost
		data, err := os.ReadFile(name)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(data)))
		http.ServeContent(w, r, "", time.Unix(1e9, 0), f)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) put(t testing.TB, name string, data []byte) {
	t.Helper()
	path := filepath.Join(s.root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// index writes an index.json of all files.
func (s *site) index(t testing.TB) {
	t.Helper()
	type chunk struct {
		Filename string `json:"filename"`
	}
	chunks := []chunk{}
	err := filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(s.root, path); err == nil && d.Type().IsRegular() && name != "index.json" {
			chunks = append(chunks, chunk{filepath.ToSlash(name)})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]any{"chunks": chunks})
	if err != nil {
		t.Fatal(err)
	}
	s.put(t, "index.json", data)
}

func (s *site) open(t testing.TB, path string) *Site {
	t.Helper()
	o, err := Open(s.URL+"/"+path, fetch.Options{Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestHTTPKeepsTheContract(t *testing.T) {
	origintest.Run(t, func(t *testing.T) origintest.Fixture {
		s := newSite(t)
		return origintest.Fixture{
			Names: []string{"with space", "ümlaut", "a%2Fb", "semi;colon", "q?x=1", "hash#1", "plus+and&"},
			Put:   s.put,
			Remove: func(t testing.TB, name string) {
				if err := os.Remove(filepath.Join(s.root, name)); err != nil {
					t.Fatal(err)
				}
			},
			Open: func(t testing.TB) origintest.Subject { s.index(t); return s.open(t, "") },
		}
	})
}

func TestIndexes(t *testing.T) {
	s := newSite(t)
	for name, text := range map[string]string{
		"mds/index.json":                   `{"version": 2, "shards": [{"raw_data": {"basename": "shard.0"}, "zip_data": null}, {"raw_data": {"basename": "shard.1"}, "zip_data": {"basename": "shard.1.zstd"}}]}`,
		"llm/model.safetensors.index.json": `{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}`,
		"mds/shard.0":                      "0", "mds/shard.1.zstd": "11", "llm/m-1.safetensors": "1", "alone": "alone",
	} {
		s.put(t, name, []byte(text))
	}
	for dir, want := range map[string][]string{
		"mds/": {"index.json", "shard.0", "shard.1.zstd"}, "llm/": {"m-1.safetensors", "model.safetensors.index.json"}, "alone": {"alone"},
	} {
		o := s.open(t, dir)
		l, err := o.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, obj := range l.Objects {
			names = append(names, obj.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s lists %q, want %q", dir, names, want)
		}
		if wantProblems := strings.Count(dir, "llm"); len(l.Problems) != wantProblems { // m-2 is not there
			t.Errorf("%s has problems %v", dir, l.Problems)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
}

// serveIndex serves an index under the name of the first one that is looked for, or of the next one where it is none of that.
func serveIndex(text string) http.HandlerFunc {
	name := "/index.json"
	if strings.Contains(text, "files") {
		name = "/" + layout.ManifestName
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, name) {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Now(), strings.NewReader(text))
	}
}

// TestRefusals checks what List says of sites that it cannot use.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		path  string
		want  string
		is    error
	}{
		"no index":        {http.NotFound, "", "none of hbmfs-manifest.json, index.json, model.safetensors.index.json, model.safetensors, model_index.json is there", nil},
		"missing file":    {http.NotFound, "file", "404 Not Found: file does not exist", fs.ErrNotExist},
		"denied":          {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "file", "403", fs.ErrPermission},
		"broken":          {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "file", "502", fetch.ErrUnreachable},
		"no version":      {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "5") }, "file", "neither ETag nor Last-Modified", fs.ErrInvalid},
		"nameless chunks": {serveIndex(`{"chunks": [{}, {}]}`), "d/", "has no name", nil},
		"no sums":         {serveIndex(`{"files": [{}, {}]}`), "d/", "sha256", nil},
		"no list":         {serveIndex(`{"chunks": 3}`), "d/", "are no list", nil},
		"no JSON":         {serveIndex(`{"chunks": [}`), "d/", "no JSON", nil},
		"encoded":         {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "br") }, "file", "encoding", fs.ErrInvalid},
		"long version": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", strings.Repeat("v", 2000))
			w.Header().Set("Content-Length", "5")
		}, "file", "2000 bytes", fs.ErrInvalid},
		"escaping names": {func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/index.json") {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("ETag", `"1"`)
			http.ServeContent(w, r, "", time.Now(), strings.NewReader(`{"chunks": [{"filename": "../../etc/passwd"}]}`))
		}, "d/", "no path below it", nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.serve)
			defer server.Close()
			o, err := Open(server.URL+"/"+c.path, fetch.Options{Patience: 100 * time.Millisecond, Stall: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = o.Close() }() // only idle connections
			if _, err = o.List(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || (c.is != nil && !errors.Is(err, c.is)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	for _, bad := range []string{"ftp://h/x", "http:///x", "http://user:secret@h/x", "http://user:a/secret@h/x", "http://h:b/x?sig=secret", "http://h/x#?sig=secret", "://"} {
		if _, err := Open(bad, fetch.Options{}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q): %v", bad, err)
		}
	}
}

// TestServersThatLie answer a range with something else. No byte of it is taken.
func TestServersThatLie(t *testing.T) {
	data := origintest.Data(10_000, 1)
	for name, lie := range map[string]http.HandlerFunc{
		"no ranges": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) },
		"other range": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-99/10000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[:100])
		},
		"encoded": func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Accept-Encoding"); got != "identity" {
				t.Errorf("the encoding %q was asked for", got)
			}
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Range", "bytes 50-149/10000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[:100])
		},
		"too many bytes": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Content-Range", "bytes 50-149/10000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[:101])
		},
		"a circle": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
		"other version": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"2"`)
			w.Header().Set("Content-Range", "bytes 50-149/10000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[:100])
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(lie)
			defer server.Close()
			o, err := Open(server.URL+"/", fetch.Options{Patience: 100 * time.Millisecond, Stall: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = o.Close() }() // only idle connections
			obj := &layout.Object{Name: "shard", Size: 10_000, Version: `"1"`, Origin: o}
			if n, err := obj.ReadAt(t.Context(), make([]byte, 100), 50); n != 0 || err == nil {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
	}
}

// TestServersWithoutRanges has the listing fail where every read would.
func TestServersWithoutRanges(t *testing.T) {
	for size, want := range map[int]error{0: nil, 1: nil, 100_000: fetch.ErrNoRanges} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // as Python's http.server
			w.Header().Set("Last-Modified", "Thu, 01 Jan 1970 00:00:01 GMT")
			w.Header().Set("Content-Length", fmt.Sprint(size))
			if r.Method == http.MethodGet {
				_, _ = w.Write(make([]byte, size)) // the client may be gone
			}
		}))
		o, err := Open(s.URL+"/train.bin", fetch.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.List(t.Context()); !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), "nginx") {
			t.Errorf("a file of %d bytes: %v, want %v", size, err, want)
		}
		s.Close()
	}
}
