package gcs_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/gsorigin"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

func TestFakeGCSKeepsTheContract(t *testing.T) {
	needGCS(t)
	p := newProxy(t)
	origintest.Run(t, func(t *testing.T) origintest.Fixture {
		bucket := gcs.bucket(t)
		return origintest.Fixture{
			Names: []string{"with space", "ümlaut", "semi;colon", "q?x=1", "hash#1", "plus+and&", "100%", "star*(1)'!"},
			Open: func(t testing.TB) origintest.Subject {
				s, err := gsorigin.Parse(p.source(bucket, ""))
				must(t, err)
				o, err := gsorigin.Open(s, fetch.Options{})
				must(t, err)
				return o
			},
			Put:    func(t testing.TB, name string, data []byte) { gcs.put(t, bucket, name, data, "") },
			Remove: func(t testing.TB, name string) { gcs.remove(t, bucket, name) },
		}
	})
}

// TestMountedBucket mounts a dataset: files, views, objects that are stored in gzip, and what commands say of them.
func TestMountedBucket(t *testing.T) {
	needGCS(t)
	blackbox.NeedFUSE(t)
	bucket, p := gcs.bucket(t), newProxy(t)
	dir := mounttest.Golden(t, "npy")
	files := map[string][]byte{}
	must(t, fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files[name], err = os.ReadFile(filepath.Join(dir, name))
			gcs.put(t, bucket, "data/"+name, files[name], "")
		}
		return err
	}))
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write(bytes.Repeat([]byte("text "), 10_000))
	must(t, errors.Join(err, z.Close()))
	gcs.put(t, bucket, "data/notes.txt.gz", zipped.Bytes(), "&contentEncoding=gzip")
	files["notes.txt.gz"] = zipped.Bytes()
	source, cached := p.source(bucket+"/data", ""), suite.NewDir(t)
	m := mount(t, source, "--cache-dir", cached, "--cache-segment=1MiB")
	for name, data := range files {
		if err := mounttest.CompareFile(m.Path(name), data); err != nil {
			t.Error(err)
		}
	}
	if views, err := os.ReadDir(m.Path(".hbmfs", "views")); err != nil || len(views) == 0 {
		t.Errorf("%d views, %v", len(views), err)
	}
	if got := m.Status(t).Source; got != "gs://"+bucket+"/data?endpoint="+p.URL {
		t.Errorf("the source in status is %q", got)
	}
	for _, args := range [][]string{{"ls", source}, {"inspect", "--verify", source}, {"cache", "verify", cached}, {"inspect", p.source(bucket+"/data/notes.txt.gz", "")}} {
		if out, err := said(t, args...); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// TestReplacedUnderAMount replaces and removes objects that a mount shows.
func TestReplacedUnderAMount(t *testing.T) {
	needGCS(t)
	blackbox.NeedFUSE(t)
	bucket, p := gcs.bucket(t), newProxy(t)
	for _, name := range []string{"replaced", "removed", "kept"} {
		gcs.put(t, bucket, name, origintest.Data(1<<20, 1), "")
	}
	m := mount(t, p.source(bucket, ""))
	gcs.put(t, bucket, "replaced", origintest.Data(1<<20, 2), "")
	gcs.remove(t, bucket, "removed")
	for name, want := range map[string]error{"replaced": syscall.ESTALE, "removed": syscall.ESTALE, "kept": nil} {
		if _, err := os.ReadFile(m.Path(name)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	t.Logf("log:\n%s", m.LogText(t))
}

// TestWrongChecksum lists a checksum that the bytes have not. Commands that verify say so, and a mount fetches the object again and refuses it then.
func TestWrongChecksum(t *testing.T) {
	needGCS(t)
	blackbox.NeedFUSE(t)
	bucket, p := gcs.bucket(t), newProxy(t)
	data := origintest.Data(3<<20, 1)
	gcs.put(t, bucket, "shard", data, "")
	var generation atomic.Value
	p.do(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("alt") == "media" { // an answer without a checksum
			w.Header().Set("X-Goog-Generation", r.URL.Query().Get("ifGenerationMatch"))
			from, to, _ := blackbox.ParseRange(r.Header.Get("Range"))
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(data)))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[from : to+1]) // they may have hung up
			return true
		}
		generation.CompareAndSwap(nil, "1700000000000001")
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "storage#objects", "items": []any{map[string]any{ // they may have hung up
			"name": "shard", "size": fmt.Sprint(len(data)), "generation": "1700000000000001", "crc32c": "AAAAAA==", "updated": "2026-01-01T00:00:00Z",
		}}})
		return true
	})
	cached := suite.NewDir(t)
	m := mount(t, p.source(bucket, ""), "--cache-dir", cached, "--cache-segment=1MiB")
	if got, err := os.ReadFile(m.Path("shard")); err == nil && !bytes.Equal(got, data) {
		t.Error("wrong bytes")
	}
	if !blackbox.Within(blackbox.Patience, func() bool {
		_, err := os.ReadFile(m.Path("shard")) // it is fetched again once
		return errors.Is(err, syscall.EIO) && m.Status(t).Cache.Mismatched == 2
	}) {
		t.Errorf("%+v: an object with another checksum is not refused", m.Status(t).Cache)
	}
	out, err := said(t, "inspect", "--verify", p.source(bucket, ""))
	for _, text := range []string{out, m.LogText(t)} {
		if err == nil || !strings.Contains(text, "crc32c") || !strings.Contains(text, "the source says 00000000") {
			t.Errorf("%v\n%s", err, text)
		}
	}
}

