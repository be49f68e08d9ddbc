// Package oci is an OCI registry for tests: that of go-containerregistry, with logins, tokens that end, and a storage on another port that
// blobs are redirected to, by addresses that are signed and expire.
package oci

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// Registry is a server of repositories. Set changes its fields.
type Registry struct {
	*httptest.Server
	Storage *httptest.Server // has the bytes of blobs, where Redirects is set

	mu       sync.Mutex
	inner    http.Handler
	tokens   map[string]int // requests that a token is still good for
	signed   map[string]bool
	given    int // tokens and signatures
	requests []Request

	Login     string // USER:PASSWORD that it wants; "" for none
	Basic     bool   // it takes the login itself; else tokens, which its /token gives
	Uses      int    // requests that a token is good for; 0 for any number
	Redirects bool
	Answer    func(w http.ResponseWriter, r *http.Request) bool // answers a request in place of the registry or its storage
}

// Request is one that was answered.
type Request struct {
	Storage       bool // else the registry's own
	Method, Path  string
	Query         string
	Authorization string
	Header        http.Header
}

// New starts a registry, which ends with the test.
func New(t testing.TB) *Registry {
	r := &Registry{tokens: map[string]int{}, signed: map[string]bool{}}
	r.inner = registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.serve(w, q, false) }))
	r.Storage = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.serve(w, q, true) }))
	t.Cleanup(func() {
		for _, s := range []*httptest.Server{r.Server, r.Storage} {
			s.CloseClientConnections()
			s.Close()
		}
	})
	return r
}

// Set changes fields while requests come.
func (r *Registry) Set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// Expire has the storage refuse the addresses that were given out.
func (r *Registry) Expire() { r.Set(func() { clear(r.signed) }) }

// Revoke has the registry refuse the tokens that were given out.
func (r *Registry) Revoke() { r.Set(func() { clear(r.tokens) }) }

// TakeOnly has the registry want a login, and refuse all that it gave out for another one.
func (r *Registry) TakeOnly(login string) {
	r.Set(func() {
		if r.Login != login {
			r.Login = login
			clear(r.tokens)
			clear(r.signed)
		}
	})
}

// Requests are those that were answered.
func (r *Registry) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// Host is HOST:PORT of the registry.
func (r *Registry) Host() string { return strings.TrimPrefix(r.URL, "http://") }

// Source is the source of a repository, as repo:tag.
func (r *Registry) Source(reference string) string { return "oci://" + r.Host() + "/" + reference }

func (r *Registry) serve(w http.ResponseWriter, q *http.Request, storage bool) {
	r.mu.Lock()
	r.requests = append(r.requests, Request{storage, q.Method, q.URL.Path, q.URL.RawQuery, q.Header.Get("Authorization"), q.Header.Clone()})
	answer := r.Answer
	r.mu.Unlock()
	switch {
	case answer != nil && answer(w, q):
	case storage:
		r.store(w, q)
	case q.URL.Path == "/token":
		r.token(w, q)
	case !r.allows(q):
		r.refuse(w)
	case r.redirects(q):
		r.mu.Lock()
		r.given++
		sign := fmt.Sprintf("sign-secret-%d", r.given)
		r.signed[sign] = true
		r.mu.Unlock()
		http.Redirect(w, q, r.Storage.URL+q.URL.Path+"?sign="+sign, http.StatusTemporaryRedirect)
	default:
		r.inner.ServeHTTP(w, q)
	}
}

func (r *Registry) redirects(q *http.Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Redirects && q.Method == http.MethodGet && strings.Contains(q.URL.Path, "/blobs/")
}

// store answers for a blob by its signed address.
func (r *Registry) store(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	good := r.signed[q.URL.Query().Get("sign")]
	r.mu.Unlock()
	if !good || q.Header.Get("Authorization") != "" { // as S3 does with two kinds of rights
		w.WriteHeader(http.StatusForbidden)
		return
	}
	r.inner.ServeHTTP(w, q)
}

