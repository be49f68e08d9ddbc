// Package hub is a small Hugging Face Hub for tests. It answers as the Hub's API does to huggingface_hub: pages of files, revisions,
// and files that it gives itself or redirects to a storage on another port, by addresses that are signed and expire.
package hub

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// Hub is a server of repositories. Its URL is HF_ENDPOINT. Fields are set before the first request, or under Set.
type Hub struct {
	*httptest.Server
	Storage *httptest.Server // has the bytes of files in LFS

	mu       sync.Mutex
	repos    map[string]*Repo
	signed   map[string]bool // signatures that the storage takes
	requests []Request

	PageSize int                                               // files in a page
	Token    string                                            // that gated and private repositories want
	Answer   func(w http.ResponseWriter, r *http.Request) bool // answers a request in place of the Hub or its storage
}

// Request is one that came.
type Request struct {
	Storage bool // else the Hub's own
	Method  string
	Path    string
	Query   string
	Token   string // of its Authorization
	Header  http.Header
}

// Repo is a repository, and each of its commits.
type Repo struct {
	Gated, Private bool

	hub     *Hub
	name    string // as models/ORG/NAME
	commits []string
	trees   map[string]map[string]*file // by commit
	refs    map[string]string
}

type file struct {
	data        []byte
	lfs         bool
	git, sha256 string // hashes in hex
}

func newFile(data []byte) *file {
	sum, blob := sha256.Sum256(data), layout.VersionHash(layout.GitVersion+strings.Repeat("0", 40), int64(len(data)))
	blob.Write(data)
	return &file{data, len(data) >= LFS, hex.EncodeToString(blob.Sum(nil)), hex.EncodeToString(sum[:])}
}

// LFS is the size from which a file is in LFS, bytes.
const LFS = 1000

// New starts a Hub that ends with the test.
func New(t testing.TB) *Hub {
	h := &Hub{repos: map[string]*Repo{}, signed: map[string]bool{}, PageSize: 3, Token: "hf_secretsecretsecret"}
	h.Server = httptest.NewUnstartedServer(h.recorded(false, h.serveHub))
	h.Storage = httptest.NewUnstartedServer(h.recorded(true, h.serveStorage))
	for _, s := range []*httptest.Server{h.Server, h.Storage} {
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // of what was broken on purpose
		s.Start()
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	}
	return h
}

// Repo returns a repository, models/ORG/NAME, models/NAME or datasets/ORG/NAME, and makes it where it is missing.
func (h *Hub) Repo(name string) *Repo {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.repos[name]
	if r == nil {
		r = &Repo{hub: h, name: name, trees: map[string]map[string]*file{}, refs: map[string]string{}}
		h.repos[name] = r
	}
	return r
}

// Set changes the Hub between requests.
func (h *Hub) Set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// Requests are those that came until now.
func (h *Hub) Requests() []Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// Expire has the storage refuse all addresses that were given out.
func (h *Hub) Expire() { h.Set(func() { clear(h.signed) }) }

// Source is the address of a repository.
func (r *Repo) Source() string { return "hf://" + r.name + "?endpoint=" + r.hub.URL }

// Commit makes a commit of the main branch: the files are changed as told, nil to remove one. It returns the commit.
func (r *Repo) Commit(files map[string][]byte) string {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	tree := maps.Clone(r.trees[r.refs["main"]])
	if tree == nil {
		tree = map[string]*file{}
	}
	for name, data := range files {
		tree[name] = newFile(data)
		if data == nil {
			delete(tree, name)
		}
	}
	sum := sha1.Sum([]byte(fmt.Sprint(r.name, len(r.commits))))
	commit := hex.EncodeToString(sum[:])
	r.commits, r.trees[commit], r.refs["main"] = append(r.commits, commit), tree, commit
	return commit
}

// Branch points a ref at a commit.
func (r *Repo) Branch(ref, commit string) { r.hub.Set(func() { r.refs[ref] = commit }) }

// recorded notes a request before it is answered. So a test that has the answer finds the request.
func (h *Hub) recorded(storage bool, serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var answer func(http.ResponseWriter, *http.Request) bool
		h.Set(func() {
			h.requests = append(h.requests, Request{storage, r.Method, r.URL.EscapedPath(), r.URL.RawQuery, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), r.Header.Clone()})
			answer = h.Answer
		})
		if answer == nil || !answer(w, r) {
			serve(w, r)
		}
	}
}

// refuse answers as the Hub does.
func refuse(w http.ResponseWriter, status int, code, text string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	w.Header().Set("X-Error-Message", text)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error": %q}`, text)
}