// oauth is a fake of Google's OAuth server. Its tokens count until the next one is given.
type oauth struct {
	*httptest.Server
	count atomic.Int64
}

func newOAuth(t testing.TB) *oauth {
	o := &oauth{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.FormValue("refresh_token") != "refresh-secret" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_grant","error_description":"Token has been expired or revoked."}`)
			return
		}
		fmt.Fprintf(w, `{"access_token":"token-secret-%d","token_type":"Bearer","expires_in":3600}`, o.count.Add(1))
	}))
	t.Cleanup(o.Close)
	return o
}

// use has hbmfs find a user's credentials.
func (o *oauth) use(t *testing.T, refresh string) {
	t.Helper()
	name := filepath.Join(suite.NewDir(t), "credentials.json")
	must(t, os.WriteFile(name, fmt.Appendf(nil, `{"type":"authorized_user","client_id":"c","client_secret":"client-secret","refresh_token":%q,"token_uri":%q}`, refresh, o.URL), 0o600))
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", name)
}

// guarded answers as a private bucket does to requests without the newest token. A token counts for so many requests.
func (o *oauth) guarded(requests int64) func(w http.ResponseWriter, r *http.Request) bool {
	var mu sync.Mutex
	var of, served int64 // the newest token, and the requests that it counted for
	return func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		given := r.Header.Get("Authorization")
		if newest := o.count.Load(); of != newest {
			of, served = newest, 0
		}
		if given == fmt.Sprintf("Bearer token-secret-%d", of) && served < requests {
			served++
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		said := "Anonymous caller does not have storage.objects.list access to the Google Cloud Storage bucket."
		if given != "" {
			said = "Invalid Credentials: " + given
		}
		fmt.Fprintf(w, `{"error":{"code":401,"message":%q,"errors":[{"reason":"required"}]}}`, said)
		return true
	}
}