// token exchanges a login for a token.
func (r *Registry) token(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	user, password, _ := q.BasicAuth()
	if user+":"+password != r.Login {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"incorrect username or password"}]}`)
		return
	}
	r.given++
	token := fmt.Sprintf("token-secret-%d", r.given)
	r.tokens[token] = r.Uses
	if r.Uses == 0 {
		r.tokens[token] = 1 << 30
	}
	fmt.Fprintf(w, `{"token":%q,"expires_in":300}`, token)
}

// allows judges the login or token of a request.
func (r *Registry) allows(q *http.Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Login == "" {
		return true
	}
	if user, password, ok := q.BasicAuth(); r.Basic {
		return ok && user+":"+password == r.Login
	}
	token, _ := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer ")
	if r.tokens[token] == 0 {
		return false
	}
	r.tokens[token]--
	return true
}

func (r *Registry) refuse(w http.ResponseWriter) {
	challenge := fmt.Sprintf(`Bearer realm="%s/token",service="registry"`, r.URL)
	r.mu.Lock()
	if r.Basic {
		challenge = `Basic realm="registry"`
	}
	r.mu.Unlock()
	w.Header().Set("Www-Authenticate", challenge)
	w.WriteHeader(http.StatusUnauthorized)
	fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
}

// Descriptor names a blob or a manifest.
type Descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    map[string]string `json:"platform,omitempty"`
}

// Layers of an artifact or image, and manifests of an index.
const (
	Manifest    = "application/vnd.oci.image.manifest.v1+json"
	Index       = "application/vnd.oci.image.index.v1+json"
	ImageConfig = "application/vnd.oci.image.config.v1+json"
	ImageTar    = "application/vnd.oci.image.layer.v1.tar"
	ModelConfig = "application/vnd.cncf.model.config.v1+json"
	ModelRaw    = "application/vnd.cncf.model.weight.v1.raw"
	ModelTar    = "application/vnd.cncf.model.weight.v1.tar"
	Title       = "org.opencontainers.image.title"
	FilePath    = "org.cncf.model.filepath"
)

// DigestOf is the digest of a blob.
func DigestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// put has the registry take something, past logins.
func (r *Registry) put(t testing.TB, method, path, media string, data []byte) {
	t.Helper()
	q := httptest.NewRequest(method, path, bytes.NewReader(data))
	q.Header.Set("Content-Type", media)
	w := httptest.NewRecorder()
	r.inner.ServeHTTP(w, q)
	if w.Code != http.StatusCreated {
		t.Errorf("%s %s: %d: %s", method, path, w.Code, w.Body)
	}
}

// Blob uploads a blob. annotations are KEY, VALUE and so on.
func (r *Registry) Blob(t testing.TB, repo, media string, data []byte, annotations ...string) Descriptor {
	t.Helper()
	d := Descriptor{MediaType: media, Digest: DigestOf(data), Size: int64(len(data))}
	for i := 0; i < len(annotations); i += 2 {
		if d.Annotations == nil {
			d.Annotations = map[string]string{}
		}
		d.Annotations[annotations[i]] = annotations[i+1]
	}
	r.put(t, http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+d.Digest, "application/octet-stream", data)
	return d
}

// Put uploads a document as a manifest or index, under a tag.
func (r *Registry) Put(t testing.TB, repo, tag, media string, document any) Descriptor {
	t.Helper()
	text, ok := document.([]byte)
	if !ok {
		var err error
		text, err = json.Marshal(document)
		blackbox.Must(t, err)
	}
	r.put(t, http.MethodPut, "/v2/"+repo+"/manifests/"+tag, media, text)
	return Descriptor{MediaType: media, Digest: DigestOf(text), Size: int64(len(text))}
}

// Push uploads a manifest of layers under a tag. config is the media type of its config.
func (r *Registry) Push(t testing.TB, repo, tag, config string, layers ...Descriptor) Descriptor {
	t.Helper()
	return r.Put(t, repo, tag, Manifest, map[string]any{
		"schemaVersion": 2, "mediaType": Manifest, "config": r.Blob(t, repo, config, []byte("{}")), "layers": layers,
		"annotations": map[string]string{"org.opencontainers.image.created": "2026-01-02T03:04:05Z"},
	})
}

// PushIndex uploads an index under a tag.
func (r *Registry) PushIndex(t testing.TB, repo, tag string, manifests ...Descriptor) Descriptor {
	t.Helper()
	return r.Put(t, repo, tag, Index, map[string]any{"schemaVersion": 2, "mediaType": Index, "manifests": manifests})
}

// For says that a manifest is for a platform, as OS/ARCHITECTURE.
func (d Descriptor) For(platform string) Descriptor {
	system, architecture, _ := strings.Cut(platform, "/")
	d.Platform = map[string]string{"os": system, "architecture": architecture}
	return d
}

// Tar makes an archive of headers, each followed by its bytes.
func Tar(t testing.TB, members ...Member) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range members {
		h := tar.Header{Name: m.Name, Mode: 0o644, Size: int64(len(m.Data)), ModTime: time.Unix(1_700_000_000, 0), Typeflag: m.Type, Linkname: m.Link, Format: tar.FormatPAX}
		blackbox.Must(t, w.WriteHeader(&h))
		_, err := w.Write(m.Data)
		blackbox.Must(t, err)
	}
	blackbox.Must(t, w.Close())
	return out.Bytes()
}

// Member is one of an archive. Type is that of [tar.Header], 0 for a regular file.
type Member struct {
	Name string
	Data []byte
	Type byte
	Link string
}