func (h *Hub) serveHub(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	parts := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	for i := range parts {
		parts[i], _ = url.PathUnescape(parts[i]) // r has parsed it
	}
	api := parts[0] == "api"
	if api {
		parts = parts[1:]
	} else if parts[0] != "datasets" && parts[0] != "spaces" {
		parts = append([]string{"models"}, parts...)
	}
	var repo *Repo
	n := min(2, len(parts)) // of a name of one part
	if repo = h.repos[strings.Join(parts[:n], "/")]; repo == nil && len(parts) >= 3 {
		n, repo = 3, h.repos[strings.Join(parts[:3], "/")]
	}
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case token != "" && token != h.Token:
		refuse(w, http.StatusUnauthorized, "", "Invalid credentials in Authorization header")
		return
	case repo == nil && token == "", repo != nil && repo.Private && token == "":
		refuse(w, http.StatusUnauthorized, "RepoNotFound", "Invalid username or password.")
		return
	case repo == nil:
		refuse(w, http.StatusNotFound, "RepoNotFound", "Repository not found")
		return
	case repo.Gated && token == "" && !api: // everybody may list it
		refuse(w, http.StatusUnauthorized, "GatedRepo", "Access to model "+repo.name+" is restricted. You must have access to it and be authenticated to access it. Please log in.")
		return
	}
	parts = append(parts[n:], "", "")
	what, revision, path := parts[0], parts[1], strings.Trim(strings.Join(parts[2:], "/"), "/")
	if what == "" {
		what, revision = "revision", "main"
	}
	commit := revision
	if of, ok := repo.refs[revision]; ok {
		commit = of
	}
	tree, ok := repo.trees[commit]
	switch {
	case !ok:
		refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+revision)
	case api && what == "revision":
		repo.info(w, commit)
	case api && what == "commits":
		writeJSON(w, []any{map[string]any{"id": commit, "title": "a commit", "date": "2026-01-02T03:04:05.000Z", "authors": []any{}, "message": ""}})
	case api && what == "tree":
		h.tree(w, r, tree, path)
	case !api && what == "resolve":
		h.resolve(w, r, commit, tree[path])
	default:
		refuse(w, http.StatusNotFound, "", "Sorry, we can't find the page you are looking for.")
	}
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(value) // they may have hung up
}

func (r *Repo) info(w http.ResponseWriter, commit string) {
	_, id, _ := strings.Cut(r.name, "/")
	siblings := []any{}
	for _, name := range slices.Sorted(maps.Keys(r.trees[commit])) {
		siblings = append(siblings, map[string]any{"rfilename": name})
	}
	writeJSON(w, map[string]any{
		"_id": "1", "id": id, "modelId": id, "author": "org", "sha": commit, "lastModified": "2026-01-02T03:04:05.000Z", "createdAt": "2026-01-02T03:04:05.000Z",
		"private": r.Private, "gated": r.Gated, "disabled": false, "downloads": 0, "likes": 0, "tags": []string{}, "siblings": siblings,
	})
}

// tree answers with a page of a directory's files and directories.
func (h *Hub) tree(w http.ResponseWriter, r *http.Request, tree map[string]*file, dir string) {
	if dir != "" {
		dir += "/"
	}
	var entries []map[string]any
	dirs := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		rest, below := strings.CutPrefix(name, dir)
		if !below {
			continue
		}
		parts := strings.Split(rest, "/")
		for i := 1; i < len(parts); i++ {
			sub := dir + strings.Join(parts[:i], "/")
			if !dirs[sub] && (i == 1 || r.URL.Query().Get("recursive") == "true") {
				entries = append(entries, map[string]any{"type": "directory", "oid": strings.Repeat("0", 40), "size": 0, "path": sub})
			}
			dirs[sub] = true
		}
		if len(parts) > 1 && r.URL.Query().Get("recursive") != "true" {
			continue
		}
		f := tree[name]
		e := map[string]any{"type": "file", "oid": f.git, "size": len(f.data), "path": name}
		if f.lfs {
			e["lfs"] = map[string]any{"oid": f.sha256, "size": len(f.data), "pointerSize": 130}
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 && dir != "" {
		refuse(w, http.StatusNotFound, "EntryNotFound", strings.TrimSuffix(dir, "/")+" does not exist")
		return
	}
	at, _ := strconv.Atoi(r.URL.Query().Get("cursor")) // 0 for the first page
	end := min(at+h.PageSize, len(entries))
	if end < len(entries) {
		next := *r.URL
		query := next.Query()
		query.Set("cursor", strconv.Itoa(end))
		next.Scheme, next.Host, next.RawQuery = "http", r.Host, query.Encode()
		w.Header().Set("Link", fmt.Sprintf(`<%s>; rel="next"`, next.String()))
	}
	writeJSON(w, append([]map[string]any{}, entries[at:end]...))
}

// resolve answers with a file of Git, or leads to the storage.
func (h *Hub) resolve(w http.ResponseWriter, r *http.Request, commit string, f *file) {
	w.Header().Set("X-Repo-Commit", commit)
	if f == nil {
		refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	if !f.lfs {
		w.Header().Set("ETag", `"`+f.git+`"`)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.data))
		return
	}
	signature := fmt.Sprint("signature-", len(h.requests), "-", len(h.signed))
	h.signed[signature] = true
	w.Header().Set("X-Linked-Size", strconv.Itoa(len(f.data)))
	w.Header().Set("X-Linked-Etag", `"`+f.sha256+`"`)
	w.Header().Set("Location", h.Storage.URL+"/lfs/"+f.sha256+"?X-Signature="+signature)
	w.WriteHeader(http.StatusFound)
}

// serveStorage gives a file to everybody who has an address that is signed.
func (h *Hub) serveStorage(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	ok := h.signed[r.URL.Query().Get("X-Signature")]
	var data []byte
	for _, repo := range h.repos {
		for _, tree := range repo.trees {
			for _, f := range tree {
				if f.lfs && strings.HasSuffix(r.URL.Path, "/"+f.sha256) {
					data = f.data
				}
			}
		}
	}
	h.mu.Unlock()
	switch {
	case !ok:
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
	case data == nil:
		http.NotFound(w, r)
	default:
		w.Header().Set("ETag", `"storage-has-tags-of-its-own"`)
		http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(data))
	}
}
