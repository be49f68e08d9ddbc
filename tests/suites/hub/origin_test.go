package hub_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/hforigin"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox/hub"
)

func TestHubKeepsTheContract(t *testing.T) {
	origintest.Run(t, func(t *testing.T) origintest.Fixture {
		repo := hub.New(t).Repo("datasets/org/name")
		repo.Commit(map[string][]byte{".gitattributes": []byte("*.bin filter=lfs")})
		return origintest.Fixture{
			Keeps:  true,
			Names:  []string{"with space", "ümlaut", "semi;colon", "q?x=1", "hash#1", "plus+and&", "100%", "a%2Fb", "star*(1)'!"},
			Open:   func(t testing.TB) origintest.Subject { return open(t, repo.Source(), fetch.Options{}) },
			Put:    func(_ testing.TB, name string, data []byte) { repo.Commit(map[string][]byte{name: data}) },
			Remove: func(_ testing.TB, name string) { repo.Commit(map[string][]byte{name: nil}) },
		}
	})
}

// list lists a source, and gives its objects by name.
func list(t *testing.T, o *hforigin.Repo) (*cache.Listing, map[string]*layout.Object) {
	t.Helper()
	l, err := o.List(t.Context())
	must(t, err)
	objects := map[string]*layout.Object{}
	for _, obj := range l.Objects {
		objects[obj.Name] = obj
	}
	return l, objects
}

// wantBytes reads an object as a whole.
func wantBytes(t *testing.T, obj *layout.Object, want []byte) {
	t.Helper()
	buf := make([]byte, len(want))
	if n, err := obj.ReadAt(t.Context(), buf, 0); err != nil || !bytes.Equal(buf[:n], want) {
		t.Errorf("%s: %v, or other bytes", obj.Name, err)
	}
}

// TestSourcesOfTheHub lists all of a repository, directories, single files and other revisions of it.
func TestSourcesOfTheHub(t *testing.T) {
	h := hub.New(t)
	repo := h.Repo("models/org/name")
	first := repo.Commit(map[string][]byte{"config.json": []byte("{}"), "deep/er/a.bin": origintest.Data(5000, 1), "deep/b.bin": origintest.Data(10, 2)})
	repo.Commit(map[string][]byte{"config.json": nil, "new": []byte("new")})
	repo.Branch("refs/pr/1", first)
	repo.Branch("v/1", first)
	for source, want := range map[string]string{
		"hf://org/name":                           "deep/b.bin deep/er/a.bin new",
		"hf://models/org/name/":                   "deep/b.bin deep/er/a.bin new",
		"hf://org/name@" + first:                  "config.json deep/b.bin deep/er/a.bin",
		"hf://org/name@refs/pr/1":                 "config.json deep/b.bin deep/er/a.bin",
		"hf://org/name@v%2F1/deep":                "b.bin er/a.bin",
		"hf://org/name@refs/pr/1/deep/er":         "a.bin",
		"hf://org/name/deep/b.bin":                "b.bin",
		"hf://org/name@" + first + "/config.json": "config.json",
	} {
		o := open(t, source+"?endpoint="+h.URL, fetch.Options{})
		l, _ := list(t, o)
		var names []string
		for _, obj := range l.Objects {
			names = append(names, obj.Name)
			wantSome := make([]byte, 1)
			if _, err := obj.ReadAt(t.Context(), wantSome, 0); err != nil {
				t.Errorf("%s of %s: %v", obj.Name, source, err)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s lists %q, want %q", source, got, want)
		}
		must(t, o.Close())
	}
	for source, says := range map[string]string{
		"hf://org/none":          "org/none is not there, or it is private or gated, and there is no token: set HF_TOKEN, or run hf auth login",
		"hf://org/name@none":     `org/name has no revision "none"`,
		"hf://org/name/none":     `org/name has no "none" at this revision`,
		"hf://org/name/deep/non": `org/name has no "deep/non" at this revision`,
	} {
		o := open(t, source+"?endpoint="+h.URL, fetch.Options{})
		if _, err := o.List(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", source, err, says)
		}
		must(t, o.Close())
	}
}

// TestAddressesThatAreNone refuses what is no address of the Hub.
func TestAddressesThatAreNone(t *testing.T) {
	t.Parallel()
	for source, says := range map[string]string{
		"hf://":                         "want hf://ORG/NAME",
		"hf://datasets":                 "want hf://ORG/NAME",
		"hf://org/na me":                "want hf://ORG/NAME",
		"hf://../name":                  "want hf://ORG/NAME",
		"hf://org/name/../x":            "is no path",
		"hf://org/name/%2e%2e/x":        "is no path",
		"hf://org/name@../x":            "is no revision",
		"hf://org/name@a%00b":           "is no revision",
		"hf://org/name#x":               "%23",
		"hf://org/name?token=hf_secret": "there are anonymous and endpoint",
		"hf://org/name?endpoint=ftp://": "HF_ENDPOINT",
		"hf://org/name?anonymous=maybe": "want true or false",
		"hf://hf_secret:x@org/name":     "want hf://ORG/NAME",
	} {
		if _, err := hforigin.Parse(source); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "token=hf_secret") {
			t.Errorf("%s: %v, want %q", source, err, says)
		}
	}
}

