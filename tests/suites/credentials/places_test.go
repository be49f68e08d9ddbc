package credentials_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox/hub"
)

// places are all origins. To add one, write a function like newS3, which makes its place on a server, and name it here.
func places() map[string]func(t *testing.T, s *server) *place {
	return map[string]func(*testing.T, *server) *place{"s3": newS3, "gs": newGS, "hf": newHub, "http": newHTTP}
}

// place is an origin whose server is a fake. Its credentials are in files, which the environment of the test names.
type place struct {
	source  string   // as a user writes it
	secrets []string // texts that a secret has: those of each generation, and of what servers give out
	typed   bool     // the source is itself a secret, and users see it where they typed it: in arguments of processes
	// use puts the credentials of a generation, from 1, where the origin finds them.
	use func(generation int64)
	// valid tells whether a request has the credentials of a generation.
	valid func(r *http.Request, generation int64) bool
	// refuse answers with an error as the origin's servers write it.
	refuse func(w http.ResponseWriter, status int, text string)
	// serve answers a request that is allowed.
	serve func(w http.ResponseWriter, r *http.Request)
}

// server is the server of a place. It takes the credentials of the last generation alone.
type server struct {
	*httptest.Server
	elsewhere *httptest.Server // where it sends clients
	place     *place
	files     map[string][]byte

	generation atomic.Int64
	faulty     atomic.Bool // broken.bin is refused with all that the server heard, and moved.bin is elsewhere

	mu    sync.Mutex
	heard strings.Builder // elsewhere
}

// size is the size of each file, bytes.
const size = 3 << 20

// newServer starts the server of a place, and uses its first credentials.
func newServer(t *testing.T, kind string) *server {
	t.Helper()
	s := &server{files: map[string][]byte{}}
	for i, name := range []string{"broken.bin", "first.bin", "fourth.bin", "moved.bin", "second.bin", "third.bin"} {
		s.files[name] = origintest.Data(size, byte(i))
	}
	s.Server = httptest.NewUnstartedServer(s)
	s.elsewhere = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.heard.WriteString(told(r))
		http.Error(w, told(r), http.StatusTeapot)
	}))
	for _, one := range []*httptest.Server{s.Server, s.elsewhere} {
		one.Config.ErrorLog = log.New(io.Discard, "", 0) // of what was broken on purpose
		one.Start()
		t.Cleanup(func() { one.CloseClientConnections(); one.Close() })
	}
	s.place = places()[kind](t, s)
	s.renew()
	return s
}

// renew replaces the credentials. The server refuses the old ones from now on.
func (s *server) renew() { s.place.use(s.generation.Add(1)) }

// told is all that a request says.
func told(r *http.Request) string {
	var text strings.Builder
	_ = r.Header.Write(&text) // a Builder takes all
	return r.URL.String() + " " + strings.Join(strings.Fields(text.String()), " ")
}

// asksFor tells whether a request is for the bytes of a file, by its name, or by its hash as the storage of the Hub has it.
func (s *server) asksFor(r *http.Request, name string) bool {
	return r.Header.Get("Range") != "" && (strings.Contains(r.URL.Path, name) || strings.Contains(r.URL.Path, hash(s.files[name])))
}

func hash(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// ServeHTTP implements [http.Handler].
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.answers(w, r) {
		s.place.serve(w, r)
	}
}

// answers refuses and redirects.
func (s *server) answers(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case !s.place.valid(r, s.generation.Load()):
		s.place.refuse(w, http.StatusUnauthorized, "Invalid credentials: "+told(r))
	case s.faulty.Load() && s.asksFor(r, "broken.bin"):
		s.place.refuse(w, http.StatusTeapot, "No tea for "+told(r))
	case s.faulty.Load() && s.asksFor(r, "moved.bin"):
		w.Header().Set("X-Linked-Etag", hash(s.files["moved.bin"])) // as the Hub does
		http.Redirect(w, r, s.elsewhere.URL+"/file", http.StatusFound)
	default:
		return false
	}
	return true
}

// file answers with a file whose version is in a header.
func (s *server) file(w http.ResponseWriter, r *http.Request, name, header, version string) {
	data, ok := s.files[name]
	if !ok {
		s.place.refuse(w, http.StatusNotFound, "nothing is there")
		return
	}
	w.Header().Set(header, version)
	http.ServeContent(w, r, "", time.Unix(1_700_000_000, 0), bytes.NewReader(data))
}

// write puts a text into a file of credentials at once.
func write(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.WriteFile(name+".new", []byte(text), 0o600))
	must(t, os.Rename(name+".new", name))
}