// TestTokensEndInTheMiddle reads a file through a mount while the server takes back its tokens again and again.
func TestTokensEndInTheMiddle(t *testing.T) {
	needGCS(t)
	blackbox.NeedFUSE(t)
	bucket, p, o := gcs.bucket(t), newProxy(t), newOAuth(t)
	o.use(t, "refresh-secret")
	data := origintest.Data(16<<20, 1)
	gcs.put(t, bucket, "shard", data, "")
	p.do(o.guarded(4))
	m := mount(t, p.source(bucket, ""))
	if err := mounttest.CompareFile(m.Path("shard"), data); err != nil {
		t.Error(err)
	}
	if n := o.count.Load(); n < 3 {
		t.Errorf("%d tokens were given", n)
	}
}

// TestStorms has the server be busy for a while, as Google's API is.
func TestStorms(t *testing.T) {
	needGCS(t)
	blackbox.NeedFUSE(t)
	for status, retry := range map[int]string{429: "1", 503: ""} {
		bucket, p := gcs.bucket(t), newProxy(t)
		data := origintest.Data(2<<20, 1)
		gcs.put(t, bucket, "shard", data, "")
		m := mount(t, p.source(bucket, ""))
		var left atomic.Int64
		left.Store(4)
		p.do(func(w http.ResponseWriter, _ *http.Request) bool {
			if left.Add(-1) < 0 {
				return false
			}
			w.Header().Set("Retry-After", retry)
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error":{"code":%d,"message":"The rate of requests is too high."}}`, status)
			return true
		})
		if err := mounttest.CompareFile(m.Path("shard"), data); err != nil {
			t.Errorf("%d: %v", status, err)
		}
		want := fmt.Sprintf("the server answers %d %s: The rate of requests is too high.", status, http.StatusText(status))
		if log := m.LogText(t); !strings.Contains(log, want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
		if left.Load() >= 0 {
			t.Errorf("%d: %d answers were left", status, left.Load())
		}
	}
}

// TestRefusals wants an answer at once, and one that says what to do.
func TestRefusals(t *testing.T) {
	needGCS(t)
	bucket, p, o := gcs.bucket(t), newProxy(t), newOAuth(t)
	gcs.put(t, bucket, "shard", []byte("data"), "")
	refuse := func(status int, message string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error":{"code":%d,"message":%q}}`, status, message)
			return true
		}
	}
	honest := func(http.ResponseWriter, *http.Request) bool { return false }
	for name, c := range map[string]struct {
		path, refresh string
		answer        func(http.ResponseWriter, *http.Request) bool
		says          []string
	}{
		"missing bucket":      {"no-such-bucket", "", refuse(404, "The specified bucket does not exist."), []string{`bucket "no-such-bucket"`, "there is no such bucket"}},
		"missing prefix":      {bucket + "/nothing/here", "", honest, []string{"no object is there"}},
		"a name of no bucket": {"UPPER", "", honest, []string{"such names have a to z"}},
		"private, no login":   {bucket, "", o.guarded(1), []string{"401 Unauthorized", "no credentials were found", "gcloud auth application-default login"}},
		"private, no right":   {bucket, "refresh-secret", refuse(403, "c@x does not have storage.objects.list access."), []string{"403 Forbidden", "authorized_user", "roles/storage.objectViewer"}},
		"an ended login":      {bucket, "old", honest, []string{"invalid_grant: Token has been expired or revoked.", "gcloud auth application-default login"}},
		"the requester pays":  {bucket, "", refuse(400, "Bucket is a requester pays bucket but no user project provided."), []string{"?user_project=PROJECT"}},
		"a server that sends us elsewhere": {bucket, "refresh-secret", func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://elsewhere.test/", http.StatusFound)
			return true
		}, []string{"the server sends its clients elsewhere (302 Found"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.refresh != "" {
				o.use(t, c.refresh)
			}
			p.do(c.answer)
			out, err := said(t, "ls", p.source(c.path, ""))
			if err == nil {
				t.Errorf("it works:\n%s", out)
			}
			t.Logf("%s", out)
			for _, says := range c.says {
				if !strings.Contains(out, says) {
					t.Errorf("it does not say %q", says)
				}
			}
		})
	}
}