// TestTokens asks for a gated and a private repository: without a token, with a wrong one, by the variable and by a file that
// changes during the reads.
func TestTokens(t *testing.T) {
	h := hub.New(t)
	gated, private := h.Repo("models/org/gated"), h.Repo("datasets/org/private")
	gated.Gated, private.Private = true, true
	data := origintest.Data(5000, 1)
	for _, r := range []*hub.Repo{gated, private} {
		r.Commit(map[string][]byte{"a.bin": data, "b.json": []byte("{}")})
	}
	refused := func(source string, says ...string) {
		t.Helper()
		o := open(t, source, fetch.Options{})
		defer func() { must(t, o.Close()) }()
		_, err := o.List(t.Context())
		for _, text := range says {
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "hf_") {
				t.Errorf("%s: %v, want %q", source, err, text)
			}
		}
	}
	refused(gated.Source(), "org/gated is gated, and there is no token: set HF_TOKEN, or run hf auth login. Ask for access at "+h.URL+"/org/gated")
	refused(private.Source(), "datasets/org/private is not there, or it is private or gated, and there is no token: set HF_TOKEN")
	t.Setenv("HF_TOKEN", "hf_wrong")
	refused(gated.Source(), "the Hub refuses the token")
	refused(gated.Source()+"&anonymous=true", "org/gated is gated, and it is asked without a token")
	t.Setenv("HF_TOKEN", "hf_new\nline")
	refused(gated.Source())
	t.Setenv("HF_TOKEN", h.Token)
	for _, r := range []*hub.Repo{gated, private} {
		o := open(t, r.Source(), fetch.Options{})
		_, objects := list(t, o)
		wantBytes(t, objects["a.bin"], data)
		wantBytes(t, objects["b.json"], []byte("{}"))
		must(t, o.Close())
	}
	t.Setenv("HF_TOKEN", "")
	file := filepath.Join(t.TempDir(), "token")
	t.Setenv("HF_TOKEN_PATH", file)
	must(t, os.WriteFile(file, []byte(h.Token+"\n"), 0o600))
	o := open(t, gated.Source(), fetch.Options{})
	_, objects := list(t, o)
	const renewed = "hf_renewedrenewed"
	must(t, os.WriteFile(file, []byte(renewed+"\n"), 0o600))
	h.Set(func() { h.Token = renewed })
	h.Expire()
	wantBytes(t, objects["a.bin"], data)
	wantBytes(t, objects["b.json"], []byte("{}"))
	must(t, o.Close())
	for _, r := range h.Requests() {
		if r.Storage && (r.Token != "" || r.Header.Get("Referer") != "" || r.Header.Get("Cookie") != "") {
			t.Errorf("the storage sees the token: %+v", r)
		}
	}
}

// TestAddressesExpire reads on when the storage refuses addresses that it gave out, and asks the Hub only then.
func TestAddressesExpire(t *testing.T) {
	t.Parallel()
	h := hub.New(t)
	repo, data := h.Repo("datasets/org/name"), origintest.Data(100_000, 1)
	repo.Commit(map[string][]byte{"a.bin": data})
	o := open(t, repo.Source(), fetch.Options{})
	defer func() { must(t, o.Close()) }()
	_, objects := list(t, o)
	resolved := func() (n int) {
		for _, r := range h.Requests() {
			if !r.Storage && strings.Contains(r.Path, "/resolve/") {
				n++
			}
		}
		return n
	}
	for i := range 20 {
		if i%5 == 0 {
			h.Expire()
		}
		buf := make([]byte, 5000)
		if _, err := objects["a.bin"].ReadAt(t.Context(), buf, int64(i)*5000); err != nil || !bytes.Equal(buf, data[i*5000:(i+1)*5000]) {
			t.Errorf("read %d: %v, or other bytes", i, err)
		}
	}
	if n := resolved(); n != 1+4 { // one when it was listed
		t.Errorf("the Hub was asked %d times for an address, want 5", n)
	}
}