func newS3(t *testing.T, s *server) *place {
	name := filepath.Join(suite.NewDir(t), "credentials")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", name)
	t.Setenv("AWS_REGION", "us-east-1")
	token := func(g int64) string { return fmt.Sprintf("s3-token-%d-%s", g, strings.Repeat("aB3", 100)) } // as long as AWS's
	return &place{
		source: "s3://bucket?endpoint=" + s.URL, secrets: []string{"s3-secret-", "s3-token-", "Signature="},
		use: func(g int64) {
			write(t, name, fmt.Sprintf("[default]\naws_access_key_id = AKID%d\naws_secret_access_key = s3-secret-%d\naws_session_token = %s\n", g, g, token(g)))
		},
		valid: func(r *http.Request, g int64) bool {
			return strings.Contains(r.Header.Get("Authorization"), fmt.Sprintf("Credential=AKID%d/", g)) && r.Header.Get("X-Amz-Security-Token") == token(g)
		},
		refuse: func(w http.ResponseWriter, status int, text string) {
			w.Header().Set("Content-Type", "application/xml")
			code := "Teapot"
			if status == http.StatusUnauthorized {
				code, status = "ExpiredToken", http.StatusBadRequest
			}
			w.WriteHeader(status)
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message><![CDATA[%s]]></Message></Error>", code, text)
		},
		serve: func(w http.ResponseWriter, r *http.Request) {
			if name := strings.TrimPrefix(r.URL.Path, "/bucket/"); name != "" {
				s.file(w, r, name, "ETag", `"`+name+`"`)
				return
			}
			w.Header().Set("Content-Type", "application/xml")
			fmt.Fprint(w, "<ListBucketResult>")
			for name := range s.files {
				fmt.Fprintf(w, `<Contents><Key>%s</Key><Size>%d</Size><ETag>"%s"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>`, name, size, name)
			}
			fmt.Fprint(w, "</ListBucketResult>")
		},
	}
}

func newGS(t *testing.T, s *server) *place {
	name := filepath.Join(suite.NewDir(t), "credentials.json")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", name)
	p := &place{source: "gs://bucket?endpoint=" + s.URL, secrets: []string{"gs-refresh-", "gs-client-", "gs-token-"}}
	p.use = func(g int64) {
		write(t, name, fmt.Sprintf(`{"type": "authorized_user", "client_id": "c", "client_secret": "gs-client-%d", "refresh_token": "gs-refresh-%d", "token_uri": "%s/oauth"}`, g, g, s.URL))
	}
	p.valid = func(r *http.Request, g int64) bool {
		if r.URL.Path == "/oauth" {
			return r.FormValue("refresh_token") == fmt.Sprintf("gs-refresh-%d", g)
		}
		return r.Header.Get("Authorization") == fmt.Sprintf("Bearer gs-token-%d", g)
	}
	p.refuse = func(w http.ResponseWriter, status int, text string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": status, "message": text}}) // they may have hung up
	}
	const objects = "/storage/v1/b/bucket/o"
	p.serve = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/oauth":
			fmt.Fprintf(w, `{"access_token": "gs-token-%d", "token_type": "Bearer", "expires_in": 3600}`, s.generation.Load())
		case objects:
			var items []string
			for name := range s.files {
				items = append(items, fmt.Sprintf(`{"name": %q, "size": "%d", "generation": "1", "updated": "2026-01-01T00:00:00Z"}`, name, size))
			}
			fmt.Fprintf(w, `{"kind": "storage#objects", "items": [%s]}`, strings.Join(items, ","))
		default:
			s.file(w, r, strings.TrimPrefix(r.URL.Path, objects+"/"), "X-Goog-Generation", "1")
		}
	}
	return p
}

// newHub has a Hub, whose storage is another server, behind the place's server.
func newHub(t *testing.T, s *server) *place {
	name := filepath.Join(suite.NewDir(t), "token")
	t.Setenv("HF_TOKEN_PATH", name)
	h := hub.New(t)
	repo := h.Repo("models/org/gated")
	repo.Gated = true
	repo.Commit(s.files)
	p := &place{source: "hf://org/gated?endpoint=" + h.URL, secrets: []string{"hf_secret", "signature-"}}
	h.Set(func() { h.Answer = s.answers })
	storage := func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/lfs/") }
	p.use = func(g int64) {
		token := fmt.Sprintf("hf_secret%d", g)
		h.Set(func() { h.Token = token })
		write(t, name, token)
		h.Expire()
	}
	p.valid = func(r *http.Request, g int64) bool {
		return storage(r) == (r.Header.Get("Authorization") == "") && (storage(r) || r.Header.Get("Authorization") == fmt.Sprintf("Bearer hf_secret%d", g))
	}
	p.refuse = func(w http.ResponseWriter, status int, text string) {
		w.Header().Set("X-Error-Message", text)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text) // they may have hung up
	}
	return p
}

// newHTTP is a web server whose addresses are signed for good.
func newHTTP(_ *testing.T, s *server) *place {
	p := &place{source: s.URL + "/dir/?signature=url-secret", secrets: []string{"url-secret"}, typed: true}
	p.use = func(int64) {}
	p.valid = func(r *http.Request, _ int64) bool { return r.URL.Query().Get("signature") == "url-secret" }
	p.refuse = func(w http.ResponseWriter, status int, text string) { http.Error(w, text, status) }
	index := []string{}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		index = append(index, fmt.Sprintf(`{"filename": %q}`, name))
	}
	p.serve = func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/dir/")
		if name == "index.json" {
			w.Header().Set("ETag", `"index"`)
			http.ServeContent(w, r, "", time.Unix(1_700_000_000, 0), strings.NewReader(`{"chunks": [`+strings.Join(index, ",")+`]}`))
			return
		}
		s.file(w, r, name, "ETag", `"`+name+`"`)
	}
	return p
}