// TestStormsAtTheHub has the Hub answer 429 and 503 again and again. While it wants no requests it gets none, and all is read.
func TestStormsAtTheHub(t *testing.T) {
	t.Parallel()
	for status, header := range map[int][2]string{429: {"Retry-After", "1"}, 503: {"Retry-After", "1"}, 430: {"RateLimit", `"resolvers";r=0;t=1`}} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			h := hub.New(t)
			repo, data := h.Repo("datasets/org/name"), origintest.Data(5000, 1)
			repo.Commit(map[string][]byte{"a.bin": data, "b.json": []byte("{}")})
			var asked, refused, early atomic.Int64
			var until atomic.Int64
			h.Set(func() {
				h.Answer = func(w http.ResponseWriter, r *http.Request) bool {
					if strings.HasPrefix(r.URL.Path, "/lfs/") {
						return false
					}
					if time.Now().UnixNano() < until.Load() {
						early.Add(1)
					}
					if asked.Add(1)%2 == 0 {
						return false
					}
					refused.Add(1)
					until.Store(time.Now().Add(time.Second).UnixNano())
					w.Header().Set(header[0], header[1])
					w.WriteHeader(min(status, 429)) // 430 stands for a 429 of the newer header
					return true
				}
			})
			if status == 503 {
				h.Set(func() {
					inner := h.Answer
					h.Answer = func(w http.ResponseWriter, r *http.Request) bool { return inner(unavailable{w}, r) }
				})
			}
			o := open(t, repo.Source(), fetch.Options{})
			_, objects := list(t, o)
			wantBytes(t, objects["a.bin"], data)
			must(t, o.Close())
			if refused.Load() < 4 || early.Load() > 0 {
				t.Errorf("%d: %d requests were refused, and %d came although the Hub wanted none", status, refused.Load(), early.Load())
			}
		})
	}
}

// unavailable answers 503 in place of 429.
type unavailable struct{ http.ResponseWriter }

func (u unavailable) WriteHeader(status int) {
	if status == http.StatusTooManyRequests {
		status = http.StatusServiceUnavailable
	}
	u.ResponseWriter.WriteHeader(status)
}

// TestBusyHubEnds has the Hub refuse for longer than patience: the reader hears of it in its time.
func TestBusyHubEnds(t *testing.T) {
	t.Parallel()
	h := hub.New(t)
	repo := h.Repo("datasets/org/name")
	repo.Commit(map[string][]byte{"a.bin": origintest.Data(5000, 1)})
	h.Set(func() {
		h.Answer = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
	})
	o := open(t, repo.Source(), fetch.Options{Patience: time.Second})
	defer func() { must(t, o.Close()) }()
	if _, err := o.List(t.Context()); !errors.Is(err, fetch.ErrUnreachable) || !strings.Contains(fmt.Sprint(err), "the Hub wants fewer requests (429)") {
		t.Errorf("%v", err)
	}
	if n := len(h.Requests()); n != 1 {
		t.Errorf("the Hub was asked %d times, and had said how long it wants no requests", n)
	}
}

// TestRedirects follows a repository that has another name, and refuses to follow a Hub elsewhere with the token.
func TestRedirects(t *testing.T) {
	h, other := hub.New(t), hub.New(t)
	t.Setenv("HF_TOKEN", h.Token)
	data := origintest.Data(5000, 1)
	for _, at := range []*hub.Hub{h, other} {
		at.Repo("models/org/name").Commit(map[string][]byte{"a.bin": data, "b.json": []byte("{}")})
	}
	h.Set(func() {
		h.Answer = func(w http.ResponseWriter, r *http.Request) bool {
			if renamed := strings.Replace(r.URL.Path, "/org/old", "/org/name", 1); renamed != r.URL.Path {
				http.Redirect(w, r, renamed+"?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
				return true
			}
			return false
		}
	})
	o := open(t, "hf://org/old?endpoint="+h.URL, fetch.Options{})
	_, objects := list(t, o)
	wantBytes(t, objects["a.bin"], data)
	wantBytes(t, objects["b.json"], []byte("{}"))
	h.Set(func() {
		h.Answer = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/resolve/") {
				w.Header().Set("X-Linked-Etag", strings.TrimPrefix(objects["b.json"].Version, "git:"))
			}
			http.Redirect(w, r, other.URL+strings.Replace(r.URL.RequestURI(), "/org/old", "/org/name", 1), http.StatusFound)
			return true
		}
	})
	if _, err := o.List(t.Context()); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "redirects a question about files to another server") {
		t.Errorf("%v", err)
	}
	wantBytes(t, objects["b.json"], []byte("{}")) // another server may have it, and sees no token
	must(t, o.Close())
	if len(other.Requests()) == 0 {
		t.Error("no redirect of a file was followed")
	}
	for _, r := range other.Requests() {
		if r.Token != "" {
			t.Errorf("another server sees the token: %+v", r)
		}
	}
}
